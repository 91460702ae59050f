"""Remember what the kubelet has shown of its allocations in this boot, and keep what it has lost of it in use."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.features.forgotten.rules import Remembered, ids_of, lost_sentence
from gpu_device_plugin.features.forgotten.saved_allocations import SavedAllocations
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.kubelet.checkpoint import Checkpoint
    from gpu_device_plugin.model.allocations import Allocation
    from gpu_device_plugin.node.feature_context import NodeContext

_log = logging.getLogger(__name__)


class ForgottenPods(NodeFeature):
    """The pods whose allocations the kubelet has lost.

    Such a pod has ended once the API does not show it and no process of it runs. An agent that can see neither takes
    pods for forgotten only if it has found the checkpoint missing or damaged itself.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`; nothing is read or saved before `recover`."""
        self._records, self._proc = node.records, node.proc
        self._api, self._metrics = node.api, node.metrics
        self._saved: SavedAllocations | None = None
        self._saving = asyncio.Lock()
        self._remembered = Remembered()
        self._reported: frozenset[Allocation] = frozenset()
        self._doubtful: frozenset[Allocation] = frozenset()
        """Allocations that another kubelet than before does not show in a checkpoint that can be read. It has lost
        them, or all of their pods have ended since."""

    def recover(self) -> Collection[str]:  # noqa: D102
        self._saved = SavedAllocations(self._records.directory, procfs.boot_id(self._proc), self._records.names)
        self._remembered = self._saved.load()
        try:
            found = self._records.recorded()
        except CheckpointUnreadableError:
            found = None
        self.checkpoint_read(found, its_own=False)
        return {allocation.pod_uid for allocation in self._remembered.forgotten}

    def checkpoint_read(self, found: Checkpoint | None, *, its_own: bool) -> None:  # noqa: D102
        # Every kubelet that has allocated a device has written the file.
        readable = found is not None and found.stamp is not None
        record = (
            [allocation for allocation in found.allocations if allocation.kind is not None]
            if found and readable
            else None
        )
        before = self._remembered
        self._remembered = before.after(record, self._records.kubelet, its_own=its_own)
        if record is not None:
            self._doubtful |= self._remembered.forgotten - before.forgotten

    def unrecorded(self) -> Collection[Allocation]:
        """Return the lost allocations, in the order of their pods' UIDs."""
        return sorted(
            self._remembered.forgotten,
            key=lambda allocation: (allocation.pod_uid, allocation.container, allocation.through),
        )

    def unrecorded_ids(self) -> frozenset[str]:  # noqa: D102
        return self._remembered.lost_ids

    async def check_unrecorded(self) -> None:
        """Save for the next agent what was learned, leave out the pods that have ended, and report the others."""
        if self._saved is not None:
            async with self._saving:
                await in_thread(self._saved.save, self._remembered)
        if not self._remembered.forgotten:
            return
        processes = await asyncio.to_thread(procfs.running_pods, self._proc)
        in_api = self._api.living()
        if processes is not None or in_api is not None:
            self._remembered = self._remembered.among({*(processes or ()), *(in_api or ())})
        elif not self._api.has_access:
            certain = self._remembered.forgotten - self._doubtful
            self._remembered = self._remembered.among({allocation.pod_uid for allocation in certain})
        if new := self._remembered.forgotten - self._reported:
            self._reported = self._remembered.forgotten
            self._report(new, in_api or {})

    def _report(self, lost: Collection[Allocation], names: Mapping[str, str]) -> None:
        self._metrics.count(m.LEDGER_DRIFT, "unknown_to_the_kubelet", times=len(ids_of(lost)))
        self._api.announce(_log, "DevicesForgotten", lost_sentence(lost, names), "Observe", logging.ERROR)
