"""Read the kubelet's two records, PodResources and the checkpoint, in the order that proves which devices are free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from gpu_device_plugin.files import Stamp
from gpu_device_plugin.kubelet import checkpoint
from gpu_device_plugin.kubelet.calls import PodResourcesUnavailableError, listed_pods
from gpu_device_plugin.kubelet.checkpoint import Checkpoint
from gpu_device_plugin.kubelet.sockets import KUBELET_SOCKET, identity
from gpu_device_plugin.model.resources import Names
from gpu_device_plugin.node.rules.ended_pods import EndedPods, PodsInApi
from gpu_device_plugin.node.rules.ledger import ReleaseEvidence

_LOOK_S = 0.02
"""Interval between checks whether the kubelet has written its checkpoint, which takes 1 to 100 ms."""


@dataclass(eq=False, repr=False)
class KubeletRecords:
    """The kubelet's records about some resources."""

    directory: Path
    """The directory of device plugins, with the checkpoint."""
    _pod_resources: Path
    """The socket of PodResources."""
    names: Names
    """Those of our resources."""
    _: KW_ONLY
    listener: Callable[[], int | None] = lambda: None
    """Returns a number for the kubelet process that listens to us; None while there is none."""
    in_api: Callable[[], PodsInApi | None] = lambda: None
    """Returns the pods of this node in the API; None where this kubelet's two records suffice."""

    def __post_init__(self) -> None:
        self._checkpoint = self.directory / checkpoint.NAME
        self._registration = self.directory / KUBELET_SOCKET
        self._endings = EndedPods()
        self._shown_by: int | None = None
        """The kubelet process whose records showed these ended pods."""

    def recorded(self) -> Checkpoint:
        """Read the checkpoint. Raises CheckpointUnreadableError."""
        return checkpoint.read(self._checkpoint, self.names)

    def stamp(self) -> Stamp | None:
        """Return the identity of the checkpoint's current version. Raises CheckpointUnreadableError."""
        return checkpoint.stamp_of(self._checkpoint)

    @property
    def kubelet(self) -> str:
        """The identity of the kubelet process that runs, or ran last: each makes its registration socket anew."""
        found = identity(self._registration)
        return "" if found is None else "{}.{}".format(*found)

    @property
    def over(self) -> frozenset[str]:
        """UIDs of ended pods that the checkpoint still shows."""
        return self._shown().over

    @property
    def named(self) -> frozenset[str]:
        """UIDs of pods in the checkpoint whose names List has shown: one that omits the name proves the pod's end."""
        return frozenset(self._endings.names)

    def held(self, found: Checkpoint) -> frozenset[str]:
        """Return the IDs that a checkpoint shows for pods not known to have ended."""
        over = self.over
        return frozenset().union(*(ids for uid, ids in found.by_pod().items() if uid not in over))

    async def listed(self) -> frozenset[str] | None:
        """Return the IDs that PodResources lists; None if it does not answer."""
        found = await self._list()
        return None if found is None else _all(found)

    async def compare_with_list(self, recorded: Checkpoint) -> bool:
        """List once, so that later lists show which pods of this checkpoint the kubelet no longer lists.

        Returns:
            Whether every pod of the checkpoint is covered, or this node does not need the comparison.
        """
        listener = self.listener()
        if listener is None or self.in_api() is None:
            return True
        found = await self._list()
        if found is None:
            return False
        self._record_list(listener, recorded, found)
        return recorded.by_pod().keys() <= self.named | self._endings.over

    async def _list(self) -> Mapping[str, frozenset[str]] | None:
        try:
            return await listed_pods(self._pod_resources, self.names)
        except PodResourcesUnavailableError:
            return None

    def _record_list(self, listener: int | None, recorded: Checkpoint, listed: Mapping[str, frozenset[str]]) -> None:
        """Record a List that began after this checkpoint was read, while `listener` listened to us."""
        before, in_api = self._shown(), self.in_api()
        self._endings, self._shown_by = EndedPods(), None
        if in_api is not None and listener is not None and listener == self.listener():
            self._endings = before.after(recorded.by_pod(), listed, in_api)
            self._shown_by = listener

    def _stale(self, recorded: Checkpoint, listed: Mapping[str, frozenset[str]]) -> frozenset[str]:
        in_api = self.in_api()
        return frozenset() if in_api is None else self._shown().stale(recorded.by_pod(), listed, in_api)

    def _shown(self) -> EndedPods:
        """Return the ended pods, as shown by the kubelet process that listens to us now."""
        return self._endings if self.listener() == self._shown_by is not None else EndedPods()

    async def evidence(
        self, held: Callable[[], Collection[str]], resend: Callable[[], None], patience_s: float = 3.0
    ) -> tuple[ReleaseEvidence, Checkpoint | None] | None:
        """Find out which IDs are free: first List, then a checkpoint that was written after it.

        Only a device list makes the kubelet write a checkpoint, so `resend` sends the unchanged list once more where
        List omits an ID that we hold. The checkpoint is waited for `patience_s` seconds.

        Returns:
            The evidence and the checkpoint behind it, or None for the checkpoint where List shows every ID that we
            hold; None alone if either record is missing.

        Raises:
            CheckpointUnreadableError: the checkpoint exists and cannot be read.
        """
        listener, known = self.listener(), self.recorded()
        began = time.monotonic()
        pods = await self._list()
        if pods is None:
            return None
        self._record_list(listener, known, pods)
        listed, stale = _all(pods), self._stale(known, pods)
        if not frozenset(held()) - (listed - stale):
            return ReleaseEvidence(listed, began, listed, stale), None
        before = self.stamp()
        resend()
        written = await self._written_after(before, patience_s)
        # After a restart the kubelet lists nothing for a while. An empty List counts only together with a checkpoint
        # in which our resources are registered.
        registered = written is not None and any(name in self.names for name in written.registered)
        if written is None or not (listed or registered):
            return None
        return ReleaseEvidence(listed, began, _all(written.by_pod()), self._stale(written, pods)), written

    async def _written_after(self, before: Stamp | None, patience_s: float) -> Checkpoint | None:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            await asyncio.sleep(_LOOK_S)
            if self.stamp() != before:
                return self.recorded()
        return None


def _all(pods: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the device IDs of all pods."""
    return frozenset().union(*pods.values())
