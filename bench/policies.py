"""Policies that the extender's are compared with: FGD, best fit, and kube-scheduler's own for pods without GPUs.

FGD takes the node whose fragments grow least (Weng et al., "Beware of Fragmentation", USENIX ATC 2023). A fragment of a
node for a kind of pod is what is free of its GPUs and that kind cannot use. A node counts with the mean over the kinds
that make up most of the pods. Growth is counted in GPUs, on a node with GPUs of several sizes in its largest ones: the
paper has one size.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain, compress, islice
from math import exp, floor
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.learning.rules.arrivals import Placer, Policy
from gpu_device_plugin.features.learning.rules.fair_learning import due, studying
from gpu_device_plugin.features.learning.rules.marginal_value import NEVER, Appraiser, FreeCapacity, unused
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind, WorkloadMix, joined, needs_gpus
from gpu_device_plugin.programs.simulate.experiment import gpu_nodes, policy_of, run
from gpu_device_plugin.scheduler.rules.packing import finished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.features.learning.rules.arrivals import Start
    from gpu_device_plugin.features.learning.rules.workload_mix import NodeType
    from gpu_device_plugin.programs.simulate.model import SimulationOutcome, Workload

_TYPICAL = 0.95
"""The most frequent kinds that are this part of all pods."""


def placed(
    policy: str,
    nodes: Sequence[Start],
    workload: Workload,
    pods: Sequence[int],
    seed: int,
    *,
    cold: bool = False,
    others_apart: bool = False,
    percentage: int = 100,
) -> tuple[SimulationOutcome, list[bool]]:
    """Return the outcome of `run`, and by arrival whether a pod got a node only outside of kube-scheduler's sample.

    `percentage` is kube-scheduler's `percentageOfNodesToScore`: 100 for all nodes, 0 for its adaptive default. The rest
    is as in `placer_on`.
    """
    made: list[SamplingPlacer] = []

    def placing(ordered: Sequence[Start]) -> Placer:
        made.append(placer_on(ordered, policy, workload, cold=cold, others_apart=others_apart, percentage=percentage))
        return made[0]

    return run(policy, nodes, workload, pods, seed, placing=placing), made[0].missed


def placer_on(
    nodes: Sequence[Start],
    policy: str,
    workload: Workload,
    *,
    cold: bool = False,
    others_apart: bool = False,
    percentage: int = 100,
) -> SamplingPlacer:
    """Return what places pods on nodes by a policy of the extender, by ``fgd`` or ``bestfit``.

    With `cold`, `fit` and `fgd` do not know the workload and learn from the pods that come; until then they are
    `bestfit`. With `others_apart` the policy places pods with GPUs only, and kube-scheduler the others.
    """
    if cold and policy in {"fit", "fgd"}:
        return _LearningPlacer(nodes, workload.kinds, policy, percentage, apart=others_apart)
    chosen = policy_named(policy, nodes, workload)
    return SamplingPlacer(nodes, workload.kinds, Apart(chosen) if others_apart else chosen, percentage)


def policy_named(name: str, nodes: Sequence[Start], workload: Workload) -> Policy:
    """Return a policy of the extender, ``fgd`` or ``bestfit``."""
    match name:
        case "fgd":
            return Fgd(workload.mix())
        case "bestfit":
            return BestFit(nodes)
        case _:
            return policy_of(name, nodes, workload)


# --- kube-scheduler shows the extender samples of the nodes -----------------------------------------------------------


def passes(kind: PodKind, shape: NodeType, left: FreeCapacity) -> bool:
    """Return whether kube-scheduler's own plugins let a pod pass: they know sums only, and no models.

    An agent withholds from each sum the GPUs that are in use as the other resource.
    """
    if left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib:
        return False
    if kind.shares:
        return left.shares >= kind.shares * kind.gpus
    if not kind.gpus:
        return True
    gpus = zip(left.frees, shape.sizes, shape.cards, strict=True)
    return sum([free == size > 0 and card is None for free, size, card in gpus]) >= kind.gpus


def nodes_to_find(nodes: int, percentage: int) -> int:
    """Return how many nodes kube-scheduler looks for (`numFeasibleNodesToFind` in its schedule_one.go)."""
    percentage = percentage or max(5, 50 - nodes // 125)
    return min(nodes, max(100, nodes * percentage // 100))


class SamplingPlacer(Placer):
    """Goes round the nodes: a sample begins where the one before it ended. Zones are not modelled."""

    def __init__(self, nodes: Sequence[Start], kinds: Sequence[PodKind], policy: Policy, percentage: int) -> None:
        super().__init__(nodes, kinds, policy)
        self.missed: list[bool] = []
        """By arrival: it fit on no node of the sample, but on another one, which it then got."""
        self._wanted = nodes_to_find(len(nodes), percentage)
        self._start = 0
        self._passes: dict[int, tuple[bytearray, int]] = {}
        """By kind: 1 for each row that `passes`, and how many changes that includes."""

    def follow(self, policy: Policy) -> None:
        """Score by another policy, or by newer tables, from now on."""
        self._policy = policy
        self._seen = [policy.appraise(shape, left) for shape, left in zip(self.shapes, self.lefts, strict=True)]
        self._scores.clear()

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod on a row of a sample.

        Where it fits on none of them it gets the best of all rows: the extender nominates that one in a cluster.
        """
        sample, scores = self.sample(kind), self.scores(kind)
        row = max(sample, key=scores.__getitem__, default=-1)
        found = super().place(kind) if row < 0 or scores[row] == NEVER else self.take(kind, row)
        self.missed.append(found is not None and found[0] not in sample)
        return found

    def sample(self, kind: int) -> list[int]:
        """Return the next sample for a pod, in the order in which kube-scheduler finds it."""
        passing, start = self._passing(kind), self._start
        found = chain(compress(range(start, len(passing)), passing[start:]), compress(range(start), passing))
        sample = list(islice(found, self._wanted + 1))
        # kube-scheduler ends at the first node that is too many. Where there is none, it has gone round once.
        if len(sample) > self._wanted:
            self._start = sample.pop()
        return sample

    def _passing(self, kind: int) -> bytearray:
        known, seen = self._passes.get(kind, (bytearray(len(self.lefts)), -1))
        for row in set(self._changes[seen:]) if seen >= 0 else range(len(self.lefts)):
            known[row] = passes(self.kinds[kind], self.shapes[row], self.lefts[row])
        self._passes[kind] = known, len(self._changes)
        return known


