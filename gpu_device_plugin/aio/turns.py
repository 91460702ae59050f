"""Let only so many do something at a time, and let the parties that wait for it take turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import chain, zip_longest
from typing import TypeVar

T = TypeVar("T")
Lanes = OrderedDict["Hashable", "deque[asyncio.Future[None]]"]


class Turns:
    """A semaphore that is fair to parties, however much one of them wants.

    Those that wait are served party by party, each in its own order, and the urgent ones of all parties first.
    """

    def __init__(self, at_once: int) -> None:
        """Let `at_once` go on at a time."""
        self._free = at_once
        self._urgent: Lanes = OrderedDict()
        self._others: Lanes = OrderedDict()

    def __repr__(self) -> str:
        waiting = sum(len(lane) for lanes in (self._urgent, self._others) for lane in lanes.values())
        return f"<Turns: {self._free} free, {waiting} waiting>"

    def waiting(self, party: Hashable) -> int:
        """Return how many of a party wait."""
        return sum(len(lanes.get(party, ())) for lanes in (self._urgent, self._others))

    @asynccontextmanager
    async def turn(self, party: Hashable, *, urgent: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block."""
        if self._free:
            self._free -= 1
        else:
            await self._next(self._urgent if urgent else self._others, party)
        try:
            yield
        finally:
            self._pass_on()

    async def _next(self, lanes: Lanes, party: Hashable) -> None:
        turn = asyncio.get_running_loop().create_future()
        lanes.setdefault(party, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self._pass_on()
            elif turn in lanes.get(party, ()):
                lanes[party].remove(turn)
                if not lanes[party]:
                    del lanes[party]
            raise

    def _pass_on(self) -> None:
        while (turn := self._popped(self._urgent) or self._popped(self._others)) is not None:
            if not turn.done():  # else it is cancelled, and about to leave
                turn.set_result(None)
                return
        self._free += 1

    @staticmethod
    def _popped(lanes: Lanes) -> asyncio.Future[None] | None:
        if not lanes:
            return None
        party, lane = next(iter(lanes.items()))
        turn = lane.popleft()
        if lane:
            lanes.move_to_end(party)
        else:
            del lanes[party]
        return turn


def in_turns(things: Iterable[T], namespace: Callable[[T], str]) -> Sequence[T]:
    """Return things by turns of their namespaces; those of one namespace stay in their order."""
    by_namespace: dict[str, list[T]] = {}
    for thing in things:
        by_namespace.setdefault(namespace(thing), []).append(thing)
    missing = object()
    turns = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=missing))
    return [thing for thing in turns if thing is not missing]  # type: ignore[misc]
