"""Run the DRA driver of a node until no ResourceClaim holds a GPU or can still get one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.features.claims import ClaimSettings
from gpu_device_plugin.features.claims.claim_handler import NodeClaims, NotPreparedError
from gpu_device_plugin.features.claims.claim_store import ClaimStore, ClaimStoreError
from gpu_device_plugin.features.claims.contract import DRIVER, is_former_name
from gpu_device_plugin.features.claims.dra_offer import DeviceOffer
from gpu_device_plugin.features.claims.dra_services import DraLoop, DraServicer
from gpu_device_plugin.features.claims.rules.prepared import claim_allocations
from gpu_device_plugin.kubelet.calls import PodResourcesUnavailableError, listed_claims
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.limits import LimitStatus
from gpu_device_plugin.node.feature_context import NodeContext

_log = logging.getLogger(__name__)

UNKNOWN = "a claim that may be allocated here"
_SETTLE_S = 0.02
"""How long a change of claims or pods waits for others, in seconds: a node may prepare a hundred claims at once, and
the kubelet gets its answers before we work out who holds what."""


class DraDriver:
    """Offers GPUs to claims while it is told to, and prepares those that are allocated here at any time."""

    def __init__(self, node: NodeContext, changed: Callable[[], None]) -> None:
        """Prepare for `node`, which has the API; `changed` is called when `holders` may have changed."""
        self._settings, self._state, self.cluster = node.settings.value, node.state, node.reached_cluster
        self._metrics, self._features = node.metrics, node.features
        self._limit_states = node.limit_states
        self._reconciler, self._other_plugins = node.plugin.reconciler, node.other_plugins
        self._changed = changed
        self.loop = DraLoop(self._settings.kubelet_root, self._servicer, node.reports.registration)
        self.store = ClaimStore(self.loop.claims, self._settings.of(ClaimSettings).cdi_dir)
        self.offer = DeviceOffer(node, self.loop.reached)
        self.claims = NodeClaims(node, self.store)
        self.entries: Observable[tuple[Allocation, ...]] = Observable(())
        """What containers hold by claims."""
        self.closing = Observable(value=False)
        """The node waits to serve in another mode: nothing new is offered."""
        self.sweep_s = 60.0
        """Seconds between two looks for claims that are prepared in vain."""
        self.retry_s = 10.0
        """Seconds until the claims of earlier agents are read again, while they are not known."""
        self.withdrawn_s = 10.0
        """How long a scheduler may still allocate devices of slices that are gone, in seconds."""
        self.list_s = 5.0
        """Seconds between two looks at the claims of the cluster while the node waits to serve in another mode."""
        self.unrecovered = ""
        """Why the claims of earlier agents are not known yet."""
        self._needed = asyncio.Event()
        self._vain: frozenset[str] = frozenset()
        self._allocated: frozenset[str] | None = frozenset()
        """The names of the claims that are allocated here; None: not known."""

    @property
    def holders(self) -> frozenset[str]:
        """The names of the claims that hold devices here, or may come to hold some."""
        prepared = frozenset(f"claim {claim}" for claim in self.claims.prepared.value.values())
        if self._allocated is None:
            return prepared or frozenset({UNKNOWN})
        return prepared | self._allocated

    @property
    def device_ids(self) -> frozenset[str]:
        """What prepared claims hold in the ledger."""
        return frozenset().union(*(claim.device_ids for claim in self.claims.prepared.value.values()))

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why claims cannot get the GPUs of this node yet, as sentences; empty if they can."""
        unpublished = self.offer.unpublished
        return (*self.loop.unmet(), *((unpublished,) if unpublished else ()))

    # --- Serving --------------------------------------------------------------------------------------------------

    async def take_over(self, *, served: bool) -> None:
        """Take over the claims of earlier agents; what a damaged file does not tell is read from the API.

        Returns only when everything that claims hold is known. `served`: the previous agent served claims.
        """
        while True:
            try:
                damaged = self.claims.recover()
                if damaged:
                    await self._read_again(damaged)
            except (ClaimStoreError, NotPreparedError, ApiError) as error:
                self.unrecovered = f"the claims that were prepared on this node are not known yet: {error}"
                _log.error("%s", self.unrecovered)
                await asyncio.sleep(self.retry_s)
            else:
                self.unrecovered = ""
                break
        if served:
            self._allocated = None

    async def _read_again(self, damaged: Collection[str]) -> None:
        """Adopt the claims whose files are damaged, and drop those that hold nothing here any more.

        Files that cannot be written or removed are logged: what claims hold is known all the same.
        """
        if not self._state.node.shares.any_listed:
            raise NotPreparedError("no GPU is found, and the file of a claim is damaged")
        allocated = await self.claims.allocated()
        for uid in sorted(damaged):
            try:
                if uid in allocated:
                    await self.claims.adopt(allocated[uid])
                if uid not in self.claims.prepared.value:
                    await self.claims.unprepare(uid)
            except NotPreparedError as error:
                _log.error("the damaged file of a claim stays: %s", error.__cause__)

    def serve(self, *, closing: bool) -> None:
        """Serve, and offer GPUs unless the node waits to serve in another mode."""
        self.closing.change(closing)
        self._offer()

    async def run(self) -> NoReturn:
        """Serve the kubelet until cancelled. `take_over` has to be done."""
        self._allocated = None
        self._other_plugins.look()
        self._offer()
        for feature in self._features:
            feature.ledger_complete()
        await together(
            self.loop.run(),
            self.offer.run(),
            self._sweep(),
            self._other_plugins.others.follow(self._others_changed),
            self._leave(),
            self._announce_ready(),
            self._read_records(),
        )

    async def run_api(self) -> NoReturn:
        """Publish the slices and the status of claims, from the first moment that the driver is needed."""
        await self._needed.wait()
        await together(self.offer.publish(), self.claims.keep_status())

    def _servicer(self) -> DraServicer:
        pool = self._settings.node_name
        return DraServicer(self.claims, pool, self.offer.health, lambda rpc, s: self._metrics.took(m.RPCS, s, rpc))

    def _offer(self) -> None:
        self._needed.set()
        self.offer.offer(offering=not self.closing.value and not self._other_plugins.others.value)

    def _others_changed(self, _new: object) -> None:
        self._other_plugins.report()
        self._offer()

    async def _announce_ready(self) -> None:
        published = self.offer.published
        while self.unmet():  # a registration is no change of the slices
            await wait_within(0.5, published.after(published.version))
        self.cluster.published.announce_ready()

    async def _read_records(self) -> NoReturn:
        """Read the kubelet's records again while containers hold, or get, GPUs through resources that are not ours."""
        while True:
            await asyncio.sleep(self._reconciler.interval_s)
            ledger = self._state.node.ledger
            if ledger.held_by_other_resource or not ledger.certain or self._other_plugins.others.value:
                await self._reconciler.prepare()

    async def _leave(self) -> NoReturn:
        """While the node waits to serve in another mode, find the claims that are allocated here, prepared or not."""
        since: float | None = None
        while True:
            if not self.closing.value:
                since, self._allocated = None, None
                await self.closing.after(self.closing.version)
                continue
            if not self.offer.withdrawn:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= self.withdrawn_s:
                self._allocated = await self._claims_allocated()
                self._changed()
            await wait_within(min(self.list_s, self.withdrawn_s), self.closing.after(self.closing.version))

    async def _claims_allocated(self) -> frozenset[str] | None:
        """Return the names of the claims of the cluster that are allocated on our node; None: they cannot be listed."""
        try:
            return frozenset(f"claim {claim}" for claim in (await self.claims.allocated()).values())
        except NotFoundError:
            return frozenset()  # the API server knows no ResourceClaims
        except ApiError as error:
            _log.warning("the claims of the cluster cannot be listed: %s; trying again", error)
            return None

    # --- What claims hold -----------------------------------------------------------------------------------------

    async def follow(self) -> NoReturn:
        """Keep `entries` in step with claims and pods, in whichever mode the node serves. Ends only by cancellation."""
        await together(
            self._limit_states.follow(self._show),
            self.claims.prepared.follow(self._holders_changed, settle_s=_SETTLE_S),
            self.cluster.followed.changes.follow(self._holders_changed, settle_s=_SETTLE_S),
        )

    def _holders_changed(self, _new: object = None) -> None:
        prepared = self.claims.prepared.value.values()
        self.entries.change(claim_allocations(prepared, self.cluster.followed.pods.values()))
        devices = (device for claim in prepared for device in claim.devices)
        self.offer.hold_formerly(frozenset(device.uuid for device in devices if is_former_name(device.device)))
        self._show()

    def _show(self, _new: object = None) -> None:
        """Let the status of each claim say what it holds, and whether its limit was seen to hold."""
        prepared, limits = self.claims.prepared.value, self._limit_states.value
        held: dict[str, dict[str, LimitStatus]] = {uid: {} for uid in prepared}
        for allocation in self.entries.value if limits else ():
            claim = prepared.get(allocation.through)
            for device in () if claim is None else claim.devices:
                state = limits.get((allocation.pod_uid, allocation.container, device.uuid))
                if state is not None:
                    before = held[allocation.through].get(device.uuid, state.held)
                    held[allocation.through][device.uuid] = max(before, state.held, key=lambda held: held.severity)
        shown = {
            uid: (claim, {uuid: state.value for uuid, state in held[uid].items()}) for uid, claim in prepared.items()
        }
        self.claims.shown.change(shown)

    async def _sweep(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.sweep_s)
            try:
                await self.look_for_orphans()
            except (ApiError, NotPreparedError, PodResourcesUnavailableError) as error:
                _log.debug("prepared claims that the cluster no longer knows are not searched for: %s", error)

    async def look_for_orphans(self) -> None:
        """Drop the claims that two looks in a row have found neither in the API nor on the kubelet's list.

        A kubelet that lost its own state never asks for their end. Errors say that it is not known which these are, or
        that one could not be dropped.
        """
        if not self.claims.prepared.value:
            self._vain = frozenset()
            return
        listed = await listed_claims(self._settings.pod_resources_socket, DRIVER)
        vain = set()
        for uid, claim in self.claims.prepared.value.items():
            if (claim.namespace, claim.name) not in listed:
                present = await self.claims.read(claim.namespace, claim.name)
                if present is None or present.uid != uid or not present.devices_of(DRIVER):
                    vain.add(uid)
        for uid in sorted(vain & self._vain):
            _log.warning("a prepared claim is no longer known to the cluster, and is dropped", extra={"uid": uid})
            await self.claims.unprepare(uid)
        self._vain = frozenset(vain - self._vain)