class _LearningPlacer(SamplingPlacer):
    """Learns from the pods that found room so far, at the same times as the scheduler extender."""

    def __init__(
        self, nodes: Sequence[Start], kinds: Sequence[PodKind], policy: str, percentage: int, *, apart: bool
    ) -> None:
        self._name, self._apart = policy, apart
        self._best_fit, self._gpu_nodes = BestFit(nodes), gpu_nodes(nodes)
        self._mix = WorkloadMix()
        self._learned_from = 0
        super().__init__(nodes, kinds, Apart(self._best_fit) if apart else self._best_fit, percentage)

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        if self._apart and not self.kinds[kind].gpus:
            return super().place(kind)
        if due(self._mix.arrivals, self._learned_from, 0.0, outdated=False):
            self._learned_from = self._mix.arrivals
            self.follow(Apart(self._learned()) if self._apart else self._learned())
        found = super().place(kind)
        if found is not None:
            self._mix.add([self.kinds[kind]], 0.0)
        return found

    def _learned(self) -> Policy:
        if self._name == "fgd":
            return Fgd(joined(self._mix.by_namespace().values()))
        usable = finished(studying(self._mix, self._gpu_nodes)).usable
        return self._best_fit if usable is None else Appraiser(usable)


def _gpus_with_room(kind: PodKind, shape: NodeType, left: FreeCapacity) -> list[int]:
    """Return the GPUs and instances of a node, by position, each of which has room for a pod's part of it."""
    allow, only_gpus = kind.selector.allow_model, needs_gpus(kind)
    return [
        at
        for at, (gpu, free) in enumerate(zip(shape.gpus, left.frees, strict=True))
        if free > 0
        and (free >= kind.shares if kind.shares else free == gpu.size)
        and not (only_gpus and gpu.instance)
        and allow(gpu.model)
    ]


def _fullest(kind: PodKind, shape: NodeType, left: FreeCapacity) -> list[int]:
    """Return the GPUs that a pod gets if it takes the fullest ones; fewer than it asks for: it does not fit."""
    if left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib:
        return []
    return sorted(_gpus_with_room(kind, shape, left), key=left.frees.__getitem__)[: kind.gpus]


class Fgd:
    """Scores nodes by how much a pod fragments them."""

    def __init__(self, mix: Mapping[PodKind, float]) -> None:
        total, seen = sum(mix.values()), 0.0
        typical: list[tuple[PodKind, float]] = []
        for kind, part in sorted(mix.items(), key=lambda item: -item[1]):
            if seen >= _TYPICAL * total:
                break
            typical.append((kind, part))
            seen += part
        self._typical = [(kind, part / seen) for kind, part in typical]
        self._cpus = sorted({kind.cpu_milli for kind, _ in typical})
        self._memories = sorted({kind.memory_mib for kind, _ in typical})
        self._tables: dict[tuple[NodeType, int, int], _Usable] = {}

    def appraise(self, shape: NodeType, left: FreeCapacity) -> tuple[NodeType, FreeCapacity, float]:
        return shape, left, self._fragments(shape, left)

    def gain(self, kind: PodKind, node: tuple[NodeType, FreeCapacity, float]) -> float:
        grown = [grown for grown, _ in self._options(kind, node)]
        if not grown:
            return NEVER
        # As published, rounded to a hundred steps: so most nodes are equal, and their order decides.
        return floor(100 / (1 + exp(min(grown) / max(1, *node[0].sizes, 1))))

    def gpus(self, kind: PodKind, node: tuple[NodeType, FreeCapacity, float]) -> Sequence[int]:
        return min(self._options(kind, node))[1]

    def _options(self, kind: PodKind, node: tuple[NodeType, FreeCapacity, float]) -> list[tuple[float, list[int]]]:
        """Return by how many shares fragments grow, and by which GPUs: any one, or the fullest ones with room."""
        shape, left, now = node
        gpus = _fullest(kind, shape, left)
        if len(gpus) < kind.gpus or left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib:
            return []
        choices = [gpus]
        if kind.shares and kind.gpus == 1:
            # Of equal ones the first is enough.
            every = reversed(_gpus_with_room(kind, shape, left))
            choices = [[at] for at in {(left.frees[at], shape.cards[at] is None): at for at in every}.values()]
        return [(self._fragments(shape, left.after(kind, each)) - now, each) for each in choices]

    def _fragments(self, shape: NodeType, left: FreeCapacity) -> float:
        key = shape, bisect_right(self._cpus, left.cpu_milli), bisect_right(self._memories, left.memory_mib)
        table = self._tables.get(key)
        if table is None:
            hosted = [
                (kind, part)
                for kind, part in self._typical
                if kind.cpu_milli <= left.cpu_milli and kind.memory_mib <= left.memory_mib and shape.hosts(kind)
            ]
            table = self._tables[key] = _Usable(shape, hosted)
        return left.shares - table.usable(left.frees)


