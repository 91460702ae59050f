"""Find the allocations that the kubelet has lost, by its record as it was before.

A kubelet whose checkpoint is missing or damaged at its start takes it for empty. It keeps the containers that run,
writes an empty record with the next device list, and allocates their devices again (seen on 1.36.3). So the record is
remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.report.rules.printing import first


@dataclass(frozen=True, slots=True)
class Remembered:
    """The allocations on a node since its boot. Each reading of the kubelet's record makes a new value."""

    kubelet: str = ""
    """The kubelet process whose own record was read last; empty: none was."""
    recorded: frozenset[Allocation] = field(default_factory=frozenset)
    """The allocations in the record that was read last."""
    forgotten: frozenset[Allocation] = field(default_factory=frozenset)
    """Those that the kubelet has lost, of pods that may still run."""

    @property
    def lost_ids(self) -> frozenset[str]:
        """The device IDs in use that the kubelet takes for free."""
        return ids_of(self.forgotten) - ids_of(self.recorded) if self.forgotten else frozenset()

    def after(self, record: Collection[Allocation] | None, kubelet: str, *, its_own: bool) -> Remembered:
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
            forgotten |= {replace(allocation, source=AllocationSource.REMEMBERED) for allocation in self.recorded}
        if record is None:
            return replace(self, recorded=frozenset() if lost else self.recorded, forgotten=forgotten)
        # The kubelet has allocated anew for a container that did not run.
        again = {slot(allocation) for allocation in record}
        return Remembered(
            kubelet if its_own else self.kubelet,
            frozenset(record),
            frozenset(allocation for allocation in forgotten if slot(allocation) not in again),
        )

    def among(self, living: Collection[str]) -> Remembered:
        """Return the value without the forgotten allocations of all pods but these, by UID."""
        return replace(
            self, forgotten=frozenset(allocation for allocation in self.forgotten if allocation.pod_uid in living)
        )


def slot(allocation: Allocation) -> tuple[str, str, str]:
    """Return the container and the resource, by which allocations are told apart and sorted."""
    return allocation.pod_uid, allocation.container, allocation.through


def ids_of(allocations: Collection[Allocation]) -> frozenset[str]:
    """Return the device IDs of some allocations."""
    return frozenset().union(*(allocation.device_ids for allocation in allocations))


def lost_sentence(lost: Collection[Allocation], names: Mapping[str, str]) -> str:
    """Return what an administrator should know of lost allocations, without a full stop.

    `names` are those of pods by UID, as far as known.
    """
    holders = sorted({names.get(each.pod_uid, f"the pod with UID {each.pod_uid}") for each in lost})
    return (
        f"the kubelet has lost its record of {len(ids_of(lost))} devices of {first(holders, 3)}: "
        "its checkpoint was deleted or damaged before it started, or those pods were force-deleted; the devices "
        "stay in use until the pods end. Delete the pods, one after another, to have them start again with devices "
        "that the kubelet knows"
    )
