"""Decide which incidents of a node are recorded, under which names, and what a record has."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.history import IncidentKind, IncidentProcess, IncidentSummary
from gpu_device_plugin.core.model.times import epoch_s, rfc3339
from gpu_device_plugin.core.node.use.process_use import container_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from gpu_device_plugin.core.contract.history import Decision
    from gpu_device_plugin.core.contract.nodereport import NodeUse
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.core.node.use.cgroup_names import CgroupOwner
    from gpu_device_plugin.core.node.use.process_use import GpuReading

MOST_INCIDENTS = 32
"""Records that a node keeps."""
BEFORE_S = 900.0
"""How long before an incident a record begins."""
QUIET_S = 600.0
"""The same trouble is recorded again only after it has been quiet for so long."""
AGAIN_S = 3600.0
"""Or if its last record is that old, quiet or not."""
_AT_MOST, _WITHIN_S = 8, 600.0
"""At most so many records are made in so many seconds: a failing GPU takes all of its containers with it."""
_ENDS, _AT_MOST_ENDS = frozenset({IncidentKind.OUT_OF_MEMORY, IncidentKind.CONTAINER_DIED}), 4
"""And so many of containers: a job whose pods fail, one after the other, leaves room for what befalls its GPU."""
_LONGEST_SENTENCE = 1000
_OUT_OF_MEMORY = "OOMKilled"
"""The kubelet's reason of a container whose main process the kernel killed."""

_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[a-z][a-z0-9-]{0,63}")