class _Usable:
    """How much kinds of pods can use of the GPUs of a node that hosts them as far as models, CPU and memory decide."""

    def __init__(self, shape: NodeType, hosted: Sequence[tuple[PodKind, float]]) -> None:
        self._shape = shape
        most = max(shape.sizes, default=0) + 1
        self._by_free = [sum(p for kind, p in hosted if kind.gpus and 0 < kind.shares <= free) for free in range(most)]
        """By free shares of a GPU: the part of the pods that can use them."""
        whole = [(kind.gpus, part) for kind, part in hosted if kind.gpus and not kind.shares]
        self._by_unused = [sum(p for gpus, p in whole if gpus <= there) for there in range(len(shape.sizes) + 1)]
        self._split = [(kind, part) for kind, part in hosted if kind.shares and kind.gpus > 1]

    def usable(self, frees: Sequence[int]) -> float:
        whole = [at for at in unused(self._shape, frees) if frees[at] > 0]
        usable = sum([free * self._by_free[free] for free in frees if free > 0])
        usable += sum([frees[at] for at in whole]) * self._by_unused[len(whole)]
        for kind, part in self._split:
            enough = [at for at, free in enumerate(frees) if free >= kind.shares]
            gpus = [at for at in enough if self._shape.cards[at] is None]
            # Counted above as if one GPU, or MIG instance, were enough.
            in_vain = {*enough} - {*gpus} if len(gpus) >= kind.gpus else enough
            usable -= part * sum(frees[at] for at in in_vain)
        return usable


class BestFit:
    """Scores nodes by what they have left of CPU and GPUs, each as a part of the largest node's."""

    def __init__(self, nodes: Sequence[Start]) -> None:
        self._most_cpu = max([1, *(node.shape.cpu_milli for node in nodes)])
        self._most_shares = max([1, *(sum(node.shape.sizes) for node in nodes)])

    def appraise(self, shape: NodeType, left: FreeCapacity) -> tuple[NodeType, FreeCapacity]:
        return shape, left

    def gain(self, kind: PodKind, node: tuple[NodeType, FreeCapacity]) -> float:
        shape, left = node
        gpus = _fullest(kind, shape, left)
        if len(gpus) < kind.gpus or left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib:
            return NEVER
        after = left.after(kind, gpus)
        # As published, rounded to a hundred steps: so many nodes are equal, and their order decides.
        return floor(100 * (1 - (after.shares / self._most_shares + after.cpu_milli / self._most_cpu) / 2))

    def gpus(self, kind: PodKind, node: tuple[NodeType, FreeCapacity]) -> Sequence[int]:
        return sorted(_fullest(kind, *node))


class Apart:
    """Places pods without GPUs by what nodes have left of CPU and memory, which spreads them, and others by a policy.

    That is the default score of kube-scheduler's plugin NodeResourcesFit, for pods about which it asks no extender.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def appraise(self, shape: NodeType, left: FreeCapacity) -> tuple[Any, NodeType, FreeCapacity]:
        return self._policy.appraise(shape, left), shape, left

    def gain(self, kind: PodKind, node: tuple[Any, NodeType, FreeCapacity]) -> float:
        seen, shape, left = node
        if kind.gpus:
            return self._policy.gain(kind, seen)
        cpu, memory = left.cpu_milli - kind.cpu_milli, left.memory_mib - kind.memory_mib
        return NEVER if min(cpu, memory) < 0 else cpu / max(1, shape.cpu_milli) + memory / max(1, shape.memory_mib)

    def gpus(self, kind: PodKind, node: tuple[Any, NodeType, FreeCapacity]) -> Sequence[int]:
        return self._policy.gpus(kind, node[0])
