"""Wire the DRA driver into the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.dra.devices import Facts
from gpu_device_plugin.programs.node.dra import DraDriver
from gpu_device_plugin.programs.node.dra_way import DraWay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpu_device_plugin.core.node.grants import Delivery
    from gpu_device_plugin.core.node.limit_grants import Means
    from gpu_device_plugin.programs.node.agent import NodeAgent
    from gpu_device_plugin.programs.node.cluster import NodeCluster


def wire(agent: NodeAgent, cluster: NodeCluster, delivery: Callable[[], Delivery], dev: Path) -> DraDriver:
    """Return the driver of an agent, which serves by it when it is told to."""
    driver = DraDriver(
        agent.settings,
        agent.state,
        cluster,
        agent.metrics,
        mps=agent.mps,
        delivery=delivery,
        dev=dev,
        reports=agent.reports,
    )
    agent.ways.dra = DraWay(
        driver,
        agent.state,
        agent.reconciler,
        agent.coexistence,
        agent.reports,
        changed=agent.ways.look,
        begun=agent.mps.ledger_complete,
        ready=cluster.announce_ready,
    )
    return driver


def facts(agent: NodeAgent, means: Means) -> Facts:
    """Return what the devices of an agent's node say beside its GPUs; their order is the driver's to choose."""
    return Facts(
        order=(),
        driver_version=agent.hardware.view.value.inventory.driver_version,
        rungs={uuid: gpu.rung for uuid, gpu in means.rungs.items()},
        barred=means.barred | (agent.mps.barred if agent.mps.on else frozenset()),
        evict=agent.settings.on_gpu_failure == "evict",
        kinds=frozenset(agent.settings.resources),
    )
