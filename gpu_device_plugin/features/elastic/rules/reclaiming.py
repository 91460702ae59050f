"""Decide which containers must return borrowed GPU memory, how much, for whom, and which have run out of time.

While a GPU is short and somebody borrows there, borrowers are asked: those of the lowest priority first, then those
that borrow most, until what they borrow covers the shortage. Who was asked may not borrow again until the shortage is
over. Nobody within its guarantee is asked, and nobody whose use is unknown. Times are monotonic seconds, and a reading
that is not newer than the last one is ignored.

A pod has one grace on a GPU, which it gets back slowly. So a pod that returns memory for a moment and takes it again,
or whose containers take it in turns, does not keep it from others for longer than one that returns nothing.

What is unknown hurts nobody: a GPU whose use or size is not known is not short, and a container with unknown use counts
as using exactly what it is guaranteed. A container that starts uses nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.features.elastic.contract import MemoryFile, MemoryRequests, is_elastic
from gpu_device_plugin.features.elastic.rules.reservations import elastic_gpu
from gpu_device_plugin.features.eviction.rules import Candidate, spared
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.features.use.rules.use_report import AskedToReturn
from gpu_device_plugin.model.allocations import Allocation, AllocationSource, Place
from gpu_device_plugin.model.contract.keys import FRAMEWORKS, MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_LIMIT
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.report.rules.printing import counted, duration, mib, printable

_CHANGING = frozenset({MEMORY_LIMIT, MEMORY_GUARANTEE, MEMORY_HELD})
"""Annotations of a pod whose containers may use something else than they were granted when they started."""

_RECOVERY = 10
"""A pod that has used up its grace has a whole one again after so many without being asked."""


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """A container that was asked to return memory since its GPU is short."""

    place: Place
    since: float
    """When it was asked."""
    seen: float
    """The newest reading that told its use."""
    mib: int
    """What it is to return now. 0: nothing, but it may not borrow again until the shortage is over."""
    borrowed_mib: int
    until: float | None = None
    """When its pod may be evicted if it still borrows what is needed; None: nothing evicts it."""
    needed_by: str = ""
    """``namespace/name`` of the pod that lacks its guarantee; empty: not known."""
    pod: Pod | None = None
    spent_s: float = 0.0
    """What of its pod's grace was used up when it was asked."""

    @property
    def told_needed_by(self) -> str:
        """`needed_by` as the owner of the container may know it: empty for a pod of another namespace."""
        own = self.pod is not None and self.needed_by.partition("/")[0] == self.pod.namespace
        return self.needed_by if own else ""


