"""Wire what acts on over-use and on failed GPUs into the agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.gpu_condition import gpu_condition
from gpu_device_plugin.core.node.health import Belief, with_cards
from gpu_device_plugin.hardware.beliefs import State
from gpu_device_plugin.programs.node.gpu_failures import GpuFailures
from gpu_device_plugin.programs.node.over_use import OverUse

if TYPE_CHECKING:
    from typing import NoReturn

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.core.node.use import UseReading
    from gpu_device_plugin.programs.node.agent import NodeAgent


class Responses:
    """The parts of an agent that act on over-use and on failed GPUs."""

    def __init__(self, agent: NodeAgent, readings: Latest[UseReading]) -> None:
        """Prepare; `readings` are those of use."""
        self._agent = agent
        self.evictor = None
        self.failures = None
        cluster = agent.cluster
        if cluster is not None:
            from gpu_device_plugin.programs.node.evictor import Evictor  # noqa: PLC0415 - see agent.reach_api

            self.evictor = Evictor(cluster, agent.metrics, lambda: agent.settings.eviction_grace_s)
            self.failures = GpuFailures(
                agent.hardware.view, agent.state, lambda: agent.settings, agent.use_watch.holdings, self.evictor
            )
        self.over_use = OverUse(readings, agent.state, lambda: agent.settings, cluster, self.evictor)

    def __repr__(self) -> str:
        return f"<Responses: {self.over_use!r}, {self.failures!r}, {self.evictor!r}>"

    async def run(self) -> NoReturn:
        """Act until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.over_use.run(), name="follow the use")
            if self.evictor is not None and self.failures is not None:
                tasks.create_task(self.evictor.run(), name="evict")
                tasks.create_task(self.failures.run(), name="follow failed GPUs")
        raise AssertionError  # pragma: no cover (the tasks never return)

    def show_condition(self) -> None:
        """Publish the node condition of the present view, or that there is to be none."""
        agent = self._agent
        view = agent.hardware.view.value
        if agent.cluster is None or view.state is State.STARTING:
            return
        if not agent.settings.node_condition:
            node = agent.node.value
            if agent.cluster.condition.wanted.version or (node is not None and node.gpu_condition):
                agent.cluster.condition.want(None)  # this agent wrote it, or an earlier one
            return
        gpus = [(shared.position, shared.gpu.uuid) for shared in agent.state.node.shares.gpus if not shared.gone]
        beliefs = with_cards(view.beliefs, view.inventory.gpus)
        agent.cluster.condition.want(
            gpu_condition(
                ((position, beliefs.get(uuid, Belief())) for position, uuid in gpus),
                watched=view.state is State.WATCHING,
                sentence=agent.equipment.why_none if view.state is State.WATCHING else view.sentence,
            )
        )
