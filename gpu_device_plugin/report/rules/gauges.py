"""The gauges of the node agent and of the extender: what each is called, what it means, and where its values are."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from gpu_device_plugin.model.contract.node_use import GpuUse, NodeUse, idle_s, to_return
from gpu_device_plugin.model.contract.nodelabels import NO_LIMITS, NodeLimits
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.limits import LimitStatus
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.model.contract.node_use import ContainerUse
    from gpu_device_plugin.model.shares import SharedGpu
    from gpu_device_plugin.node.rules.node import Node
    from gpu_device_plugin.scheduler.rules.candidate import Candidate

    Row = tuple[Sequence[str], Sequence[float | None]]
    """Labels, and a value for each gauge; None: unknown."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that is read at each scrape."""

    name: str
    help: str
    """What it means, for people."""
    labels: tuple[str, ...] = ()
    grows: bool = False
    """It is a counter, which never decreases; its name on the page ends in ``_total``."""


Value: TypeAlias = "tuple[Sequence[str], float]"
"""Labels in the order of ``Gauge.labels``, and the value."""
Gauges: TypeAlias = "Iterable[tuple[Gauge, Iterable[Value]]]"


def _columns(gauges: Iterable[Gauge], rows: Sequence[Row]) -> Gauges:
    """Yield gauges that have the same labels. A value that is not known is left out: 0 would say that there is none."""
    for column, gauge in enumerate(gauges):
        yield gauge, [(labels, value) for labels, values in rows if (value := values[column]) is not None]


def _mib(amount: int | None) -> int | None:
    return None if amount is None else amount << 20


# --- The node agent ---------------------------------------------------------------------------------------------------

