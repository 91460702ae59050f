"""The scenes of the demo in their order: the events on the node, and the checks of their results."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from gpu_device_plugin.model.contract.variables import LIMITS, MEMORY_LIMIT, VISIBLE_DEVICES
from gpu_device_plugin.model.gpus import NVIDIA
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.programs.demo.memory_scenes import (
    borrow_and_go,
    borrow_and_return,
    exceed,
    neighbours_on,
    run_short,
    show_excess,
)
from gpu_device_plugin.programs.demo.story import Story
from gpu_device_plugin.report.rules.printing import counted

DEFAULT_GPUS = "fake:1xP4,3xT4"
"""A card of 7 GiB (the part of a P4 that containers can use) and three larger ones."""

_RESEARCH = "research"
_XID, _XID_MEANING = 48, "an uncorrectable memory error"


async def _begin(story: Story) -> None:
    world = story.world
    story.say(
        "The agent starts, finds the GPUs and registers with the kubelet. One share is "
        f"{format_mib(world.shares.share_mib)} of one GPU's memory."
    )
    await story.pause(1.0)
    await world.agent.start()
    await story.expect("The kubelet lists every share and every whole GPU.", world.complete)
    story.offered_at_first = world.offered()


async def _share(story: Story) -> None:
    world = story.world
    smallest = min((room.total for room in story.open()), default=0)
    number = min(7, smallest)
    if not number:
        story.check("There is a healthy GPU.", held=False)
        return
    each = smallest // number
    story.say(
        f"{counted(number, 'service')} start, each requesting {world.memory}: {each}. The policy {world.policy} fills "
        "the fullest GPU that has room before it starts another."
    )
    pods = [await story.admit(f"web-{n}", world.memory, each) for n in range(1, number + 1)]
    story.check(f"All {number} are running.", all(pod.phase == "Running" for pod in pods))
    story.check("They share one GPU.", len(story.world.gpus_of(*pods)) == 1)
    envs = [pod.only.received.envs for pod in pods]
    limit = str(each * world.shares.share_mib)
    by_variable = all(shared.gpu.driver == NVIDIA for shared in story.world.gpus_of(*pods))
    names = (VISIBLE_DEVICES, MEMORY_LIMIT) if by_variable else (MEMORY_LIMIT,)
    story.check(
        f"Each has its {'GPU and its ' * by_variable}{limit} MiB limit in its environment.",
        all(
            env.get(name) == {VISIBLE_DEVICES: shared.gpu.uuid, MEMORY_LIMIT: limit}[name]
            for pod, env in zip(pods, envs, strict=True)
            for shared in story.world.gpus_of(pod)
            for name in names
        ),
    )
    # The whole UUID would be wider than a narrow terminal.
    values = {name: envs[0].get(name, "") for name in names}
    shown = (f"{name}={value if len(value) < 20 else f'{value[:17]}...'}" for name, value in values.items())
    story.quote("environment of web-1", " ".join(shown))
    world.use({pod.name: world.granted_mib(pod) // 2 for pod in pods})


async def _take_whole(story: Story) -> None:
    world = story.world
    await story.end("assistant-2")
    if all(room.shared for room in world.node.rooms() if room.healthy):
        story.say(f"A pod requests {world.count}: 1. Every GPU is shared, so the services end first.")
        await story.end()
    else:
        story.say(f"A pod requests {world.count}: 1. It gets an unused GPU, which is no longer shared.")
    await story.expect("An unused GPU is offered as a whole.", lambda: world.healthy(world.count) > 0)
    before = world.healthy(world.memory)
    pod = await story.admit("training", world.count, 1, "training", busy=0.9)
    story.check("The pod is running.", pod.phase == "Running")
    taken = sum(len(shared.shares) for shared in story.world.gpus_of(pod))
    await story.expect(
        f"The {counted(taken, 'share')} of its GPU {'is' if taken == 1 else 'are'} no longer offered.",
        lambda: taken > 0 and world.healthy(world.memory) == before - taken,
    )


async def _refuse(story: Story) -> None:
    begun = await _begin_notebooks(story)
    free = [room.free for room in story.open()]
    largest = max((room.total for room in story.open()), default=0)
    most, together = max(free, default=0), min(sum(free), largest)
    # If the free memory is spread over several GPUs, the kubelet counts its sum, and only the agent knows better.
    scattered = together > most
    asked = (most + together + 1) // 2 if scattered else most + 1
    though = f", although {story.gib(sum(free))} are free in total" if scattered else ""
    story.say(
        f"{begun} pod requests {story.gib(asked)}{though}. Its status says why it cannot run; its "
        "replacement stays pending:"
    )
    pod = await story.admit("large", story.world.memory, asked, _RESEARCH)
    story.quote(f"status of large: {pod.phase}, {pod.reason}", pod.message)
    story.check("The pod is refused.", (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError"))
    if scattered:
        story.check(
            f"The message has the requested {story.gib(asked)} and the {story.gib(most)} free on one GPU.",
            f"{story.gib(asked)} requested" in pod.message and f"{story.gib(most)} free" in pod.message,
        )
    await story.wait("large", story.world.memory, asked, _RESEARCH)


async def _begin_notebooks(story: Story) -> str:
    """Start a notebook, too large for two on one GPU, on every free GPU; return the beginning of the next sentence."""
    largest = max((room.total for room in story.open()), default=0)
    size = largest * 9 // 14
    if not size:
        return "A"
    began = 0
    while any(room.free == largest for room in story.open()):
        story.say(f"Notebooks of {story.gib(size)} start.")
        pod = await story.admit(f"notebook-{began + 1}", story.world.memory, size, _RESEARCH, busy=0.6)
        if pod.phase != "Running":
            break
        began += 1
    return f"After {counted(began, 'notebook')} of {story.gib(size)} a" if began else "A"


async def _fail(story: Story) -> None:
    world = story.world
    if not world.scripted:
        story.leave_out("only simulated GPUs without events of their own are made to fail")
        return
    before, in_use = world.held(), story.world.gpus_of(*world.kubelet.running)
    if not in_use:
        story.check("A GPU is in use.", held=False)
        return
    broken = in_use[0]
    name = f"GPU {broken.position}"
    reports = f"XID {_XID} on {name}, {_XID_MEANING}" if broken.gpu.driver == NVIDIA else f"{_XID_MEANING} on {name}"
    story.say(f"The driver reports {reports}. Then a new pod requests {world.memory}: 1.")
    await _strike(story, broken, _XID)
    story.check("Running pods keep their GPUs.", world.held() == before)
    others = bool(story.open())
    pod = await story.admit("newcomer", world.memory, 1, busy=0.5)
    if others:
        story.check(
            "The new pod is running on another GPU.",
            bool(story.world.gpus_of(pod)) and broken not in story.world.gpus_of(pod),
        )
    else:
        story.quote(f"status of newcomer: {pod.phase}, {pod.reason}", pod.message)
        story.check("The new pod is refused: no other GPU has free memory.", pod.phase == "Failed")


async def _recover(story: Story) -> None:
    world = story.world
    if not world.scripted:
        story.leave_out("no GPU has failed")
        return
    story.say(
        "The processes on the GPU end, and the GPU is reset. The agent checks it until it is healthy again, and logs "
        "why; no restart is needed."
    )
    used = {name: mib for (name, uuid), mib in world.used.items() if uuid in world.node.blocks}
    world.use(dict.fromkeys(used, 0))  # no driver resets a GPU under its processes
    world.strike()
    await story.expect("The GPU is back in service.", lambda: not world.node.blocks)
    await story.expect("The log says why.", lambda: world.agent.said("healthy again") is not None)
    story.quote("log of the agent", world.agent.said("healthy again"))
    world.use(used)


async def _crash(story: Story) -> None:
    world = story.world
    before, offered = world.held(), world.offered()
    story.say("The agent is killed (SIGKILL) and restarts: it reads the kubelet's records, then registers.")
    await world.agent.end(signal.SIGKILL)
    await story.expect("No device is offered while the agent is down.", lambda: not any(world.offered().values()))
    await story.pause(1.5)
    story.check("Pods keep running.", world.held() == before)
    await world.agent.start()
    await story.expect("The agent offers the same devices as before.", lambda: world.offered() == offered)
    story.check("Every pod has the same devices as before.", world.held() == before)


async def _restart_kubelet(story: Story) -> None:
    world = story.world
    before, offered = world.held(), world.offered()
    story.say("The kubelet restarts and removes all sockets; at first only its checkpoint knows the pods.")
    await world.kubelet.stop()
    await story.pause(1.5)
    await world.kubelet.start(ready=False)
    await story.expect("The agent registers again and offers the same devices.", lambda: world.offered() == offered)
    await world.kubelet.sources_ready()
    story.check(
        "The kubelet admits every pod again, with the same devices as before.",
        world.held() == before and all(pod.phase == "Running" for pod in world.kubelet.pods),
    )


async def _end(story: Story) -> None:
    world = story.world = story.home
    story.say("All pods end. Kubernetes does not tell a device plugin; the agent reads it from the kubelet's records.")
    await story.end()
    await story.expect(
        "Every share and every whole GPU is offered again.", lambda: world.offered() == story.offered_at_first
    )


_XID_ASKS = 154
"""The XID with which drivers report that a GPU needs a recovery action."""
_GPUS_ASKED = 2


async def _strike(story: Story, broken: SharedGpu, xid: int) -> None:
    """Let the driver report an XID for a GPU, if it is one with XIDs, and ask for a reset."""
    world, name = story.world, f"GPU {broken.position}"
    with_xids = broken.gpu.driver == NVIDIA
    asks = {"at": 0, "gpu": broken.gpu.uuid, "ecc": 1, "recovery_action": "gpu-reset"}
    error = {"at": 0, "gpu": broken.gpu.uuid, "xid": xid} if with_xids else asks
    world.strike(error)
    await story.expect(
        f"{name} is unhealthy, with all its devices.",
        lambda: world.node.blocks.keys() == {broken.gpu.uuid},
    )
    # Only now, so that the XID is the agent's first notice of the fault: a reading could come before the event.
    if with_xids:
        world.strike(error, {**asks, "xid": _XID_ASKS})
    said = f"XID {_XID_ASKS}" if with_xids else "the driver asks for a reset"
    await story.expect(
        "The log says why.",
        lambda: None not in (world.agent.said(said), world.agent.unhealthy(broken.gpu.uuid)),
    )


async def _stay(story: Story) -> None:
    world = story.world = story.home
    also = "one uses more than it was granted, a GPU fails, " if world.scripted else ""
    story.say(
        f"Pods fill the GPUs of the first node, {also}and a pod is pending for {_GPUS_ASKED} whole GPUs. The cluster "
        "stays like this, for the page."
    )
    candidates = (neighbours_on(story, pod.name) for pod in world.kubelet.running if world.scripted)
    able = [each for each in candidates if each and world.over_use.exceeded(each.spare_mib, each.granted_mib)]
    greedy = max(able, key=lambda each: each.granted_mib, default=None)
    number = 0
    for room in story.open():
        if greedy is None or room.position != greedy.shared.position:
            number += 1
            await story.admit(f"batch-{number}", world.memory, room.free, "training", busy=0.8)
    await story.wait("pretrain", world.count, _GPUS_ASKED, "training")
    if greedy is not None and (crowded := neighbours_on(story, greedy.pod.name)) is not None:
        await show_excess(story, crowded, crowded.spare_mib)
        await story.linger()  # else the page may show the next trouble first
    broken = [shared for shared in story.world.gpus_of(*world.kubelet.running) if not greedy or shared != greedy.shared]
    if broken and world.scripted:
        await _strike(story, broken[-1], 95)


# --- A GPU in MIG mode on a node of its own: its instances are shared, and it is divided anew -------------------------

_GPUS, _ANEW = "fake:1xA30:mig=2g.12gb/1g.6gb*2", "2g.12gb*2"


async def _divide(story: Story) -> None:
    await story.visit("node-2", _GPUS, mig=MigMode.SHARE)
    there = story.world
    story.say(
        "On a second node a simulated A30 has three MIG instances, and the setting mig is share: each instance is "
        "shared like a GPU. Then the two small ones are merged while chat-1 and chat-2 are running."
    )
    await there.agent.start()
    await story.expect("The kubelet lists the shares of every instance.", there.complete)
    largest = max(there.shares.gpus, key=lambda shared: len(shared.shares))
    tuning = await story.admit("tuning", there.memory, len(largest.shares), "training", busy=0.8)
    chats = [await story.admit(f"chat-{number}", there.memory, 2, "serving", busy=0.7) for number in (1, 2)]
    envs = tuning.only.received.envs
    story.check(
        "tuning has an instance to itself; the hardware enforces its limit.",
        (envs.get(VISIBLE_DEVICES), envs.get(LIMITS)) == (largest.gpu.uuid, Enforcement.PARTITION.value),
    )
    on = story.world.gpus_of(*chats)
    story.check("Both chats share a small instance.", len(on) == 1 and on[0].gpu.uuid != largest.gpu.uuid)
    await story.linger()
    before = there.held()
    await there.divide(_ANEW)
    await story.expect("The kubelet lists the new instance, and the old ones as unhealthy.", there.settled)
    story.check("Running pods keep their devices.", there.held() == before)
    await story.expect(
        "The log names the pods on the old instance.", lambda: there.agent.said("no longer exists") is not None
    )
    story.quote("log of the agent", there.agent.said("no longer exists"))
    room = max((room.free for room in story.open()), default=0)
    for name, asked in there.pods.waiting.items():
        if asked <= room:
            pod = await story.admit(name, there.memory, asked, busy=0.7)
            story.check(f"{name}, which was pending for {story.gib(asked)}, is running here.", pod.phase == "Running")


Scenes: TypeAlias = "Mapping[str, Callable[[Story], Awaitable[None]]]"
"""The scenes in their order, by title."""

SCENES: Scenes = {
    "The agent finds the GPUs": _begin,
    "Services share a GPU": _share,
    "A service uses more than it was granted": exceed,
    "Memory runs short; the service is evicted": run_short,
    "A notebook borrows memory and returns it": borrow_and_return,
    "Another keeps it, and is evicted": borrow_and_go,
    "A pod gets a whole GPU": _take_whole,
    "A pod is refused, with a reason": _refuse,
    "A GPU fails": _fail,
    "The GPU recovers": _recover,
    "The agent is killed": _crash,
    "The kubelet restarts": _restart_kubelet,
    "A GPU in MIG mode": _divide,
    "All pods end": _end,
}

WITH_PAGE: Scenes = {title: scene for title, scene in SCENES.items() if scene is not _end} | {
    "A full cluster with problems": _stay
}
"""The scenes beside which the page is served: they leave it something to show."""
