"""Place pods that come one after the other as the scheduler extender does, by the functions that it decides with."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_device_plugin.features.learning.rules.marginal_value import NEVER, FreeCapacity
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand, Room
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, summary
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, unfit
from gpu_device_plugin.scheduler.rules.packing import Effort
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.scoring import Scorer


class Policy(Protocol):
    """Chooses nodes for pods, and their GPUs. The policy `fit` is an `Appraiser` by tables that were learned."""

    def appraise(self, node_type: NodeType, left: FreeCapacity, /) -> Any:
        """Return a node as the other functions want it, until it changes."""

    def gain(self, kind: PodKind, room: Any, /) -> float:
        """Return the score of a node, the best being the highest; `NEVER` where the pod does not fit."""

    def gpus(self, kind: PodKind, room: Any, /) -> Sequence[int]:
        """Return the GPUs that a pod with GPUs gets, by position; it fits there."""


class ByFullness:
    """The policies `binpack` and `spread`."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._effort = Effort(sys.maxsize)
        self._listed: dict[NodeType, NodeGpus] = {}
        self._scorers: dict[PodKind, tuple[GpuRequest, Scorer]] = {}

    def appraise(self, shape: NodeType, left: FreeCapacity) -> tuple[Candidate, FreeCapacity]:
        """Return a node as the extender knows it."""
        gpus = self._listed.get(shape) or self._listed.setdefault(shape, _listed(shape))
        rooms = tuple(
            Room(
                gpu.position,
                gpu.shares,
                max(0, free),
                healthy=free >= 0,
                shared=free != gpu.shares,
                card=gpus.cards.get(gpu.position),
            )
            for gpu, free in zip(gpus.gpus, left.frees, strict=True)
        )
        return Candidate("", gpus, rooms, summary(rooms)), left

    def gain(self, kind: PodKind, node: tuple[Candidate, FreeCapacity]) -> float:
        """Return the extender's score."""
        known = self._scorers.get(kind)
        if known is None:
            ask = asked(kind)
            known = self._scorers[kind] = ask, Scorer(ask, self._policy, self._policy, self._effort)
        (ask, scorer), (candidate, left) = known, node
        # kube-scheduler itself checks CPU and memory, before it asks the extender.
        if left.cpu_milli < kind.cpu_milli or left.memory_mib < kind.memory_mib or unfit(ask, candidate) is not None:
            return NEVER
        return scorer.score(candidate)

    def gpus(self, kind: PodKind, node: tuple[Candidate, FreeCapacity]) -> Sequence[int]:
        """Return the extender's choice."""
        found = fit(asked(kind), node[0], self._policy)
        placements = found.placements if isinstance(found, Fit) else ()
        return [position for placement in placements for position in placement.positions]


def _listed(node_type: NodeType) -> NodeGpus:
    listed = (
        ListedGpu(
            at,
            gpu.size,
            model=gpu.model,
            instance=None if card is None else ListedInstance(str(card), card, at - card, profile="", gi=at - card),
        )
        for at, (gpu, card) in enumerate(zip(node_type.gpus, node_type.cards, strict=True))
    )
    return NodeGpus(tuple(listed), share_mib=1024)


def asked(kind: PodKind) -> GpuRequest:
    """Return the demand of a kind of pod as the extender knows it."""
    if not kind.gpus:
        return GpuRequest()
    demand = Demand(Kind.MEMORY, kind.shares * kind.gpus, kind.gpus) if kind.shares else Demand(Kind.COUNT, kind.gpus)
    return GpuRequest((Part(demand),), kind.selector)


# --- Nodes, and the pods that come to them ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """A node before the first pod comes."""

    name: str
    shape: NodeType
    left: FreeCapacity
    """The room beside the pods that run there and stay."""

    @classmethod
    def empty(cls, name: str, shape: NodeType) -> Start:
        """Return a node on which nothing runs."""
        return cls(name, shape, FreeCapacity(shape.sizes, shape.cpu_milli, shape.memory_mib))


class Placer:
    """Places pods on the nodes that a policy scores best, and remembers each score until its node changes.

    A row is the place of a node in `nodes`; of equal ones the first is chosen.
    """

    def __init__(self, nodes: Sequence[Start], kinds: Sequence[PodKind], policy: Policy) -> None:
        """Place pods of these kinds by a policy."""
        self.kinds = kinds
        self.shapes = [node.shape for node in nodes]
        self.lefts = [node.left for node in nodes]
        """What each row has left; see `put`."""
        self.came: list[tuple[int, tuple[int, Sequence[int]] | None]] = []
        """The kind of each pod that has come, its row and its GPUs by position; None: it found no room."""
        self._scores: dict[int, array[float]] = {}
        """By kind and row."""
        self._marks: dict[int, int] = {}
        """Of each kind, how many changes these include."""
        self._changes: list[int] = []
        """Rows, in the order of their changes."""
        self._policy = policy
        self._seen = [policy.appraise(shape, left) for shape, left in zip(self.shapes, self.lefts, strict=True)]

    def come(self, kind: int) -> None:
        """Place a pod that may leave."""
        self.came.append((kind, self.place(kind)))

    def leave(self, number: int) -> None:
        """Give back what a pod has taken, if it found room; it has come as this number, the first as 0."""
        kind, place = self.came[number]
        if place is None:
            return
        row, gpus = place
        pod, left, sizes = self.kinds[kind], self.lefts[row], self.shapes[row].sizes
        frees = list(left.frees)
        for at in gpus:
            frees[at] = frees[at] + pod.shares if pod.shares else sizes[at]
        self.put(row, FreeCapacity(tuple(frees), left.cpu_milli + pod.cpu_milli, left.memory_mib + pod.memory_mib))

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod; return its row and its GPUs by position, None where it fits on no node."""
        scores = self.scores(kind)
        best = max(scores, default=NEVER)
        return None if best == NEVER else self.take(kind, scores.index(best))

    def take(self, kind: int, row: int) -> tuple[int, Sequence[int]]:
        """Place a pod on a row on which it fits; return this row and its GPUs by position."""
        pod = self.kinds[kind]
        gpus = self._policy.gpus(pod, self._seen[row]) if pod.gpus else ()
        self.put(row, self.lefts[row].after(pod, gpus))
        return row, gpus

    def put(self, row: int, left: FreeCapacity) -> None:
        """Take note of what a row has left."""
        self.lefts[row] = left
        self._seen[row] = self._policy.appraise(self.shapes[row], left)
        self._changes.append(row)

    def scores(self, kind: int) -> array[float]:
        """Return the score of every row for a kind of pod."""
        rows: Iterable[int] = set(self._changes[self._marks.get(kind, 0) :])
        if kind not in self._scores:
            rows = range(len(self.lefts))
            self._scores[kind] = array("d", bytes(8 * len(rows)))
        pod, scores = self.kinds[kind], self._scores[kind]
        for row in rows:
            scores[row] = self._policy.gain(pod, self._seen[row])
        self._marks[kind] = len(self._changes)
        return scores
