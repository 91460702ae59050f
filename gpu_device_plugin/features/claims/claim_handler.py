"""Answer the kubelet's NodePrepareResources and NodeUnprepareResources calls for one node."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import in_thread, wait_within
from gpu_device_plugin.aio.worker import Backoff
from gpu_device_plugin.cluster.client.errors import TRANSIENT, ApiError
from gpu_device_plugin.cluster.objects.decoding import UnreadableObjectError
from gpu_device_plugin.features.claims.claim_store import ClaimStoreError
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.claims.dra_servicer import NotPreparedError
from gpu_device_plugin.features.claims.rules.claim_grants import (
    cdi_spec,
    claim_grant,
    device_id,
    owner_of,
    refuse_limits,
)
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim
from gpu_device_plugin.features.claims.rules.preparing import Preparation, prepare, two_claims
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.node.allocation_handler import device_nodes
from gpu_device_plugin.node.extension import Features, GrantDraft, GrantRequest, StartRequest
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode, refuse_without_nodes
from gpu_device_plugin.node.rules.container_grants import GrantOwner
from gpu_device_plugin.node.rules.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpu_device_plugin.cluster.node_pods import NodePods
    from gpu_device_plugin.features.claims.claim_store import ClaimStore
    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.features.claims.resource_slices import ClaimsApi
    from gpu_device_plugin.kubelet._proto import dra_v1_pb2
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.container_grants import Delivery, Grant, Mount

_log = logging.getLogger(__name__)

_PASSING = frozenset(
    {RefusalCode.NO_ROOM, RefusalCode.IN_WHOLE_USE, RefusalCode.OTHER_RESOURCE, RefusalCode.RECORDS_UNREADABLE}
)
"""Reasons that end by themselves: a container that has ended for the API server still runs, or a record is read."""


@dataclass(eq=False, repr=False)
class NodeClaims:
    """The prepared claims of a node. One call at a time changes them."""

    _state: NodeState
    _store: ClaimStore
    _api: ClaimsApi
    _followed: NodePods
    _metrics: m.Metrics
    _: KW_ONLY
    node_name: str
    """Also the name of its pool."""
    delivery: Callable[[], Delivery]
    """Returns how GPUs reach containers now."""
    dev: Path
    """The directory of the device nodes."""
    features: Features

    def __post_init__(self) -> None:
        self._lock = asyncio.Lock()
        self.pod_within_s = 1.0
        """How long a pod may take to reach us after it reached the kubelet, in seconds."""
        self.wait_s = 20.0
        """How long a call waits for what comes by itself, in seconds. A kubelet gives up after 45 (dra_plugin.go), and
        tries a refused claim again when it looks at the pod next, 60 to 90 s later."""
        self.prepared: Observable[Mapping[str, PreparedClaim]] = Observable({})
        """The prepared claims, by UID."""

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
        """Prepare a claim, or return what was prepared; see `ClaimHandler`."""
        until = time.monotonic() + self.wait_s
        while True:
            found = await self._read_claim(claim, until)
            known = await asyncio.gather(*(self._pod(consumer.uid) for consumer in found.consumers))
            made = await self._prepare(found, [pod for pod in known if pod is not None])
            if not isinstance(made, Refusal):
                await self._startable(made, until)
                return made
            if not await self._passes(found, made, until):
                self._metrics.count(m.REFUSALS, DRIVER, made.code)
                _log.warning("refused", extra={"claim": str(found), "why": made.sentence, "once_per_s": 60})
                raise NotPreparedError(made.sentence)

    async def _startable(self, claim: PreparedClaim, until: float) -> None:
        """Wait until the containers of a claim may start, or `until` (monotonic seconds); without the lock.

        Raises:
            NotPreparedError: they must not. The claim keeps what it holds, and the kubelet tries again.
        """
        if not claim.device_ids:
            return
        start = StartRequest(claim.kind, sorted(claim.device_ids), until)
        if (refusal := await self.features.before_start(start)) is not None:
            self._metrics.count(m.REFUSALS, DRIVER, refusal.code)
            raise NotPreparedError(f"{refusal.sentence}; this is tried again")

    async def _passes(self, claim: Claim, refusal: Refusal, until: float) -> bool:
        """Wait until a refusal has passed, or `until` (monotonic seconds); return whether the claim may be tried again.

        Without the lock: what the claim waits for may be the end of another one.
        """
        while refusal.code in _PASSING:
            version = self._state.nodes.version
            verdict = self._judged(claim, self.prepared.value.get(claim.uid))
            if not isinstance(verdict, Refusal) or verdict.code not in _PASSING:
                return True
            if not await wait_within(until - time.monotonic(), self._state.nodes.after(version)):
                return False
        return False

    async def _prepare(self, claim: Claim, owners: Sequence[Pod]) -> PreparedClaim | Refusal:
        async with self._lock:
            before = self.prepared.value.get(claim.uid)
            verdict = self._judged(claim, before)
            if isinstance(verdict, Refusal):
                return verdict
            if before is not None and (before.devices, before.device_ids) == (verdict.devices, verdict.device_ids):
                await self._done(self._store.write, before)  # a reboot removes one file, and a full disk keeps out both
                self._memory_mounts(before)
                return before
            made = await self._give(claim, before, owners)
            if isinstance(made, Refusal):
                return made
            self._metrics.count(m.ALLOCATIONS, DRIVER)
            _log.info("prepared", extra={"claim": str(made), "devices": [device.device for device in made.devices]})
            return made

    def _judged(self, claim: Claim, before: PreparedClaim | None) -> Preparation | Refusal:
        return prepare(self._state.node, claim, self.node_name, before)

    async def adopt(self, claim: Claim) -> None:
        """Take over a claim that was prepared by an earlier agent, of which only the API knows what it holds.

        Raises:
            NotPreparedError: its files cannot be written.
        """
        async with self._lock:
            made = await self._give(claim, None, (), running=True)
        if isinstance(made, Refusal):
            _log.error("a prepared claim holds nothing here", extra={"claim": str(claim), "why": made.sentence})

    async def unprepare(self, uid: str) -> None:
        """Take back what the claim with this UID was given, if it was given anything; see `ClaimHandler`."""
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
                found = await self._api.read(ref.namespace, ref.name)
                break
            except (ApiError, UnreadableObjectError) as error:
                pause_s = backoff.next_s()
                if not isinstance(error, TRANSIENT) or time.monotonic() + pause_s >= until:
                    raise NotPreparedError(f"claim {name} cannot be read: {error}; this is tried again") from error
                await asyncio.sleep(pause_s)
        if found is None or found.uid != ref.uid:
            raise NotPreparedError(f"claim {name} is gone; delete the pod so that it gets a new one")
        return found

    async def _give(
        self, claim: Claim, before: PreparedClaim | None, owners: Sequence[Pod], *, running: bool = False
    ) -> PreparedClaim | Refusal:
        """Give a claim its devices; return what its containers get, or why they cannot have it.

        Nothing of what the node lacks is a reason for a claim whose containers are `running`.

        Raises:
            NotPreparedError: its files cannot be written. It has its devices all the same.
        """
        delivery = self.delivery()
        present, preparations = device_nodes(self.dev, delivery), list[Preparation]()

        def judge() -> GrantDraft | Refusal:
            verdict = prepare(self._state.node, claim, self.node_name, before, running=running)
            if not running and not isinstance(verdict, Refusal):
                others = self.prepared.value.values()
                refusals = (two_claims(pod, claim, others) for pod in owners)
                refusal = refuse_without_nodes(delivery, present) or next(filter(None, refusals), None)
                verdict = verdict if refusal is None else refusal
            if isinstance(verdict, Refusal):
                return verdict
            preparations.append(verdict)
            return GrantDraft(verdict.device_ids, verdict.placement, owner_of(claim, verdict), delivery)

        if isinstance(refused := judge(), Refusal):
            return refused
        features = Features() if preparations[-1].admin else self.features
        request = GrantRequest(judge, running=running)
        async with features.granting(request) as draft:
            if isinstance(draft, Refusal):
                return draft
            preparation = replace(preparations[-1], limit_shares=draft.owner.limit_shares)
            shares = self._state.node.shares
            if not running and (unlimited := refuse_limits(preparation, shares, draft.enforcements)) is not None:
                return unlimited
            grant = claim_grant(claim, preparation, shares, draft.delivery, present, added=draft.added)
            made = self._made(claim, preparation, grant)
            request.granted = Allocation(
                "",
                "",
                made.kind,
                made.device_ids,
                AllocationSource.CLAIM,
                made.uid,
                made.enforcement,
                made.limit_mib or None,
            )
            await self._keep(made, before)
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
        return self.features.mounts(GrantOwner(limit_shares=limit), sorted(claim.device_ids)) if limit else ()

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
            raise NotPreparedError(f"{error}; this is tried again") from error
        finally:
            self._metrics.took(m.RPCS, time.perf_counter() - began, "files of a claim")
