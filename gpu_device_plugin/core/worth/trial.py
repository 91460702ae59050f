"""Try what was learned beside `binpack`: pods come to a few empty nodes, in several orders."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.scoring import score_for
from gpu_device_plugin.core.worth.appraising import Appraiser, Choice, Left, ties_of, unused
from gpu_device_plugin.core.worth.shapes import needs_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.worth.learning import Tables
    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.core.worth.shapes import Shape

TOLERATED = 0.005
"""The part of the GPUs by which chance alone may make a policy the worse one."""
_ORDERS = 4
"""Of the pods. One order alone may favour either policy by two points."""
_GPUS, _NODES, _PODS = 64, 32, 1000
"""The most GPUs, nodes and pods. They tell a policy that loses two points in a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of the GPUs that each policy gives out when pods have asked for all of them."""

    fit: float
    binpack: float

    @property
    def failed(self) -> bool:
        """Whether `fit` gives out less, and more than chance explains."""
        return self.fit < self.binpack - TOLERATED


def trying(tables: Tables, mix: Mapping[PodKind, float], nodes: Mapping[Shape, int]) -> Generator[None, None, Trial]:
    """Try the policy `fit` by some tables, in steps of a millisecond or two.

    Args:
        tables: what was learned.
        mix: how often each kind of pod comes; only ratios matter.
        nodes: how many nodes there are of each shape; a sample of them is used.
    """
    kinds = list(mix)
    demand = [kind.gpus * (kind.shares or tables.unit) for kind in kinds]
    sums = list(accumulate(mix.values()))
    mean = sum(asked * part for asked, part in zip(demand, mix.values(), strict=True)) / sums[-1] if sums else 0.0
    sample = _sample(nodes, min(_GPUS, _PODS * mean / tables.unit / 2))
    capacity = sum(sum(shape.sizes) for shape in sample)
    given = [0.0, 0.0]
    for seed in range(_ORDERS if mean else 0):
        pods = [bisect_right(sums, place * sums[-1], hi=len(sums) - 1) for place in _evenly(seed, _PODS)]
        came = accumulate(demand[pod] for pod in pods)
        pods = [pod for pod, asked in zip(pods, came, strict=True) if asked <= capacity]
        yield
        for at, choose in enumerate((Appraiser(tables).choose, binpack)):
            accepted = yield from _accepted(choose, kinds, pods, sample)
            given[at] += sum(demand[pod] for pod in accepted)
    return Trial(*(each / _ORDERS / max(1, capacity) for each in given))


def _evenly(seed: int, number: int) -> Iterator[float]:
    """Yield so many numbers from 0 to 1, evenly spread and as if at random (Knuth's generator for MMIX)."""
    state = seed
    for _ in range(number):
        state = (6364136223846793005 * state + 1442695040888963407) % (1 << 64)
        yield state / (1 << 64)


def _sample(nodes: Mapping[Shape, int], gpus: float) -> list[Shape]:
    """Return the shapes of a few nodes with so many GPUs, each shape as often as among all, as nearly as can be."""
    order = sorted(nodes, key=lambda shape: (shape.models, shape.sizes, shape.cpu_milli, shape.memory_mib))
    last = list(accumulate(nodes[shape] for shape in order))
    each = sum(len(shape.sizes) * number for shape, number in nodes.items()) / max(1, sum(nodes.values()))
    number = min(_NODES, max(1, round(gpus / each))) if each else 0
    places = [(2 * n + 1) * last[-1] // (2 * number) for n in range(number)]
    return [next(shape for shape, end in zip(order, last, strict=True) if place < end) for place in places]


def _accepted(
    choose: Callable[[PodKind, Shape, Left], Choice | None],
    kinds: Sequence[PodKind],
    pods: Sequence[int],
    sample: Sequence[Shape],
) -> Generator[None, None, list[int]]:
    """Return those of the pods, as places in `kinds`, that find room on the nodes of a sample; the best node wins."""
    lefts = [Left(shape.sizes, shape.cpu_milli, shape.memory_mib) for shape in sample]
    codes = [sample.index(shape) for shape in sample]
    known: dict[tuple[int, int, Left], Choice | None] = {}
    accepted = []
    for pod in pods:
        kind = kinds[pod]
        choices: list[tuple[float, int, Choice]] = []
        for at, left in enumerate(lefts):
            key = pod, codes[at], left
            if key not in known:
                known[key] = choose(kind, sample[at], left)
                yield
            if (choice := known[key]) is not None:
                choices.append((round(choice.gain, 9), -at, choice))
        if choices:
            _, place, choice = max(choices, key=lambda each: each[:2])
            lefts[-place] = lefts[-place].after(kind, choice.gpus)
            accepted.append(pod)
        yield
    return accepted


def binpack(kind: PodKind, shape: Shape, left: Left) -> Choice | None:
    """Return the GPUs that the policy `binpack` takes, with the node's score as gain; None where a pod does not fit.

    As `core.cluster.scoring` and `core.model.placing` say of a node whose GPUs have no links.
    """
    if left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib:
        return None
    may = [kind.wishes.allow_model(model) for model in shape.models]
    if kind.shares:
        may = [ok and not (needs_gpus(kind) and shape.card(at) is not None) for at, ok in enumerate(may)]
        fitting = [at for at, free in enumerate(left.frees) if free >= kind.shares and may[at]]
        ties = ties_of(shape.cards or (None,) * len(may), left.frees, may)
        taken = sorted(fitting, key=lambda at: (left.frees[at], ties[at], at))[: kind.gpus]
        shared = [at for at in fitting if left.frees[at] < shape.sizes[at] or shape.card(at) is not None]
        spared, asked = min(1.0, len(shared) / kind.gpus), float(kind.shares * kind.gpus)
    else:
        taken = [at for at in unused(shape, left.frees) if may[at]][: kind.gpus]
        spared, asked = float(kind.gpus == 1), kind.gpus * shape.whole_shares / max(1, shape.whole)
    if len(taken) < kind.gpus:
        return None
    full = 1 - (left.shares - asked) / sum(shape.sizes) if kind.gpus else 0.0
    return Choice(score_for("binpack", full, spared), tuple(taken))
