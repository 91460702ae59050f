"""Policies for comparison, in columns: FGD, best fit, and that of kube-scheduler for pods without GPUs.

FGD takes the node whose fragments grow least (Weng et al., "Beware of Fragmentation", USENIX ATC 2023). A fragment
of a node for a kind of pod is what is free of its GPUs and that kind cannot use. A node counts with the mean over the
kinds that make up most of the pods. Growth is counted in GPUs, on a node with GPUs of several sizes in its largest
ones: the paper has one size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.value.marginal_value import NEVER
from gpu_device_plugin.programs.simulate.rooms import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Bools, Floats, Ints
    from gpu_device_plugin.programs.simulate.rooms import Rooms


_TYPICAL = 0.95
"""The most frequent kinds that are this part of all pods."""
_BLOCK = 256
"""Rows that are computed together: as many as the processor's cache holds the states of."""


class Fgd(Policy):
    """Scores nodes by how much a pod fragments them."""

    def __init__(self, rooms: Rooms, mix: Mapping[PodKind, float]) -> None:
        super().__init__(rooms)
        total, seen = sum(mix.values()), 0.0
        typical: list[tuple[PodKind, float]] = []
        for kind, part in sorted(mix.items(), key=lambda item: -item[1]):
            if seen >= _TYPICAL * total:
                break
            typical.append((kind, part))
            seen += part
        kinds = [kind for kind, _ in typical]
        self._parts = np.array([part / seen for _, part in typical])
        self._cpu = np.array([kind.cpu_milli for kind in kinds])
        self._memory = np.array([kind.memory_mib for kind in kinds])
        self._kinds = kinds
        most = int(rooms.size.max(initial=0)) + 1
        # By kind, and by free shares of a GPU: whether a pod for shares can use them. A row of such a table times the
        # parts of the kinds that a node hosts is the part of the pods that can use them.
        self._usable = np.zeros((len(kinds), most))
        # By kind, and by unused GPUs: whether a pod for whole GPUs can use them.
        self._usable_whole = np.zeros((len(kinds), rooms.free.shape[1] + 1))
        for at, kind in enumerate(kinds):
            if kind.gpus and kind.shares:
                self._usable[at, kind.shares :] = 1
            elif kind.gpus:
                self._usable_whole[at, kind.gpus :] = 1
        self._split = [at for at, kind in enumerate(kinds) if kind.shares and kind.gpus > 1]
        hosts = {each: [each.hosts(kind) for kind in kinds] for each in dict.fromkeys(rooms.node_types)}
        self._hosts: Bools = np.array([hosts[each] for each in rooms.node_types], np.bool_).reshape(-1, len(kinds))
        """Rows x kinds: whether the empty node has room for the pod."""
        self._now = np.zeros(len(rooms))
        self.refresh(np.arange(len(rooms)))

    def refresh(self, rows: Ints) -> None:
        """Compute the fragments of rows again that have changed."""
        rooms = self.rooms
        for at in range(0, len(rows), _BLOCK):
            some = rows[at : at + _BLOCK]
            free = rooms.free[some][:, None, :]
            self._now[some] = self._fragments(some, free, rooms.cpu[some], rooms.memory[some])[:, 0]

    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        if len(rows) > _BLOCK:
            return np.concatenate([self.scores(kind, rows[at : at + _BLOCK]) for at in range(0, len(rows), _BLOCK)])
        lost, fits = self._lost(kind, rows)
        # As published, rounded to a hundred steps: so most nodes are equal, and their order decides.
        score = np.floor(100 / (1 + np.exp(lost / self.rooms.size[rows].max(1, initial=1)[:, None])))
        found: Floats = np.where(fits, score, NEVER).max(1)
        return found

    def gpus(self, kind: PodKind, row: int) -> list[int]:
        """Return the GPUs of a row by which its fragments grow least, by position."""
        at = np.array([row])
        lost, fits = self._lost(kind, at)
        states, _ = self.rooms.states_after(kind, at)
        best = int(np.where(fits[0], lost[0], np.inf).argmin())
        return [int(gpu) for gpu in np.nonzero(self.rooms.free[row] - states[0, best])[0]]

    def _lost(self, kind: PodKind, rows: Ints) -> tuple[Floats, Bools]:
        """Return by how many shares fragments grow, rows x states, and which states are possible."""
        rooms = self.rooms
        cpu, memory = rooms.spare(kind, rows)
        states, fits = rooms.states_after(kind, rows)
        fits &= ((cpu >= 0) & (memory >= 0))[:, None]
        return self._fragments(rows, states, cpu, memory) - self._now[rows][:, None], fits

    def _fragments(self, rows: Ints, free: Ints, cpu: Ints, memory: Ints) -> Floats:
        """Return the fragments of states, rows x states, given their free shares (rows x states x GPUs)."""
        rooms = self.rooms
        whole, free = rooms.whole[rows][:, None, :], np.maximum(free, 0)
        # Rows x kinds: whether the node hosts a pod as far as models, CPU and memory decide.
        hosted = self._hosts[rows] & (cpu[:, None] >= self._cpu) & (memory[:, None] >= self._memory)
        parts = self._parts * hosted
        row = np.arange(len(rows))[:, None]
        of_shares = (parts @ self._usable)[row[:, :, None], free]
        idle = (free == whole) & (free > 0)
        of_whole = (parts @ self._usable_whole)[row, idle.sum(2)]
        usable = (free * of_shares).sum(2) + np.where(idle, free, 0).sum(2) * of_whole
        for at in self._split:
            kind = self._kinds[at]
            enough = free >= kind.shares
            of_gpus = enough & (whole > 0)
            # Counted above as if one GPU, or MIG instance, were enough.
            in_vain = np.where(of_gpus.sum(2)[:, :, None] < kind.gpus, enough, enough & ~of_gpus)
            usable -= np.where(in_vain, free, 0).sum(2) * parts[:, at, None]
        fragments: Floats = free.sum(2) - usable
        return fragments


