"""Tell of containers that hold MIG instances which exist no more, each once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.holdings import INSTANCE, stranded

if TYPE_CHECKING:
    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.node.node_config import NodeConfig
    from gpu_device_plugin.kubelet.records import KubeletRecords
    from gpu_device_plugin.programs.node.node_api import NodeApi
    from gpu_device_plugin.programs.node.node_events import Reports


@dataclass(eq=False, repr=False)
class OrphanedInstances:
    """Compares what containers hold with the instances that exist."""

    _config: Observable[NodeConfig]
    _entries: Observable[tuple[DeviceHold, ...]]
    """What containers hold."""
    _records: KubeletRecords
    _api: NodeApi
    _reports: Reports

    def __post_init__(self) -> None:
        self._told: frozenset[tuple[str, str, str]] = frozenset()

    @property
    def possible(self) -> bool:
        """Whether the node has instances, or had some that somebody may hold."""
        return any(shared.gpu.instance is not None for shared in self._config.value.shares.gpus) or any(
            device.startswith(INSTANCE) for entry in self._entries.value for device in entry.device_ids
        )

    def look(self, _new: object = None) -> None:
        """Look at the present state. A pod that the API shows only later is told of again, with its name."""
        config, ended = self._config.value, self._records.over
        if not config.watched:
            return
        held = [hold for hold in self._entries.value if hold.kind is not None and hold.pod_uid not in ended]
        present = {gpu.uuid for gpu in config.inventory.gpus}
        alive = {pod.kubelet_uid: pod for pod in self._api.pods.values() if not pod.ended}
        strandings = {
            (one.pod_uid if one.pod is None else one.pod.name, one.container, one.uuid): one
            for one in stranded(held, present, config.shares, alive)
        }
        for key, one in strandings.items():
            if key not in self._told:
                self._reports.instance_gone(one)
        self._told = frozenset(strandings)
