"""The part of the cluster that one caller may see: nodes or none, and the pods of some namespaces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.web.ports import ALL_NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.programs.web.ports import Caller

_AT_ONCE = 16
"""Questions to the API server at a time."""


class Sight:
    """What one caller may see; it learns of namespaces as they come."""

    def __init__(self, caller: Caller) -> None:
        """Begin without rights; see `learn`."""
        self._caller = caller
        self._known: dict[str, bool] = {}
        self._nodes: bool | None = None

    def __repr__(self) -> str:
        return f"<Sight of {len(self._known)} namespaces>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sight) and (self._nodes, self._known) == (other._nodes, other._known)

    __hash__ = None  # type: ignore[assignment] # it changes

    @property
    def everything(self) -> bool:
        """Whether the pods of all namespaces may be seen."""
        return self._known.get(ALL_NAMESPACES, False)

    @property
    def learned(self) -> int:
        """Grows with what is known."""
        return len(self._known)

    @property
    def nodes(self) -> bool:
        """Whether nodes may be seen; false before `learn` has asked."""
        return bool(self._nodes)

    def may_see(self, namespace: str) -> bool:
        """Return whether the pods of a namespace may be seen; false before `learn` has asked about it."""
        return self.everything or (namespace != ALL_NAMESPACES and self._known.get(namespace, False))

    def still_granted(self, now: Sight) -> bool:
        """Return whether `now`, which may know fewer namespaces, takes nothing of this away."""
        if self.nodes and not now.nodes:
            return False
        return all(now.may_see(each) for each, allowed in self._known.items() if allowed and each in now._known)

    async def learn(self, namespaces: Iterable[str]) -> bool:
        """Ask about the namespaces that are not known yet; return whether any was unknown.

        Raises:
            ApiError: the API server did not say.
        """
        if self._nodes is None:
            self._nodes = await self._caller.may_see_nodes()
        if ALL_NAMESPACES not in self._known:
            self._known[ALL_NAMESPACES] = await self._caller.may_see(ALL_NAMESPACES)
        if self.everything:
            return False
        unknown = sorted({*namespaces} - self._known.keys())
        for first in range(0, len(unknown), _AT_ONCE):
            some = unknown[first : first + _AT_ONCE]
            allowed = await asyncio.gather(*(self._caller.may_see(each) for each in some))
            self._known.update(zip(some, allowed, strict=True))
        return bool(unknown)
