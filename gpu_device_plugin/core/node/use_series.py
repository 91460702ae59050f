"""Decide which containers and GPUs of a node the metrics show, with which figures.

A figure that is not known is None, and then has no series: 0 would say that nothing is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.model.limits import Held

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.model.limits import GpuRung, LimitState
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.core.node.node import Node
    from gpu_device_plugin.core.node.over_use import Place
    from gpu_device_plugin.core.node.use import ContainerUse, UseReading

MOST_OTHERS = 256
"""The most containers that are shown although they were not given the GPU; those with the most use are kept. Whoever
starts processes on GPUs beside the kubelet decides how many there are."""
STALE_S = 60.0
"""Seconds after which figures are out of date, unless three intervals of reading are longer. The newest reading stays
while the driver does not answer."""

Names: TypeAlias = "Mapping[str, tuple[str, str]]"
"""Namespace and name of pods, by UID as the kubelet knows them."""


@dataclass(frozen=True, slots=True)
class ContainerSeries:
    """One container on one GPU, as the metrics show it; memory in bytes."""

    namespace: str
    """Empty where the agent does not know the pod's name."""
    pod: str
    """Its name; its UID where the agent does not know the name."""
    container: str
    """Empty for processes of a pod whose container is not known."""
    gpu: str
    """Its UUID."""
    allocated_bytes: int | None
    """0: it was not given this GPU. None for processes whose container is not known: what they may use is shown with
    the pod's containers already."""
    used_bytes: int | None = None
    limit_bytes: int | None = None
    """The limit that the driver has, where it was read back; else the one that was asked for. None: there is none, as
    for whole GPUs, or nobody knows the means."""
    rung: str = ""
    """The means of the limit."""
    state: str = ""
    """Whether the limit holds, a `Held`."""
    utilization: float | None = None
    """Its use of the GPU's multiprocessors, 0 to 1."""


@dataclass(frozen=True, slots=True)
class GpuSeries:
    """One GPU, or MIG instance, as the metrics show it; memory in bytes."""

    gpu: str
    """Its UUID."""
    index: str
    """Its position on the node, as in ALIYUN_COM_GPU_MEM_IDX."""
    model: str
    driver: str
    """The driver's version; empty if unknown."""
    rung: str
    """The means of limiting new containers; empty if it is not known yet."""
    share_bytes: str
    memory_bytes: int
    allocated_bytes: int
    used_bytes: int | None = None
    """By anybody."""
    unattributed_bytes: int | None = None
    """By nobody's pod."""
    parent: str = ""
    """Of a MIG instance: the UUID of its GPU, its profile, and the ID of its GPU instance; empty for a whole GPU."""
    profile: str = ""
    gi: str = ""


def fresh(reading: UseReading, now: float, interval_s: float) -> bool:
    """Whether the figures of a reading still are the present ones, at `now` (monotonic seconds)."""
    return now - reading.at <= max(STALE_S, 3 * interval_s)


def names(before: Names, holdings: Iterable[Holding], reading: UseReading) -> Names:
    """Return the names of the pods that hold or use GPUs; a name that the API no longer tells is one `before` told.

    The kubelet keeps the devices of a pod for a moment after the API has deleted it. Under another name it would be a
    new series for each pod that ends.
    """
    found: dict[str, tuple[str, str]] = {}
    pods = [(each.pod_uid, each.pod) for each in holdings]
    pods += [(use.pod_uid, use.pod) for use in reading.containers if use.holding is None]
    for uid, pod in pods:
        if pod is not None:
            found[uid] = pod.namespace, pod.name
        elif uid in before:
            found.setdefault(uid, before[uid])
    return found


