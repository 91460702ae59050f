"""Lend unused memory, and reclaim it when it is needed, by limits, files, Events and evictions."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.elastic.contract import MemoryFile, MemoryRequests, is_elastic
from gpu_device_plugin.features.elastic.memory_files import MemoryFiles
from gpu_device_plugin.features.elastic.rules.reclaiming import (
    ReclaimRequest,
    ReclaimState,
    allowed_now,
    borrowed,
    memory_files,
    misdirected,
    owners_limits,
    shortage_mib,
    ultimatum,
    uses_now,
    waits,
)
from gpu_device_plugin.features.eviction.evictor import Evictor
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.container_gpus import LimitsOf
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.allocations import Allocation, AllocationSource, Place
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares, parse_id
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, NodeFeature, StartRequest, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import GrantOwner, Mount
from gpu_device_plugin.node.rules.matching import Match
from gpu_device_plugin.report.rules.printing import duration

_log = logging.getLogger(__name__)

_QUICK_S = 0.5
"""Seconds between two readings while a container waits for its start, or somebody has just been asked."""
_NAMED_WITHIN_S = 1.0
"""Most seconds to wait until the kubelet's checkpoint, which is read soon after each grant, names a container."""
_QUICK_FOR_S = 120.0
"""Seconds after which a borrower that was asked is read as seldom as all others."""


