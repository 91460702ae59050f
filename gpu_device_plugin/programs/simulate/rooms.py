"""The room that each of thousands of nodes has left, in columns of numpy, and which of them an extender is shown.

Pods are placed on the nodes that a policy scores best, with each score remembered until its node changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.value.marginal_value import NEVER, Left
from gpu_device_plugin.core.value.node_types import needs_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Bools, Floats, Ints, Start


_MANY = 1 << 60


class Rooms:
    """A row for each node. A column of GPUs has a row of numbers for each node, by position."""

    def __init__(self, nodes: Sequence[Start]) -> None:
        self.node_types = [node.shape for node in nodes]
        gpus = [node_type.gpus for node_type in self.node_types]
        self._models = list(dict.fromkeys(gpu.model for each in gpus for gpu in each))
        codes = {model: code for code, model in enumerate(self._models)}
        self.cpu: Ints = np.array([node.left.cpu_milli for node in nodes], np.int64)
        """Thousandths of a CPU that it has left."""
        self.memory: Ints = np.array([node.left.memory_mib for node in nodes], np.int64)
        """MiB of memory."""
        self.free = _column([node.left.frees for node in nodes])
        """Free shares of each GPU; -1: it gives none, or there is no such GPU."""
        self.size = _column([node_type.sizes for node_type in self.node_types])
        """Shares of each GPU; -1: no such GPU."""
        self.whole = _column([[-1 if gpu.instance else gpu.size for gpu in each] for each in gpus])
        """The same of whole GPUs only; -1 also for a MIG instance, which is never free as a whole GPU."""
        self._model = _column([[codes[gpu.model] for gpu in each] for each in gpus])

    def __len__(self) -> int:
        return len(self.node_types)

    def left(self, row: int) -> Left:
        """Return the room of one node."""
        frees = tuple(self.free[row, : len(self.node_types[row].sizes)].tolist())
        return Left(frees, int(self.cpu[row]), int(self.memory[row]))

    def take(self, kind: PodKind, row: int, gpus: Sequence[int]) -> None:
        """Give a pod its CPU, its memory, and these GPUs or its shares of them."""
        for gpu in gpus:
            self.free[row, gpu] -= kind.shares or self.free[row, gpu]
        self.cpu[row] -= kind.cpu_milli
        self.memory[row] -= kind.memory_mib

    def leave(self, kind: PodKind, row: int, gpus: Sequence[int]) -> None:
        """Take back what a pod was given."""
        for gpu in gpus:
            self.free[row, gpu] = self.free[row, gpu] + kind.shares if kind.shares else self.size[row, gpu]
        self.cpu[row] += kind.cpu_milli
        self.memory[row] += kind.memory_mib

    def spare(self, kind: PodKind, rows: Ints) -> tuple[Ints, Ints]:
        """Return the CPU and the memory of rows that a pod would leave; less than 0 where it does not fit."""
        return self.cpu[rows] - kind.cpu_milli, self.memory[rows] - kind.memory_mib

    def passing(self, kind: PodKind) -> Bools:
        """Return which rows kube-scheduler's own plugins let pass: they know sums only, and no models.

        An agent withholds from each sum the GPUs that are in use as the other resource.
        """
        enough: Bools = (self.cpu >= kind.cpu_milli) & (self.memory >= kind.memory_mib)
        if kind.shares:
            enough &= np.maximum(self.free, 0).sum(1) >= kind.shares * kind.gpus
        elif kind.gpus:
            enough &= ((self.free == self.whole) & (self.free > 0)).sum(1) >= kind.gpus
        return enough

    def states_after(self, kind: PodKind, rows: Ints) -> tuple[Ints, Bools]:
        """Return the free shares that a pod may leave, rows x states x GPUs, and which of the states are possible.

        A pod that takes shares of one GPU may take any; of several GPUs a pod gets the fullest ones that have room.
        """
        free, whole = self.free[rows], self.whole[rows]
        number, gpus = free.shape
        if not kind.gpus:
            return free[:, None, :], np.ones((number, 1), np.bool_)
        fitting = (free >= kind.shares) if kind.shares else (free == whole)
        fitting &= free > 0
        if kind.wishes.choosy:
            fitting &= np.array([kind.wishes.allow_model(model) for model in self._models])[self._model[rows]]
        if needs_gpus(kind):
            fitting &= whole > 0
        if kind.shares and kind.gpus == 1:
            states = np.repeat(free[:, None, :], gpus, 1)
            at = np.arange(gpus)
            states[:, at, at] -= kind.shares
            return states, fitting
        order = np.argsort(np.where(fitting, free, _MANY), 1, kind="stable")
        taken = fitting & (np.argsort(order, 1, kind="stable") < kind.gpus)
        states = np.where(taken, free - kind.shares if kind.shares else 0, free)
        return states[:, None, :], (fitting.sum(1) >= kind.gpus)[:, None]


def _column(rows: Sequence[Sequence[int]]) -> Ints:
    """Return rows of different lengths as a column, filled up with -1."""
    column = np.full((len(rows), max(map(len, rows), default=0)), -1, np.int64)
    for row, numbers in enumerate(rows):
        column[row, : len(numbers)] = numbers
    return column


def nodes_to_find(nodes: int, percentage: int) -> int:
    """Return how many nodes kube-scheduler looks for (`numFeasibleNodesToFind` in its schedule_one.go)."""
    percentage = percentage or max(5, 50 - nodes // 125)
    return min(nodes, max(100, nodes * percentage // 100))


class NodeSampling:
    """Goes round the nodes: a sample begins where the one before it ended. Zones are not modelled."""

    def __init__(self, rooms: Rooms, percentage: int) -> None:
        self._rooms = rooms
        self._wanted = nodes_to_find(len(rooms), percentage)
        self._start = 0

    def rows(self, kind: PodKind) -> Ints:
        """Return the sample for a pod, in the order in which kube-scheduler finds it."""
        passing = np.flatnonzero(self._rooms.passing(kind))
        passing = np.roll(passing, -int(passing.searchsorted(self._start)))
        # kube-scheduler ends at the first node that is too many. Where there is none, it has gone round once.
        if len(passing) > self._wanted:
            self._start = int(passing[self._wanted])
        return passing[: self._wanted]


class Policy(ABC):
    """Scores nodes for one kind of pod, and chooses GPUs."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    @abstractmethod
    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""

    def gpus(self, kind: PodKind, row: int) -> Sequence[int]:  # noqa: ARG002 - of those that place GPUs
        """Return the GPUs of a row that a pod with GPUs gets, by position; it fits there."""
        return ()

    def refresh(self, rows: Ints) -> None:  # noqa: B027 - some remember nothing of rows
        """Take note of rows that have changed."""


