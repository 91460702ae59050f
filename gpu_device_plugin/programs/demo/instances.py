"""The scene of a GPU in MIG mode, on a node of its own: its instances are shared, and it is divided anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.variables import LIMITS, VISIBLE_DEVICES
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.programs.demo.world import world

if TYPE_CHECKING:
    from gpu_device_plugin.programs.demo.story import Story

_GPUS, _ANEW = "fake:1xH100:mig=3g.40gb/1g.10gb*3", "3g.40gb/2g.20gb/1g.10gb"
_SMALL = 4
"""Shares of each of the pods that share an instance."""


async def divide(story: Story) -> None:
    """Share the instances of a GPU, have one to itself, and divide the GPU anew."""
    await story.visit(world(_GPUS, mig=MigMode.SHARE))
    there = story.world
    story.say(
        "On a second node a fake H100 is divided into four instances of MIG, and mig is set to share: each is shared "
        "like a GPU. Then two small instances become one larger one while chat-1 and chat-2 run."
    )
    await there.agent.start()
    await story.expect("The kubelet knows the shares of every instance.", there.complete)
    largest = max(there.shares.gpus, key=lambda shared: len(shared.shares))
    training = await story.admit("training", there.memory, len(largest.shares))
    chats = [await story.admit(f"chat-{number}", there.memory, _SMALL) for number in (1, 2)]
    envs = training.only.received.envs
    story.check(
        "training has an instance to itself: its limit is held by the hardware.",
        (envs.get(VISIBLE_DEVICES), envs.get(LIMITS)) == (largest.gpu.uuid, Rung.PARTITION.value),
    )
    on = story.gpus_of(*chats)
    story.check("Both chats share one of the small ones.", len(on) == 1 and on[0].gpu.uuid != largest.gpu.uuid)
    await story.pause(3.0)
    before = there.held()
    await there.divide(_ANEW)
    await story.expect("The kubelet knows the new instance, and the old IDs as unhealthy.", there.settled)
    story.check("Running pods keep what they have.", there.held() == before)
    await story.expect(
        "The pods on the old instance are named.", lambda: there.agent.said("exists no more") is not None
    )
    story.quote("log of the agent", there.agent.said("exists no more"))
