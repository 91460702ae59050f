"""Answer the kubelet's GetPreferredAllocation, Allocate and PreStartContainer calls for one node, from memory."""

from __future__ import annotations

import logging
import time
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.core.model.holds import DeviceHold, HoldSource
from gpu_device_plugin.core.model.placing import POLICIES
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.node.kubelet.admission import (
    Refused,
    Start,
    Why,
    admit,
    refuse_request,
    refuse_unlimited,
    refuse_without_nodes,
    why_not_its_own,
)
from gpu_device_plugin.core.node.ledger import Ledger
from gpu_device_plugin.core.node.limits.container_grants import CONTROL_NODES, OPTIONAL_NODES, grant
from gpu_device_plugin.core.node.limits.extra_grant import NOBODY, GrantOwner
from gpu_device_plugin.core.node.matching import Call
from gpu_device_plugin.core.node.preferred_allocation import UNMATCHED, PreferredAllocationRequest, spread_over
from gpu_device_plugin.kubelet.servicer import RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.placing import Placement
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.node.limits.container_grants import Delivery, Grant
    from gpu_device_plugin.core.node.limits.extra_grant import Mount
    from gpu_device_plugin.core.node.matching import Match
    from gpu_device_plugin.core.node.node_config import NodeConfig
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.kubelet.waiting_pods import WaitingPods
    from gpu_device_plugin.programs.node.limits.mps_link import MpsLink
    from gpu_device_plugin.programs.node.node_api import NodeApi

_log = logging.getLogger(__name__)

_WAIT_S = 25.0
"""The longest answer to PreStartContainer. A kubelet waits 30 s, and asks again some seconds after a refusal."""

_NOTHING: tuple[frozenset[str], Match | None] = (frozenset(), None)


class Borrowing(Protocol):
    """The part of memory that changes while containers run."""

    def limit_shares(self, match: Match, placement: Placement) -> int | None:
        """Return the most shares that a container may use where it is placed; None: those that it is given."""

    def mounts(self, owner: GrantOwner, device_ids: Sequence[str]) -> tuple[Mount, ...]:
        """Return the mounts by which a container with shares sees how much it may use."""

    async def until_room(self, device_ids: Sequence[str], within_s: float, lost: Callable[[], object]) -> str:
        """Wait until a container's memory is not borrowed, or it has `lost` its devices.

        Returns why it must not start; empty: it may.
        """


