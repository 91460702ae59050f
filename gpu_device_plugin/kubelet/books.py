"""Read the kubelet's two books, PodResources and the checkpoint, in the order in which together they are proof."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gpu_device_plugin.core.ledger import Evidence
from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet.podresources import PodResourcesUnavailableError, held_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from gpu_device_plugin.kubelet.checkpoint import Checkpoint

_LOOK_S = 0.02
"""Between two looks whether the kubelet has written its checkpoint; it takes 1 to 100 ms."""


class Books:
    """The kubelet's books about some resources."""

    def __init__(self, directory: Path, pod_resources: Path, resources: frozenset[str]) -> None:
        """Read the checkpoint in the device-plugin `directory` and ask at the socket `pod_resources`."""
        self._checkpoint = directory / checkpoint.NAME
        self._pod_resources = pod_resources
        self.resources = resources

    def __repr__(self) -> str:
        return f"<Books {self._checkpoint} and {self._pod_resources}>"

    def recorded(self) -> Checkpoint:
        """Read the checkpoint. Raises CheckpointUnreadableError."""
        return checkpoint.read(self._checkpoint)

    def stamp(self) -> checkpoint.Stamp | None:
        """Return the identity of the checkpoint as it is. Raises CheckpointUnreadableError."""
        return checkpoint.stamp_of(self._checkpoint)

    async def listed(self) -> frozenset[str] | None:
        """Return the IDs that PodResources lists, None if it does not answer."""
        try:
            return await held_ids(self._pod_resources, self.resources)
        except PodResourcesUnavailableError:
            return None

    async def evidence(
        self, held: Callable[[], Collection[str]], resend: Callable[[], None], patience_s: float = 3.0
    ) -> tuple[Evidence, Checkpoint | None] | None:
        """Find out which IDs are free: first List, then a checkpoint that was written after it.

        Nothing makes the kubelet write one but a list of devices, so an unchanged list is sent once more where List
        omits something that we hold.

        Args:
            held: what we hold now.
            resend: sends the list of devices once more.
            patience_s: how long to wait for the checkpoint, in seconds.

        Returns:
            The evidence and the checkpoint it rests on, None instead of the latter where List shows all that we hold;
            None if either book said nothing.

        Raises:
            CheckpointUnreadableError: the checkpoint is there and cannot be read.
        """
        began = time.monotonic()
        listed = await self.listed()
        if listed is None:
            return None
        omitted = frozenset(held()) - listed
        if not omitted:
            return Evidence(listed, began, listed), None
        before = self.stamp()
        resend()
        written = await self._written_after(before, patience_s)
        # After a restart the kubelet lists nothing for a while. That counts only beside a checkpoint of the kubelet
        # that we are registered with.
        if written is None or (not listed and not self.resources & written.registered):
            return None
        return Evidence(listed, began, written.device_ids(self.resources)), written

    async def _written_after(self, before: checkpoint.Stamp | None, patience_s: float) -> Checkpoint | None:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
            if self.stamp() != before:
                return self.recorded()
        return None
