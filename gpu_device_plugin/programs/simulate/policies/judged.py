"""The policies binpack and spread: nodes and GPUs as the scheduler extender chooses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.candidate import Candidate, summary
from gpu_device_plugin.core.cluster.fitting import Fit, fit
from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.core.model.placing import Demand, Room
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.value.marginal_value import Left
from gpu_device_plugin.fleet import View
from gpu_device_plugin.fleet_judge import Judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Start


class Judged:
    """Places pods by verdicts and scores of the extender; of equal nodes the first is chosen."""

    def __init__(self, nodes: Sequence[Start], kinds: Sequence[PodKind], policy: str) -> None:
        """Place pods of these kinds.

        Args:
            nodes: the nodes as they are at first.
            kinds: of the pods.
            policy: for nodes and for GPUs, a name in `POLICIES`.
        """
        self._kinds = kinds
        self._policy = policy
        self._asks = [asked(kind) for kind in kinds]
        self._names = [str(at) for at in range(len(nodes))]
        self._gpus = [_gpus(node) for node in nodes]
        self._left = [node.left for node in nodes]
        self._nodes = View(lambda: None)
        for row in range(len(nodes)):
            self._put(row)
        self._judge = Judge(self._nodes)

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod; return its row and its GPUs by position, None where it fits on no node."""
        ask, pod = self._asks[kind], self._kinds[kind]
        verdicts = self._judge.verdicts(ask, self._names)
        # kube-scheduler itself checks CPU and memory, before it asks the extender.
        fitting = [
            name
            for name, why, left in zip(self._names, verdicts, self._left, strict=True)
            if why is None and left.cpu_milli >= pod.cpu_milli and left.memory_mib >= pod.memory_mib
        ]
        if not fitting:
            return None
        scores = self._judge.scores(ask, fitting, self._policy, self._policy)
        row = int(fitting[max(range(len(fitting)), key=scores.__getitem__)])
        found = fit(ask, self._nodes.candidates[str(row)], self._policy)
        placements = found.placements if isinstance(found, Fit) else ()
        gpus = [position for placement in placements for position in placement.positions]
        self.take(kind, row, gpus)
        return row, gpus

    def take(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod where somebody else has decided."""
        self._left[row] = self._left[row].after(self._kinds[kind], gpus)
        self._put(row)

    def leave(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Give back what a pod has taken."""
        pod, left, sizes = self._kinds[kind], self._left[row], self._gpus[row].sizes
        frees = list(left.frees)
        for gpu in gpus:
            frees[gpu] = frees[gpu] + pod.shares if pod.shares else sizes[gpu]
        self._left[row] = Left(tuple(frees), left.cpu_milli + pod.cpu_milli, left.memory_mib + pod.memory_mib)
        self._put(row)

    def left(self, row: int) -> Left:
        """Return what a node has left now."""
        return self._left[row]

    def _put(self, row: int) -> None:
        gpus, left = self._gpus[row], self._left[row]
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
        self._nodes.put(str(row), Candidate(str(row), gpus, rooms, summary(rooms)))


def _gpus(node: Start) -> NodeGpus:
    shape = node.shape
    listed = (
        ListedGpu(at, gpu.size, model=gpu.model, instance=None if card is None else _instance(card, at))
        for at, (gpu, card) in enumerate(zip(shape.gpus, shape.cards, strict=True))
    )
    return NodeGpus(tuple(listed), share_mib=1024)


def _instance(card: int, at: int) -> ListedInstance:
    return ListedInstance(parent=str(card), gpu=card, number=at - card, profile="", gi=at - card)


def asked(kind: PodKind) -> Ask:
    """Return the demand of a kind of pod as the extender knows it."""
    if not kind.gpus:
        return Ask()
    demand = Demand(Kind.MEMORY, kind.shares * kind.gpus, kind.gpus) if kind.shares else Demand(Kind.COUNT, kind.gpus)
    return Ask((Part(demand),), kind.wishes)