def is_name(text: str) -> bool:
    """Return whether a text has the form of an incident's name, which makes it safe as the name of a file."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Trigger:
    """Something that may be worth a record."""

    kind: IncidentKind
    sentence: str
    uuids: tuple[str, ...]
    """Of the GPUs concerned, sorted; a GPU in MIG mode stands for its instances."""
    pod: Pod | None = None
    container: str = ""

    @property
    def subject(self) -> tuple[str, ...]:
        """What the same trouble has in common."""
        if self.pod is None:
            return self.kind, *self.uuids
        return self.kind, self.pod.uid, self.container


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    recorded: float
    seen: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """The incidents of the last hour, so that a storm of one trouble fills nothing."""

    known: Mapping[tuple[str, ...], _Known] = field(default_factory=dict)

    def after(self, trigger: Trigger, name: str, now: float) -> tuple[Recorded, str]:
        """Return the incidents with this one, and the name of its record.

        That is `name` for a new record; the name of an earlier record if that is of the same trouble; empty if too
        many were made lately. `now` is monotonic seconds.
        """
        known = {subject: each for subject, each in self.known.items() if now - each.seen < AGAIN_S}
        before = known.get(trigger.subject)
        if before is not None and now - before.seen < QUIET_S and now - before.recorded < AGAIN_S:
            known[trigger.subject] = replace(before, seen=now)
            return Recorded(known), before.name
        lately = [kind for (kind, *_), each in known.items() if now - each.recorded < _WITHIN_S]
        ends = sum(kind in _ENDS for kind in lately)
        if len(lately) >= _AT_MOST or (trigger.kind in _ENDS and ends >= _AT_MOST_ENDS):
            return Recorded(known), ""
        known[trigger.subject] = _Known(name, now, now)
        return Recorded(known), name


def summary(trigger: Trigger, shares: Shares, at_s: float, taken: Collection[str]) -> IncidentSummary:
    """Return what happened at `at_s`, in seconds since the epoch, under a name that is not `taken`."""
    gpus = concerned(trigger.uuids, shares)
    position = min((shared.position for shared in shares.gpus if shared.gpu.uuid in gpus), default=None)
    at = rfc3339(at_s)
    stamp = at.replace("-", "").replace(":", "").replace("T", "-").rstrip("Z")
    name = f"{stamp}-{trigger.kind}" + ("" if position is None else f"-gpu{position}")
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    pod = trigger.pod
    named = ("", "") if pod is None else (pod.namespace, pod.name)
    uuid = trigger.uuids[0] if trigger.uuids else ""
    sentence = trigger.sentence[:_LONGEST_SENTENCE]
    return IncidentSummary(found, at, trigger.kind, sentence, position, uuid, *named, trigger.container)


def concerned(uuids: Iterable[str], shares: Shares) -> frozenset[str]:
    """Return the UUIDs of the shared GPUs among these, of a GPU in MIG mode those of its instances."""
    wanted = frozenset(uuids)
    return frozenset(
        shared.gpu.uuid for shared in shares.gpus if not wanted.isdisjoint((shared.gpu.uuid, shared.gpu.card))
    )


def making_room(names: Iterable[str], new: str, most: int = MOST_INCIDENTS) -> tuple[str, ...]:
    """Return which records go so that there are at most `most` with the new one: the oldest, by their names."""
    others = sorted(set(names) - {new})
    return tuple(others[: max(0, len(others) + 1 - most)])


# --- What a record has ------------------------------------------------------------------------------------------------


def use_of(use: NodeUse, positions: Collection[int], most: int) -> NodeUse:
    """Return limits and use on these GPUs, of at most `most` containers: those with the most use."""
    parts = sorted(
        (part for part in use.parts if part.gpu in positions), key=lambda part: (-(part.used_mib or 0), part.place)
    )
    kept = tuple(sorted(parts[:most], key=lambda part: part.place))
    gpus = {position: gpu for position, gpu in use.gpus.items() if position in positions}
    return replace(use, gpus=gpus, parts=kept, left_out=use.left_out + len(parts) - len(kept))


def processes_on(
    uuids: Collection[str],
    readings: Iterable[GpuReading],
    owners: Mapping[int, CgroupOwner | None],
    holdings: Iterable[Holding],
    shares: Shares,
    *,
    most: int,
) -> tuple[IncidentProcess, ...]:
    """Return the processes on these GPUs, at most `most`: those with the most memory, with the pods they belong to."""
    pods: dict[str, Pod] = {}
    held: dict[tuple[str, str], list[Holding]] = {}
    for holding in holdings:
        if holding.pod is not None:
            pods[holding.pod_uid] = holding.pod
        for uuid in holding.granted:
            held.setdefault((holding.pod_uid, uuid), []).append(holding)
    found = []
    for reading in readings:
        shared = shares.by_uuid(reading.uuid)
        if shared is None or reading.uuid not in uuids:
            continue
        for process in reading.processes or ():
            owner, names = owners.get(process.pid), ("", "", "")
            if owner is not None:
                pod = pods.get(owner.pod_uid)
                holders = held.get((owner.pod_uid, reading.uuid), [])
                namespace, name = ("", owner.pod_uid) if pod is None else (pod.namespace, pod.name)
                names = (namespace, name, container_of(owner, holders, pod))
            found.append(IncidentProcess(shared.position, process.pid, *names, process.used_mib, process.sm_percent))
    found.sort(key=lambda each: (-(each.used_mib or 0), each.gpu, each.pid))
    return tuple(found[:most])


def lately(decisions: Iterable[Decision], now_s: float) -> tuple[Decision, ...]:
    """Return the decisions of the time that a record covers, which ends at `now_s`, in seconds since the epoch."""
    return tuple(each for each in decisions if (epoch_s(each.at) or 0.0) >= now_s - BEFORE_S)


# --- What happens to containers ---------------------------------------------------------------------------------------


def deaths(
    before: Mapping[str, Pod],
    now: Mapping[str, Pod],
    started_s: float,
    gpus_of: Callable[[str, str], Collection[str]],
) -> Iterator[Trigger]:
    """Yield the containers on GPUs that died between two views of the pods, by UID.

    One that ended well, or whose pod was asked to end, did not die; one that the kernel killed did in any case. Those
    that died before this program started at `started_s`, in seconds since the epoch, were for an earlier one to record.
    `gpus_of` returns the GPUs of a container, by the kubelet's UID of its pod and its name.
    """
    for uid, pod in now.items():
        known = before[uid].ends if uid in before else {}
        for container, end in pod.ends.items():
            killed = end.reason == _OUT_OF_MEMORY
            new = end != known.get(container) and (epoch_s(end.at) or 0.0) >= int(started_s)
            if not new or not (killed or (end.exit_code and not pod.deleting)):
                continue
            if not (uuids := gpus_of(pod.kubelet_uid, container)):
                continue
            if killed:
                kind = IncidentKind.OUT_OF_MEMORY
                sentence = (
                    f"container {container} was killed for lack of main memory, at its memory limit or its node's"
                )
            else:
                kind = IncidentKind.CONTAINER_DIED
                sentence = f"container {container} ended with exit code {end.exit_code} ({end.reason or 'no reason'})"
            yield Trigger(kind, sentence, tuple(sorted(uuids)), pod, container)
