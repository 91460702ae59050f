"""The scene of a GPU in MIG mode, on a node of its own: its instances are shared, and it is divided anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.variables import LIMITS, VISIBLE_DEVICES
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.mig import MigMode

if TYPE_CHECKING:
    from gpu_device_plugin.programs.demo.story import Story

_GPUS, _ANEW = "fake:1xA30:mig=2g.12gb/1g.6gb*2", "2g.12gb*2"
_SMALL = 2
"""Shares of each of the pods that share an instance."""


async def divide(story: Story) -> None:
    """Share the instances of a GPU, have one to itself, and divide the GPU anew."""
    await story.visit("node-2", _GPUS, mig=MigMode.SHARE)
    there = story.world
    story.say(
        "On a second node a fake A30 is divided into three instances of MIG, and mig is set to share: each is shared "
        "like a GPU. Then the two small instances become a larger one while chat-1 and chat-2 run."
    )
    await there.agent.start()
    await story.expect("The kubelet knows the shares of every instance.", there.complete)
    largest = max(there.shares.gpus, key=lambda shared: len(shared.shares))
    tuning = await story.admit("tuning", there.memory, len(largest.shares), "training", busy=0.8)
    chats = [await story.admit(f"chat-{number}", there.memory, _SMALL, "serving", busy=0.7) for number in (1, 2)]
    envs = tuning.only.received.envs
    story.check(
        "tuning has an instance to itself: its limit is held by the hardware.",
        (envs.get(VISIBLE_DEVICES), envs.get(LIMITS)) == (largest.gpu.uuid, Rung.PARTITION.value),
    )
    on = story.gpus_of(*chats)
    story.check("Both chats share one of the small ones.", len(on) == 1 and on[0].gpu.uuid != largest.gpu.uuid)
    await story.linger()
    before = there.held()
    await there.divide(_ANEW)
    await story.expect("The kubelet knows the new instance, and the old IDs as unhealthy.", there.settled)
    story.check("Running pods keep what they have.", there.held() == before)
    await story.expect(
        "The pods on the old instance are named.", lambda: there.agent.said("exists no more") is not None
    )
    story.quote("log of the agent", there.agent.said("exists no more"))
    room = max((room.free for room in story.open()), default=0)
    for name, asked in there.pods.waiting.items():
        if asked <= room:
            pod = await story.admit(name, there.memory, asked, busy=0.7)
            story.check(f"{name}, which waited for {story.gib(asked)}, runs here.", pod.phase == "Running")
