"""What a feature knows of a node, as far as a test needs it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.mps.node import Mps
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.node.extension import Features
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests.nodes import node


def settings(**given: str) -> NodeSettings:
    """Return the settings of an agent to which these are given."""
    return Sources(NODE_SETTINGS, given, {}).read()


def context(proc: Path | None = None, **known: Any) -> NodeContext:
    """Return a node of two GPUs on which nobody else hands out GPUs, with what is `known` of it in place of that."""
    parts = {
        "settings": Observable(settings()),
        "state": NodeState(node(16, 16)),
        "entries": Observable(()),
        "limit_states": Observable({}),
        "metrics": Metrics(),
        "api": NodeApi(),
        "cluster": None,
        "records": SimpleNamespace(over=frozenset()),
        "other_plugins": SimpleNamespace(alone=lambda: True),
        "features": Features(),
        "proc": proc,
    }
    return cast("NodeContext", SimpleNamespace(**parts | known))


def mps(directory: Path, *, clock: Callable[[], float] = boot_time, **known: Any) -> Mps:
    """Return the feature of a node whose supervisor it meets in this directory, with what is `known` of the node."""
    there = context(settings=Observable(settings(mps_dir=str(directory))), **known)
    there.features.add(Use(there))
    return Mps(there, clock=clock)
