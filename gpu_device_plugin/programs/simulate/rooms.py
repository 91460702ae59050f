"""The room that each of thousands of nodes has left, in columns of numpy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from gpu_device_plugin.core.value.marginal_value import Left
from gpu_device_plugin.core.value.node_types import GpuKind, NodeType, needs_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.value.workload_mix import PodKind


Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NO_NODE = NodeType((), (), 0, 0)
"""The shape of a row without a node, or with one that has no GPU."""
NO_GPU = GpuKind(0, "")
"""The kind of GPU at a place of a node that has none."""


class Rooms:
    """The columns; a column of GPUs has a row of numbers for each node, by position."""

    def __init__(self) -> None:
        """Start without rows."""
        self.shapes: list[NodeType] = []
        """Every shape that was seen, by its code."""
        self.gpus: list[GpuKind] = []
        """Every kind of GPU that was seen, by its code."""
        self._codes: dict[NodeType, int] = {}
        self._gpu_codes: dict[GpuKind, int] = {}
        self._gpus_of: list[list[int]] = []
        self._whole_of: list[list[int]] = []
        self.shape: Ints = np.zeros(0, np.int64)
        """Code of the node's shape."""
        self.cpu: Ints = np.zeros(0, np.int64)
        """Thousandths of a CPU that it has left."""
        self.memory: Ints = np.zeros(0, np.int64)
        """MiB of memory."""
        self.free: Ints = np.zeros((0, 0), np.int64)
        """Free shares of each GPU; -1: it gives none, or there is no such GPU."""
        self.size: Ints = np.zeros((0, 0), np.int64)
        """Shares of each GPU; -1: no such GPU."""
        self.whole: Ints = np.zeros((0, 0), np.int64)
        """The same of whole GPUs only; -1 also for a MIG instance, which is never free as a whole GPU."""
        self.gpu: Ints = np.zeros((0, 0), np.int64)
        """Code of each GPU's kind."""
        self._gpu_code(NO_GPU)
        self._code(NO_NODE)

    def __len__(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<Rooms: {len(self)} rows, {len(self.shapes)} shapes, {len(self.gpus)} kinds of GPUs>"

    def write(self, row: int, shape: NodeType, left: Left) -> None:
        """Store the state of a node in its row; rows are added if it is missing, more than one at a time."""
        gpus = len(shape.sizes)
        code = self._code(shape if gpus else NO_NODE)
        self.reserve(row + 1 if row < len(self) else max(row + 1, len(self) + len(self) // 16), gpus)
        self.shape[row], self.cpu[row], self.memory[row] = code, left.cpu_milli, left.memory_mib
        for column, values in ((self.free, left.frees), (self.size, shape.sizes), (self.whole, self._whole_of[code])):
            column[row, :gpus] = values
            column[row, gpus:] = -1
        self.gpu[row, :gpus] = self._gpus_of[code]
        self.gpu[row, gpus:] = 0

    def node(self, row: int) -> tuple[NodeType, Left]:
        """Return the shape and the room of the node in a row."""
        shape = self.shapes[self.shape[row]]
        frees = tuple(self.free[row, : len(shape.sizes)].tolist())
        return shape, Left(frees, int(self.cpu[row]), int(self.memory[row]))

    def counts(self) -> Mapping[NodeType, int]:
        """Return how many nodes with GPUs there are of each shape."""
        found = Counter(self.shape.tolist())
        return {self.shapes[code]: number for code, number in found.items() if code}

    def _code(self, shape: NodeType) -> int:
        code = self._codes.get(shape)
        if code is None:
            code = self._codes[shape] = len(self.shapes)
            self.shapes.append(shape)
            self._gpus_of.append([self._gpu_code(gpu) for gpu in shape.gpus])
            self._whole_of.append([-1 if gpu.instance else gpu.size for gpu in shape.gpus])
        return code

    def _gpu_code(self, gpu: GpuKind) -> int:
        code = self._gpu_codes.get(gpu)
        if code is None:
            code = self._gpu_codes[gpu] = len(self.gpus)
            self.gpus.append(gpu)
        return code

    def reserve(self, rows: int, gpus: int) -> None:
        """Have at least so many rows, and place for so many GPUs in each."""
        rows, gpus = max(rows, len(self)), max(gpus, self.free.shape[1])
        if self.free.shape == (rows, gpus):
            return
        more = (0, rows - len(self))
        self.shape, self.cpu, self.memory = (np.pad(column, more) for column in (self.shape, self.cpu, self.memory))
        wider = (more, (0, gpus - self.free.shape[1]))
        self.free, self.size, self.whole = (
            np.pad(column, wider, constant_values=-1) for column in (self.free, self.size, self.whole)
        )
        self.gpu = np.pad(self.gpu, wider)


def rooms_of(nodes: Sequence[tuple[NodeType, Left]]) -> Rooms:
    """Return the rooms of these nodes, in their order."""
    rooms = Rooms()
    rooms.reserve(len(nodes), max((len(shape.sizes) for shape, _ in nodes), default=0))
    for row, (shape, left) in enumerate(nodes):
        rooms.write(row, shape, left)
    return rooms


def allowed_gpus(kind: PodKind, rooms: Rooms, rows: Ints) -> Bools:
    """Return which GPUs of rows the wishes of a kind allow."""
    if not kind.wishes.choosy:
        return np.ones((1, 1), np.bool_)
    by_gpu = np.array([kind.wishes.allow_model(gpu.model) for gpu in rooms.gpus])
    return by_gpu[rooms.gpu[rows]]


_MANY = 1 << 60


def states_after(kind: PodKind, rooms: Rooms, rows: Ints) -> tuple[Ints, Bools]:
    """Return the free shares that a pod may leave, rows x states x GPUs, and which of the states are possible.

    A pod that takes shares of one GPU may take any; of several GPUs a pod gets the fullest ones that have room.
    """
    free, whole = rooms.free[rows], rooms.whole[rows]
    number, gpus = free.shape
    if not kind.gpus:
        return free[:, None, :], np.ones((number, 1), np.bool_)
    fitting = (free >= kind.shares) if kind.shares else (free == whole)
    fitting &= (free > 0) & allowed_gpus(kind, rooms, rows)
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
