"""Place pods on the nodes that a policy scores best, with each score remembered until its node changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from gpu_device_plugin.core.value.marginal_value import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.value.workload_mix import PodKind
    from gpu_device_plugin.programs.simulate.model import Floats, Ints
    from gpu_device_plugin.programs.simulate.rooms import Rooms


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
