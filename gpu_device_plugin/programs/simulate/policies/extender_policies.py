"""The policies of the scheduler extender, by the functions that it decides with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.cluster.candidate import Candidate, summary
from gpu_device_plugin.core.cluster.fitting import Fit, fit, unfit
from gpu_device_plugin.core.cluster.packing import Effort
from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
from gpu_device_plugin.core.cluster.scoring import Scorer
from gpu_device_plugin.core.value.marginal_value import NEVER, Appraiser
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand, Room
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.programs.simulate.rooms import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.marginal_value import Appraisal
    from gpu_device_plugin.core.value.node_types import NodeType
    from gpu_device_plugin.core.value.price_learning import Tables
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Floats, Ints
    from gpu_device_plugin.programs.simulate.rooms import Rooms

_MOST_STEPS = 1_000_000
"""Of the core for the scores of one kind of pod: none runs out of them."""


class ByValue(Policy):
    """The policy `fit`, by tables that were learned."""

    def __init__(self, rooms: Rooms, tables: Tables) -> None:
        super().__init__(rooms)
        self._appraiser = Appraiser(tables)
        self._appraisals: dict[int, Appraisal | None] = {}
        self.refresh(np.arange(len(rooms)))

    def refresh(self, rows: Ints) -> None:
        """Appraise rows again that have changed."""
        for row in rows.tolist():
            self._appraisals[row] = self._appraiser.appraise(self.rooms.node_types[row], self.rooms.left(row))

    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        appraisals, gain = self._appraisals, self._appraiser.gain
        return np.array(
            [NEVER if (room := appraisals[row]) is None else gain(kind, room) for row in rows.tolist()], np.float64
        )

    def gpus(self, kind: PodKind, row: int) -> Sequence[int]:
        """Return the GPUs of a row on which a pod costs least, by position."""
        room = self._appraisals[row]
        return () if room is None else self._appraiser.gpus(kind, room)


class ByFullness(Policy):
    """The policies `binpack` and `spread`."""

    def __init__(self, rooms: Rooms, policy: str) -> None:
        super().__init__(rooms)
        self._policy = policy
        self._gpus = [_listed(node_type) for node_type in rooms.node_types]
        self._candidates: dict[int, Candidate] = {}
        self.refresh(np.arange(len(rooms)))

    def refresh(self, rows: Ints) -> None:
        """Look again at rows that have changed."""
        for row in rows.tolist():
            gpus = self._gpus[row]
            frees = self.rooms.left(row).frees
            rooms = tuple(
                Room(
                    gpu.position,
                    gpu.shares,
                    max(0, free),
                    healthy=free >= 0,
                    shared=free != gpu.shares,
                    card=gpus.cards.get(gpu.position),
                )
                for gpu, free in zip(gpus.gpus, frees, strict=True)
            )
            self._candidates[row] = Candidate(str(row), gpus, rooms, summary(rooms))

    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        ask = asked(kind)
        scorer = Scorer(ask, self._policy, self._policy, Effort(_MOST_STEPS))
        cpu, memory = self.rooms.spare(kind, rows)
        # kube-scheduler itself checks CPU and memory, before it asks the extender.
        enough = ((cpu >= 0) & (memory >= 0)).tolist()
        nodes = [self._candidates[row] for row in rows.tolist()]
        return np.array(
            [
                scorer.score(node) if room and unfit(ask, node) is None else NEVER
                for node, room in zip(nodes, enough, strict=True)
            ],
            np.float64,
        )

    def gpus(self, kind: PodKind, row: int) -> Sequence[int]:
        """Return the GPUs of a row that a pod gets, by position."""
        found = fit(asked(kind), self._candidates[row], self._policy)
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


def asked(kind: PodKind) -> Ask:
    """Return the demand of a kind of pod as the extender knows it."""
    if not kind.gpus:
        return Ask()
    demand = Demand(Kind.MEMORY, kind.shares * kind.gpus, kind.gpus) if kind.shares else Demand(Kind.COUNT, kind.gpus)
    return Ask((Part(demand),), kind.wishes)
