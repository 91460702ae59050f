"""What the page's server needs of others: who calls it, and fresh figures of use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpu_device_plugin.core.contract.nodereport import NodeUse

ALL_NAMESPACES = ""
"""In place of a namespace: all of them, as in the Kubernetes API."""


class Caller(Protocol):
    """Somebody whose token is valid."""

    @property
    def user(self) -> str:
        """The user's name, for the page."""
        ...

    async def may_see(self, namespace: str) -> bool:
        """Return whether the caller may see the pods of a namespace, or of `ALL_NAMESPACES`.

        It is asked again and again for each namespace with GPUs, so answers are remembered for a while.

        Raises:
            ApiError: the API server did not say.
        """
        ...

    async def may_see_nodes(self) -> bool:
        """Return whether the caller may see nodes, and with them the GPUs.

        Raises:
            ApiError: the API server did not say.
        """
        ...


class Callers(Protocol):
    """Tells from a token who calls."""

    async def caller(self, token: str) -> Caller | None:
        """Return the caller; None: the token is not valid, or empty. Also asked now and then while a stream is open.

        Raises:
            ApiError: the API server did not say.
        """
        ...


@dataclass(frozen=True, slots=True)
class FiguresState:
    """Where the figures of use come from."""

    source: str
    """``agents``: read from agents now; ``nodes``: from the nodes' annotations, up to some minutes old; ``none``."""
    why: str = ""
    """Why not from agents, as a sentence without names of pods and nodes."""
    detail: str = ""
    """More of it, for callers who see everything."""


class Figures(Protocol):
    """Reads the use of nodes from their agents."""

    @property
    def state(self) -> FiguresState:
        """Where the figures come from at present."""
        ...

    async def follow(
        self,
        nodes: Callable[[], Collection[str]],
        deliver: Callable[[str, NodeUse | None], None],
        in_view: Callable[[], Collection[str]] = tuple,
    ) -> NoReturn:
        """Read the use of nodes again and again. Ends only by cancellation.

        Args:
            nodes: returns the names of the nodes whose use is wanted now; none while nobody looks.
            deliver: takes the use of a node; None: its agent's figures cannot be read any more.
            in_view: returns the names of those that come first, as far as they are among `nodes`.
        """
        ...
