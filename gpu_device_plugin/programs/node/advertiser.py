"""Keep the device lists that the kubelet receives in step with the node."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.node.offers import offers
from gpu_device_plugin.core.node.refusals import Refusals
from gpu_device_plugin.kubelet.servicer import device_list

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.model.shares import Listing
    from gpu_device_plugin.core.node.offers import Offer
    from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
    from gpu_device_plugin.node_state import NodeState

_LOOK_S = 10.0
"""Seconds after the last change of the node until the limit that refusals set is checked again."""


class Advertiser:
    """The device lists of all resources. A list is sent if the health of an ID changed, or for `resend`."""

    def __init__(self, state: NodeState, resources: Callable[[], Sequence[Resource]], refusal_limit: int) -> None:
        """Advertise the `resources` of the node in `state`; more may come, and none goes."""
        self._state = state
        self._resources = resources
        self.refusals = Refusals(refusal_limit)
        self.idle = False
        """Nobody listens to the lists: the node serves in another way. `refresh` brings them up to date again."""
        self.offers: dict[Listing, tuple[Offer, ...]] = {}
        """The content of each resource's list."""
        self._lists: dict[Listing, Latest[pb.ListAndWatchResponse]] = {}

    def limit(self, refusals: int) -> None:
        """Set after how many refusals fewer shares are advertised; 0: never."""
        self.refusals = replace(self.refusals, limit=refusals) if refusals else Refusals(refusals)
        self.refresh()

    def refused(self, shares: int) -> bool:
        """Record that no GPU had room for `shares` shares; return whether a run of refusals has just begun."""
        before = self.refusals.run
        self.refusals = self.refusals.refused(shares, time.monotonic())
        self.refresh()
        return self.refusals.run is not None and self.refusals.run != before

    def refresh(self) -> None:
        """Advertise the current state of the node."""
        node, now = self._state.node, time.monotonic()
        emptiest = node.emptiest if self.refusals.run is not None else 0
        self.refusals = self.refusals.settled(emptiest, now)
        for resource in self._resources():
            found = offers(node, resource.listing, self.refusals.most_free(emptiest, now))
            if found != self.offers.get(resource.listing, ()):
                self.offers[resource.listing] = found
                self.list_of(resource).set(device_list(resource, found))

    def list_of(self, resource: Resource) -> Latest[pb.ListAndWatchResponse]:
        """Return the list of one resource."""
        if resource.listing not in self._lists:
            self._lists[resource.listing] = Latest(device_list(resource, ()))
        return self._lists[resource.listing]

    def resend(self) -> None:
        """Send one list again, unchanged: the kubelet then writes its checkpoint."""
        newest = self.list_of(self._resources()[0])
        newest.set(newest.value)

    async def run(self) -> NoReturn:
        """Follow the node. Ends only by cancellation."""
        while True:
            shown = self._state.nodes.version
            if not self.idle:
                self.refresh()
            await within(_LOOK_S, self._state.nodes.after(shown))
