"""The gauges of a node and its GPUs, whatever features its agent has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract.nodelabels import NO_LIMITS, NodeLimits
from gpu_device_plugin.model.gauges import Gauge, Gauges, columns
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.node.rules.node import Node

_GPUS = Gauge("gpushare_gpus", "GPUs of this node by health.", ("health",))
# A label without a value is none to Prometheus: whole GPUs have no parent, profile and gi.
_INFO = Gauge(
    "gpushare_gpu_info",
    "A GPU, or a MIG instance of the GPU parent; always 1.",
    ("gpu", "index", "model", "driver", "enforcement", "share_bytes", "parent", "profile", "gi"),
)
_GPU = (
    Gauge("gpushare_gpu_healthy", "1 while the GPU is healthy.", ("gpu",)),
    Gauge("gpushare_gpu_cordoned", "1 while the GPU is cordoned, so that no new pod gets it.", ("gpu",)),
    Gauge("gpushare_gpu_shares", "Shares of the GPU.", ("gpu",)),
    Gauge("gpushare_gpu_shares_allocated", "Shares in use.", ("gpu",)),
    Gauge("gpushare_gpu_shares_unhealthy", "Shares not offered because the GPU is unhealthy.", ("gpu",)),
    Gauge("gpushare_gpu_shares_fenced", "Shares not offered because the whole GPU is in use, or cordoned.", ("gpu",)),
    Gauge("gpushare_gpu_memory_bytes", "Memory of the GPU.", ("gpu",)),
    Gauge("gpushare_gpu_memory_allocated_bytes", "Memory allocated to containers; of a whole GPU all of it.", ("gpu",)),
)
_CARD = Gauge("gpushare_card_memory_bytes", "Memory of a GPU in MIG mode, which its instances divide.", ("gpu",))
STREAM_UP = Gauge("gpushare_stream_up", "1 while the kubelet's ListAndWatch stream is open.", ("resource",))
_WITHOUT_STREAM = Gauge(
    "gpushare_without_stream_seconds", "Time without a ListAndWatch stream of the kubelet.", ("resource",), grows=True
)


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """A node at one moment, as its agent sees it without its features."""

    node: Node
    limits: NodeLimits = NO_LIMITS
    """The means of limiting new containers."""
    inventory: Inventory = field(default_factory=Inventory)
    """The GPUs and the driver as last read."""
    fenced: Mapping[str, int] = field(default_factory=dict)
    """The number of fenced shares of GPUs, by UUID."""
    streams: Mapping[str, tuple[bool, float]] = field(default_factory=dict)
    """By resource: whether the kubelet's ListAndWatch stream is open, and the seconds without one since the start."""

    @property
    def gpus(self) -> Sequence[SharedGpu]:
        """The GPUs that containers can get, or have: none in MIG mode, so that sums count its memory once."""
        return [
            shared
            for shared in self.node.shares.gpus
            if (shared.offered and not shared.gpu.mig) or (use := self.node.use(shared)).shares or use.whole
        ]

    def gauges(self) -> Gauges:
        """Return its gauges with their values."""
        gpus = self.gpus
        healthy = sum(not self.node.block(shared.gpu.uuid).everyone for shared in gpus)
        yield _GPUS, [(("healthy",), healthy), (("unhealthy",), len(gpus) - healthy)]
        yield _INFO, [(self._info(shared), 1) for shared in gpus]
        yield from columns(_GPU, [((shared.gpu.uuid,), self._gpu(shared)) for shared in gpus])
        yield from columns(
            (STREAM_UP, _WITHOUT_STREAM), [((resource,), stream) for resource, stream in self.streams.items()]
        )
        yield _CARD, [((uuid,), mib << 20) for uuid, mib in self.inventory.cards_mib.items()]

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