_OVER = Gauge("gpushare_containers_over", "Containers that use more GPU memory than they were granted.")
_GPUS = Gauge("gpushare_gpus", "GPUs of this node by health.", ("health",))
# A label without a value is none to Prometheus: whole GPUs have no parent, profile and gi.
_INFO = Gauge(
    "gpushare_gpu_info",
    "A GPU, or a MIG instance of the GPU parent; always 1.",
    ("gpu", "index", "model", "driver", "enforcement", "share_bytes", "parent", "profile", "gi"),
)
_GPU = (
    Gauge("gpushare_gpu_healthy", "1 while the GPU is healthy.", ("gpu",)),
    Gauge("gpushare_gpu_cordoned", "1 while the GPU is put aside, so that no new pod gets it.", ("gpu",)),
    Gauge("gpushare_gpu_shares", "Shares that the GPU is cut into.", ("gpu",)),
    Gauge("gpushare_gpu_shares_allocated", "Shares in use.", ("gpu",)),
    Gauge("gpushare_gpu_shares_unhealthy", "Shares not offered because the GPU is unhealthy.", ("gpu",)),
    Gauge("gpushare_gpu_shares_fenced", "Shares not offered because the whole GPU is in use, or put aside.", ("gpu",)),
    Gauge("gpushare_gpu_memory_bytes", "Memory of the GPU.", ("gpu",)),
    Gauge(
        "gpushare_gpu_memory_allocated_bytes", "Memory that containers were given; of a whole GPU all of it.", ("gpu",)
    ),
)
_GPU_USED = (
    Gauge("gpushare_gpu_memory_used_bytes", "Memory in use by anybody.", ("gpu",)),
    Gauge("gpushare_gpu_memory_unattributed_bytes", "Memory in use that belongs to no pod.", ("gpu",)),
)
_CARD = Gauge("gpushare_card_memory_bytes", "Memory of a GPU in MIG mode, which its instances divide.", ("gpu",))
# The names of kube-state-metrics, for joins.
_PLACE = ("namespace", "pod", "container", "gpu")
_CONTAINER = (
    Gauge(
        "gpushare_container_gpu_memory_allocated_bytes",
        "GPU memory that the container was given, its guarantee; 0 if it uses a GPU that it was not given.",
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
        "Part of the time in which the container keeps multiprocessors of the GPU busy, 0 to 1.",
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
_SHORT = Gauge("gpushare_pods_short_of_memory", "Pods of which others borrow guaranteed GPU memory that they need now.")
_LIMITS = Gauge("gpushare_limit_states", "Memory limits of running containers by what was read back.", ("state",))
STREAM_UP = Gauge("gpushare_stream_up", "1 while the kubelet's ListAndWatch stream is open.", ("resource",))
_WITHOUT_STREAM = Gauge(
    "gpushare_without_stream_seconds", "Time without a ListAndWatch stream of the kubelet.", ("resource",), grows=True
)
_MPS = Gauge("gpushare_mps_ready", "1 while the MPS daemon that containers on the GPU need serves new ones.", ("gpu",))
_THROTTLED = Gauge(
    "gpushare_gpu_throttled", "1 while the clocks of the GPU are lowered for this reason.", ("gpu", "reason")
)


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """A node at one moment, as its agent sees it. What is None is no concern of this agent, and has no gauges."""

    node: Node
    use: NodeUse | None = None
    limits: NodeLimits = NO_LIMITS
    """The means of limiting new containers."""
    inventory: Inventory = field(default_factory=Inventory)
    """The GPUs and the driver as last read."""
    fenced: Mapping[str, int] = field(default_factory=dict)
    """The number of fenced shares of GPUs, by UUID."""
    limit_states: Mapping[str, int] | None = None
    """The number of memory limits by what was read back, a `LimitStatus`."""
    containers_over: int | None = None
    """Containers on one GPU each that have used more than they were granted, for the grace."""
    streams: Mapping[str, tuple[bool, float]] = field(default_factory=dict)
    """By resource: whether the kubelet's ListAndWatch stream is open, and the seconds without one since the start."""
    mps: Mapping[str, bool] | None = None
    """Whether the MPS daemon that a GPU needs is ready, by UUID."""
    telemetry: Mapping[str, GpuTelemetry] | None = None
    """The newest condition of GPUs, by UUID."""

    def gauges(self) -> Gauges:
        """Return its gauges with their values."""
        # Those that containers can get, or have: no GPU in MIG mode, so that sums count its memory once.
        gpus = [
            shared
            for shared in self.node.shares.gpus
            if (shared.offered and not shared.gpu.mig) or (use := self.node.use(shared)).shares or use.whole
        ]
        healthy = sum(not self.node.block(shared.gpu.uuid).everyone for shared in gpus)
        if self.containers_over is not None:
            yield _OVER, [((), self.containers_over)]
        yield _GPUS, [(("healthy",), healthy), (("unhealthy",), len(gpus) - healthy)]
        yield _INFO, [(self._info(shared), 1) for shared in gpus]
        yield from _columns(_GPU, [((shared.gpu.uuid,), self._gpu(shared)) for shared in gpus])
        if self.use is not None:
            known = [(shared, self.use.gpus.get(shared.position, GpuUse())) for shared in gpus]
            yield from _columns(
                _GPU_USED,
                [((shared.gpu.uuid,), (_mib(use.used_mib), _mib(use.unattributed_mib))) for shared, use in known],
            )
        yield from _columns(
            (STREAM_UP, _WITHOUT_STREAM), [((resource,), stream) for resource, stream in self.streams.items()]
        )
        if self.limit_states is not None:
            yield _LIMITS, [((held,), count) for held, count in self.limit_states.items()]
        yield _CARD, [((uuid,), mib << 20) for uuid, mib in self.inventory.cards_mib.items()]
        if self.mps is not None:
            yield _MPS, [((uuid,), ready) for uuid, ready in self.mps.items()]
        if (telemetry := self.telemetry) is not None:
            cards = dict.fromkeys(shared.gpu.card for shared in gpus)
            yield from _condition([telemetry[card] for card in cards if card in telemetry])
        if self.use is not None:
            yield from self._of_containers(self.use)

    def _of_containers(self, use: NodeUse) -> Gauges:
        gpus = self.node.shares.gpus
        places = [((part.namespace, part.pod, part.container, gpus[part.gpu].gpu.uuid), part) for part in use.parts]
        yield from _columns(_CONTAINER, [(place, _container(part)) for place, part in places])
        yield _LIMIT, [_limit(place, part) for place, part in places if part.enforcement is not None]
        yield _ASKED, [(place, 1) for place, part in places if to_return(part)]
        yield _IDLE, [(place, idle) for place, part in places if (idle := idle_s(use, part)) is not None]
        yield _SHORT, [((), len({part.needed_by for part in use.parts if part.needed_by}))]

    def _info(self, shared: SharedGpu) -> Sequence[str]:
        gpu, enforcement, instance = shared.gpu, self.limits.gpus.get(shared.position), shared.gpu.instance
        return (
            gpu.uuid,
            # As in ALIYUN_COM_GPU_MEM_IDX.
            str(shared.position),
            gpu.product,
            self.inventory.driver_version or "",
            "" if enforcement is None else enforcement.enforcement.value,
            str(self.node.shares.share_mib << 20),
            *(("", "", "") if instance is None else (instance.parent, instance.profile, str(instance.gi))),
        )

    def _gpu(self, shared: SharedGpu) -> Sequence[float | None]:
        node, uuid, shares, total_mib = self.node, shared.gpu.uuid, len(shared.shares), shared.gpu.total_mib
        use, block = node.use(shared), node.block(uuid)
        # With a former, larger share size, the shares in use may be more than the GPU has.
        given_mib = total_mib if node.room(shared).whole else min(total_mib, use.taken * node.shares.share_mib)
        return (
            not block.everyone,
            bool(block.new_pods),
            shares,
            shares if use.whole else use.taken,
            shares if block.everyone else 0,
            self.fenced.get(uuid, 0),
            total_mib << 20,
            given_mib << 20,
        )


def _container(part: ContainerUse) -> Sequence[float | None]:
    # What processes of a container that is not known may use is shown with the pod's containers already.
    given_mib = part.granted_mib if part.container or not part.granted_mib else None
    percent = part.sm_percent
    return _mib(given_mib), _mib(part.used_mib), _mib(part.borrowed_mib), None if percent is None else percent / 100


def _limit(place: Sequence[str], part: ContainerUse) -> Value:
    """Return the limit that the driver has; where it was not read back, the one that was asked for."""
    mib = part.most_mib if part.found_mib is None else part.found_mib
    return (*place, part.enforcement or "", part.held or LimitStatus.UNVERIFIED), mib << 20


def _condition(telemetry: Sequence[GpuTelemetry]) -> Gauges:
    for each in fields(GpuTelemetry):
        if shown := each.metadata.get("gauge"):
            name, meaning, unit = shown
            whole = f"gpushare_gpu_{name.removesuffix('_total')}"
            values = [((gpu.uuid,), getattr(gpu, each.name)) for gpu in telemetry]
            gauge = Gauge(whole, meaning, ("gpu",), grows=name.endswith("_total"))
            yield gauge, [(labels, value * unit) for labels, value in values if value is not None]
    known = [(gpu.uuid, gpu.throttle) for gpu in telemetry if gpu.throttle is not None]
    reasons = Throttle.__members__.items()
    yield _THROTTLED, [((uuid, name.lower()), bool(bits & bit)) for uuid, bits in known for name, bit in reasons]


# --- The extender -----------------------------------------------------------------------------------------------------

_NODES = (
    Gauge("gpushare_extender_nodes", "Nodes with GPUs."),
    Gauge("gpushare_extender_memory_bytes", "GPU memory of all nodes."),
    Gauge("gpushare_extender_memory_taken_bytes", "Allocated GPU memory, with all memory of whole GPUs."),
)
_WATCH = (
    Gauge("gpushare_extender_watch_live", "1 while the API server sends changes.", ("kind",)),
    Gauge("gpushare_extender_watch_silent_seconds", "Time since the API server last sent data.", ("kind",)),
    Gauge("gpushare_extender_lists", "Lists of all objects of a kind.", ("kind",), grows=True),
    Gauge("gpushare_extender_unreadable", "Objects that could not be parsed.", ("kind",), grows=True),
)
_WAITING = Gauge(
    "gpushare_extender_pods_waiting",
    "Pods that wait for a GPU, by what the scheduler was last told; a follower is asked nothing.",
    ("reason",),
)
_MEMORY = Gauge("gpushare_extender_node_memory_bytes", "GPU memory of the node, of healthy GPUs.", ("node",))
_ALLOCATED = Gauge(
    "gpushare_extender_node_memory_allocated_bytes",
    "Allocated GPU memory of the node, with all memory of whole GPUs.",
    ("node",),
)
_STRANDED = Gauge(
    "gpushare_extender_node_memory_stranded_bytes",
    "Free GPU memory of the node that is of no use to the pods that usually come; absent until the policy fit learned.",
    ("node",),
)


class WaitingReason(StrEnum):
    """Why a pod waits, by what its scheduler was last told."""

    NOT_ASKED = "not_asked"
    """No scheduler has asked about it yet."""
    NO_ROOM = "no_room"
    """No node has room now."""
    NEVER_FITS = "never_fits"
    """No eviction helps on any node."""
    FITS = "fits"
    """There was a node for it; something else holds it up."""


def _shown(name: str, meaning: str) -> Any:
    """Return a field whose value has a gauge of its own."""
    return field(default=0, metadata={"gauge": Gauge(name, meaning)})


@dataclass(frozen=True, slots=True)
class ExtenderMetrics:
    """The cluster at one moment, as the extender sees it."""

    leader: bool = _shown("gpushare_extender_leader", "1 while this extender may bind pods.")
    pods: int = _shown("gpushare_extender_pods", "Pods that hold GPUs or GPU memory.")
    pending: int = _shown("gpushare_extender_pods_pending", "Pods that wait for a GPU.")
    oldest_s: float = _shown(
        "gpushare_extender_pods_waiting_oldest_seconds", "Age of the oldest pod that waits for a GPU."
    )
    claims: int = _shown("gpushare_extender_claims", "Pods that are being bound.")
    in_doubt: int = _shown("gpushare_extender_claims_in_doubt", "Pods whose binding has an unknown outcome.")
    learned: bool = _shown(
        "gpushare_extender_learned", "1 while the policy fit goes by what it learned; else it is binpack."
    )
    distrusted: int = _shown(
        "gpushare_extender_namespaces_distrusted", "Namespaces whose pods count little in what the policy fit learns."
    )
    wanted: int = _shown("gpushare_extender_nodes_wanted", "New nodes that waiting pods need, GPU by GPU.")
    kept: int = _shown("gpushare_extender_nodes_kept", "Nodes that autoscalers are kept from.")
    held: int = _shown("gpushare_extender_rooms_held", "Pods for whose replacements room is held.")
    watches: Mapping[str, tuple[bool, float, int, int]] = field(default_factory=dict)
    """By kind, for example ``pods``: the values of the gauges of a watch."""
    waiting: Mapping[WaitingReason, int] = field(default_factory=dict)
    """The number of pods that wait, by reason."""
    nodes: Sequence[Candidate] = ()
    """All nodes, but for those whose GPUs kube-scheduler allocates: which are in use is not known there."""
    stranded: Iterable[tuple[Candidate, float]] = ()
    """Nodes with the free shares that are of no use to the pods that usually come."""

    def gauges(self) -> Gauges:
        """Return its gauges with their values; those of nodes are made one by one."""
        yield from ((gauge, [((), getattr(self, one.name))]) for one in fields(self) for gauge in one.metadata.values())
        yield from _columns(_WATCH, [((kind,), watch) for kind, watch in self.watches.items()])
        yield _WAITING, [((reason.value,), self.waiting.get(reason, 0)) for reason in WaitingReason]
        with_gpus = [node for node in self.nodes if node.rooms]
        sized = [(node, mib << 20) for node in with_gpus if (mib := node.gpus.share_mib) is not None]
        yield _MEMORY, (((node.name,), node.summary.total * size) for node, size in sized)
        yield _ALLOCATED, (((node.name,), node.summary.used * size) for node, size in sized)
        yield (
            _STRANDED,
            (
                ((node.name,), int(shares * (node.gpus.share_mib << 20)))
                for node, shares in self.stranded
                if node.gpus.share_mib is not None and not node.gpus.claims
            ),
        )
        total, used = (sum(getattr(node.summary, key) * size for node, size in sized) for key in ("total", "used"))
        yield from _columns(_NODES, [((), (len(with_gpus), total, used))])
