"""Find out whether the devices of a container that the kubelet is about to start are still its own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.core.node.kubelet.starting import Start, why_not_its_own

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.node_api import NodeApi

_RECORDED_S = 1.0
"""Most seconds to wait until the kubelet's checkpoint, which is read soon after each grant, names a container."""


@dataclass(eq=False, repr=False)
class Starts:
    """Answers from what the kubelet's records and the API show at that moment."""

    _state: NodeState
    _entries: Observable[tuple[DeviceHold, ...]]
    """What containers hold, as last read."""
    _api: NodeApi
    _listed: Callable[[], Awaitable[frozenset[str] | None]]
    """Asks PodResources for the devices in use; None: it does not answer."""

    def owners(self, device_ids: Collection[str]) -> Sequence[DeviceHold]:
        """Return the containers with exactly these devices in the kubelet's records.

        None as long as the records that we have read are older than our grant: those name a former holder.
        """
        ids, holds = frozenset(device_ids), self._state.node.ledger.holds
        if any(name in holds and holds[name].granted_at is not None for name in ids):
            return ()
        return [hold for hold in self._entries.value if hold.device_ids == ids]

    async def began(self, device_ids: Collection[str]) -> Start:
        """Return a call that comes now, once the kubelet's records name the container, or after a second."""
        since = time.monotonic()
        named = await within(_RECORDED_S, self._entries.meets(lambda _: bool(self.owners(device_ids))))
        uids = {owner.pod_uid for owner in self.owners(device_ids)}
        living = frozenset(pod.uid for pod in self._api.pods.values() if pod.uid in uids)
        return Start(frozenset(device_ids), since, named, living)

    def lost(self, start: Start, listed: Collection[str] | None = None) -> str:
        """Return why a container must not start with its devices, see `why_not_its_own`."""
        pods = {pod.kubelet_uid: pod for pod in self._api.pods.values()} if self._api.current else None
        owners = self.owners(start.device_ids)
        return why_not_its_own(start, ledger=self._state.node.ledger, owners=owners, pods=pods, listed=listed)

    async def lost_by_now(self, start: Start) -> str:
        """As `lost`, and by what the kubelet itself says: our watch may be behind, as after a pause of this process."""
        return self.lost(start, await self._listed())
