"""Tell of containers that hold MIG instances which exist no more, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.holdings import stranded
from gpu_device_plugin.hardware.beliefs import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.core.node.holdings import Stranded
    from gpu_device_plugin.programs.node.agent import NodeAgent


class Stranding:
    """Compares what containers hold with the instances that exist."""

    def __init__(self, agent: NodeAgent, on_stranded: Callable[[Stranded], None]) -> None:
        """Look at the containers on the node of `agent`; `on_stranded` is called for each that is new."""
        self._agent = agent
        self._on_stranded = on_stranded
        self._told: frozenset[tuple[str, str, str]] = frozenset()

    def __repr__(self) -> str:
        return f"<Stranding: {len(self._told)} containers>"

    def look(self) -> None:
        """Look at the present state. A pod that the API shows only later is told of again, with its name."""
        agent = self._agent
        view, over = agent.equipment.views.value, agent.kubelet_records.over
        if view.state is not State.WATCHING:
            return
        held = [hold for hold in agent.entries.value if hold.kind is not None and hold.pod_uid not in over]
        there = {gpu.uuid for gpu in view.inventory.gpus}
        pods = {} if agent.cluster is None else agent.cluster.followed.pods
        alive = {pod.kubelet_uid: pod for pod in pods.values() if not pod.ended}
        found = {
            (each.pod_uid if each.pod is None else each.pod.name, each.container, each.uuid): each
            for each in stranded(held, there, agent.state.node.shares, alive)
        }
        for key, each in found.items():
            if key not in self._told:
                self._on_stranded(each)
        self._told = frozenset(found)