class Borrowing(NodeFeature):
    """Follows the readings of use, and publishes who is asked to return memory and what each container may use now.

    It takes part in grants (how much a container may use) and in starts (until lent memory is back). Nothing is looked
    at on a node without a pod whose owner wants other memory than it requests.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        self._node, self._use, self._evictor = node, node.features.of(Use), node.features.get(Evictor)
        self._use.limits = self._limits
        memory_dir = self._settings.memory_dir
        self._files = None if memory_dir is None else MemoryFiles(memory_dir)
        self.allowed_now = self._use.allowed_now
        """Set here alone."""
        self.answer_s = 5.0
        """Seconds to wait for a reading. Where the driver does not answer, nobody is kept from starting."""
        self.reclaiming: Observable[ReclaimState] = Observable(ReclaimState())
        """Who is asked; set with every reading."""
        self._starting: list[frozenset[str]] = []
        """The devices of the containers that the kubelet is about to start, in the order in which they wait."""
        self._reported: set[frozenset[str]] = set()
        """Those of containers of which an Event says that they wait: the kubelet tries again and again."""
        self._misdirected: set[tuple[str, str]] = set()
        """The containers that were told another one's limit, about which an Event says that."""
        self._due: Mapping[Place, str] = {}
        """When each pod that is asked may be evicted, as a text that does not change."""

    def tasks(self) -> Tasks:  # noqa: D102
        node = self._node
        return [
            self._use.reading.follow(self.act_on),
            node.entries.follow(self.holders_changed),
            node.settings.follow(self.publish_allowed),
            node.api.pod_changes.follow(self.publish_allowed, settle_s=0.1),
        ]

    @property
    def _settings(self) -> ElasticSettings:
        return self._node.settings.value.of(ElasticSettings)

    def _may_borrow(self) -> bool:
        return self._settings.borrowers != "off"

    def _limits(self, shares: Shares) -> LimitsOf:
        return partial(owners_limits, shares=shares, requests={}, may_borrow=self._may_borrow())

    @property
    def _shares(self) -> Shares:
        return self._node.state.node.shares

    # --- For the answers to the kubelet -------------------------------------------------------------------------------

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:
        """Say how much a container may use."""

        def contribution(draft: GrantDraft) -> GrantDraft:
            limit = draft.owner.limit_shares if self._may_borrow() else None  # that of a claim
            if request.match is not None:
                limit = self.limit_shares(request.match, draft.placement)
            return replace(draft, owner=replace(draft.owner, limit_shares=limit))

        return nullcontext(contribution)

    def limit_shares(self, match: Match, placement: Placement) -> int | None:
        """Return the most shares that a container may use where it is placed; None: those that it is given."""
        request = match.request
        if not match.pod.annotations or request.kind is not Kind.MEMORY or request.init or len(placement.shares) != 1:
            return None
        ((position, given),) = placement.shares
        shared = self._shares.gpus[position]
        if shared.gpu.instance is not None:
            return None
        total, requests = len(shared.shares), MemoryRequests.of(match.pod.annotations)
        return requests.limit_of(request.container, given, total, may_borrow=self._may_borrow())

    def mounts(self, owner: GrantOwner, device_ids: Sequence[str]) -> tuple[Mount, ...]:
        """Return the mount by which a container with shares of one GPU, which is allocated now, sees its memory.

        Also a container that may not borrow: no call names a pod, so it may be another one, which may.
        """
        if self._files is None or not self._on_one_gpu(device_ids):
            return ()
        share_mib = self._shares.share_mib
        uuid, given = parse_id(device_ids[0])[0], len(device_ids) * share_mib
        limit = None if owner.limit_shares is None else owner.limit_shares * share_mib
        new = AttributedUse(owner.pod_uid, owner.container, uuid, given, 0, limit_mib=limit)
        uses = self._uses([new])
        found = allowed_now(uses, self._shares.capacity_mib, self.reclaiming.value.requests.keys())
        return self._files.make(device_ids, MemoryFile(given, found.get(new.place, given), new.allowed_mib))

    async def before_start(self, start: StartRequest) -> Refusal | None:
        """Wait until what a container is guaranteed is free, as far as others borrow it.

        As soon as the container has lost its devices, nobody has to return memory for it.
        """
        if start.kind is not Kind.MEMORY:
            return None
        ids = frozenset(start.device_ids)
        self._restore(ids)
        gpus = self._mib(ids)
        if all(place[2] not in gpus for place in self.allowed_now.value):
            return None
        self._starting.append(ids)
        try:
            why = await self._until_room(ids, start)
        finally:
            self._starting.remove(ids)
            self._hasten()
        if why:
            return Refusal(RefusalCode.BORROWED, why)
        self._reported.discard(ids)
        return None

    async def _until_room(self, ids: frozenset[str], start: StartRequest) -> str:
        """Return why a container has no room until its deadline; empty if it has, or nothing is known."""
        began = time.monotonic()
        # So that people read for whom memory is needed.
        await wait_within(_NAMED_WITHIN_S, self._node.entries.wait_until(lambda _: bool(self._owner(ids)[0])))
        self._hasten()
        if not self._use.interval_s or not await wait_within(
            self.answer_s, self.reclaiming.wait_until(lambda found: found.at >= began)
        ):
            return ""
        if (why := self._why_wait(ids)) and ids not in self._reported:
            self._reported.add(ids)
            if (pod := self._pod(ids)) is not None:
                self._node.api.event("GPUMemoryWaits", why, "Start", pod=pod)
        # Another one that waited, too, may just have taken what was free.
        while (
            (why := self._why_wait(ids))
            and not start.lost()
            and await wait_within(
                start.deadline - time.monotonic(),
                self.reclaiming.wait_until(lambda _: bool(start.lost()) or not self._why_wait(ids)),
            )
        ):
            pass
        return why

    def _mib(self, ids: frozenset[str]) -> Mapping[str, int]:
        """Return what a container with these devices alone is guaranteed of each GPU, by UUID."""
        share_mib = self._shares.share_mib
        return {uuid: count * share_mib for uuid, count in Counter(parse_id(each)[0] for each in ids).items()}

    def _owner(self, ids: frozenset[str]) -> tuple[str, str]:
        """Return its pod's UID and its name; before the kubelet's records show it a name that nothing else has."""
        entries = self._node.entries.value
        shown = ((each.pod_uid, each.container) for each in entries if each.device_ids == ids)
        return next(shown, ("", min(ids)))

    def _pod(self, ids: frozenset[str]) -> Pod | None:
        uid, _ = self._owner(ids)
        return next((pod for pod in self._node.api.pods.values() if pod.kubelet_uid == uid), None)

    def _restore(self, device_ids: frozenset[str]) -> None:
        """Let the file of a container that is about to start say what is its own, whoever it was made for.

        And make it again if the container has lost it, as with every boot of the node.
        """
        if self._files is None or not self._on_one_gpu(device_ids):
            return
        for allocation, use, memory in self._memories(self._uses()):
            claimed = allocation.source is AllocationSource.CLAIM and use.place not in self.allowed_now.value
            if allocation.device_ids == device_ids and not claimed:
                self._files.make(allocation.device_ids, memory)

    def _on_one_gpu(self, device_ids: Iterable[str]) -> bool:
        """Return whether devices are shares of one GPU, which is no MIG instance: only such a container has a file."""
        (uuid, number), *others = map(parse_id, device_ids)
        shared = self._shares.by_uuid(uuid)
        alone = all(other == uuid for other, _ in others)
        return number is not None and alone and shared is not None and shared.gpu.instance is None

    def _why_wait(self, ids: frozenset[str]) -> str:
        found = self.reclaiming.value
        for uuid in sorted(self._mib(ids).keys() & found.missing.keys()):
            if self._finds_room(ids, uuid):
                continue
            requests = [each for place, each in found.requests.items() if place[2] == uuid and each.mib]
            if not any(map(self._can_be_evicted, requests)):
                continue  # it would wait for as long as they like
            pod = self._pod(ids)
            namespace = "" if pod is None else pod.namespace
            return waits(found.missing[uuid], self._shares.called(uuid), requests, time.monotonic(), namespace)
        return ""

    def _can_be_evicted(self, request: ReclaimRequest) -> bool:
        refused = () if self._evictor is None or request.pod is None else self._evictor.refused
        return request.until is not None and request.pod is not None and request.pod.uid not in refused

    def _finds_room(self, ids: frozenset[str], uuid: str) -> bool:
        """Return whether a GPU lacks only what others that wait need: they get no more of it if this one waits, too."""
        waiting = {*self._starting} | self._reported
        others = {
            (allocation.pod_uid, allocation.container)
            for allocation in self._node.entries.value
            if allocation.device_ids in waiting
        }
        others |= {self._owner(each) for each in self._starting}
        others.discard(self._owner(ids))
        uses = [use for use in self._uses().get(uuid, ()) if use.place[:2] not in others]
        return not shortage_mib(uses, self._use.reading.value.used_mib.get(uuid), self._shares.capacity_mib.get(uuid))

    # --- What follows from a reading ----------------------------------------------------------------------------------

    def act_on(self, reading: UseReading) -> None:
        """Act on a new reading."""
        if not self._concerned():
            return
        settings, before, uses = self._settings, self.reclaiming.value, self._uses()
        waiting = [use.place for use in self._starters()]
        after = ReclaimState(reading.at)  # where use is not read, no other reading says soon that a shortage is over
        if self._use.interval_s:
            grace_s, evicts = settings.return_grace_s, settings.borrowers == "evict"
            after = before.after(reading, uses, self._shares.capacity_mib, waiting, grace_s=grace_s, evicts=evicts)
        self._report_changes(before, after, uses)
        self.reclaiming.set(after)
        self._use.asked.change(after.asked)
        self._publish(uses)
        self._hasten()
        self._evict(after)

    def publish_allowed(self, _new: object = None) -> None:
        """Publish what containers may use now, after something else than their use has changed."""
        if self._concerned() and self._publish(self._uses()) and self._use.interval_s:
            self._use.read_now()

    def holders_changed(self, entries: Iterable[Allocation]) -> None:
        """Take note of what containers hold, and remove the files of those that have ended."""
        ledger, held = self._node.state.node.ledger, {allocation.device_ids for allocation in entries}
        self._reported &= held
        if self._files is not None and ledger.certain:
            self._files.keep(held, ledger.id_states.keys())
        self._tell_misdirected()
        self.publish_allowed()

    def _concerned(self) -> bool:
        known = self.allowed_now.value or self.reclaiming.value.requests or self._starting
        lent = any(self._lent(allocation) for allocation in self._node.entries.value if allocation.limit_mib)
        return bool(known) or lent or any(is_elastic(pod.annotations) for pod in self._node.api.pods.values())

    def _lent(self, allocation: Allocation) -> bool:
        """Return whether a container was started with a limit that may be more than its guarantee."""
        given_mib = len(allocation.device_ids) * self._shares.share_mib
        return allocation.source is AllocationSource.CLAIM or (
            allocation.kind is Kind.MEMORY and (allocation.limit_mib or 0) > given_mib
        )

    def _uses(self, starting: Iterable[AttributedUse] | None = None) -> Mapping[str, tuple[AttributedUse, ...]]:
        starting = self._starters() if starting is None else starting
        return uses_now(self._use.reading.value, self._use.holders(), starting, may_borrow=self._may_borrow())

    def _starters(self) -> Sequence[AttributedUse]:
        """Return the containers that are about to start, by their names as soon as the kubelet's records show them."""
        starting = ((self._owner(ids), self._mib(ids)) for ids in self._starting)
        return [AttributedUse(*owner, uuid, mib, 0) for owner, of in starting for uuid, mib in of.items()]

    def _publish(self, uses: Mapping[str, tuple[AttributedUse, ...]]) -> bool:
        """Publish the limits now, on the node and in the files; return whether they have changed."""
        requests = self.reclaiming.value.requests
        found = allowed_now(uses, self._shares.capacity_mib, requests.keys())
        changed = found != self.allowed_now.value
        self.allowed_now.change(found)
        self._due = {
            place: self._due.get(place) or rfc3339(time.time() - time.monotonic() + each.until)
            for place, each in requests.items()
            if each.until is not None
        }
        if self._files is None:
            return changed
        # The containers of a claim have one file: it says what the one that has to return most is told.
        files: dict[frozenset[str], MemoryFile] = {}
        for allocation, _, memory in self._memories(uses):
            if allocation.device_ids not in files or memory.return_mib > files[allocation.device_ids].return_mib:
                files[allocation.device_ids] = memory
        for device_ids, memory in files.items():
            self._files.update(device_ids, memory)
        return changed

    def _memories(
        self, uses: Mapping[str, tuple[AttributedUse, ...]]
    ) -> Iterable[tuple[Allocation, AttributedUse, MemoryFile]]:
        requests = self.reclaiming.value.requests
        return memory_files(self._node.entries.value, uses, self.allowed_now.value, requests, self._due)

    def _hasten(self) -> None:
        found = self.reclaiming.value
        new = any(each.mib and found.at - each.since < _QUICK_FOR_S for each in found.requests.values())
        self._use.hurry(_QUICK_S if self._starting or new else None)

    def _report_changes(
        self, before: ReclaimState, after: ReclaimState, uses: Mapping[str, tuple[AttributedUse, ...]]
    ) -> None:
        """Log, count and post what is new."""
        evicts = self._settings.borrowers == "evict"
        for place, request in after.requests.items():
            if place not in before.requests:
                self._node.metrics.count(m.RETURNS, "asked")
                what = borrowed(request, self._shares.called(place[2]))
                note = f"{what}; {ultimatum(request, after.at, evicts=evicts)}"
                _log.info("%s", note, extra=_facts(request))
                if request.pod is not None:
                    self._node.api.event("GPUMemoryAsked", note, "Return", pod=request.pod)
        now = {use.place: use.borrowed_mib for on_gpu in uses.values() for use in on_gpu}
        for place, request in before.requests.items():
            if place in after.requests:
                continue
            outcome = "ended" if place not in now else "unneeded"
            if outcome == "unneeded" and (not request.borrowed_mib or now[place] < request.borrowed_mib):
                outcome = "returned"
                self._node.metrics.took(m.RETURNING, after.at - request.since)
            self._node.metrics.count(m.RETURNS, outcome)
            _log.info("no longer asked to return GPU memory", extra={**_facts(request), "outcome": outcome})

    def _tell_misdirected(self) -> None:
        """Post an Event about each container that was started with the answer for another one, if that matters."""
        holds = {
            (allocation.pod_uid, allocation.container): allocation
            for allocation in self._node.entries.value
            if allocation.misdirected
        }
        self._misdirected &= holds.keys()
        if holds.keys() <= self._misdirected:
            return
        pods = {pod.kubelet_uid: pod for pod in self._node.api.pods.values()}
        for holder in self._use.holders():
            key = holder.pod_uid, holder.container
            if key in holds and key not in self._misdirected and holder.pod is not None:
                self._misdirected.add(key)
                uid, _, container = holds[key].granted_to.partition("/")
                if note := misdirected(holder, container, pods.get(uid)):
                    _log.warning("%s", note, extra={"pod": f"{holder.pod.namespace}/{holder.pod.name}"})
                    self._node.api.event("GPULimitNotHeld", note, "Start", pod=holder.pod)

    def _evict(self, found: ReclaimState) -> None:
        if self._evictor is None or not (candidates := found.candidates()):
            return
        called = self._shares.called
        for pod, uuids in self._evictor.next_victims(candidates).values():
            ours = [each for each in found.requests.values() if each.pod == pod and each.place[2] in uuids and each.mib]
            why = "; ".join(
                f"{borrowed(each, called(each.place[2]))}; it was asked {duration(found.at - each.since)} ago"
                for each in ours
            )
            self._evictor.order(pod, uuids, "GPUMemoryNotReturned", why, m.BORROWER_EVICTIONS)


def _facts(request: ReclaimRequest) -> dict[str, object]:
    name = request.place[0] if request.pod is None else f"{request.pod.namespace}/{request.pod.name}"
    return {"pod": name, "container": request.place[1], "asked_mib": request.mib, "borrowed_mib": request.borrowed_mib}