@dataclass(frozen=True, slots=True)
class ReclaimState:
    """The containers of a node that were asked, as of the newest reading."""

    at: float = float("-inf")
    requests: Mapping[Place, ReclaimRequest] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    """MiB of each GPU (by UUID) that borrowers have, and others lack of their guarantees. Of GPUs where that is so."""
    spent_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """What each pod (by UID) has used up of its grace on a GPU, where that is not 0."""

    def after(
        self,
        reading: UseReading,
        uses: Mapping[str, Sequence[AttributedUse]],
        capacity_mib: Mapping[str, int],
        starting: Sequence[Place] = (),
        *,
        grace_s: float,
        evicts: bool,
    ) -> ReclaimState:
        """Return who is asked after one more reading.

        Args:
            reading: it tells the use of each GPU.
            uses: the containers with a guarantee on each GPU, see `uses_now`.
            capacity_mib: the memory of each GPU without the driver's reservation.
            starting: the containers that wait for their start, the first of which waits longest.
            grace_s: how long a borrower has to return memory.
            evicts: who does not return it in time is evicted.
        """
        if reading.at <= self.at:
            return self
        requests: dict[Place, ReclaimRequest] = {}
        missing: dict[str, int] = {}
        spent = self._spent(reading.at, grace_s)
        for uuid, on_gpu in uses.items():
            by_place = {use.place: use for use in on_gpu}
            before = {place: found for place, found in self.requests.items() if place in by_place}
            if evicts:  # who withdraws its limit when it is asked has memory of others all the same
                on_gpu = [replace(use, lent=use.lent or use.place in before) for use in on_gpu]  # noqa: PLW2901
            if reading.used_mib.get(uuid) is None:
                # A GPU that was not read for a moment, while its driver is busy, is as it was.
                requests |= {place: was for place, was in before.items() if reading.at - was.seen <= grace_s}
                continue
            short = shortage_mib(on_gpu, reading.used_mib[uuid], capacity_mib.get(uuid))
            if not short:
                continue
            if due := min(short, sum(use.borrowed_mib for use in on_gpu)):
                missing[uuid] = due
            for use, part_mib in _amounts(on_gpu, before, due):
                known = use.used_mib is not None
                # Not one that was told the larger limit of another container.
                evictable = evicts and not spared(use.pod) and use.told_mib == use.allowed_mib
                was = before.get(use.place)
                since = reading.at if was is None else was.since
                spent_s = spent.get((use.pod_uid, uuid), 0.0) if was is None else was.spent_s
                requests[use.place] = ReclaimRequest(
                    use.place,
                    since,
                    reading.at if known or was is None else was.seen,
                    part_mib if known or was is None else was.mib,
                    use.borrowed_mib if known or was is None else was.borrowed_mib,
                    since + grace_s - spent_s if evictable else None,
                    _needed_by(on_gpu, starting),
                    use.pod,
                    spent_s,
                )
        return ReclaimState(reading.at, requests, missing, spent)

    def _spent(self, now: float, grace_s: float) -> Mapping[tuple[str, str], float]:
        """Return what each pod has used up of its grace until now."""
        returning = {(each.place[0], each.place[2]) for each in self.requests.values() if each.mib}
        found = {}
        for key in returning | self.spent_s.keys():
            passed_s = now - self.at if key in returning else (self.at - now) / _RECOVERY
            if (spent_s := min(grace_s, self.spent_s.get(key, 0.0) + passed_s)) > 0:
                found[key] = spent_s
        return found

    @property
    def asked(self) -> Mapping[Place, AskedToReturn]:
        """The containers that are to return memory now, for the report of use."""
        requests = self.requests.items()
        return {place: AskedToReturn(each.since, each.until, each.needed_by) for place, each in requests if each.mib}

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the pods whose time is over, each with the GPU that lacks what it borrows.

        One whose newest use is unknown is none of them.
        """
        return tuple(
            Candidate(each.pod, each.place[2], each.borrowed_mib)
            for each in self.requests.values()
            if each.pod is not None and each.mib and each.seen == self.at
            if each.until is not None and each.until <= self.at
        )


def _amounts(
    uses: Sequence[AttributedUse], before: Mapping[Place, ReclaimRequest], due_mib: int
) -> Iterable[tuple[AttributedUse, int]]:
    """Return who is asked on one GPU that is short, and for how much: those of `before` stay."""
    in_order = sorted(uses, key=lambda use: (use.pod.priority if use.pod else 0, -use.borrowed_mib, use.place))
    left = due_mib - sum(use.borrowed_mib for use in uses if use.place in before)
    chosen = []
    for use in in_order:
        if use.place in before:
            chosen.append(use)
        elif left > 0 and use.borrowed_mib:
            chosen.append(use)
            left -= use.borrowed_mib
    for use in chosen:
        mib = min(use.borrowed_mib, due_mib)
        due_mib -= mib
        yield use, mib


def _needed_by(uses: Sequence[AttributedUse], starting: Sequence[Place]) -> str:
    """Return the pod that lacks its guarantee: that of the container that waits longest, or which lacks most."""
    lacks = {use.place: use.granted_mib - use.used_mib for use in uses if use.used_mib is not None}
    first = {place: -number for number, place in enumerate(starting)}
    found = max(
        (use for use in uses if lacks.get(use.place, 0) > 0),
        key=lambda use: (use.place in first, first.get(use.place, 0), lacks[use.place]),
        default=None,
    )
    return "" if found is None or found.pod is None else f"{found.pod.namespace}/{found.pod.name}"


# --- What is short, and what may be used now --------------------------------------------------------------------------


def shortage_mib(uses: Iterable[AttributedUse], used_mib: int | None, capacity_mib: int | None) -> int:
    """Return how much more the containers with these uses of a GPU may take of their guarantees than is free there."""
    if capacity_mib is None or used_mib is None:
        return 0
    untaken = 0
    for of_pod in _by_pod(uses):
        taken = sum(use.granted_mib if use.used_mib is None else min(use.used_mib, use.granted_mib) for use in of_pod)
        untaken += max(0, _guaranteed_mib(of_pod) - taken)
    return max(0, untaken - (capacity_mib - used_mib))


def owners_limits(
    allocation: Allocation,
    pod: Pod | None,
    granted: Mapping[str, int],
    *,
    shares: Shares,
    requests: dict[str, MemoryRequests],
    may_borrow: bool,
) -> Mapping[str, int]:
    """Return `ContainerGpus.limits` of a container: what its owner, or its claim, lets it use at most.

    `requests` are those parsed so far, by the UID of each pod; `may_borrow`: its node lends.
    """
    if allocation.source is AllocationSource.CLAIM:  # it does not change
        return dict.fromkeys(granted, allocation.limit_mib) if allocation.limit_mib and may_borrow else {}
    shared = None if pod is None or not is_elastic(pod.annotations) else elastic_gpu(allocation, pod, shares)
    if pod is None or shared is None:
        return {}
    uuid, share_mib = shared.gpu.uuid, shares.share_mib
    if pod.uid not in requests:
        requests[pod.uid] = MemoryRequests.of(pod.annotations)
    guaranteed = granted[uuid] // share_mib
    limit = requests[pod.uid].limit_of(allocation.container, guaranteed, len(shared.shares), may_borrow=may_borrow)
    return {} if limit == guaranteed else {uuid: limit * share_mib}


def uses_now(
    reading: UseReading,
    holders: Iterable[ContainerGpus],
    starting: Iterable[AttributedUse] = (),
    *,
    may_borrow: bool = True,
) -> Mapping[str, tuple[AttributedUse, ...]]:
    """Return the containers that have a guarantee on each GPU (by UUID) now, with their use by an earlier reading.

    `starting` are those that the kubelet is about to start, with their guarantees: the kubelet's checkpoint, of which
    `holders` are made, may not show them yet. Where a node lends, one that was started with more than it is guaranteed
    of its GPU was lent it.
    """
    read = {use.place: use for use in reading.containers}
    about_to_start = {use.place: use for use in starting}
    found: dict[Place, AttributedUse] = {}
    for holder in holders:
        for uuid, granted in () if holder.whole else holder.granted.items():
            place = holder.pod_uid, holder.container, uuid
            use = read.get(place)
            used = 0 if use is None else use.used_mib
            if used is None and place in about_to_start:
                used = 0
            limit, lent = holder.limits.get(uuid), may_borrow and len(holder.granted) == 1
            lent = lent and (holder.started_mib or 0) > granted
            found[place] = AttributedUse(*place, granted, used, None, holder, holder.pod, limit, lent)
    by_gpu: dict[str, list[AttributedUse]] = {}
    for use in {**about_to_start, **found}.values():
        by_gpu.setdefault(use.uuid, []).append(use)
    return {uuid: tuple(uses) for uuid, uses in by_gpu.items()}


def allowed_now(
    uses: Mapping[str, Iterable[AttributedUse]], capacity_mib: Mapping[str, int], held_back: Collection[Place]
) -> Mapping[Place, int]:
    """Return the MiB that each container may use now, for those that may use something else than when they started.

    That is the guarantee while what it borrows is needed, and otherwise no more than what nobody is guaranteed.

    Args:
        uses: the containers with a guarantee on each GPU, see `uses_now`.
        capacity_mib: the memory of each GPU without the driver's reservation.
        held_back: those that may not borrow now.
    """
    found: dict[Place, int] = {}
    for uuid, on_gpu in uses.items():
        on_gpu = tuple(on_gpu)  # noqa: PLW2901
        changing = [use for use in on_gpu if _changes(use)]
        if not changing:
            continue
        spare = max(0, capacity_mib.get(uuid, 0) - sum(map(_guaranteed_mib, _by_pod(on_gpu))))
        for use in changing:
            more = 0 if use.place in held_back else spare
            found[use.place] = min(use.allowed_mib, use.granted_mib + more)
    return found


def memory_files(
    allocations: Iterable[Allocation],
    uses: Mapping[str, Iterable[AttributedUse]],
    allowed: Mapping[Place, int],
    requests: Mapping[Place, ReclaimRequest],
    due: Mapping[Place, str],
) -> Iterable[tuple[Allocation, AttributedUse, MemoryFile]]:
    """Yield what the file of each container says, if it has one.

    Args:
        allocations: what containers hold.
        uses: the containers with a guarantee on each GPU, see `uses_now`.
        allowed: what they may use now, see `allowed_now`.
        requests: those that were asked to return memory.
        due: when each of their pods may be evicted, RFC 3339.
    """
    by_container = {use.place[:2]: use for on_gpu in uses.values() for use in on_gpu}
    for allocation in allocations:
        use = by_container.get((allocation.pod_uid, allocation.container))
        if allocation.kind is not Kind.MEMORY or use is None:
            continue
        limit, request = allowed.get(use.place, use.granted_mib), requests.get(use.place)
        memory = MemoryFile(use.granted_mib, limit, max(limit, use.allowed_mib))
        if request is not None and request.mib:
            told = request.told_needed_by
            memory = replace(memory, return_mib=request.mib, return_by=due.get(use.place, ""), needed_by=told)
        yield allocation, use, memory


def _changes(use: AttributedUse) -> bool:
    return (
        use.lent or use.limit_mib is not None or (use.pod is not None and not _CHANGING.isdisjoint(use.pod.annotations))
    )


def _by_pod(uses: Iterable[AttributedUse]) -> Iterable[list[AttributedUse]]:
    found: dict[str, list[AttributedUse]] = {}
    for use in uses:
        found.setdefault(use.pod_uid, []).append(use)
    return found.values()


def _guaranteed_mib(of_pod: Iterable[AttributedUse]) -> int:
    """Return what the containers of one pod are guaranteed of a GPU: what an init container hands on counts once."""
    of_pod = tuple(of_pod)
    together = [use.holding.pod_granted.get(use.uuid, 0) for use in of_pod if use.holding is not None]
    return max(together, default=0) or sum(use.granted_mib for use in of_pod)


_TOLD = (MEMORY_LIMIT, MEMORY_GUARANTEE, FRAMEWORKS)
"""Annotations from which the variables of a pod's containers are made."""


