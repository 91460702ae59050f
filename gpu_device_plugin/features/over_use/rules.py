"""Decide which containers have used more GPU memory than they may, in every reading of the grace period.

A container may use what it was granted, or as much as its limit if its owner lets it borrow. One that was told another
one's limit, because the kubelet names nobody when it asks, may use that.

A reading that does not tell the use of a container neither proves nor clears: the time until the next reading that
tells it does not count, and after a whole grace without one the evidence is too old, so that the grace begins anew.
A container with whole GPUs never exceeds. One that was granted nothing of a GPU trespasses there; it has the same slack
and the same grace. Times are monotonic seconds, and a reading that is not newer than the last one is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpu_device_plugin.features.elastic.rules.reclaiming import shortage_mib
from gpu_device_plugin.features.eviction.rules import Candidate, spared
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.report.rules.printing import duration, first, printable

SLACK_PERCENT = 5
"""The least slack, in percent of what may be used."""


class Response(StrEnum):
    """The setting `over_use`: what happens to a pod that uses more than it may."""

    REPORT = "report"
    EVICT = "evict"
    EVICT_WHEN_SHORT = "evict-when-short"
    """Only while its GPU has too little free memory for what the other containers were granted."""
    SUSPENDED = "suspended"
    """No value of the setting: no pod is evicted while another plugin hands out GPUs of the node."""


@dataclass(frozen=True, slots=True)
class OverUseRules:
    """The settings of over-use. They may change between two readings; the newest apply to the evidence there is."""

    slack_mib: int
    grace_s: float
    response: Response = Response.REPORT

    def exceeded(self, used_mib: int, allowed_mib: int) -> bool:
        """Return whether this use is beyond the slack."""
        return used_mib - allowed_mib > max(self.slack_mib, allowed_mib * SLACK_PERCENT / 100)


@dataclass(frozen=True, slots=True)
class Excess:
    """A container that uses more than it may, beyond the slack, as far as consecutive readings have told it."""

    place: Place
    used_mib: int
    granted_mib: int
    """0: it was not given the GPU."""
    since: float
    """Monotonic seconds of the first reading that showed it."""
    pod: Pod | None = None
    """None: not known in the API."""
    limit_mib: int | None = None
    """The most that it may use; None: what it was granted."""
    last: float = field(default=0.0, compare=False)
    """Monotonic seconds of the last reading that told it."""
    proven_s: float = field(default=0.0, compare=False)
    """Seconds between consecutive readings that all told it."""
    certain: bool = field(default=True, compare=False)
    """The newest reading told it."""

    @property
    def excess_mib(self) -> int:
        """The memory beyond what it may use."""
        return self.used_mib - (self.granted_mib if self.limit_mib is None else self.limit_mib)


@dataclass(frozen=True, slots=True)
class Watch:
    """The evidence of over-use on a node."""

    at: float = float("-inf")
    """Monotonic seconds of the newest reading."""
    evidence: Mapping[Place, Excess] = field(default_factory=dict)

    def after(self, reading: UseReading, rules: OverUseRules) -> Watch:
        """Return the evidence after one more reading."""
        if reading.at <= self.at:
            return self
        uses = {use.place: use for use in reading.containers}
        evidence = {}
        for place, use in uses.items():
            if (found := _seen(self.evidence.get(place), use, reading.at, rules)) is not None:
                evidence[place] = found
        for place, before in self.evidence.items():
            if place not in uses and _untold(place[2], reading) and (kept := _kept(before, reading.at, rules)):
                evidence[place] = kept
        return Watch(reading.at, evidence)

    def excesses(self, rules: OverUseRules, pods: Mapping[str, Pod]) -> Mapping[Place, Excess]:
        """Return the containers that have exceeded for the grace; `pods` are the node's by the UID of the kubelet."""
        exceeding = (found for found in self.evidence.values() if found.proven_s >= rules.grace_s)
        return {found.place: replace(found, pod=pods.get(found.place[0])) for found in exceeding}

    def candidates(
        self, excesses: Iterable[Excess], reading: UseReading, rules: OverUseRules, capacity_mib: Mapping[str, int]
    ) -> tuple[Candidate, ...]:
        """Return the exceeding containers that the settings want evicted now, each with its pod and GPU.

        A container whose newest use is unknown is none of them. `capacity_mib` is the memory of each GPU by UUID,
        without the driver's reservation.
        """
        if rules.response is Response.REPORT:
            return ()
        return tuple(
            Candidate(excess.pod, excess.place[2], excess.excess_mib)
            for excess in excesses
            if excess.pod is not None
            and excess.certain
            and (
                rules.response is Response.EVICT
                or is_short(reading, excess.place[2], excess.place[0], capacity_mib.get(excess.place[2]))
            )
        )


