"""Pods without GPUs as kube-scheduler places them beside an extender that it asks about pods with GPUs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.marginal_value import Left
    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Start


class Placer(Protocol):
    """Places pods by one policy."""

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod; return its row and its GPUs by position, None where it fits on no node."""

    def take(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod where somebody else has decided."""

    def leave(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Give back what a pod has taken."""

    def left(self, row: int) -> Left:
        """Return what a node has left now."""


class Beside:
    """Pods with GPUs go where a policy says, the others where most CPU and memory is left.

    That is the score NodeResourcesFit of kube-scheduler by default (LeastAllocated), and spreads them over all nodes.
    """

    def __init__(self, placer: Placer, nodes: Sequence[Start], kinds: Sequence[PodKind]) -> None:
        """Ask `placer` about pods with GPUs."""
        self._placer = placer
        self._kinds = kinds
        every = [(max(1, node.shape.cpu_milli), max(1, node.shape.memory_mib)) for node in nodes]
        self._all = np.array(every, float).reshape(-1, 2)
        self._left = np.array([(node.left.cpu_milli, node.left.memory_mib) for node in nodes], float).reshape(-1, 2)

    def place(self, kind: int) -> tuple[int, Sequence[int]] | None:
        """Place a pod; return its row and its GPUs by position, None where it fits on no node."""
        pod = self._kinds[kind]
        if pod.gpus:
            found = self._placer.place(kind)
        else:
            after = self._left - (pod.cpu_milli, pod.memory_mib)
            scores = np.where((after >= 0).all(1), (after / self._all).sum(1), -1.0)
            row = int(scores.argmax()) if len(scores) else 0
            found = (row, ()) if len(scores) and scores[row] >= 0 else None
            if found is not None:
                self._placer.take(kind, *found)
        if found is not None:
            self._left[found[0]] -= (pod.cpu_milli, pod.memory_mib)
        return found

    def take(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Place a pod where somebody else has decided."""
        self._placer.take(kind, row, gpus)
        self._left[row] -= (self._kinds[kind].cpu_milli, self._kinds[kind].memory_mib)

    def leave(self, kind: int, row: int, gpus: Sequence[int]) -> None:
        """Give back what a pod has taken."""
        self._placer.leave(kind, row, gpus)
        self._left[row] += (self._kinds[kind].cpu_milli, self._kinds[kind].memory_mib)

    def left(self, row: int) -> Left:
        """Return what a node has left now."""
        return self._placer.left(row)
