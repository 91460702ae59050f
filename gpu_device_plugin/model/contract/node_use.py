"""What the agent of a node reports for people: the limits that hold there, and who uses what.

Limits and use are annotations of the node, which the agent writes when something changes (see
`features.use.rules.use_report`). It also serves the present use, the same document, at the path `USE_PATH` of its HTTP
port.
"""

from __future__ import annotations

import json
from collections.abc import (
    Iterable,
    Mapping,
)
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import msgspec

from gpu_device_plugin.model.contract.keys import NODE_LIMITS, NODE_USE, MalformedAnnotationError, compact, text_in
from gpu_device_plugin.model.contract.nodelabels import VERSION, NodeLimits, read_node_limits, reading
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.times import epoch_s

USE_PATH = "/use"
OLD_S = 180.0
"""The age of older figures is told. They may be right: an agent writes them again when they have changed by much."""
STALE_S = 900.0
"""Older figures show nothing of the present: an agent writes them again after some minutes even if nothing changed."""


class Bounds(NamedTuple):
    """How long a report of the use may be; the containers with the most use are kept."""

    containers: int
    size: int
    """Characters, which are ASCII."""


ANNOTATED = Bounds(512, 96 << 10)
"""All annotations of an object together may have 256 KiB in Kubernetes."""
SERVED = Bounds(4096, 1 << 20)
_MOST_VALUES = 1 << 17
"""In one document: JSON of few characters can become very many objects."""
_LONGEST_WHY = 400
_LARGEST = 1 << 40
"""MiB; a larger number is a mistake."""


# --- Use --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The memory in use on one GPU, in MiB."""

    used_mib: int | None = None
    """By anybody; None: unknown."""
    unattributed_mib: int | None = None
    """By processes of no pod; None: unknown."""


_UNKNOWN = GpuUse()


def _keyed(key: str, default: Any = None) -> Any:
    """Return a field that has this key in JSON."""
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """One container on one GPU."""

    namespace: str
    """Empty if the agent does not know the pod's name."""
    pod: str
    """Its name; its UID where the agent does not know the name."""
    container: str
    """Empty if only the pod is known."""
    gpu: int
    """The GPU's position."""
    granted_mib: int = field(metadata={"key": "granted"})
    """Its guarantee. 0: the pod was not given this GPU. Without a container's name: what all containers of the pod have
    of it."""
    used_mib: int | None = _keyed("used")
    sm_percent: int | None = _keyed("sm")
    """Its use of the GPU's multiprocessors, 0 to 100."""
    enforcement: Enforcement | None = None
    """None for a container with whole GPUs, or one that was given none."""
    held: LimitStatus | None = field(default=None, metadata={"key": "limit"})
    found_mib: int | None = _keyed("found")
    """The limit that the driver has."""
    why: str = ""
    """Why the limit is not held, as a sentence."""
    over_since: str = _keyed("over", "")
    """RFC 3339: since when it has used more than its limit, beyond the slack; empty: it does not."""
    limit_mib: int | None = _keyed("most")
    """The most that it may use while that is free; None: what it was granted, it may not borrow."""
    asked_at: str = _keyed("asked", "")
    """RFC 3339: since when it is asked to return what it borrows; empty: it is not."""
    return_by: str = _keyed("until", "")
    """RFC 3339: when its pod is evicted if it does not; empty: nothing evicts it."""
    needed_by: str = _keyed("for", "")
    """``namespace/name`` of the pod that needs what it borrows."""
    idle_since: str = _keyed("idle", "")
    """RFC 3339: since when its pod has left all of its GPUs idle; empty: it has not, or that is not known."""

    @property
    def borrowed_mib(self) -> int | None:
        """What it uses beyond its guarantee where it may borrow; None: unknown, or it may not."""
        if self.limit_mib is None or self.used_mib is None:
            return None
        return max(0, self.used_mib - self.granted_mib)

    @property
    def most_mib(self) -> int:
        """The most that it may use: what it was granted, unless its owner set another limit."""
        return self.granted_mib if self.limit_mib is None else self.limit_mib

    @property
    def place(self) -> tuple[int, str, str, str]:
        """What tells it from the others on its node, and their order."""
        return self.gpu, self.namespace, self.pod, self.container


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The use of a node's GPUs."""

    at: str
    """RFC 3339: when it was read."""
    gpus: Mapping[int, GpuUse] = field(default_factory=dict)
    """By position."""
    parts: tuple[ContainerUse, ...] = ()
    blind: str = ""
    """Why the use by container is not known, as a sentence; empty if it is."""
    left_out: int = 0
    """Containers beyond the `Bounds`."""


