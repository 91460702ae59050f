"""What the agent keeps of guarantees beyond requests for the next agent on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.kubelet.statefile import LONGEST_DOCUMENT, StateFile
from gpu_device_plugin.node.rules.ledger import Reservation

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_device_plugin.node.rules.ledger import Reservations

_Reserved: TypeAlias = tuple[str, str, str, int, frozenset[str]]  # pod, container, GPU, shares, IDs


class SavedGuarantees:
    """What containers are guaranteed beyond their requests, for as long as they have their devices."""

    def __init__(self, directory: Path) -> None:
        """Read and write below the device-plugin `directory`."""
        # Most nodes never have any.
        self._file = StateFile(directory, "guarantees", longest=LONGEST_DOCUMENT, nothing="[]")

    def load(self) -> Reservations:
        """Return what was saved; nothing if there is no such file, or it is damaged."""
        rows: list[_Reserved] = self._file.read_document(list[_Reserved], [])
        return {(uid, container): Reservation(uuid, shares, own) for uid, container, uuid, shares, own in rows}

    def save(self, reservations: Reservations) -> bool:
        """Save `reservations` for the next agent; return whether that succeeded. May wait for the disk."""
        rows = [(*key, each.uuid, each.shares, each.own) for key, each in sorted(reservations.items())]
        return self._file.write_document(rows)