@dataclass(eq=False, repr=False)
class AllocationHandler:
    """Computes the answers. The node has one kubelet, which makes one call at a time."""

    _state: NodeState
    _waiting: WaitingPods | None
    """The pods that a call may be for; None: every call is answered by policy alone."""
    _metrics: m.Metrics
    _: KW_ONLY
    config: Observable[NodeConfig]
    dev: Path
    """The directory of the device nodes."""
    on_refusal: Callable[[Kind, int, Refused], None]
    """Called with kind, number of devices and reason after every refusal."""
    on_grant: Callable[[], None]
    mps: MpsLink
    borrowing: Borrowing
    starts: Starts

    def __post_init__(self) -> None:
        self._preferred: tuple[frozenset[str], Match | None] = _NOTHING
        """The last answer to GetPreferredAllocation, until Allocate comes; the kubelet makes one call at a time."""

    @property
    def _delivery(self) -> Delivery:
        return self.config.value.delivery

    async def prefer(
        self, resource: Resource, available: Iterable[str], must: Iterable[str], amount: int, *, waits: bool = True
    ) -> Sequence[str]:
        """See `Answers.prefer`; fewer IDs than `amount` if there is no good choice."""
        node = self._state.node
        if resource.kind is Kind.MEMORY:
            if barred := self._delivery.plan.barred:
                # Who asks for all of an instance has it to itself, and needs no means of limiting.
                barred -= self._instances_of(amount)
            if self.mps.on:
                barred |= self.mps.barred
            if barred:
                available = [name for name in available if parse_id(name)[0] not in barred]
        question = PreferredAllocationRequest(node, resource.kind, available, must, amount)
        waiting = self._waiting_for(resource)
        if waiting is None:
            matched = UNMATCHED
        else:
            call = self._named(question.call)
            matched = await waiting.find(call) if waits else waiting.find_now(call)
        policy = (matched.match and matched.match.pod.policy) or self.config.value.policy
        ids = question.answer(self._state.node, POLICIES[policy], matched)
        self._preferred = frozenset(ids), matched.match
        return ids

    async def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Grant:
        """See `Answers.allocate`."""
        if self.mps.on and resource.kind is Kind.MEMORY:
            await self._mps_ready(resource, device_ids)
        ids, node, waiting, delivery = frozenset(device_ids), self._state.node, self._waiting, self._delivery
        match, owner, verdict = self._judge(resource, device_ids)
        self._preferred = _NOTHING
        mps = self.mps if self.mps.on else None
        plan = None
        if mps is not None and not isinstance(verdict, Refused):
            plan = mps.plan(verdict.at_most(owner.limit_shares), node.shares, delivery.plan)
        if isinstance(plan, Refused):
            verdict = plan
        elif plan is not None:
            delivery = replace(delivery, plan=plan)
        if isinstance(verdict, Refused):
            if mps is not None:
                mps.given_up()
            if waiting is not None and match is not None:
                waiting.refused(match)
            self._metrics.count(m.REFUSALS, resource.name, verdict.why)
            self.on_refusal(resource.kind, len(ids), verdict)
            raise RefusedError(verdict.sentence)
        self._state.update(Ledger.granted, ids, time.monotonic())
        if waiting is not None and match is not None:
            waiting.served(match, ids)
        self._metrics.count(m.ALLOCATIONS, resource.name)
        self.on_grant()
        _log.info(
            "allocated",
            extra={
                "resource": resource.name,
                "amount": len(ids),
                "gpus": list(verdict.positions),
                **({"pod": match.pod.name, "container": match.request.container} if match is not None else {}),
            },
        )
        made = grant(
            verdict,
            node.shares,
            delivery,
            match.pod.total_shares if match is not None else None,
            device_nodes(self.dev, delivery),
            owner=owner,
        )
        if mps is not None:
            hold = DeviceHold(owner.pod_uid, owner.container, resource.kind, ids, HoldSource.ANSWER)
            mps.granted(replace(hold, enforcement=made.enforcement, limit_mib=made.limit_mib))
        return replace(made, mounts=(*made.mounts, *self.borrowing.mounts(owner, device_ids)))

    async def before_start(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Let a container start only on GPUs that are in service, and that MPS runs if and only if it is a client.

        And only where nobody borrows the memory that it is guaranteed. And only as long as its devices are its own: the
        last look is just before the answer, after which the kubelet reads the variables of the devices.
        """
        start = await self.starts.began(device_ids)
        if (startable := self.mps.until_startable(device_ids)) is not None:
            await startable
        node = self._state.node
        for position in sorted(spread_over(node, device_ids)):
            uuid = node.shares.gpus[position].gpu.uuid
            if uuid in node.unhealthy:
                self._metrics.count(m.REFUSALS, resource.name, Why.UNHEALTHY)
                raise RefusedError(f"GPU {position} is out of service: {node.unhealthy[uuid]}")
        if why := self.mps.why_not_start(device_ids):
            self._metrics.count(m.REFUSALS, resource.name, Why.MPS_NOT_READY)
            raise RefusedError(why)
        borrowed = ""
        if resource.kind is Kind.MEMORY:
            within_s = start.since + _WAIT_S - time.monotonic()
            borrowed = await self.borrowing.until_room(device_ids, within_s, partial(self.starts.lost, start))
        if why := await self.starts.lost_by_now(start):
            self._metrics.count(m.REFUSALS, resource.name, Why.POD_DELETED)
            raise RefusedError(why)
        if borrowed:
            self._metrics.count(m.REFUSALS, resource.name, Why.BORROWED)
            raise RefusedError(borrowed)

    async def _mps_ready(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Wait for the MPS daemon that a container with these IDs needs, for a while."""
        _, owner, verdict = self._judge(resource, device_ids)
        if isinstance(verdict, Refused):
            return  # it needs none: its GPU may be in use as a whole
        gpus = [self._state.node.shares.gpus[position] for position in verdict.positions]
        if (ready := self.mps.until_ready(gpus, dict(verdict.at_most(owner.limit_shares).shares))) is not None:
            await ready

    def _instances_of(self, shares: int) -> frozenset[str]:
        """Return the UUIDs of the MIG instances that have so many shares in all."""
        gpus = self._state.node.shares.gpus
        return frozenset(gpu.gpu.uuid for gpu in gpus if gpu.card is not None and len(gpu.shares) == shares)

    def _waiting_for(self, resource: Resource) -> WaitingPods | None:
        """Return the pods that a call for a resource may be for; None: they play no part.

        Whole MIG instances are promised to nobody: kube-scheduler counts them, and one is as good as another.
        """
        return None if resource.kind is Kind.INSTANCE else self._waiting

    def _named(self, call: Call) -> Call:
        return replace(call, names_pod=call.kind is Kind.MEMORY and self._delivery.plan.names_pods)

    def _judge(
        self, resource: Resource, device_ids: Sequence[str]
    ) -> tuple[Match | None, GrantOwner, Placement | Refused]:
        """Return the container that these devices are for, as far as it is known, and whether it may have them.

        It is the one that `prefer` matched, else the one that fits now: the kubelet calls Allocate alone if the devices
        of an init container suffice for the container after it.
        """
        node, kind, ids = self._state.node, resource.kind, frozenset(device_ids)
        preferred, match = self._preferred
        if match is None or ids != preferred:
            waiting, call = self._waiting_for(resource), self._named(Call(kind, len(ids), spread_over(node, ids)))
            match = None if waiting is None else waiting.find_now(call).match
        owner = NOBODY if match is None else GrantOwner(match.pod.uid, match.request.container, match.pod.frameworks)
        promise, after_init = (None, None) if match is None else (match.request.promise, match.after_init)
        verdict = (
            refuse_request(match)
            or refuse_without_nodes(self._delivery, device_nodes(self.dev, self._delivery))
            or self._unlimited(kind, device_ids, owner)
            or admit(node, kind, device_ids, promise, after_init=after_init)
        )
        if match is not None and not isinstance(verdict, Refused):
            owner = replace(owner, limit_shares=self.borrowing.limit_shares(match, verdict))
        return match, owner, verdict

    def _unlimited(self, kind: Kind, device_ids: Sequence[str], owner: GrantOwner) -> Refused | None:
        """Refuse a container whose memory cannot be limited; what MPS decides is not known before it was waited for."""
        node, mps = self._state.node, self.mps
        if mps.on and mps.decides_on(spread_over(node, device_ids), node.shares):
            return None
        return refuse_unlimited(node, kind, device_ids, self._delivery.plan, owner)


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
