"""For whom new nodes came in vain, until when no further one is asked for, and whose turn it is.

Affinity to pods, topology spread or a volume can keep a pod from the node that comes for it, and its owner can write
these. So whoever asked waits twice as long each time; and as each pod may name another controller, so does its
namespace. Of what there is too little of, one thing of each namespace is taken in turn, so that none has all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LONGEST_S = 86_400.0
_MOST_IN_NAMESPACE = 4
"""A namespace in which so many have asked in vain waits as well, longer after each further one."""
_MOST_DOUBLINGS = 3
"""Of the time of a namespace, which has other pods too."""
_MOST = 10_000
"""Askers that are remembered."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A controller whose pods wait, or a pod without one."""

    namespace: str
    uid: str = ""
    """Empty: the namespace as a whole."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    asked_at: float
    """Since when nodes are asked for."""
    vain: int = 0
    until: float = 0.0
    """None is asked for before."""
    known_until: float = 0.0


class Attempts:
    """What became of the nodes that were asked for; all times are seconds since the epoch."""

    def __init__(self) -> None:
        """Remember nothing."""
        self._attempts: dict[Asker, _Attempt] = {}

    def may_ask(self, asker: Asker, now: float) -> bool:
        """Return whether nodes may be asked for."""
        known = self._attempts.get(asker), self._attempts.get(Asker(asker.namespace))
        return all(attempt is None or attempt.until <= now for attempt in known)

    def asked(self, askers: Iterable[Asker], now: float, node_start_s: float) -> None:
        """Note that nodes are asked for now; a new node takes `node_start_s` until pods can be placed on it."""
        self._attempts = {asker: each for asker, each in self._attempts.items() if each.known_until > now}
        for asker in askers:
            before = self._attempts.get(asker)
            if before is not None or len(self._attempts) < _MOST:
                vain, since = (0, now) if before is None else (before.vain, before.asked_at)
                known_until = now + node_start_s * 2 ** (vain + 1)
                self._attempts[asker] = _Attempt(since, vain, 0.0, known_until)

    def in_vain(self, asker: Asker, created: float, now: float, node_start_s: float) -> float | None:
        """Note that a node has room for pods that wait as before; return until when no further one is asked for.

        It was made at `created`. None: it was not asked for by this one, or that waits anyway.
        """
        attempt = self._attempts.get(asker)
        if attempt is None or created < attempt.asked_at - 1 or not self.may_ask(asker, now):
            return None
        self._attempts[asker] = found = _after(attempt, now, node_start_s, attempt.vain)
        whole = Asker(asker.namespace)
        of_all = self._attempts.get(whole, _Attempt(now))
        doublings = min(of_all.vain // _MOST_IN_NAMESPACE, _MOST_DOUBLINGS)
        waits = _after(of_all, now, node_start_s, doublings)
        if waits.vain < _MOST_IN_NAMESPACE:
            waits = _Attempt(waits.asked_at, waits.vain, 0.0, waits.known_until)
        self._attempts[whole] = waits
        return max(found.until, waits.until)


def _after(attempt: _Attempt, now: float, node_start_s: float, doublings: int) -> _Attempt:
    """Return an attempt once a node was in vain: no other is asked for in twice the time that one takes, or more."""
    pause_s = min(_LONGEST_S, node_start_s * 2.0 ** min(doublings + 1, 32))
    # Whoever asks again soon after is still known.
    return _Attempt(attempt.asked_at, attempt.vain + 1, now + pause_s, now + 3 * pause_s)


T = TypeVar("T")


def in_turns(things: Iterable[T], namespace: Callable[[T], str]) -> Sequence[T]:
    """Return things by turns of their namespaces; those of one namespace stay in their order."""
    by_namespace: dict[str, list[T]] = {}
    for thing in things:
        by_namespace.setdefault(namespace(thing), []).append(thing)
    missing = object()
    turns = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=missing))
    return [thing for thing in turns if thing is not missing]  # type: ignore[misc]