class Placer:
    """Places pods; of equal nodes the first row is chosen."""

    def __init__(
        self, rooms: Rooms, kinds: Sequence[PodKind], policy: Policy, without_gpus: Policy | None = None
    ) -> None:
        """Place pods of these kinds on `rooms`, those without GPUs by `without_gpus`; None: by `policy`, too."""
        self.rooms = rooms
        self.policy = policy
        self.kinds = kinds
        self._without_gpus = without_gpus
        self._scores: dict[int, Floats] = {}
        self._marks: dict[int, int] = {}
        """Of each kind, how many changes its scores include."""
        self._changes: list[int] = []
        """Rows, in the order of their changes."""

    def policy_for(self, kind: int) -> Policy:
        """Return the policy that places a kind of pod."""
        return self.policy if self._without_gpus is None or self.kinds[kind].gpus else self._without_gpus

    def follow(self, policy: Policy) -> None:
        """Score by another policy, or by newer tables, from now on."""
        self.policy = policy
        self._scores.clear()

    def place(self, kind: int, sample: Ints | None = None) -> tuple[int, Sequence[int]] | None:
        """Place a pod on a row of a sample; return its row and its GPUs by position, None where it fits on no node.

        Where it fits on none of the sample it gets the best of all rows: the extender nominates that one in a cluster.
        """
        if not len(self.rooms):
            return None
        scores = self._current(kind)
        row = scores.argmax() if sample is None or not len(sample) else sample[scores[sample].argmax()]
        row = int(row if scores[row] > NEVER else scores.argmax())
        if scores[row] == NEVER:
            return None
        pod = self.kinds[kind]
        gpus = self.policy.gpus(pod, row) if pod.gpus else ()
        self.take(kind, row, gpus)
        return row, gpus

    def take(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod on these GPUs, which have room for it."""
        self.rooms.take(self.kinds[kind], row, gpus)
        self._changed(row)

    def leave(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Give back what a pod has taken."""
        self.rooms.leave(self.kinds[kind], row, gpus)
        self._changed(row)

    def _changed(self, row: int) -> None:
        self._changes.append(row)
        for policy in filter(None, (self.policy, self._without_gpus)):
            policy.refresh(np.array([row]))

    def _current(self, kind: int) -> Floats:
        policy = self.policy_for(kind)
        scores = self._scores.get(kind)
        if scores is None:
            scores = self._scores[kind] = policy.scores(self.kinds[kind], np.arange(len(self.rooms)))
        elif changed := set(self._changes[self._marks[kind] :]):
            rows = np.fromiter(changed, np.int64, len(changed))
            scores[rows] = policy.scores(self.kinds[kind], rows)
        self._marks[kind] = len(self._changes)
        return scores
