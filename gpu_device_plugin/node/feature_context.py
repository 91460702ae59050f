"""Create the features of an agent, and give each access to its node."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from gpu_device_plugin.settings.node import NodeSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpu_device_plugin import metrics as m
    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.hardware.monitor import Hardware
    from gpu_device_plugin.kubelet.cgroupfs import CgroupTree
    from gpu_device_plugin.kubelet.records import KubeletRecords
    from gpu_device_plugin.model.allocations import Allocation, Place
    from gpu_device_plugin.model.limits import LimitState
    from gpu_device_plugin.node.extension import Features, NodeFeature
    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.node.node_cluster import NodeCluster
    from gpu_device_plugin.node.node_events import Reports
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.node_config import NodeConfig
    from gpu_device_plugin.node.serving import DevicePlugin, OtherPlugins
    from gpu_device_plugin.settings.knobs import Settings


@dataclass(frozen=True, eq=False)
class NodeContext:
    """What a feature knows of its node: published values to follow, and the agent's ways to kubelet, API and driver."""

    settings: Observable[NodeSettings]
    config: Observable[NodeConfig]
    state: NodeState
    """To be read; only the ledger's reservations may be changed."""
    entries: Observable[tuple[Allocation, ...]]
    """What each container holds."""
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


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """A feature that an agent may have."""

    name: str
    path: str
    """Module and class of its `NodeFeature`, imported only where the agent has it: ``package.module:Class``."""
    settings: type[Settings] | None = None
    """The settings that an agent has with it; None: no further ones. They may extend those of a feature it needs."""
    needs: tuple[str, ...] = ()
    """The features without which it cannot be."""
    needs_api: bool = False

    def make(self, node: NodeContext) -> NodeFeature:
        """Return the feature for a node."""
        module, _, name = self.path.partition(":")
        made: NodeFeature = getattr(import_module(module), name)(node)
        return made


def settings_of(specs: Iterable[FeatureSpec]) -> type[NodeSettings]:
    """Return the settings of an agent with these features; those of others are not known to it."""
    own = [spec.settings for spec in specs if spec.settings is not None]
    # Whoever extends settings comes before them.
    return type(NodeSettings.__name__, (*reversed(own), NodeSettings), {"__doc__": NodeSettings.__doc__})


def make_features(specs: Iterable[FeatureSpec], node: NodeContext) -> None:
    """Add features to those of a node, in order, but those that need an API or a feature that it does not have."""
    names: set[str] = set()
    for spec in specs:
        if names.issuperset(spec.needs) and (node.cluster is not None or not spec.needs_api):
            node.features.add(spec.make(node))
            names.add(spec.name)
