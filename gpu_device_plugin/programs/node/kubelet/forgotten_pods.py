"""Keep the devices of running pods whose allocations the kubelet has lost, until those pods end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.kubelet.lost_allocations import Remembered
from gpu_device_plugin.kubelet import procfs
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError
from gpu_device_plugin.kubelet.statefile import SavedAllocations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.kubelet.checkpoint import Checkpoint
    from gpu_device_plugin.kubelet.records import KubeletRecords


class ForgottenPods:
    """What the kubelet has shown of its allocations in this boot, and what it has lost of it."""

    def __init__(
        self,
        records: KubeletRecords,
        in_api: Callable[[], Mapping[str, str] | None] | None,
        lost: Callable[[Collection[DeviceHold], Mapping[str, str]], None],
        proc: Path = procfs.PROC,
    ) -> None:
        """Compare the readings of `records`.

        A forgotten pod has ended once the API does not show it and no process of it runs below `proc`. An agent that
        can see neither takes pods for forgotten only if it has found the checkpoint missing or damaged itself.

        `in_api` returns the names of the node's pods that have not ended in the Kubernetes API, by UID, None: not known
        now; it is None for an agent without the API. `lost` is called once with each allocation that the kubelet has
        lost, and the names of pods by UID.
        """
        self._records = records
        self._saved: SavedAllocations | None = None
        self._in_api = in_api
        self._proc = proc
        self._lost = lost
        self._remembered: Remembered = Remembered()
        self._reported: frozenset[DeviceHold] = frozenset()
        self._doubtful: frozenset[DeviceHold] = frozenset()
        """Allocations that another kubelet than before does not show in a checkpoint that can be read. It has lost
        them, or all of their pods have ended since."""

    def __repr__(self) -> str:
        return f"<ForgottenPods: {len(self.holds)} allocations forgotten, {len(self._remembered.recorded)} recorded>"

    @property
    def holds(self) -> Collection[DeviceHold]:
        """The lost allocations, in the order of their pods' UIDs."""
        return sorted(self._remembered.forgotten, key=lambda hold: (hold.pod_uid, hold.container, hold.through))

    @property
    def device_ids(self) -> frozenset[str]:
        """The devices of forgotten pods that the kubelet takes for free."""
        return self._remembered.lost_ids

    def load(self) -> Collection[str]:
        """Take over what the previous agent saved; return the UIDs of the pods that the kubelet has forgotten.

        Needs the node's lock. Nothing is saved before.
        """
        self._saved = SavedAllocations(self._records.directory, procfs.boot_id(self._proc), self._records.names)
        self._remembered = self._saved.load()
        try:
            found = self._records.recorded()
        except CheckpointUnreadableError:
            found = None
        self.learn(found, its_own=False)
        return {hold.pod_uid for hold in self._remembered.forgotten}

    def learn(self, found: Checkpoint | None, *, its_own: bool) -> None:
        """Compare a reading of the checkpoint with those before; None: it cannot be read.

        `its_own`: the kubelet process that runs now has written it, or shows devices in it.
        """
        # Every kubelet that has allocated a device has written the file.
        readable = found is not None and found.stamp is not None
        record = [hold for hold in found.holds if hold.kind is not None] if found and readable else None
        before = self._remembered
        self._become(before.after(record, self._records.kubelet, its_own=its_own))
        if record is not None:
            self._doubtful |= self._remembered.forgotten - before.forgotten

    async def forget_ended(self) -> None:
        """Leave out the pods that have ended, and report the others."""
        if not self._remembered.forgotten:
            return
        processes = await asyncio.to_thread(procfs.running_pods, self._proc)
        in_api = None if self._in_api is None else self._in_api()
        if processes is not None or in_api is not None:
            self._become(self._remembered.among({*(processes or ()), *(in_api or ())}))
        elif self._in_api is None:
            certain = self._remembered.forgotten - self._doubtful
            self._become(self._remembered.among({hold.pod_uid for hold in certain}))
        if new := self._remembered.forgotten - self._reported:
            self._reported = self._remembered.forgotten
            self._lost(new, in_api or {})

    def _become(self, remembered: Remembered) -> None:
        self._remembered = remembered
        if self._saved is not None:
            self._saved.save(remembered)