def containers(
    holdings: Sequence[Holding],
    reading: UseReading,
    limits: Mapping[Place, LimitState],
    named: Names,
    *,
    fresh: bool,
    there: Collection[str] | None = None,
) -> Iterator[ContainerSeries]:
    """Yield the containers that hold GPUs now, then those that use one without holding it; no series twice.

    Args:
        holdings: what the containers hold now.
        reading: who used what. It is older than `holdings`: containers that have ended since then are left out.
        limits: whether the limit of each container holds.
        named: see `names`.
        fresh: whether the figures of `reading` are the present ones; otherwise nobody's use is known.
        there: UIDs, as the kubelet knows them, of the pods in the API that have not ended; None: there is no API.
    """
    uses = {(use.pod_uid, use.container, use.uuid): use for use in reading.containers} if fresh else {}
    # A device plugin of another vendor may have given a container the same GPU once more.
    granted: dict[Place, tuple[int, Holding]] = {}
    for holding in holdings:
        for uuid, mib in holding.granted.items():
            place = holding.pod_uid, holding.container, uuid
            if place not in granted or granted[place][0] < mib:
                granted[place] = mib, holding
    others = [use for place, use in uses.items() if place not in granted and _is_there(use, there)]
    others.sort(key=lambda use: (-(use.used_mib or 0), use.uuid, use.pod_uid, use.container))
    # Two pods may have one name for a moment, the old one and that which replaces it; Prometheus takes a name once.
    shown: set[tuple[tuple[str, str], str, str]] = set()
    for place in (*granted, *((use.pod_uid, use.container, use.uuid) for use in others[:MOST_OTHERS])):
        uid, container, uuid = place
        pod = named.get(uid, ("", uid))
        if (pod, container, uuid) not in shown:
            shown.add((pod, container, uuid))
            if place in granted:
                yield _holder(pod, place, granted[place], uses.get(place), limits.get(place))
            else:
                yield _other(pod, uses[place])


def _holder(
    pod: tuple[str, str], place: Place, grant: tuple[int, Holding], use: ContainerUse | None, limit: LimitState | None
) -> ContainerSeries:
    """Return the series of a container that holds a GPU."""
    mib, holding = grant
    limit_mib, rung, state = None, "", ""
    if limit is not None:
        limit_mib, rung, state = mib if limit.found_mib is None else limit.found_mib, limit.rung.value, limit.held.value
    elif holding.rung is not None and not holding.whole:
        limit_mib, rung, state = mib, holding.rung.value, Held.UNVERIFIED.value
    return ContainerSeries(
        *pod,
        *place[1:],
        mib << 20,
        None if use is None else _bytes(use.used_mib),
        _bytes(limit_mib),
        rung,
        state,
        None if use is None else _ratio(use.sm_percent),
    )


def _other(pod: tuple[str, str], use: ContainerUse) -> ContainerSeries:
    """Return the series of a container that uses a GPU without holding it."""
    allocated = 0 if use.trespassing else None
    used, ratio = _bytes(use.used_mib), _ratio(use.sm_percent)
    return ContainerSeries(*pod, use.container, use.uuid, allocated, used, utilization=ratio)


def _is_there(use: ContainerUse, there: Collection[str] | None) -> bool:
    """Return whether a container that used a GPU without holding it, when that was read, may still do so."""
    if use.holding is not None:
        return False
    # Of a pod that the API did not know nobody but the next reading can tell.
    return use.pod is None or there is None or use.pod_uid in there


def counted(node: Node) -> Sequence[SharedGpu]:
    """Return the GPUs and MIG instances of a node that containers can get, or have: those that the metrics count."""
    return [
        shared
        for shared in node.shares.gpus
        if (shared.offered and not shared.gpu.mig) or node.use(shared).shares or node.use(shared).whole
    ]


def gpus(
    node: Node, reading: UseReading, rungs: Mapping[int, GpuRung], driver: str | None, *, fresh: bool
) -> Iterator[GpuSeries]:
    """Yield the GPUs and MIG instances of a node.

    A GPU in MIG mode is not among them, so that the sums of all series count its memory once.

    Args:
        node: the node.
        reading: who used what.
        rungs: the means of limiting new containers on each GPU, by position.
        driver: the driver's version; None: unknown.
        fresh: whether the figures of `reading` are the present ones.
    """
    share_mib = node.shares.share_mib
    for shared in counted(node):
        uuid, total_mib, room = shared.gpu.uuid, shared.gpu.total_mib, node.room(shared)
        place = shared.gpu.instance
        # With a former, larger share size, the shares in use may be more than the GPU has.
        in_shares_mib = min(total_mib, len(node.use(shared).shares) * share_mib)
        rung = rungs.get(shared.position)
        yield GpuSeries(
            uuid,
            str(shared.position),
            shared.gpu.product,
            driver or "",
            "" if rung is None else rung.rung.value,
            str(share_mib << 20),
            total_mib << 20,
            (total_mib if room.whole else in_shares_mib) << 20,
            _bytes(reading.used_mib.get(uuid)) if fresh else None,
            _bytes(reading.unattributed_mib.get(uuid)) if fresh else None,
            *(() if place is None else (place.parent, place.profile, str(place.gi))),
        )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib << 20


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
