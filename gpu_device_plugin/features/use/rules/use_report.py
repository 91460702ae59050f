"""Decide what the agent reports about the use of its GPUs, and when it writes the report on its node again.

The annotation, the page of the cluster and the metrics show this report. A figure that is not known is None: 0 would
say that nothing is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus, granted_by_place
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeUse, idle_s
from gpu_device_plugin.model.gauges import Gauge, Gauges, Value, as_bytes, columns
from gpu_device_plugin.model.limits import LimitState, LimitStatus
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.model.times import rfc3339

if TYPE_CHECKING:
    from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
    from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

MOST_OTHERS = 256
"""The most containers that are reported although they were not given the GPU; those with the most use are kept. Whoever
starts processes on GPUs beside the kubelet decides how many there are."""
FRESH_S = 60.0
"""Seconds after which figures are out of date, unless three intervals of reading are longer. The newest reading stays
while the driver does not answer."""
SOON_S = 5.0
"""Least seconds between two writings. Pods often start and end in groups, and each writing is two calls of the API."""
SELDOM_S = 60.0
"""Least seconds between two writings of which only figures differ."""
AGAIN_S = 300.0
"""Seconds after which the same is written again, so that readers can tell a node where nothing changes from one whose
agent has ended. A kubelet reports an unchanged node as often."""
_LEAST_MIB = 256
_LEAST_PART = 0.05
"""Figures that differ by less than both of these count as the same."""

Names: TypeAlias = "Mapping[str, tuple[str, str]]"
"""Namespace and name of pods, by UID as the kubelet knows them."""


class AskedToReturn(NamedTuple):
    """A container that is to return memory, in monotonic seconds."""

    since: float
    until: float | None
    """When its pod may be evicted; None: nothing evicts it."""
    needed_by: str
    """``namespace/name`` of the pod that needs it; empty: not known."""


def longest_pause_s(interval_s: float) -> float:
    """Return after how many seconds without another reading the figures of the newest are not the present ones."""
    return max(FRESH_S, 3 * interval_s)


def names(before: Names, holders: Iterable[ContainerGpus], reading: UseReading) -> Names:
    """Return the names of the pods that hold or use GPUs; a name that the API no longer tells is one `before` told.

    The kubelet keeps the devices of a pod for a moment after the API has deleted it. Under another name it would be a
    new series for each pod that ends.
    """
    named: dict[str, tuple[str, str]] = {}
    pods = [(holder.pod_uid, holder.pod) for holder in holders]
    pods += [(use.pod_uid, use.pod) for use in reading.containers if use.holding is None]
    for uid, pod in pods:
        if pod is not None:
            named[uid] = pod.namespace, pod.name
        elif uid in before:
            named.setdefault(uid, before[uid])
    return named


def node_use(
    holders: Sequence[ContainerGpus],
    reading: UseReading,
    limits: Mapping[Place, LimitState],
    over: Mapping[Place, float],
    shares: Shares,
    *,
    named: Names,
    epoch: float,
    fresh: bool = True,
    there: Collection[str] | None = None,
    asked: Mapping[Place, AskedToReturn] = MappingProxyType({}),
    idle: Mapping[str, str] = MappingProxyType({}),
) -> NodeUse:
    """Return who holds and who uses the GPUs, no container twice on one GPU.

    The `reading` is older than `holders`: containers that have ended since then are left out. So are GPUs that are not
    shared: they have no position. Its figures are reported only if they are `fresh`. Pods are `named`, see `names`.

    Monotonic time was 0 at `epoch`, in seconds since the epoch; `there` are the UIDs, as the kubelet knows them, of the
    pods in the API that have not ended, None: there is no API. `over` tells since when containers exceed what they may
    use, `asked` which are to return memory, `idle` since when pods are idle, RFC 3339 by UID.
    """
    uses = {(use.pod_uid, use.container, use.uuid): use for use in reading.containers} if fresh else {}
    granted = granted_by_place(holders)
    others = [place for place, use in uses.items() if place not in granted and _is_there(use, there)]
    others.sort(key=lambda place: (-(uses[place].used_mib or 0), place))
    # Two pods may have one name for a moment, the old one and that which replaces it; Prometheus takes a name once.
    parts: dict[object, ContainerUse] = {}
    for place in (*granted, *others[:MOST_OTHERS]):
        uid, container, uuid = place
        shared, use, asking = shares.by_uuid(uuid), uses.get(place), asked.get(place)
        if shared is None:
            continue
        grant_mib, holder = granted.get(place, (uses[place].granted_mib if place in uses else 0, None))
        state = limits.get(place) if holder is not None else None
        namespace, pod = named.get(uid, ("", uid))
        part = ContainerUse(
            namespace,
            pod,
            container,
            shared.position,
            grant_mib,
            None if use is None else use.used_mib,
            None if use is None else use.sm_percent,
            # The enforcement is known before its state, and `advisory` has none.
            None if holder is None or (state is None and holder.whole) else (state or holder).enforcement,
            None if state is None else state.held,
            None if state is None else state.found_mib,
            "" if state is None else state.why,
            rfc3339(epoch + over[place]) if place in over else "",
            None if holder is None else holder.limits.get(uuid),
            "" if asking is None else rfc3339(epoch + asking.since),
            "" if asking is None or asking.until is None else rfc3339(epoch + asking.until),
            "" if asking is None else asking.needed_by,
            idle.get(uid, "") if use is not None else "",
        )
        parts.setdefault(part.place, part)
    gpus = {
        shared.position: GpuUse(used, reading.unattributed_mib.get(uuid))
        for uuid, used in (reading.used_mib.items() if fresh else ())
        if (shared := shares.by_uuid(uuid)) is not None
    }
    in_order = sorted(parts.values(), key=lambda part: part.place)
    return NodeUse(rfc3339(epoch + reading.at), gpus, tuple(in_order), reading.blind)


def _is_there(use: AttributedUse, there: Collection[str] | None) -> bool:
    """Return whether a container that used a GPU without holding it, when that was read, may still do so."""
    if use.holding is not None:
        return False
    # Of a pod that the API did not know nobody but the next reading can tell.
    return use.pod is None or there is None or use.pod_uid in there


# --- The annotation ---------------------------------------------------------------------------------------------------


def due_in_s(
    written: NodeUse | None, now: NodeUse, age_s: float, soon_s: float = SOON_S, seldom_s: float = SELDOM_S
) -> float:
    """Return after how many seconds the annotation is to be written again.

    What holds, who is there and who uses too much is told at once; figures seldom, and only if they differ by much.
    The use of the multiprocessors alone is no reason: it changes with every reading. `written` is what the annotation
    tells since `age_s` seconds, None: nothing yet.
    """
    if written is None:
        return 0.0
    if _states(written) != _states(now):
        return max(0.0, soon_s - age_s)
    before, after = _figures(written), _figures(now)
    reasons = [{part.place: (part.why, part.needed_by) for part in use.parts} for use in (written, now)]
    if any(_differ(before[name], after[name]) for name in after) or reasons[0] != reasons[1]:
        return max(0.0, seldom_s - age_s)
    return max(0.0, AGAIN_S - age_s)


def _states(use: NodeUse) -> object:
    parts = {
        part.place: (
            *(part.granted_mib, part.limit_mib, part.enforcement, part.held, part.found_mib),
            *(bool(part.over_since), bool(part.asked_at), bool(part.idle_since)),
        )
        for part in use.parts
    }
    return use.blind, use.gpus.keys(), parts


def _figures(use: NodeUse) -> Mapping[object, int | None]:
    figures: dict[object, int | None] = {part.place: part.used_mib for part in use.parts}
    for position, gpu in use.gpus.items():
        figures[position, "used"] = gpu.used_mib
        figures[position, "unattributed"] = gpu.unattributed_mib
    return figures


def _differ(before: int | None, after: int | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > max(_LEAST_MIB, _LEAST_PART * before)


# --- For Prometheus ---------------------------------------------------------------------------------------------------

_GPU_USED = (
    Gauge("gpushare_gpu_memory_used_bytes", "All memory in use.", ("gpu",)),
    Gauge("gpushare_gpu_memory_unattributed_bytes", "Memory in use that belongs to no pod.", ("gpu",)),
)
# The names of kube-state-metrics, for joins.
_PLACE = ("namespace", "pod", "container", "gpu")
_CONTAINER = (
    Gauge(
        "gpushare_container_gpu_memory_allocated_bytes",
        "GPU memory that the container was granted, its guarantee; 0 if it uses a GPU that it was not assigned.",
        _PLACE,
    ),
    Gauge("gpushare_container_gpu_memory_used_bytes", "GPU memory that the container uses.", _PLACE),
    Gauge(
        "gpushare_container_gpu_memory_borrowed_bytes",
        "GPU memory that a container with a limit above its guarantee uses beyond the guarantee.",
        _PLACE,
    ),
    Gauge(
        "gpushare_container_gpu_utilization_ratio",
        "Fraction of the time in which the container keeps multiprocessors of the GPU busy, 0 to 1.",
        _PLACE,
    ),
)
_LIMIT = Gauge(
    "gpushare_container_gpu_memory_limit_bytes",
    "The limit of the container's GPU memory, as the driver has it where it was read back.",
    (*_PLACE, "enforcement", "state"),
)
_ASKED = Gauge(
    "gpushare_container_gpu_memory_return_asked",
    "1 while the container is asked to return the GPU memory that it borrows.",
    _PLACE,
)
_IDLE = Gauge(
    "gpushare_container_gpu_idle_seconds",
    "How long the container's pod has left its GPUs idle, if for the setting idle_after or longer.",
    _PLACE,
)
_SHORT = Gauge("gpushare_pods_short_of_memory", "Pods that need guaranteed GPU memory which others borrow now.")


def use_gauges(metrics: NodeMetrics, use: NodeUse) -> Gauges:
    """Return the gauges of the use of a node's GPUs."""
    known = [(shared, use.gpus.get(shared.position, GpuUse())) for shared in metrics.gpus]
    yield from columns(
        _GPU_USED,
        [((shared.gpu.uuid,), (as_bytes(each.used_mib), as_bytes(each.unattributed_mib))) for shared, each in known],
    )
    gpus = metrics.node.shares.gpus
    places = [((part.namespace, part.pod, part.container, gpus[part.gpu].gpu.uuid), part) for part in use.parts]
    yield from columns(_CONTAINER, [(place, _container(part)) for place, part in places])
    yield _LIMIT, [_limit(place, part) for place, part in places if part.enforcement is not None]
    yield _ASKED, [(place, 1) for place, part in places if part.asked_at]
    yield _IDLE, [(place, idle) for place, part in places if (idle := idle_s(use, part)) is not None]
    yield _SHORT, [((), len({part.needed_by for part in use.parts if part.needed_by}))]


def _container(part: ContainerUse) -> Sequence[float | None]:
    # What processes of a container that is not known may use is shown with the pod's containers already.
    given_mib = part.granted_mib if part.container or not part.granted_mib else None
    percent = part.sm_percent
    return (
        as_bytes(given_mib),
        as_bytes(part.used_mib),
        as_bytes(part.borrowed_mib),
        None if percent is None else percent / 100,
    )


def _limit(place: Sequence[str], part: ContainerUse) -> Value:
    """Return the limit that the driver has; where it was not read back, the one that was asked for."""
    mib = part.most_mib if part.found_mib is None else part.found_mib
    return (*place, part.enforcement or "", part.held or LimitStatus.UNVERIFIED), mib << 20
