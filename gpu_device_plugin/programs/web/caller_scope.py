"""The part of the cluster that one caller may see: nodes or none, and the pods of some namespaces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.core.report.overview_document import redacted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from gpu_device_plugin.core.cluster.node_report import NodeView


ALL_NAMESPACES = ""
"""In place of a namespace: all of them, as in the Kubernetes API."""


class Caller(Protocol):
    """Somebody whose token is valid.

    Both questions are asked again and again, so answers are remembered for a while. They raise ApiError if the API
    server did not say.
    """

    @property
    def user(self) -> str:
        """The user's name, for the page."""
        ...

    async def may_see(self, namespace: str) -> bool:
        """Return whether the caller may see the pods of a namespace, or of `ALL_NAMESPACES`."""
        ...

    async def may_see_nodes(self) -> bool:
        """Return whether the caller may see nodes, and with them the GPUs."""
        ...


class Callers(Protocol):
    """Tells from a token who calls."""

    async def caller(self, token: str) -> Caller | None:
        """Return the caller; None: the token is not valid, or empty. Also asked now and then while a stream is open.

        Raises:
            ApiError: the API server did not say.
        """
        ...


_AT_ONCE = 16
"""Questions to the API server at a time."""


def everyone(_namespace: str) -> bool:
    """Return true: the pods of every namespace may be seen."""
    return True


class CallerScope:
    """What one caller may see; it learns of namespaces as they come. What the API server has not said is not seen."""

    def __init__(self, caller: Caller) -> None:
        """Begin without rights; see `learn`."""
        self._caller = caller
        self._nodes: bool | None = None
        self._seen: set[str] = set()
        self._unseen: set[str] = set()
        self._again: set[str] = set()
        """The namespaces among `_unseen` whose pods may be seen by now."""

    def __repr__(self) -> str:
        return f"<Sight of {len(self._seen)} of {len(self._seen) + len(self._unseen)} namespaces>"

    @property
    def everything(self) -> bool:
        """Whether the pods of all namespaces may be seen."""
        return ALL_NAMESPACES in self._seen

    @property
    def seen(self) -> frozenset[str]:
        """The namespaces whose pods may be seen, if not all."""
        return frozenset(self._seen)

    @property
    def nodes(self) -> bool:
        """Whether nodes may be seen; false before `learn` has asked."""
        return bool(self._nodes)

    def may_see(self, namespace: str) -> bool:
        """Return whether the pods of a namespace may be seen; false before `learn` has asked about it."""
        return self.everything or namespace in self._seen

    def of(self, node: NodeView) -> NodeView:
        """Return a node without the names that may not be seen."""
        return node if self.everything else redacted(node, self.may_see)

    def knows(self, namespaces: Collection[str]) -> bool:
        """Return whether the API server has said which of these namespaces' pods may be seen."""
        return self.everything or all(each in self._seen or each in self._unseen for each in namespaces)

    def current(self, namespaces: Collection[str]) -> bool:
        """Return whether there is nothing to `learn` of these namespaces."""
        return self.everything or (self.knows(namespaces) and self._again.isdisjoint(namespaces))

    def still_granted(self, now: CallerScope) -> bool:
        """Return whether `now`, which may know fewer namespaces, takes nothing of this away."""
        if self.nodes and not now.nodes:
            return False
        return all(now.may_see(each) for each in self._seen if each in now._seen or each in now._unseen)

    async def learn(self, namespaces: Iterable[str] = ()) -> None:
        """Ask what is not known yet; each answer counts as soon as it is there.

        Raises:
            ApiError: the API server did not say.
        """
        if self._nodes is None:
            self._nodes, everything = await asyncio.gather(
                self._caller.may_see_nodes(), self._caller.may_see(ALL_NAMESPACES)
            )
            self._note(ALL_NAMESPACES, everything)
        if not self.everything:
            await self._ask({*namespaces})

    async def renewed(self, caller: Caller, namespaces: Iterable[str], within_s: float) -> CallerScope:
        """Return what the same user, asked anew, may see now of what this one sees; it can `learn` the rest.

        What is not confirmed within `within_s` is not seen.

        Raises:
            ApiError: the API server did not say.
        """
        wanted = {*namespaces}
        now = CallerScope(caller)
        await now.learn()
        await within(within_s, now.learn(wanted & self._seen))
        now._unseen |= wanted & (self._seen | self._unseen) - now._seen
        now._again |= now._unseen - {ALL_NAMESPACES}
        return now

    async def _ask(self, namespaces: set[str]) -> None:
        for some in (sorted(namespaces - self._seen - self._unseen), sorted(namespaces & self._again)):
            for first in range(0, len(some), _AT_ONCE):
                await asyncio.gather(*(self._ask_about(each) for each in some[first : first + _AT_ONCE]))

    async def _ask_about(self, namespace: str) -> None:
        self._note(namespace, await self._caller.may_see(namespace))

    def _note(self, namespace: str, allowed: bool) -> None:  # noqa: FBT001 - an answer
        self._again.discard(namespace)
        self._unseen.discard(namespace)
        (self._seen if allowed else self._unseen).add(namespace)
