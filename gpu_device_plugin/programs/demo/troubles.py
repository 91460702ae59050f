"""The troubles of the demo's GPUs: one fails, and at the end, for the page, several at once in a full cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.programs.demo import over_use

if TYPE_CHECKING:
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.programs.demo.story import Story

_XID = 95
_XID_ASKS = 154
"""The XID with which drivers report that a GPU needs a recovery action."""
_GPUS_ASKED = 2


async def fail(story: Story, broken: SharedGpu, xid: int) -> None:
    """Let the driver report an XID for a GPU, and ask for a reset."""
    world, name = story.world, f"GPU {broken.position}"
    error = {"at": 0, "gpu": broken.gpu.uuid, "xid": xid}
    world.strike(error)
    await story.expect(
        f"{name} is out of service, with all its devices.", lambda: world.node.unhealthy.keys() == {broken.gpu.uuid}
    )
    # Only now, so that the XID is the agent's first notice of the fault: a reading could come before the event.
    asks = {"at": 0, "gpu": broken.gpu.uuid, "xid": _XID_ASKS, "ecc": 1, "recovery_action": "gpu-reset"}
    world.strike(error, asks)
    await story.expect(
        "The log says why.",
        lambda: None not in (world.agent.said(f"XID {_XID_ASKS}"), world.agent.unhealthy(broken.gpu.uuid)),
    )


async def stay(story: Story) -> None:
    """Fill the cluster, and leave it with a service that takes too much, a failed GPU and a pod that waits."""
    world = story.world = story.home
    also = "one takes more than it was given, a GPU fails, " if world.scripted else ""
    story.say(
        f"Pods fill the GPUs of the first node, {also}and a pod waits for {_GPUS_ASKED} whole GPUs. So the cluster "
        "stays, for the page."
    )
    candidates = (over_use.neighbours_on(story, pod.name) for pod in world.kubelet.running if world.scripted)
    able = [each for each in candidates if each and world.over_use.exceeded(each.spare_mib, each.granted_mib)]
    greedy = max(able, key=lambda each: each.granted_mib, default=None)
    number = 0
    for room in story.open():
        if greedy is None or room.position != greedy.shared.position:
            number += 1
            await story.admit(f"batch-{number}", world.memory, room.free, "training", busy=0.8)
    await story.wait("pretrain", world.count, _GPUS_ASKED, "training")
    if greedy is not None and (crowded := over_use.neighbours_on(story, greedy.name)) is not None:
        await over_use.take(story, crowded, crowded.spare_mib)
    broken = [shared for shared in story.gpus_of(*world.kubelet.running) if not greedy or shared != greedy.shared]
    if broken and world.scripted:
        await fail(story, broken[-1], _XID)
