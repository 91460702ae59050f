"""Learn from the pods that come so that no namespace can spoil what is learned for the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from gpu_device_plugin.features.learning.rules.arrivals import ByFullness, Placer, Policy, Start
from gpu_device_plugin.features.learning.rules.marginal_value import Appraiser
from gpu_device_plugin.features.learning.rules.price_learning import Dominance, Tables, learning
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, WorkloadMix, joined

LITTLE = 0.02
"""The part of the demand that all namespaces which hold less may have together; 0.04 has spoilt nothing yet."""
LEAST_RUNNING = 0.01
"""Before the namespaces whose pods came hold such a part of the cluster, what each of them holds says too little."""
_MOST_TRIALS = 4
"""Of so many namespaces, those with the largest parts, it is tried what the others lose by them."""


@dataclass(frozen=True, slots=True)
class LearningResult:
    """What was learned, and whether it is of use."""

    pods: int
    """So many came."""
    mix: Mapping[PodKind, float]
    """Each kind with the part by which it counts."""
    tables: Tables
    trial: Trial
    """Of the pods of all namespaces, or of all but one: the one that `fit` did worst in."""
    distrusted: tuple[str, ...]
    """Namespaces that count little, because what their pods teach would make the others lose GPUs."""
    running: float | None = None
    """The part of the cluster that the namespaces hold whose pods came; None: nobody holds any, or it is unknown."""

    @property
    def few_run(self) -> bool:
        """Whether too few of these pods run to tell whose pods count."""
        return self.running is not None and self.running < LEAST_RUNNING

    @property
    def usable(self) -> Tables | None:
        """The tables; None where `binpack` would have placed the pods better, or too few of them run."""
        return None if self.trial.failed or self.few_run else self.tables


def studying(mix: WorkloadMix, nodes: Mapping[NodeType, int]) -> Generator[None, None, LearningResult]:
    """Learn, and try what was learned, in steps of a millisecond or two.

    A namespace has at most the part of the demand that it has of what is in use; both by the resource of which a pod
    takes the largest part, so that many pods of little GPU memory and much CPU count as what they take. One that holds
    much may have pods that do not fit together with those of others, so it is tried what the others lose by it.
    """
    size_of = Dominance.of(nodes)
    weights = mix.by_namespace()
    demand = {
        namespace: sum(weight * size_of.kind(kind) for kind, weight in kinds.items())
        for namespace, kinds in weights.items()
    }
    held = sum(mix.held.get(namespace, 0.0) for namespace in demand)
    running = held / size_of.shares if held and size_of.shares else None
    yield
    study, spoilers = yield from _once(mix, weights, demand, (), nodes)
    if spoilers:
        study, _ = yield from _once(mix, weights, demand, spoilers, nodes)
    return replace(study, running=running)


def _once(
    mix: WorkloadMix,
    weights: Mapping[str, Mapping[PodKind, float]],
    demand: Mapping[str, float],
    distrusted: tuple[str, ...],
    nodes: Mapping[NodeType, int],
) -> Generator[None, None, tuple[LearningResult, tuple[str, ...]]]:
    """Return a study, and the namespaces by whose pods the others lose."""
    scales = scales_of(demand, mix.held, distrusted)
    scaled = {
        namespace: {kind: weight * scales[namespace] for kind, weight in kinds.items()}
        for namespace, kinds in weights.items()
    }
    yield
    parts = joined(scaled.values())
    yield
    tables = yield from learning(parts, nodes)
    worst = yield from trying(tables, parts, nodes)
    spoilers = []
    for namespace in _suspects({name: asked * scales[name] for name, asked in demand.items()}):
        others = joined(kinds for name, kinds in scaled.items() if name != namespace)
        yield
        trial = yield from trying(tables, others, nodes)
        worst = min(worst, trial, key=lambda each: each.fit - each.binpack)
        spoilers += [namespace] * trial.failed
    return LearningResult(mix.arrivals, parts, tables, worst, distrusted), tuple(sorted(spoilers))


def _suspects(demand: Mapping[str, float]) -> list[str]:
    """Return the namespaces with the largest parts of the demand, of those that have neither little nor most of it.

    The pods without GPUs, whose namespaces are not known, are none.
    """
    total = sum(demand.values())
    large = [name for name, asked in demand.items() if name and 1.01 * LITTLE * total < asked <= total / 2]
    return sorted(large, key=lambda name: (-demand[name], name))[:_MOST_TRIALS]


def scales_of(
    demand: Mapping[str, float], held: Mapping[str, float], distrusted: Collection[str] = ()
) -> dict[str, float]:
    """Return by how much the pods of each namespace count less than they came, by their demand: only ratios matter.

    `held` is what each namespace has in use, empty if unknown. Those that hold little, and the `distrusted`, share the
    part `LITTLE`: an owner of many namespaces gets no more by them. Where somebody holds more than such a share of it,
    that is what counts.
    """
    of_all = sum(held.get(name, 0.0) for name in demand if name not in distrusted)
    parts = {
        name: 0.0 if name in distrusted else held.get(name, 0.0) / of_all if of_all else 1.0
        for name, asked in demand.items()
        if asked
    }
    little = LITTLE / max(1, sum(part < LITTLE for part in parts.values()))
    most = {name: max(little, parts.get(name, 1.0)) for name in demand}
    # Those that exceed their parts most get just these, of a total that shrinks with what the others may not have.
    rest, room = sum(demand.values()), 1.0
    capped: list[str] = []
    for name in sorted(demand, key=lambda name: (-demand[name] / most[name], name)):
        if demand[name] <= most[name] * rest / room * (1 + 1e-9):
            break
        rest, room = rest - demand[name], room - most[name]
        capped.append(name)
    return {name: most[name] * rest / room / demand[name] if name in capped else 1.0 for name in demand}


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


def trying(tables: Tables, mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]) -> Generator[None, None, Trial]:
    """Try the policy `fit` by some tables on a sample of the nodes, in steps of a millisecond or two."""
    kinds = list(mix)
    demand = [kind.gpus * (kind.shares or tables.unit) for kind in kinds]
    sums = list(accumulate(mix.values()))
    mean = sum(asked * part for asked, part in zip(demand, mix.values(), strict=True)) / sums[-1] if sums else 0.0
    sample = [Start.empty("", shape) for shape in _sample(nodes, min(_GPUS, _PODS * mean / tables.unit / 2))]
    capacity = sum(sum(node.shape.sizes) for node in sample)
    given = [0.0, 0.0]
    policies: tuple[Policy, ...] = Appraiser(tables), ByFullness("binpack")
    for seed in range(_ORDERS if mean else 0):
        pods = [bisect_right(sums, place * sums[-1], hi=len(sums) - 1) for place in _evenly(seed, _PODS)]
        came = accumulate(demand[pod] for pod in pods)
        pods = [pod for pod, asked in zip(pods, came, strict=True) if asked <= capacity]
        yield
        for at, policy in enumerate(policies):
            placer = Placer(sample, kinds, policy)
            yield
            for pod in pods:
                given[at] += demand[pod] * (placer.place(pod) is not None)
                yield
    return Trial(*(each / _ORDERS / max(1, capacity) for each in given))


def _evenly(seed: int, number: int) -> Iterator[float]:
    """Yield so many numbers from 0 to 1, evenly spread and as if at random (Knuth's generator for MMIX)."""
    state = seed
    for _ in range(number):
        state = (6364136223846793005 * state + 1442695040888963407) % (1 << 64)
        yield state / (1 << 64)


def _sample(nodes: Mapping[NodeType, int], gpus: float) -> list[NodeType]:
    """Return the shapes of a few nodes with so many GPUs, each shape as often as among all, as nearly as can be."""
    order = sorted(
        nodes, key=lambda node_type: (node_type.models, node_type.sizes, node_type.cpu_milli, node_type.memory_mib)
    )
    last = list(accumulate(nodes[node_type] for node_type in order))
    each = sum(len(node_type.sizes) * number for node_type, number in nodes.items()) / max(1, sum(nodes.values()))
    number = min(_NODES, max(1, round(gpus / each))) if each else 0
    places = [(2 * n + 1) * last[-1] // (2 * number) for n in range(number)]
    return [next(node_type for node_type, end in zip(order, last, strict=True) if place < end) for place in places]


FEWEST = 20
"""Before so many pods have come, a mix says too little; the policy `fit` is `binpack` until then."""
_GROWTH = 1.5
_LONGEST_S = 3600.0


def due(arrivals: int, learned_from: int, age_s: float, *, outdated: bool) -> bool:
    """Return whether to learn now, when so many pods have come in all.

    The tables in force were learned `age_s` seconds ago from so many of them (0: there are no tables), and are outdated
    if a node has a shape that they do not know. The first pods teach most, so that the tables are learned again each
    time when half as many more have come. Later an hour is the longest that a changed mix goes unnoticed.
    """
    if arrivals < FEWEST:
        return False
    return outdated or arrivals >= _GROWTH * learned_from or (arrivals > learned_from and age_s >= _LONGEST_S)
