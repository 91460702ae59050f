"""The DRA driver of a node: offer its GPUs in ResourceSlices, and prepare the claims that get them."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.errors import ApiError, NotFoundError
from gpu_device_plugin.cluster.slices import NodeSlices
from gpu_device_plugin.core.contract.dra import DRIVER, device_name
from gpu_device_plugin.core.dra.devices import Facts, held_otherwise
from gpu_device_plugin.core.dra.ordering import Order, reordered
from gpu_device_plugin.core.dra.pool import contents, plain_contents
from gpu_device_plugin.core.dra.prepared import claim_holds
from gpu_device_plugin.core.model.limits import Held
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.kubelet.claim_store import ClaimStore, ClaimStoreError
from gpu_device_plugin.kubelet.dra_loop import DraDirectories, DraLoop
from gpu_device_plugin.kubelet.dra_servicer import DeviceHealth, DraServicer, NotPreparedError
from gpu_device_plugin.kubelet.podresources import PodResourcesUnavailableError, listed_claims
from gpu_device_plugin.kubelet.sockets import DirectoryError
from gpu_device_plugin.programs.node.claims import NodeClaims
from gpu_device_plugin.programs.node.dra_api import ClaimsApi

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from gpu_device_plugin.core.dra.pool import Content
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.limits import LimitState
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.node.grants import Delivery
    from gpu_device_plugin.core.node.node import Node
    from gpu_device_plugin.core.node.over_use import Place
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.cluster import NodeCluster
    from gpu_device_plugin.programs.node.mps import MpsLink
    from gpu_device_plugin.programs.node.reports import Reports
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_SETTLE_S = 0.02
"""How long a change of claims or pods waits for others, in seconds: a node may prepare a hundred claims at once, and
the kubelet gets its answers before we work out who holds what."""
_WORST = (*tuple(Held)[1:], Held.HELD)
"""The states of a limit; of several containers of a claim the first of these counts."""


class DraDriver:
    """Offers GPUs to claims while it is told to, and prepares those that are allocated here at any time."""

    def __init__(
        self,
        settings: NodeSettings,
        state: NodeState,
        cluster: NodeCluster,
        metrics: m.Metrics,
        *,
        mps: MpsLink,
        delivery: Callable[[], Delivery],
        dev: Path,
        reports: Reports,
    ) -> None:
        """Prepare; no file, socket or connection is opened yet.

        Args:
            settings: of the agent.
            state: the node, with our ledger.
            cluster: our side of the Kubernetes API.
            metrics: where to count.
            mps: the node's MPS supervisor.
            delivery: returns how GPUs reach containers now.
            dev: the directory of the device nodes.
            reports: where to report.
        """
        self._settings = settings
        self._state = state
        self._cluster = cluster
        self._metrics = metrics
        self._reports = reports
        self.directories = DraDirectories(settings.kubelet_root)
        self.store = ClaimStore(self.directories.claims, settings.cdi_dir)
        self.api = ClaimsApi(cluster.client, settings.node_name)
        self.loop = DraLoop(self.directories, self._servicer, reports.dra_registration)
        self.slices = NodeSlices(
            cluster.client,
            settings.node_name,
            reached=self.loop.reached,
            on_dropped=self._fields_dropped,
            on_problem=self._not_published,
        )
        self.claims = NodeClaims(
            state,
            self.store,
            self.api.read,
            self._pod,
            metrics,
            node_name=settings.node_name,
            delivery=delivery,
            mps=mps,
            dev=dev,
            on_refusal=reports.claim_refused,
        )
        self.health: Latest[tuple[DeviceHealth, ...]] = Latest(())
        """The health of all devices that are offered."""
        self.entries: Latest[tuple[DeviceHold, ...]] = Latest(())
        """What containers hold by claims."""
        self.sweep_s = 60.0
        """Seconds between two looks for claims that are prepared in vain."""
        self.again_s = 600.0
        """Seconds until an API server that did not know our fields is tried again."""
        self.retry_s = 10.0
        """Seconds until the kubelet's directories are tried again."""
        self._facts = Facts(())
        self._policy = "binpack"
        self._order = Order()
        self._offering = False
        self._dropped: tuple[str, ...] = ()
        self._dropped_at = 0.0
        self._problem = ""
        self._unusable = ""
        """What was wrong with the kubelet's directories when the driver last tried to register; of use until it has."""
        self._look = asyncio.Event()
        self._needed = asyncio.Event()
        self._vain: frozenset[str] = frozenset()
        self._held: Mapping[Place, LimitState] = {}
        self._said: tuple[object, ...] = ()
        """What the slices that are wanted were made of."""

    def __repr__(self) -> str:
        return f"<DraDriver of {self._settings.node_name}: {self.claims!r}>"

    def tell(self, policy: str, facts: Facts) -> None:
        """Take over what the devices say; the order within `facts` is ours to choose."""
        if (policy, facts) != (self._policy, self._facts):
            self._policy, self._facts = policy, facts
            self._look.set()

    def offer(self, *, offering: bool) -> None:
        """Offer the GPUs, or withdraw the offer: then nothing new is allocated here, and claims go on."""
        self._needed.set()
        if offering is not self._offering:
            self._offering = offering
            self._look.set()

    def holders_of_shares(self) -> frozenset[str]:
        """Return the UIDs of the claims that an earlier agent prepared with shares; damaged files count."""
        try:
            found, damaged = self.store.load()
        except ClaimStoreError:
            return frozenset()  # `recover` reports it
        return damaged | {uid for uid, claim in found.items() if claim.kind is Kind.MEMORY and claim.device_ids}

    @property
    def withdrawn(self) -> bool:
        """Whether the API server has no slice of ours, as far as we know."""
        if isinstance(self.slices.reflector.problem, NotFoundError):
            return True  # the API server knows no ResourceSlices
        published = self.slices.published.value
        return published is not None and not published and not self.slices.there

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why claims cannot get the GPUs of this node yet, as sentences; empty if they can."""
        unregistered, published = self.loop.unmet(), self.slices.published.value
        unusable = (self._unusable,) if unregistered and self._unusable else ()
        if not self._look.is_set() and published is not None and published == self.slices.wanted.value:
            return (*unregistered, *unusable)
        why = self._problem or self.slices.problem or "the ResourceSlices of this node are not published yet"
        return (*unregistered, *unusable, why)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for people, as sentences."""
        if not self._dropped:
            return ()
        fields = ", ".join(self._dropped)
        return (
            f"the API server does not know {fields} of ResourceSlices, so claims get whole GPUs only: it needs 1.36",
        )

    async def run_api(self) -> NoReturn:
        """Publish the slices and the status of claims, from the first moment that the driver is needed."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.slices.run(), name="ResourceSlices")
            tasks.create_task(self.api.run(), name="write the status of claims")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def run(self) -> NoReturn:
        """Serve the kubelet until cancelled. `recover` has to be done."""
        self._needed.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registered(), name="DRA driver")
            tasks.create_task(self._keep_offering(), name="offer devices")
            tasks.create_task(self._sweep(), name="look for claims that are prepared in vain")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def follow(self) -> NoReturn:
        """Keep `entries` in step with claims and pods, in whichever way the node serves. Ends only by cancellation."""
        prepared, pods = self.claims.prepared, self._cluster.followed.changes
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(prepared.follow(self._holders_changed, settle_s=_SETTLE_S), name="follow the claims")
            tasks.create_task(pods.follow(self._holders_changed, settle_s=_SETTLE_S), name="follow their pods")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def recover(self) -> None:
        """Take over the claims of earlier agents; what a damaged file does not tell is read from the API.

        Returns only when everything that claims hold is known.
        """
        while True:
            try:
                damaged = self.claims.recover()
                if damaged:
                    await self._read_again(damaged)
            except (ClaimStoreError, NotPreparedError, ApiError) as error:
                self._problem = f"the claims that were prepared on this node are not known yet: {error}"
                _log.error("%s", self._problem)
                await asyncio.sleep(self.retry_s)
            else:
                self._problem = ""
                return

    async def claims_allocated(self) -> frozenset[str] | None:
        """Return the names of the claims of the cluster that are allocated on our node; None: they cannot be listed."""
        try:
            return frozenset(str(claim) for claim in (await self.api.allocated()).values())
        except NotFoundError:
            return frozenset()  # the API server knows no ResourceClaims
        except ApiError as error:
            _log.warning("the claims of the cluster cannot be listed: %s; trying again", error)
            return None

    def limits_read(self, states: Mapping[Place, LimitState]) -> None:
        """Take over which limits were seen to hold, for the status of claims."""
        self._held = states
        self._show()

    # --- For the kubelet ------------------------------------------------------------------------------------------

    def _servicer(self) -> DraServicer:
        return DraServicer(self.claims, self.health, lambda rpc, seconds: self._metrics.took(m.RPCS, seconds, rpc))

    async def _registered(self) -> NoReturn:
        while True:
            try:
                await self.loop.run()
            except DirectoryError as error:
                if self._unusable != str(error):
                    _log.error("claims cannot be served: %s", error)
                self._unusable = str(error)
                await asyncio.sleep(self.retry_s)

    async def _pod(self, uid: str, within_s: float) -> Pod | None:
        return await self._cluster.followed.wait_for(lambda pods: pods.get(uid), within_s)

    async def _read_again(self, damaged: Collection[str]) -> None:
        """Adopt the claims whose files are damaged, and drop those that hold nothing here any more.

        Files that cannot be written or removed are logged: what claims hold is known all the same.
        """
        if not self._state.node.shares.gpus:
            raise NotPreparedError("no GPU is found, and the file of a claim is damaged")
        there = await self.api.allocated()
        for uid in sorted(damaged):
            try:
                if uid in there:
                    await self.claims.adopt(there[uid])
                if uid not in self.claims.prepared.value:
                    await self.claims.drop(uid)
            except NotPreparedError as error:
                _log.error("the damaged file of a claim stays: %s", error.__cause__)

    # --- The offer ------------------------------------------------------------------------------------------------

    async def _keep_offering(self) -> NoReturn:
        while True:
            version = self._state.nodes.version
            self._look.clear()
            pause_s = self._publish(time.monotonic())
            node = asyncio.create_task(self._state.nodes.after(version), name="changed node")
            look = asyncio.create_task(self._look.wait(), name="changed facts")
            try:
                await asyncio.wait({node, look}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                node.cancel()
                look.cancel()

    def _publish(self, now: float) -> float | None:
        """Decide what the slices offer now; return the seconds until that has to be looked at again."""
        node = self._state.node
        self._order = reordered(self._order, node, self._policy, now)
        facts = replace(self._facts, order=self._order.uuids)
        if self._dropped and now - self._dropped_at >= self.again_s:
            self._dropped = ()
        # All that they are made of. Most changes of the node are claims that come and go, and change none of it.
        held = held_otherwise(node, facts.kinds)
        said = node.shares, node.unhealthy, node.links, held, facts, self._offering, self._dropped
        if said != self._said:
            self._said = said
            self._say(node, facts)
        due = [] if self._order.due is None else [self._order.due]
        if self._dropped:
            due.append(self._dropped_at + self.again_s)
        return max(0.0, min(due) - now) if due else None

    def _say(self, node: Node, facts: Facts) -> None:
        wanted: Sequence[Content] = ()
        if self._offering:
            wanted = plain_contents(node, facts) if self._dropped else contents(node, facts)
        if wanted != self.slices.wanted.value:
            self.slices.wanted.set(wanted)
        healths = self._healths()
        if healths != self.health.value:
            self.health.set(healths)

    def _healths(self) -> tuple[DeviceHealth, ...]:
        node, pool = self._state.node, self._settings.node_name
        return tuple(
            DeviceHealth(
                pool,
                device_name(shared.gpu.uuid, whole=whole),
                shared.gpu.uuid not in node.unhealthy,
                node.unhealthy.get(shared.gpu.uuid, ""),
            )
            for shared in node.shares.gpus
            for whole in (False, True)
        )

    def _fields_dropped(self, fields: tuple[str, ...]) -> None:
        self._dropped, self._dropped_at = fields, time.monotonic()
        self._reports.shares_unknown_to_api(fields)
        self._look.set()

    def _not_published(self, why: str) -> None:
        self._problem = why
        if why:
            _log.warning("%s; trying again", why)

    # --- What claims hold -----------------------------------------------------------------------------------------

    def _holders_changed(self, _new: object = None) -> None:
        holds = claim_holds(self.claims.prepared.value.values(), self._cluster.followed.pods.values())
        if holds != self.entries.value:
            self.entries.set(holds)
        self._show()

    def _show(self) -> None:
        """Let the status of each claim say what it holds, and whether its limit does."""
        held: dict[str, dict[str, Held]] = {uid: {} for uid in self.claims.prepared.value}
        for hold in self.entries.value if self._held else ():
            claim = self.claims.prepared.value.get(hold.through)
            for device in () if claim is None else claim.devices:
                state = self._held.get((hold.pod_uid, hold.container, device.uuid))
                if state is not None:
                    before = held[hold.through].get(device.uuid, state.held)
                    held[hold.through][device.uuid] = min(before, state.held, key=_WORST.index)
        shown = {
            uid: (claim, {uuid: state.value for uuid, state in held[uid].items()})
            for uid, claim in self.claims.prepared.value.items()
        }
        if shown != self.api.shown.value:
            self.api.shown.set(shown)

    async def _sweep(self) -> NoReturn:
        while True:
            await asyncio.sleep(self.sweep_s)
            try:
                await self.look_for_orphans()
            except (ApiError, NotPreparedError, PodResourcesUnavailableError) as error:
                _log.debug("claims that are prepared in vain are not looked for: %s", error)

    async def look_for_orphans(self) -> None:
        """Drop the claims that two looks in a row have found neither in the API nor on the kubelet's list.

        A kubelet that lost its own state never asks for their end.

        Raises:
            ApiError, PodResourcesUnavailableError: it is not known which are.
            NotPreparedError: one could not be dropped.
        """
        if not self.claims.prepared.value:
            self._vain = frozenset()
            return
        listed = await listed_claims(self._settings.pod_resources_socket, DRIVER)
        vain = set()
        for uid, claim in self.claims.prepared.value.items():
            if (claim.namespace, claim.name) not in listed:
                found = await self.api.read(claim.namespace, claim.name)
                if found is None or found.uid != uid or not found.devices_of(DRIVER):
                    vain.add(uid)
        for uid in sorted(vain & self._vain):
            _log.warning("a claim is prepared in vain, and dropped", extra={"uid": uid})
            await self.claims.drop(uid)
        self._vain = frozenset(vain - self._vain)
