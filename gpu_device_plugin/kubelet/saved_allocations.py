"""Save the kubelet's record of allocated devices in a file of our own, which holds until the node is rebooted."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.remembered import Remembered
from gpu_device_plugin.kubelet.checkpoint import Entry
from gpu_device_plugin.kubelet.statefile import ALLOCATIONS, StateFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log = logging.getLogger(__name__)

_LARGEST = 4 << 20
"""Bytes. 8,000 devices, each in use by another container, take 1.2 MB."""


class SavedAllocations:
    """The file. Only the holder of the node's lock writes it."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        """Read and write below the device-plugin `directory`; an empty `boot_id` is unknown, and nothing is saved."""
        # A power cut begins another boot, in which the file does not count: it need not last.
        self._file = StateFile(directory, ALLOCATIONS, longest=_LARGEST, lasting=False)
        self._boot_id = boot_id
        self._saved: Remembered[Entry] = Remembered()

    def __repr__(self) -> str:
        return f"<SavedAllocations of boot {self._boot_id or 'unknown'}>"

    def load(self) -> Remembered[Entry]:
        """Return what was saved in this boot; nothing if there is no such file, or it is damaged."""
        text = self._file.read() if self._boot_id else None
        try:
            found: Any = json.loads(text or "{}")
            if found and found["boot"] == self._boot_id:
                self._saved = Remembered(
                    str(found["kubelet"]), _entries(found["recorded"]), _entries(found["forgotten"])
                )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = type(error).__name__
            _log.warning("the allocations that the previous agent of this node saved are damaged", extra={"why": why})
        return self._saved

    def save(self, allocations: Remembered[Entry]) -> None:
        """Save `allocations` for the next agent."""
        if not self._boot_id or allocations == self._saved:
            return
        self._saved = allocations
        content = {
            "boot": self._boot_id,
            "kubelet": allocations.kubelet,
            "recorded": _rows(allocations.recorded),
            "forgotten": _rows(allocations.forgotten),
        }
        self._file.write(json.dumps(content, separators=(",", ":")))


def _rows(entries: Iterable[Entry]) -> list[list[object]]:
    ordered = sorted(entries, key=lambda each: (each.pod_uid, each.container, each.resource))
    return [[each.pod_uid, each.container, each.resource, sorted(each.device_ids), each.rung] for each in ordered]


def _entries(rows: Any) -> frozenset[Entry]:
    return frozenset(
        # A later version may know other means of limiting.
        Entry(str(uid), str(container), str(resource), frozenset(map(str, ids)), rung if rung in list(Rung) else "")
        for uid, container, resource, ids, rung in rows
    )
