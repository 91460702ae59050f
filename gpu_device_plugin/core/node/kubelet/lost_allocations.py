"""Remember the kubelet's record of allocated devices, and find the allocations that it has lost.

A kubelet whose checkpoint is missing or damaged at its start takes it for empty. It keeps the containers that run,
writes an empty record with the next device list, and allocates their devices again (seen on 1.36.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.holds import HoldSource

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_device_plugin.core.model.holds import DeviceHold


@dataclass(frozen=True, slots=True)
class Remembered:
    """The allocations on a node since its boot. Each reading of the kubelet's record makes a new value."""

    kubelet: str = ""
    """The kubelet process whose own record was read last; empty: none was."""
    recorded: frozenset[DeviceHold] = field(default_factory=frozenset)
    """The allocations in the record that was read last."""
    forgotten: frozenset[DeviceHold] = field(default_factory=frozenset)
    """Those that the kubelet has lost, of pods that may still run."""

    @property
    def lost_ids(self) -> frozenset[str]:
        """The device IDs in use that the kubelet takes for free."""
        return _ids(self.forgotten) - _ids(self.recorded) if self.forgotten else frozenset()

    def after(self, record: Collection[DeviceHold] | None, kubelet: str, *, its_own: bool) -> Remembered:
        """Return the value after one more reading.

        The kubelet restores its checkpoint whole or, if the checksum is wrong, not at all. So another process that
        shows none of the allocations of its predecessor has lost all of them, or all of their pods have ended. A
        process never loses an allocation that it knows: what it shows no more has ended.

        Args:
            record: the allocations in the checkpoint; None: it is missing or damaged.
            kubelet: the kubelet process that runs now.
            its_own: whether that process wrote or restored the record, which otherwise it may have refused to read.
        """
        lost = kubelet != self.kubelet and self.recorded.isdisjoint(record or ())
        forgotten = self.forgotten
        if lost:
            forgotten |= {replace(hold, source=HoldSource.REMEMBERED) for hold in self.recorded}
        if record is None:
            return replace(self, recorded=frozenset() if lost else self.recorded, forgotten=forgotten)
        # The kubelet has allocated anew for a container that did not run.
        again = {_slot(hold) for hold in record}
        return Remembered(
            kubelet if its_own else self.kubelet,
            frozenset(record),
            frozenset(hold for hold in forgotten if _slot(hold) not in again),
        )

    def among(self, living: Collection[str]) -> Remembered:
        """Return the value without the forgotten allocations of all pods but these, by UID."""
        return replace(self, forgotten=frozenset(hold for hold in self.forgotten if hold.pod_uid in living))


def _slot(hold: DeviceHold) -> tuple[str, str, str]:
    return hold.pod_uid, hold.container, hold.through


def _ids(holds: Collection[DeviceHold]) -> frozenset[str]:
    return frozenset().union(*(hold.device_ids for hold in holds))