# --- What an agent says about memory that is borrowed -----------------------------------------------------------------


def borrowed(request: ReclaimRequest, gpu: str) -> str:
    """Return what a container borrows, and who needs it, as a clause for its owner; `gpu` as for `use_of`."""
    needed_by = f" for {request.told_needed_by or 'another pod'}" if request.needed_by else ""
    return (
        f"container {printable(request.place[1])} borrows {request.borrowed_mib:,} MiB of {gpu} beyond its "
        f"guarantee, of which {request.mib:,} MiB are needed{needed_by}"
    )


def ultimatum(request: ReclaimRequest, now: float, *, evicts: bool) -> str:
    """Return what happens to a pod that does not return what is needed, as a clause; `now` in monotonic seconds."""
    if not evicts:
        return "it is not evicted, because the setting borrowers is report"
    if request.until is None:
        return f"it is not evicted: {spared(request.pod) or 'it was told the limit of another container'}"
    if request.until > now:
        return f"it may be evicted in {duration(request.until - now)}"
    return "it will be evicted"


def misdirected(holder: ContainerGpus, container: str, meant: Pod | None) -> str:
    """Say that a container was started with the answer that was made for another; empty if both are told the same.

    `meant` is the pod of that other one, None: it is gone, and `container` its name there.
    """
    pod = holder.pod
    uuid = next(iter(holder.granted))
    told_mib, own_mib = holder.started_mib, holder.limit_mib(uuid)
    alike = meant is None or (pod is not None and _told(pod) == _told(meant))
    if alike and told_mib in {None, own_mib} and holder.enforcement is not Enforcement.CUSTOM:
        return ""
    near = meant is not None and pod is not None and meant.namespace == pod.namespace
    whose = (
        f"container {container} of {meant.namespace}/{meant.name}" if near and meant else "a container of another pod"
    )
    limits = "" if told_mib in {None, own_mib} else f" (a limit of {mib(told_mib)}, and its own is {mib(own_mib)})"
    return (
        f"container {holder.container} was started with the variables of {whose}{limits}: the kubelet does not say "
        "which pod it asks for, and asked in an unexpected order. Its memory file is correct, and it is not evicted "
        "for this; delete the pod to give it its own variables"
    )


def _told(pod: Pod) -> tuple[object, ...]:
    """Return what of a pod decides what its containers are told, beside the amount for each."""
    shares = sorted(sum(each.limits.values()) for each in pod.containers if not each.devices_reused_by_later)
    return pod.namespace, shares, *(pod.annotations.get(key) for key in _TOLD)


def waits(missing_mib: int, gpu: str, requests: Sequence[ReclaimRequest], now: float, namespace: str) -> str:
    """Return why a container does not start while others borrow what it is guaranteed, as the end of a sentence.

    `requests` are those that have to return something of the GPU, at least one, on a node that evicts them; `namespace`
    is that of the container's pod, whose owner learns no names of other namespaces.
    """
    first = max(requests, key=lambda each: each.mib)
    pod = "another pod"
    if first.pod is not None and first.pod.namespace == namespace:
        pod = f"{first.pod.namespace}/{first.pod.name}"
    more = f" and {counted(len(requests) - 1, 'other')} borrow" if len(requests) > 1 else " borrows"
    return (
        f"waits for {format_mib(missing_mib)} that {pod}{more} of {gpu}, asked to return {duration(now - first.since)} "
        f"ago; {ultimatum(first, now, evicts=True)}"
    )
