"""What the agent keeps of the kubelet's record for the next agent on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from gpu_device_plugin.features.forgotten.rules import Remembered
from gpu_device_plugin.kubelet.statefile import LONGEST_DOCUMENT, StateFile
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpu_device_plugin.model.resources import Names

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
    ordered = sorted(allocations, key=lambda allocation: (allocation.pod_uid, allocation.container, allocation.through))
    return [(h.pod_uid, h.container, h.through, h.device_ids, h.enforcement or "") for h in ordered]