class BestFit(Policy):
    """Scores nodes by what they have left of CPU and GPUs, each as a part of the largest node's."""

    def __init__(self, rooms: Rooms) -> None:
        super().__init__(rooms)
        self._most_cpu = max([1, *(node_type.cpu_milli for node_type in rooms.node_types)])
        self._most_shares = max(1, int(np.maximum(rooms.size, 0).sum(1).max(initial=1)))

    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        rooms = self.rooms
        states, fits = rooms.states_after(kind, rows)
        cpu, memory = rooms.spare(kind, rows)
        fits &= ((cpu >= 0) & (memory >= 0))[:, None]
        left = np.maximum(states, 0).sum(2) / self._most_shares + (cpu / self._most_cpu)[:, None]
        # As published, rounded to a hundred steps: so many nodes are equal, and their order decides.
        found: Floats = np.where(fits, np.floor(100 * (1 - left / 2)), NEVER).max(1)
        return found

    def gpus(self, kind: PodKind, row: int) -> list[int]:
        """Return the fullest GPUs of a row on which a pod fits, by position."""
        rooms = self.rooms
        states, fits = rooms.states_after(kind, np.array([row]))
        taken = rooms.free[row] - states[0]
        # Of the states that are possible, the one whose GPUs keep least.
        kept = np.where(fits[0], np.where(taken > 0, states[0], 0).sum(1), np.iinfo(np.int64).max)
        return [int(at) for at in np.nonzero(taken[int(kept.argmin())])[0]]


class LeastAllocated(Policy):
    """Scores nodes for pods without GPUs by what they have left of CPU and memory, which spreads these pods.

    It is the default score of kube-scheduler's plugin NodeResourcesFit, for pods about which it asks no extender.
    """

    def __init__(self, rooms: Rooms) -> None:
        super().__init__(rooms)
        every = [(max(1, each.cpu_milli), max(1, each.memory_mib)) for each in rooms.node_types]
        self._all = np.array(every, float).reshape(-1, 2)

    def scores(self, kind: PodKind, rows: Ints) -> Floats:
        """Return the scores of rows, the best being the highest; `NEVER` where the pod does not fit."""
        spare = np.stack(self.rooms.spare(kind, rows), 1)
        found: Floats = np.where((spare >= 0).all(1), (spare / self._all[rows]).sum(1), NEVER)
        return found
