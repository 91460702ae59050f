"""Keep the devices of running pods whose allocations the kubelet has lost, until those pods end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.remembered import Remembered
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpu_device_plugin.kubelet.checkpoint import Checkpoint, Entry
    from gpu_device_plugin.kubelet.records import KubeletRecords
    from gpu_device_plugin.kubelet.saved_allocations import SavedAllocations


class ForgottenPods:
    """What the kubelet has shown of its allocations in this boot, and what it has lost of it."""

    def __init__(
        self,
        records: KubeletRecords,
        saved: Callable[[], SavedAllocations] | None = None,
        *,
        in_api: Callable[[], Collection[str] | None] = lambda: None,
        with_processes: Callable[[], Collection[str] | None] = lambda: None,
        lost: Callable[[Collection[Entry]], None] = lambda _: None,
    ) -> None:
        """Compare the readings of `records`.

        A forgotten pod has ended once neither `in_api` nor `with_processes` shows it. While neither is known, pods live
        whose allocations the kubelet certainly has not restored.

        Args:
            records: the kubelet's records.
            saved: opens the file for the next agent; None: nothing is saved.
            in_api: returns the UIDs of the node's pods that have not ended in the Kubernetes API; None: not known.
            with_processes: returns the UIDs of the pods with a process on the node; None: not known. May block.
            lost: called once with each allocation that the kubelet has lost.
        """
        self._records = records
        self._open = saved
        self._saved: SavedAllocations | None = None
        self._in_api = in_api
        self._with_processes = with_processes
        self._lost = lost
        self._remembered: Remembered[Entry] = Remembered()
        self._reported: frozenset[Entry] = frozenset()
        self._doubtful: frozenset[Entry] = frozenset()
        """Allocations in a checkpoint that we could read. Either the kubelet could not, for its checksum, or it has
        restored them, and all of their pods have ended since."""

    def __repr__(self) -> str:
        return f"<ForgottenPods: {len(self.entries)} allocations forgotten, {len(self._remembered.recorded)} recorded>"

    @property
    def entries(self) -> Collection[Entry]:
        """The lost allocations, in the order of their pods' UIDs."""
        return sorted(self._remembered.forgotten, key=lambda each: (each.pod_uid, each.container, each.resource))

    @property
    def device_ids(self) -> frozenset[str]:
        """The devices of forgotten pods that the kubelet takes for free."""
        return self._remembered.lost_ids

    def load(self) -> None:
        """Take over what the previous agent saved, and compare it with the checkpoint. Needs the node's lock."""
        if self._open is None:
            return
        self._saved = self._open()
        self._remembered = self._saved.load()
        try:
            found = self._records.recorded()
        except CheckpointUnreadableError:
            found = None
        self.learn(found, its_own=False)

    def learn(self, found: Checkpoint | None, *, its_own: bool) -> None:
        """Compare a reading of the checkpoint with those before; None: it cannot be read.

        `its_own`: the kubelet process that runs now has written it, or shows devices in it.
        """
        # Every kubelet that has allocated a device has written the file.
        missing = found is None or found.stamp is None
        entries = () if found is None else found.entries
        record = None if missing else [each for each in entries if each.resource in self._records.resources]
        before = self._remembered
        self._become(before.after(record, self._records.kubelet, its_own=its_own))
        if its_own:
            self._doubtful |= self._remembered.forgotten - before.forgotten

    async def forget_ended(self) -> None:
        """Leave out the pods that have ended, and report the others."""
        if not self._remembered.forgotten:
            return
        processes = await asyncio.to_thread(self._with_processes)
        in_api = self._in_api()
        if processes is None and in_api is None:
            living = {each.pod_uid for each in self._remembered.forgotten - self._doubtful}
        else:
            living = {*(processes or ()), *(in_api or ())}
        self._become(self._remembered.among(living))
        if new := self._remembered.forgotten - self._reported:
            self._reported = self._remembered.forgotten
            self._lost(new)

    def _become(self, remembered: Remembered[Entry]) -> None:
        self._remembered = remembered
        if self._saved is not None:
            self._saved.save(remembered)