_PART = {each.name: each.metadata.get("key", each.name) for each in fields(ContainerUse)}
"""The keys of JSON by field; fields with their default value are left out."""
# A value that is not known here is of a newer agent.
_ENFORCEMENTS: Mapping[Any, Enforcement] = {enforcement.value: enforcement for enforcement in Enforcement}
_HELD: Mapping[Any, LimitStatus] = {held.value: held for held in LimitStatus}
_WHOLE = ("gpu", "granted_mib", "used_mib", "sm_percent", "found_mib", "limit_mib")


def write_node_use(use: NodeUse, bounds: Bounds = ANNOTATED) -> str:
    """Return the value of the annotation `NODE_USE`, or with other bounds the same for `USE_PATH`, as compact JSON."""
    by_use = sorted(use.parts, key=lambda part: -(part.used_mib or 0))
    kept = by_use[: bounds.containers]
    while len(text := _written(use, kept, len(by_use) - len(kept))) > bounds.size and kept:
        kept = kept[: len(kept) * bounds.size // len(text)]
    return text


def _written(use: NodeUse, parts: Iterable[ContainerUse], left_out: int) -> str:
    document = {
        "version": VERSION,
        "at": use.at,
        "gpus": [
            _given({"index": position, "used": gpu.used_mib, "unattributed": gpu.unattributed_mib})
            for position, gpu in sorted(use.gpus.items())
        ],
        "containers": [
            _given({key: getattr(part, name) for name, key in _PART.items()} | {"why": part.why[:_LONGEST_WHY]})
            for part in sorted(parts, key=lambda part: part.place)
        ],
        "blind": use.blind,
        "leftOut": use.left_out + left_out or None,
    }
    return compact(_given(document))


def read_node_use(text: str, bounds: Bounds = ANNOTATED) -> NodeUse:
    """Parse the use of a node's GPUs: the annotation `NODE_USE`, or what an agent serves at `USE_PATH`.

    It costs no more than its length. Unknown fields are ignored: the agent may be newer than the reader.

    Raises:
        MalformedAnnotationError: it cannot be parsed; the message names the annotation.
    """
    with reading(NODE_USE):
        if sum(map(text.count, ",[{")) > _MOST_VALUES:
            raise ValueError
        document: Any = json.loads(text)
        fields = {VERSION: document}[document["version"]]
        return NodeUse(
            at=text_in(fields, "at"),
            gpus={
                _whole(each, "index") or 0: GpuUse(_whole(each, "used"), _whole(each, "unattributed"))
                for each in fields.get("gpus", ())[:MOST_GPUS]
            },
            parts=tuple(_part(each) for each in fields.get("containers", ())[: bounds.containers]),
            blind=text_in(fields, "blind"),
            left_out=_whole(fields, "leftOut") or 0,
        )


def _part(fields: Mapping[str, Any]) -> ContainerUse:
    whole: Any = {name: _whole(fields, _PART[name]) for name in _WHOLE}
    texts: Any = {
        name: text_in(fields, key) for name, key in _PART.items() if name not in (*_WHOLE, "enforcement", "held")
    }
    return ContainerUse(
        **{**texts, **whole, "gpu": whole["gpu"] or 0, "granted_mib": whole["granted_mib"] or 0},
        enforcement=_ENFORCEMENTS.get(fields.get("enforcement")),
        held=_HELD.get(fields.get("limit")),
    )


def trespasses(part: ContainerUse) -> bool:
    """Return whether a container uses a GPU that it was not given, however little of it."""
    return not part.granted_mib and bool(part.used_mib)


def idle_s(use: NodeUse, part: ContainerUse) -> float | None:
    """Return how long the pod of a container had been idle when that was read, in seconds; None: it was not."""
    since, read = epoch_s(part.idle_since), epoch_s(use.at)
    return None if since is None or read is None else max(0.0, read - since)


def idle(report: NodeReport, parts: Iterable[ContainerUse]) -> float | None:
    """Return how long a pod has left its GPUs idle, by the node's clock, in seconds; None: it has not, or unknown."""
    if report.use is None or report.stale:
        return None
    found = [seconds for part in parts if (seconds := idle_s(report.use, part)) is not None]
    return max(found) + (report.use_age_s or 0.0) if found else None


def not_held(part: ContainerUse) -> bool:
    """Return whether the driver was asked to limit a container and does not, or not as asked."""
    return part.held is not None and part.held.broken


# --- Both -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The limits and the use of one node; an older agent reports neither."""

    limits: NodeLimits | None = None
    use: NodeUse | None = None
    use_age_s: float | None = None
    """Age of the figures in seconds, by the reader's clock; None: unknown."""

    @property
    def old(self) -> bool:
        """Whether a reader should know how old the figures are."""
        return self.use is not None and (self.use_age_s is None or self.use_age_s > OLD_S)

    @property
    def stale(self) -> bool:
        """Whether the figures are too old to show the present, or of unknown age."""
        return self.use is not None and (self.use_age_s is None or self.use_age_s > STALE_S)

    @property
    def current(self) -> tuple[ContainerUse, ...]:
        """The containers, if the figures show the present; otherwise none."""
        return () if self.use is None or self.stale else self.use.parts

    def enforcement(self, position: int) -> GpuEnforcement | None:
        """Return the means of limiting on one GPU; None: unknown."""
        return None if self.limits is None else self.limits.gpus.get(position)

    def used(self, position: int) -> GpuUse:
        """Return the memory in use on one GPU."""
        return _UNKNOWN if self.use is None else self.use.gpus.get(position, _UNKNOWN)

    def parts(self, position: int) -> tuple[ContainerUse, ...]:
        """Return the containers on one GPU."""
        return () if self.use is None else tuple(part for part in self.use.parts if part.gpu == position)


NO_REPORT = NodeReport()


def asked_s(report: NodeReport, part: ContainerUse) -> float | None:
    """Return how long a container has been asked to return memory, by the node's clock; None: it is not, or unknown."""
    asked, read = epoch_s(part.asked_at), None if report.use is None else epoch_s(report.use.at)
    if asked is None or read is None or report.use_age_s is None:
        return None
    return max(0.0, read - asked) + report.use_age_s


def node_report(annotations: Mapping[str, str], now_s: float) -> tuple[NodeReport, tuple[str, ...]]:
    """Return the report on a node, and a sentence for each annotation that cannot be parsed, which counts as absent."""
    report, problems = NO_REPORT, list[str]()
    try:
        if NODE_LIMITS in annotations:
            report = NodeReport(read_node_limits(annotations[NODE_LIMITS]))
    except MalformedAnnotationError as error:
        problems.append(str(error))
    try:
        if NODE_USE in annotations:
            use = read_node_use(annotations[NODE_USE])
            at_s = epoch_s(use.at)
            # The clocks of node and reader may differ.
            report = NodeReport(report.limits, use, None if at_s is None else max(0.0, now_s - at_s))
    except MalformedAnnotationError as error:
        problems.append(str(error))
    return report, tuple(problems)


def _given(fields: Mapping[str, object]) -> Mapping[str, object]:
    return {key: value for key, value in fields.items() if value not in (None, "", [])}


def _whole(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return value if type(value) is int and 0 <= value <= _LARGEST else None


_LONGEST = 128 << 10
"""Characters; an agent writes no more than 96 KiB."""


class _Gpu(msgspec.Struct, gc=False):
    index: int = 0
    used: int | None = None


class _Use(msgspec.Struct, gc=False):
    """Of the long annotation how much memory is in use, and when, and nothing else."""

    at: str = ""
    gpus: list[_Gpu] = []


def brief_use(text: str) -> str:
    """Return of the annotation `NODE_USE` no more than `used_mib` reads."""
    return msgspec.json.encode(_use(text)).decode()


def _use(text: str) -> _Use:
    try:
        return msgspec.json.decode(text, type=_Use) if len(text) <= _LONGEST else _Use()
    except (msgspec.DecodeError, RecursionError):
        return _Use()


def used_mib(text: str) -> tuple[Mapping[int, int], float | None]:
    """Return the memory in use on each GPU by position, and when it was read, in seconds since the epoch.

    By the annotation `NODE_USE`; nothing and None if it is malformed.
    """
    use = _use(text)
    return {gpu.index: gpu.used for gpu in use.gpus[:MOST_GPUS] if gpu.used is not None}, epoch_s(use.at)
