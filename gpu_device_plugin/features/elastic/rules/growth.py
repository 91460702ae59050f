"""Decide which running containers are guaranteed more of their GPU, and say why the others are not.

The agent of a node and the scheduler extender decide by the same rules, each by what it counts as free. Amounts are
shares.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpu_device_plugin.features.elastic.contract import units
from gpu_device_plugin.model.memory import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.features.elastic.contract import Allowance

_Key: TypeAlias = tuple[str, str]


class GpuRoom(NamedTuple):
    """What a GPU has for containers that are to be guaranteed more."""

    name: str
    """For people."""
    total: int
    free: int
    """What is promised to nobody."""
    share_mib: int | None
    """None: not known."""
    closed: str = ""
    """Why nobody is guaranteed more of it, as a sentence; empty: it is open."""

    def amount(self, shares: int) -> str:
        """Return an amount for people."""
        return units(shares) if self.share_mib is None else format_mib(shares * self.share_mib)


class GrowthRequest(NamedTuple):
    """A container that is to be guaranteed more."""

    key: _Key
    """The UID of its pod, and its name."""
    namespace: str
    room: GpuRoom
    """Of its GPU."""
    target: int
    """What it is to be guaranteed."""
    more: int
    """The part of that which does not count for it yet."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The answers to some requests."""

    granted: frozenset[_Key] = frozenset()
    refused: Mapping[_Key, str] = field(default_factory=dict)
    """Why a container is not guaranteed more, as a sentence."""
    unknown: frozenset[str] = frozenset()
    """The namespaces whose allowance has to be known before some containers can grow."""
    by_bound: bool = False
    """A namespace refuses, whatever room its GPU has."""


def grow(
    requests: Iterable[GrowthRequest],
    allowances: Mapping[str, Allowance | str],
    too_little: str,
    used: Mapping[str, int] = MappingProxyType({}),
) -> Growth:
    """Decide on one container after the other: each is guaranteed all that it is to have, or no more than before.

    Args:
        requests: in the order in which they are served.
        allowances: by namespace; or why it is not known, as a sentence.
        too_little: why a container does not grow on a GPU without room, of {gpu}, {free} and {more}.
        used: what the pods of a namespace have beyond their requests and its allowance does not count.
    """
    taken, grown = Counter[GpuRoom](), Counter(used)
    granted: set[_Key] = set()
    refused: dict[_Key, str] = {}
    unknown: set[str] = set()
    by_bound = False
    for each in requests:
        allowance = allowances.get(each.namespace)
        if why := _no_room(each, taken[each.room], too_little):
            refused[each.key] = why
        elif allowance is None:
            unknown.add(each.namespace)
        elif why := _not_allowed(allowance, grown[each.namespace], each.more):
            refused[each.key], by_bound = why, True
        else:
            granted.add(each.key)
            taken[each.room] += each.more
            grown[each.namespace] += each.more
    return Growth(frozenset(granted), refused, frozenset(unknown), by_bound)


def _no_room(request: GrowthRequest, taken: int, too_little: str) -> str:
    room = request.room
    if room.closed:
        return room.closed
    if request.target > room.total:
        return f"{room.name} has {room.amount(room.total)} in all"
    free = max(0, room.free - taken)
    if request.more <= free:
        return ""
    return too_little.format(gpu=room.name, free=room.amount(free), more=room.amount(request.more))


def _not_allowed(allowance: Allowance | str, used: int, more: int) -> str:
    return allowance if isinstance(allowance, str) else replace(allowance, used=allowance.used + used).refusal(more)
