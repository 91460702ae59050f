"""Read who uses what on a node from the metrics of its agent: the figures of this moment.

Of a figure that the agent does not know there is no series, and 0 is a figure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodereport import NodeUse, UsedGpu, UsedPart
from gpu_device_plugin.core.contract.samples import MalformedMetricsError, samples
from gpu_device_plugin.core.model.gpus import MOST_GPUS
from gpu_device_plugin.core.model.limits import Held, Rung

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.core.contract.samples import Sample

GPU_INFO = "gpushare_gpu_info"
GPU_USED = "gpushare_gpu_memory_used_bytes"
GPU_UNATTRIBUTED = "gpushare_gpu_memory_unattributed_bytes"
MOST_PARTS = 4096
"""The most containers of one page, each on one GPU; the others are counted. A node runs some hundred."""
_LARGEST_MIB = 1 << 40
_BUILD = "gpushare_build_info"
_RUNGS: Mapping[str, Rung] = {rung.value: rung for rung in Rung}
_HELD: Mapping[str, Held] = {held.value: held for held in Held}
_READ_BACK = frozenset({Held.HELD, Held.DIFFERS})

_Place = tuple[str, str, str, int]
"""Namespace, pod, container and the GPU's position."""


@dataclass(slots=True)
class _Part:
    """What the page says of one container on one GPU; memory in MiB."""

    allocated: int | None = None
    used: int | None = None
    percent: int | None = None
    limit: int | None = None
    rung: Rung | None = None
    held: Held | None = None


@dataclass(slots=True)
class _Read:
    """What was read of a page."""

    positions: dict[str, int] = field(default_factory=dict)
    """Of the GPUs, by UUID."""
    gpus: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    parts: dict[_Place, _Part] = field(default_factory=dict)
    left_out: set[_Place] = field(default_factory=set)


def scraped_use(text: str, at: str) -> NodeUse | None:
    """Return the use of a node's GPUs; None: the agent does not know it at present, or not in its metrics.

    Args:
        text: the page of the agent.
        at: RFC 3339: when it was read.

    Raises:
        MalformedMetricsError: it is no page of an agent.
    """
    found = list(samples(text, NAMES | {_BUILD}))
    if not found:
        raise MalformedMetricsError("it has no metrics of a node agent")
    read = _Read()
    for sample in found:
        if sample.name == GPU_INFO:
            _take_gpu(read.positions, sample.labels)
    for sample in found:
        if sample.labels.get("gpu", "") in read.positions:
            _take(read, sample)
    gpus = {read.positions[uuid]: UsedGpu(used, others) for uuid, (used, others) in read.gpus.items()}
    if not gpus and all(part.used is None for part in read.parts.values()):
        return None
    return NodeUse(at, gpus, tuple(_parts(read.parts)), left_out=len(read.left_out))


def _take_gpu(positions: dict[str, int], labels: Mapping[str, str]) -> None:
    uuid, index = labels.get("gpu", ""), labels.get("index", "")
    # MIG instances that exist no more keep their positions, so that those of the others may be large.
    position = int(index) if index.isascii() and index.isdigit() and len(index) < 4 else None
    crowded = len(positions) >= MOST_GPUS
    if position is None or crowded or uuid in positions or position in positions.values():
        raise MalformedMetricsError(f"its GPUs cannot be told apart by {GPU_INFO}")
    positions[uuid] = position


def _take(read: _Read, sample: Sample) -> None:
    """Take one sample about a known GPU."""
    uuid = sample.labels["gpu"]
    mib = _mib(sample.value)
    if sample.name in {GPU_USED, GPU_UNATTRIBUTED}:
        used, others = read.gpus.get(uuid, (None, None))
        read.gpus[uuid] = (mib, others) if sample.name == GPU_USED else (used, mib)
        return
    namespace, pod, container = (sample.labels.get(key, "") for key in ("namespace", "pod", "container"))
    if sample.name not in _OF_CONTAINERS or not pod or not f"{namespace}{pod}{container}".isprintable():
        return
    place = namespace, pod, container, read.positions[uuid]
    if place in read.parts or len(read.parts) < MOST_PARTS:
        _OF_CONTAINERS[sample.name](read.parts.setdefault(place, _Part()), sample)
    elif len(read.left_out) < MOST_PARTS:
        read.left_out.add(place)


def _take_allocated(part: _Part, sample: Sample) -> None:
    part.allocated = _mib(sample.value)


def _take_used(part: _Part, sample: Sample) -> None:
    part.used = _mib(sample.value)


def _take_utilization(part: _Part, sample: Sample) -> None:
    part.percent = round(sample.value * 100) if 0 <= sample.value <= 1 else None


def _take_limit(part: _Part, sample: Sample) -> None:
    part.limit = _mib(sample.value)
    # A value that is not known here is of a newer agent.
    part.rung = _RUNGS.get(sample.labels.get("rung", ""))
    part.held = _HELD.get(sample.labels.get("state", ""))


_OF_CONTAINERS: Mapping[str, Callable[[_Part, Sample], None]] = {
    "gpushare_container_gpu_memory_allocated_bytes": _take_allocated,
    "gpushare_container_gpu_memory_used_bytes": _take_used,
    "gpushare_container_gpu_memory_limit_bytes": _take_limit,
    "gpushare_container_gpu_utilization_ratio": _take_utilization,
}
NAMES = frozenset({GPU_INFO, GPU_USED, GPU_UNATTRIBUTED, *_OF_CONTAINERS})
"""The series that are read; docs/operations.md has their meaning."""


def _mib(value: float) -> int | None:
    mib = int(value) >> 20
    return mib if 0 <= mib <= _LARGEST_MIB else None


def _parts(found: Mapping[_Place, _Part]) -> list[UsedPart]:
    of_pods: dict[tuple[str, str, int], int] = defaultdict(int)
    for (namespace, pod, _, gpu), part in found.items():
        of_pods[namespace, pod, gpu] += part.allocated or 0
    parts = []
    for (namespace, pod, container, gpu), part in sorted(found.items(), key=lambda each: (each[0][3], each[0])):
        # Processes of a pod whose container is not known may use what all its containers have.
        granted = of_pods[namespace, pod, gpu] if part.allocated is None else part.allocated
        if part.allocated is None and not granted:
            continue  # nobody says that it was given nothing
        found_mib = part.limit if part.held in _READ_BACK else None
        parts.append(
            UsedPart(namespace, pod, container, gpu, granted, part.used, part.percent, part.rung, part.held, found_mib)
        )
    return parts


def completed(use: NodeUse, annotated: NodeUse | None) -> NodeUse:
    """Return the use with what only the node's annotation says: since when, why, and why nothing is known."""
    if annotated is None:
        return use
    known = {_place(part): part for part in annotated.parts}
    parts = tuple(_completed(part, known.get(_place(part))) for part in use.parts)
    blind = annotated.blind if all(part.used_mib is None for part in use.parts) else ""
    return replace(use, parts=parts, blind=blind)


def _place(part: UsedPart) -> _Place:
    return part.namespace, part.pod, part.container, part.gpu


def _completed(part: UsedPart, annotated: UsedPart | None) -> UsedPart:
    if annotated is None:
        return part
    # The agent writes at once who exceeds; that somebody has ceased, at its next turn.
    over = part.used_mib is None or part.used_mib > part.granted_mib
    return replace(
        part,
        over_since=annotated.over_since if over else "",
        why=annotated.why if part.held is annotated.held else "",
    )
