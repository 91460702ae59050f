"""What a feature of an agent knows of its node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.model.allocations import Allocation, Place
from gpu_device_plugin.model.limits import LimitState
from gpu_device_plugin.node.extension import Features
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_events import Reports
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.node_config import NodeConfig
from gpu_device_plugin.node.serving import DevicePlugin, OtherPlugins

if TYPE_CHECKING:
    from gpu_device_plugin.node.node_cluster import NodeCluster
    from gpu_device_plugin.settings.node import NodeSettings


class NodeContext:
    """What a feature knows of its node: published values to follow, and the agent's ways to kubelet, API and driver.

    It is the agent, without what only itself does.
    """

    settings: Observable[NodeSettings]
    config: Observable[NodeConfig]
    state: NodeState
    """To be read; only the ledger's reservations may be changed."""
    entries: Observable[tuple[Allocation, ...]]
    """What each container holds: by the kubelet's checkpoint, and in other ways."""
    checkpoint_entries: Observable[tuple[Allocation, ...]]
    """Those of them that are in the kubelet's checkpoint."""
    hardware: Hardware
    records: KubeletRecords
    metrics: m.Metrics
    api: NodeApi
    cluster: NodeCluster | None
    """The same with all that only an agent with the Kubernetes API has; None: this one has none."""
    reports: Reports
    limit_states: Observable[Mapping[Place, LimitState]]
    """The state of each limit of a container that runs, as the feature that verifies limits publishes it."""
    other_plugins: OtherPlugins
    plugin: DevicePlugin
    features: Features
    """Those made so far, the ones before it in the list; it may need only those that the list says."""
    dev: Path
    proc: Path
    cgroups: CgroupTree

    @property
    def reached_cluster(self) -> NodeCluster:
        """The API, for a feature that needs it."""
        if self.cluster is None:
            raise LookupError("this feature needs the Kubernetes API")
        return self.cluster
