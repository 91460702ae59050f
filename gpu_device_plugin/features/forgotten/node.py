"""Remember what the kubelet has shown of its allocations in this boot, and keep what it has lost of it in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.features.forgotten.rules import Remembered, ids_of, lost_sentence, slot
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.kubelet.checkpoint import Checkpoint, CheckpointUnreadableError
from gpu_device_plugin.kubelet.statefile import LONGEST_DOCUMENT, StateFile
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Names
from gpu_device_plugin.node.extension import NodeFeature
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
        self._api, self._cluster, self._metrics = node.api, node.cluster, node.metrics
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
        record = [each for each in found.allocations if each.kind is not None] if found and readable else None
        before = self._remembered
        self._remembered = before.after(record, self._records.kubelet, its_own=its_own)
        if record is not None:
            self._doubtful |= self._remembered.forgotten - before.forgotten

    def unrecorded(self) -> Collection[Allocation]:
        """Return the lost allocations, in the order of their pods' UIDs."""
        return sorted(self._remembered.forgotten, key=slot)

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
        elif self._cluster is None:
            certain = self._remembered.forgotten - self._doubtful
            self._remembered = self._remembered.among({allocation.pod_uid for allocation in certain})
        if new := self._remembered.forgotten - self._reported:
            self._reported = self._remembered.forgotten
            self._report(new, in_api or {})

    def _report(self, lost: Collection[Allocation], names: Mapping[str, str]) -> None:
        self._metrics.count(m.LEDGER_DRIFT, "unknown_to_the_kubelet", times=len(ids_of(lost)))
        self._api.announce(_log, "DevicesForgotten", lost_sentence(lost, names), "Observe", logging.ERROR)


_Row: TypeAlias = tuple[str, str, str, frozenset[str], Any]  # pod, container, resource, IDs, means of limiting or ""


class _Allocations(msgspec.Struct):
    boot: str = ""
    kubelet: str = ""
    recorded: list[_Row] = []
    forgotten: list[_Row] = []


class SavedAllocations:
    """The kubelet's record of allocated devices, which holds until the node is rebooted."""

    def __init__(self, directory: Path, boot_id: str, names: Names) -> None:
        """Read and write below the device-plugin `directory`.

        An empty `boot_id` is unknown, and nothing is saved. `names` are those of our resources.
        """
        # A power cut begins another boot, in which the file does not count: it need not last.
        self._file = StateFile(directory, "allocations", longest=LONGEST_DOCUMENT, lasting=False)
        self._boot_id = boot_id
        self._names = names
        self._saved: Remembered | None = None

    def load(self) -> Remembered:
        """Return what was saved in this boot; nothing if there is no such file, or it is damaged."""
        found = self._file.read_document(_Allocations, _Allocations())
        if not self._boot_id or found.boot != self._boot_id:
            return Remembered()
        recorded = self._allocations(found.recorded, AllocationSource.CHECKPOINT)
        return Remembered(found.kubelet, recorded, self._allocations(found.forgotten, AllocationSource.REMEMBERED))

    def save(self, allocations: Remembered) -> None:
        """Save `allocations` for the next agent. May wait for the disk."""
        if self._boot_id and allocations != self._saved:  # thousands of devices take 80 ms to encode
            rows = _rows(allocations.recorded), _rows(allocations.forgotten)
            written = self._file.write_document(_Allocations(self._boot_id, allocations.kubelet, *rows))
            self._saved = allocations if written else None

    def _allocations(self, rows: Iterable[_Row], source: AllocationSource) -> frozenset[Allocation]:
        # A later version may know other means of limiting.
        means = {each.value: each for each in Enforcement}
        return frozenset(
            Allocation(
                uid, container, self._names.kind_of(resource), ids, source, resource, means.get(str(enforcement))
            )
            for uid, container, resource, ids, enforcement in rows
        )


def _rows(allocations: Iterable[Allocation]) -> list[_Row]:
    return [(*slot(each), each.device_ids, each.enforcement or "") for each in sorted(allocations, key=slot)]
