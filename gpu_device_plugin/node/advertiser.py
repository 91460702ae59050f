"""Keep the device lists that the kubelet receives in step with the node."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.kubelet.servicer import device_list
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.advertised_devices import ADVICE, RecentRefusals, offers

if TYPE_CHECKING:
    from typing import NoReturn

    from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.model.shares import Listing
    from gpu_device_plugin.node.node_events import Reports
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.admission import Refusal
    from gpu_device_plugin.node.rules.advertised_devices import Offer
    from gpu_device_plugin.node.rules.node_config import NodeConfig

_log = logging.getLogger(__name__)

_LOOK_S = 10.0
"""Seconds after the last change of the node until the limit that refusals set is checked again."""


class Advertiser:
    """The device lists of all resources. A list is sent if the health of an ID changed, or for `resend`."""

    def __init__(self, state: NodeState, config: Observable[NodeConfig], reports: Reports, refusal_limit: int) -> None:
        """Advertise the resources in `config` of the node in `state`; more may come, and none goes."""
        self._reports = reports
        self._state = state
        self._config = config
        self.refusals = RecentRefusals(refusal_limit)
        self.offers: dict[Listing, tuple[Offer, ...]] = {}
        """The content of each resource's list."""
        self._lists: dict[Listing, Observable[pb.ListAndWatchResponse]] = {}

    def limit(self, refusals: int) -> None:
        """Set after how many refusals fewer shares are advertised; 0: never."""
        self.refusals = replace(self.refusals, limit=refusals) if refusals else RecentRefusals(refusals)
        self.refresh()

    def refused(self, kind: Kind, amount: int, refusal: Refusal) -> None:
        """Report that a container was refused its devices, and show less if that happens again and again."""
        extra = {"kind": kind.value, "amount": amount, "why": refusal.sentence, "once_per_s": 60}
        _log.warning("refused", extra=extra)
        if kind is Kind.MEMORY and refusal.code in ADVICE:
            before = self.refusals.run
            self.refusals = self.refusals.refused(amount, time.monotonic())
            self.refresh()
            if self.refusals.run not in {None, before}:
                self._reports.refused_again_and_again(amount, ADVICE[refusal.code])

    def refresh(self) -> None:
        """Advertise the current state of the node."""
        node, now = self._state.node, time.monotonic()
        emptiest = node.emptiest if self.refusals.run is not None else 0
        self.refusals = self.refusals.settled(emptiest, now)
        for resource in self._config.value.resources:
            found = offers(node, resource.listing, self.refusals.most_free(emptiest, now))
            if found != self.offers.get(resource.listing, ()):
                self.offers[resource.listing] = found
                self.list_of(resource).set(device_list(resource, found))

    def list_of(self, resource: Resource) -> Observable[pb.ListAndWatchResponse]:
        """Return the list of one resource."""
        if resource.listing not in self._lists:
            self._lists[resource.listing] = Observable(device_list(resource, ()))
        return self._lists[resource.listing]

    def resend(self) -> None:
        """Send one list again, unchanged: the kubelet then writes its checkpoint."""
        newest = self.list_of(self._config.value.resources[0])
        newest.set(newest.value)

    async def run(self) -> NoReturn:
        """Follow the node, but while it serves claims: then nobody listens. Ends only by cancellation."""
        await Worker(self._follow).run(self._state.nodes)

    def _follow(self) -> float:
        if not self._config.value.claims:
            self.refresh()
        return _LOOK_S
