"""Answer the kubelet's GetPreferredAllocation, Allocate and PreStartContainer calls for one node, from memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubelet.servicer import RefusalError
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.node.extension import GrantDraft, GrantRequest, StartRequest
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import (
    Refusal,
    RefusalCode,
    Start,
    admit,
    refuse_request,
    refuse_without_nodes,
    why_not_its_own,
)
from gpu_device_plugin.node.rules.container_grants import (
    CONTROL_NODES,
    NOBODY,
    OPTIONAL_NODES,
    Delivery,
    Grant,
    GrantOwner,
    grant,
)
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.matching import Call, Match
from gpu_device_plugin.node.rules.preferred_allocation import UNMATCHED, PreferredAllocationRequest

if TYPE_CHECKING:
    from gpu_device_plugin.node.waiting_pods import WaitingPods

_log = logging.getLogger(__name__)

_WAIT_S = 25.0
"""The longest answer to PreStartContainer. A kubelet waits 30 s, and asks again some seconds after a refusal."""

_NOTHING: tuple[frozenset[str], Match | None] = (frozenset(), None)


class AllocationHandler:
    """Computes the answers. The node has one kubelet, which makes one call at a time."""

    def __init__(
        self, node: NodeContext, *, on_refusal: Callable[[Kind, int, Refusal], None], on_grant: Callable[[], None]
    ) -> None:
        """Answer for `node`; `on_refusal` is called with kind, number of devices and reason after every refusal."""
        self._state, self._metrics, self.features, self._dev = node.state, node.metrics, node.features, node.dev
        self._config = node.config
        self._waiting = node.api.waiting
        """The pods that a call may be for; None: every call is answered by policy alone."""
        self._starts = Starts(node)
        self._on_refusal = on_refusal
        self._on_grant = on_grant
        self._preferred: tuple[frozenset[str], Match | None] = _NOTHING
        """The last answer to GetPreferredAllocation, until Allocate comes; the kubelet makes one call at a time."""

    async def prefer(
        self, resource: Resource, available: Iterable[str], must: Iterable[str], amount: int, *, waits: bool = True
    ) -> Sequence[str]:
        """See `Answers.prefer`; fewer IDs than `amount` if there is no good choice."""
        node = self._state.node
        question = PreferredAllocationRequest(node, resource.kind, available, must, amount)
        waiting = self._waiting_for(resource)
        if waiting is None:
            matched = UNMATCHED
        else:
            call = self._named(question.call)
            matched = await waiting.find(call) if waits else waiting.find_now(call)
        policy = (matched.match and matched.match.pod.policy) or self._config.value.policy
        ids = question.answer(self._state.node, POLICIES[policy], matched)
        self._preferred = frozenset(ids), matched.match
        return ids

    async def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Grant:
        """See `Answers.allocate`."""
        request = GrantRequest(lambda: self._judge(resource, device_ids, request))
        async with self.features.granting(request) as draft:
            self._preferred = _NOTHING
            ids, node, match = frozenset(device_ids), self._state.node, request.match
            if isinstance(draft, Refusal):
                raise self._refusal(resource, len(ids), match, draft)
            owner = draft.owner
            self._state.update(Ledger.granted, ids, time.monotonic())
            if self._waiting is not None and match is not None:
                self._waiting.served(match, ids)
            self._metrics.count(m.ALLOCATIONS, resource.name)
            self._on_grant()
            _log.info(
                "allocated",
                extra={
                    "resource": resource.name,
                    "amount": len(ids),
                    "gpus": list(draft.placement.positions),
                    **({"pod": match.pod.name, "container": match.request.container} if match is not None else {}),
                },
            )
            made = grant(
                draft.placement,
                node.shares,
                draft.delivery,
                match.pod.total_shares if match is not None else None,
                device_nodes(self._dev, draft.delivery),
                owner=owner,
                added=draft.added,
            )
            request.granted = Allocation(
                owner.pod_uid,
                owner.container,
                resource.kind,
                ids,
                AllocationSource.ANSWER,
                enforcement=made.enforcement,
                limit_mib=made.limit_mib,
            )
        return replace(made, mounts=(*made.mounts, *self.features.mounts(owner, device_ids)))

    def _refusal(self, resource: Resource, amount: int, match: Match | None, refusal: Refusal) -> RefusalError:
        if self._waiting is not None and match is not None:
            self._waiting.refused(match)
        self._metrics.count(m.REFUSALS, resource.name, refusal.code)
        self._on_refusal(resource.kind, amount, refusal)
        return RefusalError(refusal.sentence)

    async def before_start(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Let a container start only on GPUs that are in service, once the features have what it needs.

        And only as long as its devices are its own: the last look is just before the answer, after which the kubelet
        reads the variables of the devices.
        """
        start = await self._starts.began(device_ids)
        request = StartRequest(resource.kind, device_ids, start.since + _WAIT_S, partial(self._starts.lost, start))
        # Before the features, too: nobody has to give memory back for a container that cannot start.
        refusal = self._out_of_service(device_ids) or await self.features.before_start(request)
        refusal = self._out_of_service(device_ids) or refusal
        if why := await self._starts.lost_by_now(start):
            refusal = Refusal(RefusalCode.POD_DELETED, why)
        if refusal is not None:
            self._metrics.count(m.REFUSALS, resource.name, refusal.code)
            raise RefusalError(refusal.sentence)

    def _out_of_service(self, device_ids: Sequence[str]) -> Refusal | None:
        node = self._state.node
        for position in sorted(node.shares.spread(device_ids)):
            if reason := node.block(node.shares.gpus[position].gpu.uuid).everyone:
                return Refusal(RefusalCode.UNHEALTHY, f"GPU {position} is unhealthy: {reason}")
        return None

    def _waiting_for(self, resource: Resource) -> WaitingPods | None:
        """Return the pods that a call for a resource may be for; None: they play no part.

        Whole MIG instances are not assigned to anyone: kube-scheduler counts them, and one is as good as another.
        """
        return None if resource.kind is Kind.INSTANCE else self._waiting

    def _named(self, call: Call) -> Call:
        return replace(call, names_pod=call.kind is Kind.MEMORY and self._config.value.means.names_pods)

    def _judge(self, resource: Resource, device_ids: Sequence[str], request: GrantRequest) -> GrantDraft | Refusal:
        """Find the container that these devices are for, as far as it is known, and decide whether it may have them.

        It is the one that `prefer` matched, else the one that fits now: the kubelet calls Allocate alone if the devices
        of an init container suffice for the container after it.
        """
        node, kind, ids, delivery = self._state.node, resource.kind, frozenset(device_ids), self._config.value.delivery
        preferred, match = self._preferred
        if match is None or ids != preferred:
            match = None
            if (waiting := self._waiting_for(resource)) is not None:
                match = waiting.find_now(self._named(Call(kind, len(ids), node.shares.spread(ids)))).match
        request.match = match
        owner = NOBODY if match is None else GrantOwner(match.pod.uid, match.request.container, match.pod.frameworks)
        promise, after_init = (None, None) if match is None else (match.request.promise, match.after_init)
        verdict = (
            refuse_request(match)
            or refuse_without_nodes(delivery, device_nodes(self._dev, delivery), node.shares)
            or admit(node, kind, device_ids, promise, after_init=after_init)
        )
        return verdict if isinstance(verdict, Refusal) else GrantDraft(ids, verdict, owner, delivery)


