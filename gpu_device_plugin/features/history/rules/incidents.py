"""Decide which incidents of a node are recorded, under which names, and what a record contains."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from gpu_device_plugin.features.history.contract import Decision, IncidentKind, IncidentProcess, IncidentSummary
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import container_of
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.contract.node_use import NodeUse
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.model.telemetry import GpuReading
from gpu_device_plugin.model.times import epoch_s, rfc3339

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
_AT_MOST_OF_PODS = 4
"""And so many of pods: a job whose pods fail, one after the other, leaves room for what befalls its GPU. Where several
namespaces want them, they take turns."""
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
    def namespace(self) -> str:
        """Of the pod; empty for what befalls a GPU."""
        return "" if self.pod is None else self.pod.namespace

    @property
    def subject(self) -> tuple[str, ...]:
        """What the same trouble has in common."""
        if self.pod is None:
            return self.kind, *self.uuids
        return self.kind, self.pod.uid, self.container


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    namespace: str
    recorded: float
    seen: float


@dataclass(frozen=True, slots=True)
class RecentIncidents:
    """The incidents of the last hour, so that a storm of one trouble fills nothing."""

    known: Mapping[tuple[str, ...], _Known] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)
    """When namespaces last had an incident that was not recorded, of those that have had no record since."""

    def after(self, trigger: Trigger, name: str, now: float) -> tuple[RecentIncidents, str]:
        """Return the incidents with this one, and the name of its record.

        That is `name` for a new record; the name of an earlier record if that is of the same trouble; empty if too
        many were made lately. `now` is monotonic seconds.
        """
        known = {subject: each for subject, each in self.known.items() if now - each.seen < AGAIN_S}
        before = known.get(trigger.subject)
        refused = {namespace: at for namespace, at in self.refused.items() if now - at < _WITHIN_S}
        if before is not None and now - before.seen < QUIET_S and now - before.recorded < AGAIN_S:
            known[trigger.subject] = replace(before, seen=now)
            return RecentIncidents(known, refused), before.name
        lately = [each.namespace for each in known.values() if now - each.recorded < _WITHIN_S]
        namespace = trigger.namespace
        if len(lately) >= _AT_MOST or (namespace and not _has_its_turn(namespace, lately, known.values(), refused)):
            return RecentIncidents(known, {**refused, namespace: now} if namespace else refused), ""
        refused.pop(namespace, None)
        known[trigger.subject] = _Known(name, namespace, now, now)
        return RecentIncidents(known, refused), name


def _has_its_turn(namespace: str, lately: Sequence[str], known: Iterable[_Known], refused: Collection[str]) -> bool:
    """Return whether a namespace may have one of the places for pods; `lately` are the namespaces of the last records.

    Each may have an equal part of the places, and the one that has waited longest comes first.
    """
    taken = [each for each in lately if each]
    last: dict[str, float] = {}
    for each in known:
        last[each.namespace] = max(each.recorded, last.get(each.namespace, -inf))
    ahead = sum(last.get(other, -inf) < last.get(namespace, -inf) for other in refused)
    part = max(1, _AT_MOST_OF_PODS // len({namespace, *taken, *refused}))
    return taken.count(namespace) < part and _AT_MOST_OF_PODS - len(taken) > ahead


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


def making_room(known: Mapping[str, IncidentSummary | None], new: IncidentSummary) -> tuple[str, ...]:
    """Return which records go so that there are at most `MOST_INCIDENTS` with the new one.

    Damaged ones (None) go first. Faults of GPUs and what befalls pods have half of the places each, if they want them.
    Of those that have more, the GPU or namespace with the most records loses its oldest, by its name.
    """
    owners = {name: _owner(each) for name, each in known.items() if name != new.name and each is not None}
    damaged = sorted(name for name, each in known.items() if name != new.name and each is None)
    gone = damaged[: max(0, len(owners) + len(damaged) + 1 - MOST_INCIDENTS)]
    while len(owners) + 1 > MOST_INCIDENTS:
        counts = Counter([*owners.values(), _owner(new)])
        of_pods = sum(count for (pods, _), count in counts.items() if pods) > MOST_INCIDENTS // 2
        most = max(count for (pods, _), count in counts.items() if pods is of_pods)
        oldest = min(name for name, owner in owners.items() if owner[0] is of_pods and counts[owner] == most)
        gone.append(oldest)
        del owners[oldest]
    return tuple(gone)


def _owner(about: IncidentSummary) -> tuple[bool, str]:
    """Return whether a record is of a pod, and whose it is: of a namespace or of a GPU."""
    return bool(about.namespace), about.namespace or about.uuid


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
    holdings: Iterable[ContainerGpus],
    shares: Shares,
    *,
    most: int,
) -> tuple[IncidentProcess, ...]:
    """Return the processes on these GPUs, at most `most`: those with the most memory, with the pods they belong to."""
    pods: dict[str, Pod] = {}
    held: dict[tuple[str, str], list[ContainerGpus]] = {}
    for holder in holdings:
        if holder.pod is not None:
            pods[holder.pod_uid] = holder.pod
        for uuid in holder.granted:
            held.setdefault((holder.pod_uid, uuid), []).append(holder)
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