def is_short(reading: UseReading, uuid: str, pod_uid: str, capacity_mib: int | None) -> bool:
    """Return whether a GPU has less free memory than the other pods there may still take of their grants."""
    others = (use for use in reading.containers if use.uuid == uuid and use.pod_uid != pod_uid)
    return shortage_mib(others, reading.used_mib.get(uuid), capacity_mib) > 0


def _seen(before: Excess | None, use: AttributedUse, at: float, rules: OverUseRules) -> Excess | None:
    if use.holding is not None and use.holding.whole:
        return None
    if use.used_mib is None:
        return before and _kept(before, at, rules)
    if not rules.exceeded(use.used_mib, use.told_mib):
        return None
    limit_mib = use.limit_mib if use.told_mib == use.allowed_mib else use.told_mib
    now = Excess(use.place, use.used_mib, use.granted_mib, at, limit_mib=limit_mib, last=at)
    if before is None:
        return now
    more_s = at - before.last if before.certain else 0.0
    return replace(now, since=before.since, proven_s=before.proven_s + more_s)


def _kept(before: Excess, at: float, rules: OverUseRules) -> Excess | None:
    return replace(before, certain=False) if at - before.last <= rules.grace_s else None


def _untold(uuid: str, reading: UseReading) -> bool:
    """Return whether a reading without an entry for a container tells nothing about it on this GPU.

    The reading of a GPU that was not read has no processes. A GPU that is not in the reading at all is gone, and
    nothing is used there.
    """
    return bool(reading.blind) or reading.used_mib.get(uuid, 0) is None


MOST_TOLD = 4
"""The most containers in the sentence about one pod."""


# --- What an agent writes on a pod that exceeds -----------------------------------------------------------------------


def outlook(excess: Excess, response: Response) -> str:
    """Return what will happen to the pod, as a clause. It does not depend on what others use at the moment."""
    if response is Response.REPORT:
        return "this is only reported (setting over_use)"
    if response is Response.SUSPENDED:
        return "no pod is evicted while another plugin hands out GPUs of this node"
    if why := spared(excess.pod):
        return f"it is not evicted: {why}"
    if excess.pod is not None and excess.pod.deleting:
        return "the pod is ending"
    if response is Response.EVICT:
        return "the pod is evicted, one pod per GPU at a time"
    return "the pod is evicted as soon as the GPU has too little free memory for what others were granted"


def use_of(excess: Excess, gpu: str) -> str:
    """Return the numbers, as a clause; `gpu` is the GPU as people call it, like ``GPU 0``."""
    container = f"container {printable(excess.place[1])}" if excess.place[1] else "a container"
    granted = f"was granted {excess.granted_mib:,} MiB" if excess.granted_mib else "was not assigned that GPU"
    if excess.limit_mib is not None:
        granted = f"may use up to {excess.limit_mib:,} MiB"
    return f"{container} uses {excess.used_mib:,} MiB of {gpu}, {granted}"


def event_note(excess: Excess, gpu: str, now: float, response: Response) -> str:
    """Return the note of the Event about one container; `now` in monotonic seconds."""
    return f"{use_of(excess, gpu)}, for {duration(now - excess.since)}; {outlook(excess, response)}"


def annotation(told: Iterable[tuple[Excess, str, str]], response: Response) -> str:
    """Return the sentence about one pod: for each of its containers the excess, its GPU and RFC 3339 since when."""
    told = sorted(told, key=lambda each: (-each[0].excess_mib, each[0].place))
    parts = [f"{use_of(excess, gpu)}, since {since}" for excess, gpu, since in told]
    return f"{first(parts, MOST_TOLD, '; ')}; {outlook(told[0][0], response)}"