def device_nodes(dev: Path, delivery: Delivery) -> frozenset[str]:
    """Return the device nodes, of those that every container needs or may have, that are on this node.

    To be read at each call: nvidia-uvm often appears late after a boot. None where no container is given device nodes.
    """
    paths = (*CONTROL_NODES, *OPTIONAL_NODES) if delivery.device_specs else ()
    return frozenset(path for path in paths if (dev / path.removeprefix("/dev/")).exists())


_RECORDED_S = 1.0
"""Most seconds to wait until the kubelet's checkpoint, which is read soon after each grant, names a container."""


@dataclass(eq=False, repr=False)
class Starts:
    """Finds out whether the devices of a container that the kubelet is about to start are still its own.

    It answers from what the kubelet's records and the API show at that moment.
    """

    _node: NodeContext

    def owners(self, device_ids: Collection[str]) -> Sequence[Allocation]:
        """Return the containers with exactly these devices in the kubelet's records.

        None as long as the records that we have read are older than our grant: those name a former holder.
        """
        ids, states = frozenset(device_ids), self._node.state.node.ledger.id_states
        if any(name in states and states[name].granted_at is not None for name in ids):
            return ()
        return [allocation for allocation in self._node.entries.value if allocation.device_ids == ids]

    async def began(self, device_ids: Collection[str]) -> Start:
        """Return a call that comes now, once the kubelet's records name the container, or after a second."""
        since = time.monotonic()
        named = await wait_within(_RECORDED_S, self._node.entries.wait_until(lambda _: bool(self.owners(device_ids))))
        uids = {owner.pod_uid for owner in self.owners(device_ids)}
        living = frozenset(pod.uid for pod in self._node.api.pods.values() if pod.uid in uids)
        return Start(frozenset(device_ids), since, named, living)

    def lost(self, start: Start, listed: Collection[str] | None = None) -> str:
        """Return why a container must not start with its devices, see `why_not_its_own`."""
        pods = {pod.kubelet_uid: pod for pod in self._node.api.pods.values()} if self._node.api.current else None
        owners = self.owners(start.device_ids)
        return why_not_its_own(start, ledger=self._node.state.node.ledger, owners=owners, pods=pods, listed=listed)

    async def lost_by_now(self, start: Start) -> str:
        """As `lost`, and by what the kubelet itself says: our watch may be behind, as after a pause of this process."""
        return self.lost(start, await self._node.records.listed())
