"""Offer the GPUs of a node to claims: as devices of ResourceSlices, with their health for the kubelet."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import any_of
from gpu_device_plugin.cluster.client.errors import NotFoundError
from gpu_device_plugin.features.claims.contract import device_name
from gpu_device_plugin.features.claims.resource_slices import NodeSlices
from gpu_device_plugin.features.claims.rules.devices import Order, SliceInputs, reordered
from gpu_device_plugin.features.claims.rules.pool import contents, plain_contents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.features.claims.rules.pool import Content
    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.node.node_state import NodeState

_log = logging.getLogger(__name__)


class DeviceOffer:
    """What the slices of the node offer. Nothing is offered before `offer`."""

    def __init__(
        self, state: NodeState, client: Client, node_name: str, api: NodeApi, reached: Observable[bool]
    ) -> None:
        """Offer the GPUs of the node in `state`; `reached` says whether the kubelet can call the driver."""
        self._state = state
        self._api = api
        self.slices = NodeSlices(
            client, node_name, reached=reached, on_dropped=self._fields_dropped, on_problem=self._not_published
        )
        self.health: Observable[Mapping[str, str]] = Observable({})
        """Why each device is out of service, by its name; empty: it is healthy."""
        self.again_s = 600.0
        """Seconds until an API server that did not know our fields is tried again."""
        self._facts = SliceInputs(())
        self._held_formerly: frozenset[str] = frozenset()
        self._policy = "binpack"
        self._order = Order()
        self._offering = False
        self._dropped: tuple[str, ...] = ()
        self._dropped_at = 0.0
        self._problem = ""
        self._look = asyncio.Event()
        self._published: tuple[object, ...] = ()
        """What the slices that are wanted were made of."""

    def update(self, policy: str, facts: SliceInputs) -> None:
        """Take over what the devices say; the order within `facts` is ours to choose."""
        if (policy, facts) != (self._policy, self._facts):
            self._policy, self._facts = policy, facts
            self._look.set()

    def hold_formerly(self, uuids: frozenset[str]) -> None:
        """Take note of the GPUs and instances that claims hold by devices which are offered no more."""
        if uuids != self._held_formerly:
            self._held_formerly = uuids
            self._look.set()

    def offer(self, *, offering: bool) -> None:
        """Offer the GPUs, or withdraw the offer: then nothing new is allocated here, and claims go on."""
        if offering is not self._offering:
            self._offering = offering
            self._look.set()

    @property
    def withdrawn(self) -> bool:
        """Whether the API server has no slice of ours, as far as we know."""
        if isinstance(self.slices.reflector.problem, NotFoundError):
            return True  # the API server knows no ResourceSlices
        published = self.slices.published.value
        return published is not None and not published and not self.slices.there

    @property
    def unpublished(self) -> str:
        """Why the offer is not published as it should be, as a sentence; empty if it is."""
        published = self.slices.published.value
        if not self._look.is_set() and published is not None and published == self.slices.wanted.value:
            return ""
        return self._problem or self.slices.problem or "the ResourceSlices of this node are not published yet"

    async def run(self) -> NoReturn:
        """Keep the offer in step with the node until cancelled."""
        while True:
            version = self._state.nodes.version
            self._look.clear()
            pause_s = self._publish(time.monotonic())
            await any_of(pause_s, self._state.nodes.after(version), self._look.wait())

    def _publish(self, now: float) -> float | None:
        """Decide what the slices offer now; return the seconds until that has to be looked at again."""
        node = self._state.node
        self._order = reordered(self._order, node, self._policy, now)
        facts = replace(self._facts, order=self._order.uuids, held_formerly=self._held_formerly)
        if self._dropped and now - self._dropped_at >= self.again_s:
            self._dropped = ()
        # All that they are made of. Most changes of the node are claims that come and go, and change none of it.
        foreign = frozenset(node.ledger.held_by_other_resource)
        sources = node.shares, node.blocks, node.links, foreign, facts, self._offering, self._dropped
        if sources != self._published:
            self._published = sources
            wanted: Sequence[Content] = ()
            if self._offering:
                wanted = plain_contents(node, facts) if self._dropped else contents(node, facts)
            self.slices.wanted.change(wanted)
            gpus = [shared.gpu.uuid for shared in node.shares.gpus if not shared.vacant]
            self.health.change({device_name(uuid): node.block(uuid).everyone for uuid in gpus})
        due = [] if self._order.due is None else [self._order.due]
        if self._dropped:
            due.append(self._dropped_at + self.again_s)
        return max(0.0, min(due) - now) if due else None

    def _fields_dropped(self, fields: tuple[str, ...]) -> None:
        self._dropped, self._dropped_at = fields, time.monotonic()
        note = (
            f"The API server does not know {', '.join(fields)} of ResourceSlices, which Kubernetes has from 1.36 on: "
            "claims get whole GPUs of this node only. Serve it by device-plugin to share its GPUs."
        )
        self._api.event("GPUSharesUnavailable", note, "Publish")
        self._look.set()

    def _not_published(self, why: str) -> None:
        self._problem = why
        if why:
            _log.warning("%s; trying again", why)
