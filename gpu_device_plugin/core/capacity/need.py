"""How many nodes of which type the waiting pods need: packed GPU by GPU, as a scheduler will place them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.fitting import Unfit, after, fit
from gpu_device_plugin.core.model.resources import NO_AMOUNTS, Amounts

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.pod_demand import Ask

    Steps = Generator[None, None, "tuple[Candidate, Counter[int]]"]

_AT_ONCE = 16
"""Pods that are placed in one step, each within a tenth of a millisecond."""
_POLICY = "binpack"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pods that wait for room and may be treated alike."""

    ask: Ask
    number: int = 1
    amounts: Amounts = NO_AMOUNTS
    """The CPU and memory that each requests."""
    types: Collection[int] | None = None
    """The types of nodes that the pods' own terms allow, by their place among all; None: every one."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that is needed, and the pods that it is for."""

    type: int
    """Its place among the types."""
    pods: Mapping[int, int]
    """How many of the pods of each `Waiting`, by its place among all."""


def needed(
    waiting: Sequence[Waiting], types: Sequence[Candidate], coming: Iterable[tuple[int, Candidate]] = ()
) -> Generator[None, None, Sequence[NewNode]]:
    """Return the nodes that pods need which fit on none of those that exist, in steps of some milliseconds.

    `types` are empty nodes. `coming` are nodes of these types that are so new that pods may not have been tried on them
    yet, or that will soon exist: pods take their room first, and they are not part of the answer. Each new node is of
    the type that takes the most of the pods that are left.
    """
    left = Counter({place: each.number for place, each in enumerate(waiting) if each.number})
    order = sorted(left, key=lambda place: waiting[place].ask.size, reverse=True)
    for place, node in coming:
        _, taken = yield from _filled(node, place, waiting, order, left)
        left -= taken
    nodes: list[NewNode] = []
    while left:
        best: tuple[tuple[float, float], int, Counter[int]] | None = None
        for place, node in enumerate(types):
            full, taken = yield from _filled(node, place, waiting, order, left)
            # Of nodes that take as much, the smallest.
            worth = float(full.summary.used), -float(node.summary.total)
            if taken and (best is None or worth > best[0]):
                best = worth, place, taken
        if best is None:
            break
        _, place, taken = best
        # As many nodes as can be filled with the same pods are needed of it: they need not be tried one by one.
        alike = min(left[each] // number for each, number in taken.items())
        nodes += [NewNode(place, taken)] * alike
        left -= Counter({each: alike * number for each, number in taken.items()})
    return nodes


def _filled(
    node: Candidate, type_: int, waiting: Sequence[Waiting], order: Iterable[int], left: Mapping[int, int]
) -> Steps:
    """Return a node with as many of the pods as fit, the largest first, and how many of each these are."""
    taken: Counter[int] = Counter()
    placed = 0
    for place in order:
        pods = waiting[place]
        if pods.types is not None and type_ not in pods.types:
            continue
        for _ in range(left[place]):
            if node.left is not None and not node.left.cover(pods.amounts):
                break
            found = fit(pods.ask, node, _POLICY)
            if isinstance(found, Unfit):
                break
            node = after(node, found, pods.amounts)
            taken[place] += 1
            placed += 1
            if not placed % _AT_ONCE:
                yield
    yield
    return node, taken
