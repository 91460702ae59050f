"""Prepare and unprepare ResourceClaims for the kubelet of a node, and read and write them in the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import in_thread, wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.features.claims.claim_objects import CLAIMS, read_claim
from gpu_device_plugin.features.claims.claim_store import ClaimStore, ClaimStoreError
from gpu_device_plugin.features.claims.contract import DRIVER, Claim
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim, cdi_spec, device_id, status_body
from gpu_device_plugin.features.claims.rules.preparing import (
    Preparation,
    claim_grant,
    owner_of,
    prepare,
    refuse_limits,
    two_claims,
)
from gpu_device_plugin.kubernetes.client.api_client import PatchType
from gpu_device_plugin.kubernetes.client.errors import TRANSIENT, ApiError, ConflictError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import UnreadableObjectError
from gpu_device_plugin.kubernetes.writers.own_node import keep_written
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.allocation_handler import device_nodes
from gpu_device_plugin.node.extension import Features, GrantDraft, GrantRequest, StartRequest
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode, refuse_without_nodes
from gpu_device_plugin.node.rules.container_grants import Grant, GrantOwner, Mount
from gpu_device_plugin.node.rules.ledger import Ledger

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet._proto import dra_v1_pb2

_log = logging.getLogger(__name__)

_PASSING = frozenset(
    {RefusalCode.NO_ROOM, RefusalCode.IN_WHOLE_USE, RefusalCode.OTHER_RESOURCE, RefusalCode.RECORDS_UNREADABLE}
)
"""Reasons that end by themselves: a container that has ended for the API server still runs, or a record is read."""


class NotPreparedError(Exception):
    """A claim is not prepared, or not unprepared; the owner of the pod reads the message in an Event."""


class NodeClaims:
    """The claims of a node: as they are prepared, which one call at a time changes, and in the API.

    Each call of the API is made once, with the client's timeouts.
    """

    def __init__(self, node: NodeContext, store: ClaimStore) -> None:
        """Prepare claims of `node`, whose files are in `store`."""
        self._node, self._state, self._metrics = node, node.state, node.metrics
        self._followed = node.reached_cluster.followed
        self._pool = node.settings.value.node_name
        self._store = store
        self._lock = asyncio.Lock()
        self.pod_within_s = 1.0
        """How long a pod may take to reach us after it reached the kubelet, in seconds."""
        self.wait_s = 20.0
        """How long a call waits for what comes by itself, in seconds. A kubelet gives up after 45 (dra_plugin.go), and
        tries a refused claim again when it looks at the pod next, 60 to 90 s later."""
        self.prepared: Observable[Mapping[str, PreparedClaim]] = Observable({})
        """The prepared claims, by UID."""
        self.shown: Observable[Mapping[str, tuple[PreparedClaim, Mapping[str, str]]]] = Observable({})
        """By UID the prepared claims, each with the states of its limits by GPU: what their status shall say."""

    def recover(self) -> frozenset[str]:
        """Take over what earlier agents prepared; return the UIDs of claims whose files are damaged.

        To be called before the first registration, with the GPUs known. Writes the CDI files that a reboot removed.
        No device of the claims that it takes over is held by two of them.

        Raises:
            ClaimStoreError: nobody knows what is in use.
        """
        found, damaged = self._store.load()
        self._state.update(Ledger.seen, frozenset().union(*(claim.device_ids for claim in found.values())))
        if found:
            self._store.sweep(found)
        self.prepared.set(found)
        return damaged

    async def prepare(self, claim: dra_v1_pb2.Claim) -> PreparedClaim:
        """Prepare a claim, or return what was prepared. Raises NotPreparedError; the kubelet tries again."""
        until = time.monotonic() + self.wait_s
        while True:
            found = await self._read_claim(claim, until)
            known = await asyncio.gather(*(self._pod(consumer.uid) for consumer in found.consumers))
            pods = [pod for pod in known if pod is not None]
            async with self._lock:
                made = await self._give(found, pods)
            if not isinstance(made, Refusal):
                await self._startable(made, until)
                return made
            # Without the lock: what the claim waits for may be the end of another one.
            waits, left_s = partial(self._may_be_tried, found, pods), until - time.monotonic()
            if made.code not in _PASSING or not await wait_within(left_s, self._state.nodes.wait_until(waits)):
                self._metrics.count(m.REFUSALS, DRIVER, made.code)
                _log.warning("refused", extra={"claim": str(found), "why": made.sentence, "once_per_s": 60})
                raise NotPreparedError(made.sentence)

    def _may_be_tried(self, claim: Claim, owners: Sequence[Pod], _node: object) -> bool:
        verdict = self._judge(claim, owners)
        return not isinstance(verdict, Refusal) or verdict.code not in _PASSING

    async def _startable(self, claim: PreparedClaim, until: float) -> None:
        """Wait until the containers of a claim may start, or `until` (monotonic seconds); without the lock.

        Raises:
            NotPreparedError: they must not. The claim keeps what it holds, and the kubelet tries again.
        """
        if not claim.device_ids:
            return
        start = StartRequest(claim.kind, sorted(claim.device_ids), until)
        if (refusal := await self._node.features.before_start(start)) is not None:
            self._metrics.count(m.REFUSALS, DRIVER, refusal.code)
            raise NotPreparedError(f"{refusal.sentence}; this is retried")

    async def adopt(self, claim: Claim) -> None:
        """Take over a claim that was prepared by an earlier agent, of which only the API knows what it holds.

        Raises:
            NotPreparedError: its files cannot be written.
        """
        async with self._lock:
            made = await self._give(claim, (), running=True)
        if isinstance(made, Refusal):
            _log.error("a prepared claim gets no devices here", extra={"claim": str(claim), "why": made.sentence})

    async def unprepare(self, uid: str) -> None:
        """Take back what the claim with this UID was given, if it was given anything. Raises NotPreparedError."""
        async with self._lock:
            await self._done(self._store.remove, uid)
            claim = self.prepared.value.get(uid)
            if claim is None:
                return
            self.prepared.set({key: value for key, value in self.prepared.value.items() if key != uid})
            self._state.update(Ledger.without, claim.device_ids)
            _log.info("unprepared", extra={"claim": str(claim)})

    async def _pod(self, uid: str) -> Pod | None:
        """Return a pod of our node once it is known; None: it is not known in time."""
        return await self._followed.wait_for(lambda pods: pods.get(uid), self.pod_within_s)

    async def _read_claim(self, ref: dra_v1_pb2.Claim, until: float) -> Claim:
        """Read a claim, again until `until` (monotonic seconds) while the API server fails."""
        name, backoff = f"{ref.namespace}/{ref.name}", Backoff(0.5)
        while True:
            try:
                found = await self.read(ref.namespace, ref.name)
                break
            except (ApiError, UnreadableObjectError) as error:
                pause_s = backoff.next_s()
                if not isinstance(error, TRANSIENT) or time.monotonic() + pause_s >= until:
                    raise NotPreparedError(f"claim {name} cannot be read: {error}; this is retried") from error
                await asyncio.sleep(pause_s)
        if found is None or found.uid != ref.uid:
            raise NotPreparedError(f"claim {name} is gone; delete the pod so that it gets a new one")
        return found

    def _judge(self, claim: Claim, owners: Sequence[Pod], *, running: bool = False) -> Preparation | Refusal:
        """Decide by what the node is and holds at this moment; of what it lacks nothing counts if containers run."""
        before = None if running else self.prepared.value.get(claim.uid)
        verdict = prepare(self._state.node, claim, self._pool, before, running=running)
        if running or isinstance(verdict, Refusal) or _same(before, verdict):
            return verdict
        others, delivery = self.prepared.value.values(), self._node.config.value.delivery
        refusals = (two_claims(pod, claim, others) for pod in owners)
        shares, present = self._state.node.shares, device_nodes(self._node.dev, delivery)
        return refuse_without_nodes(delivery, present, shares) or next(filter(None, refusals), verdict)

    async def _give(self, claim: Claim, owners: Sequence[Pod], *, running: bool = False) -> PreparedClaim | Refusal:
        """Give a claim its devices; return what its containers get, or why they cannot have it. With the lock.

        Nothing of what the node lacks is a reason for a claim whose containers are `running`.

        Raises:
            NotPreparedError: its files cannot be written. It has its devices all the same.
        """
        preparation = self._judge(claim, owners, running=running)
        if isinstance(preparation, Refusal):
            return preparation
        before = None if running else self.prepared.value.get(claim.uid)
        if before is not None and _same(before, preparation):
            await self._done(self._store.write, before)  # a reboot removes one file, and a full disk keeps out both
            self._memory_mounts(before)
            return before

        def judge() -> GrantDraft | Refusal:
            nonlocal preparation
            preparation = self._judge(claim, owners, running=running)
            if isinstance(preparation, Refusal):
                return preparation
            owner = owner_of(claim, preparation)
            return GrantDraft(preparation.device_ids, preparation.placement, owner, self._node.config.value.delivery)

        features = Features() if preparation.admin else self._node.features
        request = GrantRequest(judge, running=running)
        async with features.granting(request) as draft:
            if isinstance(draft, Refusal):
                return draft
            preparation = replace(preparation, limit_shares=draft.owner.limit_shares)
            shares, present = self._state.node.shares, device_nodes(self._node.dev, draft.delivery)
            grant = claim_grant(claim, preparation, shares, draft.delivery, present, added=draft.added)
            if not running and (unlimited := refuse_limits(preparation, shares, grant.enforcement)) is not None:
                return unlimited
            made = self._made(claim, preparation, grant)
            request.granted = made.allocation()
            await self._keep(made, before)
        if not running:
            self._metrics.count(m.ALLOCATIONS, DRIVER)
            _log.info("prepared", extra={"claim": str(made), "devices": [device.device for device in made.devices]})
        return made

    def _made(self, claim: Claim, preparation: Preparation, grant: Grant) -> PreparedClaim:
        made = PreparedClaim(
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            devices=preparation.devices,
            device_ids=preparation.device_ids,
            enforcement=grant.enforcement,
            consumers=claim.consumers,
            cdi_names=(device_id(claim.uid), *grant.cdi_devices),
            limit_mib=(preparation.limit_shares or 0) * self._state.node.shares.share_mib,
        )
        grant = replace(grant, mounts=(*grant.mounts, *self._memory_mounts(made)))
        return replace(made, cdi=cdi_spec(claim.uid, grant))

    def _memory_mounts(self, claim: PreparedClaim) -> tuple[Mount, ...]:
        """Return the mount by which the containers of a claim see how much they may use; make its directory."""
        limit = claim.limit_mib // self._state.node.shares.share_mib
        return self._node.features.mounts(GrantOwner(limit_shares=limit), sorted(claim.device_ids)) if limit else ()

    async def _keep(self, claim: PreparedClaim, before: PreparedClaim | None) -> None:
        """Take the devices, then write the files: what a container may get is in the ledger by then.

        A claim whose files cannot be written keeps its devices, together with those that it had before: our own file
        may be there, and the next agent believes it. The kubelet tries again, and has the claim unprepared after the
        end of its pod.
        """
        former = frozenset() if before is None else before.device_ids - claim.device_ids
        self._state.update(Ledger.seen, claim.device_ids)
        self._now(replace(claim, device_ids=claim.device_ids | former))
        await self._done(self._store.write, claim)
        self._state.update(Ledger.without, former)
        self._now(claim)

    def _now(self, claim: PreparedClaim) -> None:
        if self.prepared.value.get(claim.uid) != claim:
            self.prepared.set({**self.prepared.value, claim.uid: claim})

    async def _done(self, act: Callable[..., None], *args: object) -> None:
        began = time.perf_counter()
        try:
            await in_thread(act, *args)
        except ClaimStoreError as error:
            raise NotPreparedError(f"{error}; this is retried") from error
        finally:
            self._metrics.took(m.RPCS, time.perf_counter() - began, "files of a claim")

    # --- The claims in the API ------------------------------------------------------------------------------------

    async def read(self, namespace: str, name: str) -> Claim | None:
        """Return a claim; None if there is none of this name. Raises ApiError, or UnreadableObjectError."""
        try:
            return read_claim(await self._node.reached_cluster.client.get(CLAIMS, name, namespace=namespace))
        except NotFoundError:
            return None

    async def allocated(self) -> Mapping[str, Claim]:
        """Return by UID the claims that have devices of our driver on our node. It lists the claims of the cluster.

        Raises ApiError.
        """
        found: dict[str, Claim] = {}
        async for page in self._node.reached_cluster.client.pages(CLAIMS):
            for raw in page.items or ():
                try:
                    claim = read_claim(raw)
                except UnreadableObjectError as error:
                    _log.warning("a ResourceClaim is left out: %s", error, extra={"once_per_s": 600})
                    continue
                if any(device.pool == self._pool for device in claim.devices_of(DRIVER)):
                    found[claim.uid] = claim
        return found

    async def keep_status(self) -> NoReturn:
        """Keep the status of our claims up to date. Ends only by cancellation; failures are logged and retried."""
        written: dict[str, object] = {}

        async def write(shown: Mapping[str, tuple[PreparedClaim, Mapping[str, str]]]) -> None:
            for uid in written.keys() - shown.keys():
                del written[uid]
            for uid, status in shown.items():
                if written.get(uid) != status:
                    await self._write_status(*status)
                    written[uid] = status

        sentence = "the status of claims does not say what they hold: %s; trying again"
        await keep_written(self.shown, write, partial(_log.warning, sentence), None, Backoff(1.0))

    async def _write_status(self, claim: PreparedClaim, held: Mapping[str, str]) -> None:
        body = status_body(claim, held)
        try:
            await self._node.reached_cluster.client.patch(
                CLAIMS, claim.name, body, namespace=claim.namespace, subresource="status", how=PatchType.APPLY
            )
        except (NotFoundError, ConflictError, InvalidError) as error:
            # The claim is gone, is another one by now, or is not allocated to us any more: nobody reads its status.
            _log.debug("the status of claim %s is not written: %s", claim, error)


def _same(before: PreparedClaim | None, verdict: Preparation) -> bool:
    """Return whether a claim has been prepared so before."""
    return before is not None and (before.devices, before.device_ids) == (verdict.devices, verdict.device_ids)
