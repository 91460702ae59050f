"""The story of the demo: the events on the node, and the checks of their results."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin.core.contract.keys import OVER_USE
from gpu_device_plugin.core.contract.variables import MEMORY_LIMIT, VISIBLE_DEVICES
from gpu_device_plugin.core.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.telling.printing import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gpu_device_plugin.core.model.placing import Room
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.node import Node
    from gpu_device_plugin.programs.demo.world import World
    from gpu_device_plugin.testing.pods import Pod

DEFAULT_GPUS = "fake:1xP4,3xT4"
"""A card of 7 GiB (the part of a P4 that containers can use) and three larger ones."""

_SERVICES = 7
_NO_PROCESSES = "the demo has processes only on fake GPUs whose description has no events of its own"
_XID, _XID_MEANING = 48, "a memory error of two bits, which ECC cannot correct"
_XID_ASKS = 154
"""The XID with which drivers report that a GPU needs a recovery action."""


@dataclass(slots=True)
class Shown:
    """The content of a scene so far."""

    title: str
    node: Node
    """The node at the last look."""
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The devices of every pod that ran at the last look, by pod name."""
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The MiB that the processes of pods used at the last look, by pod name and UUID of the GPU."""
    allocatable: str = ""
    caption: str = ""
    quotes: list[tuple[str, str]] = field(default_factory=list)
    """(source, text)."""
    checks: list[tuple[str, bool]] = field(default_factory=list)
    """(sentence about the end of the scene, whether it holds)."""
    left_out: bool = False

    @property
    def passed(self) -> bool:
        """Whether every check held."""
        return all(held for _, held in self.checks)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A pod, and the others on its GPU."""

    world: World
    shared: SharedGpu
    pod: Pod
    others: tuple[Pod, ...]

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All of them."""
        return (self.pod, *self.others)

    @property
    def name(self) -> str:
        """The pod's."""
        return self.pod.name

    @property
    def capacity_mib(self) -> int:
        """What containers can use of the GPU."""
        return self.shared.gpu.total_mib - self.shared.gpu.reserved_mib

    @property
    def granted_mib(self) -> int:
        """What the pod was given."""
        return self._granted_mib(self.pod)

    @property
    def spare_mib(self) -> int:
        """What the pod can take without taking what the others were given."""
        return self.capacity_mib - sum(map(self._granted_mib, self.others))

    @property
    def halves(self) -> Mapping[str, int]:
        """Half of the part of each other pod, by its name."""
        return {pod.name: self._granted_mib(pod) // 2 for pod in self.others}

    def all_run(self) -> bool:
        """Return whether all of them run."""
        return {pod.uid for pod in self.pods} <= {pod.uid for pod in self.world.kubelet.running}

    def _granted_mib(self, pod: Pod) -> int:
        return len(self.world.devices(pod)) * self.world.shares.share_mib


class Story:
    """The events on one node, scene by scene."""

    def __init__(self, world: World, pause: Callable[[float], Awaitable[None]]) -> None:
        """Play in `world`; `pause` waits the given seconds for a reader, if there is one."""
        self.world = world
        self.pause = pause
        self.now = Shown("", world.node)
        self.offered_at_first: Mapping[str, frozenset[str]] = {}
        self._pods: dict[str, Pod] = {}

    async def play(self, title: str, scene: Callable[[Story], Awaitable[None]]) -> Shown:
        """Play one scene and return what it showed."""
        self.now = Shown(title, self.world.node)
        await scene(self)
        if not await self.world.until(self.world.settled):
            self.check("GPUs in use through one resource are fenced in the other.", held=False)
        self._expect_no_conflict()
        return self.look()

    def look(self) -> Shown:
        """Return the scene with the node as it is at this moment."""
        world = self.world
        self.now.node, self.now.held = world.node, world.held()
        self.now.used = world.used
        self.now.allocatable = ", ".join(
            f"{resource} {world.healthy(resource)} of {len(ids)}" for resource, ids in world.devices_listed.items()
        )
        return self.now

    def neighbours(self) -> Neighbours | None:
        """Return the oldest pod that shares a GPU with others, and those; None if there is none."""
        running = self.world.kubelet.running
        for pod in running:
            for shared in self.gpus_of(pod):
                others = tuple(each for each in running if each != pod and shared in self.gpus_of(each))
                if others:
                    return Neighbours(self.world, shared, pod, others)
        return None

    # The elements of a scene

    def say(self, caption: str) -> None:
        """Set the caption, which announces the next event."""
        self.now.caption = caption

    def quote(self, who: str, what: str | None) -> None:
        """Quote a message, an environment or a log, unless it is empty."""
        if what:
            self.now.quotes.append((who, what))

    def leave_out(self, why: str) -> None:
        """Replace the scene by the reason why it cannot be played here."""
        self.now.left_out = True
        self.now.caption = f"Left out: {why}."

    def check(self, sentence: str, held: bool) -> None:  # noqa: FBT001 (the value to be shown)
        """Show a check and its result."""
        self.now.checks.append((sentence, held))

    async def expect(self, sentence: str, condition: Callable[[], bool]) -> None:
        """Show a check, and whether `condition` comes to hold."""
        self.check(sentence, await self.world.until(condition))

    async def admit(self, name: str, resource: str, amount: int) -> Pod:
        """Have the kubelet start a pod with one container that requests `amount` of a resource."""
        pod = await self.world.pods.admit(name, resource, amount)
        if pod.phase == "Running":
            self._pods[name] = pod
        else:
            await self.world.pods.end(pod)  # as its controller would; its message was read
        await self.pause(0.4)
        return pod

    async def end(self) -> None:
        """End all running pods."""
        for name in tuple(self._pods):
            await self.world.pods.end(self._pods.pop(name))
            await self.pause(0.15)

    def open(self) -> list[Room]:
        """Return the GPUs with a free share."""
        return [room for room in self.world.node.rooms() if room.healthy and not room.whole and room.free]

    def gib(self, shares: int) -> str:
        """Return the memory of a number of shares, as text."""
        return format_mib(shares * self.world.shares.share_mib)

    def gpus_of(self, *pods: Pod) -> list[SharedGpu]:
        """Return the GPUs on which pods have devices."""
        uuids = {parse_id(name)[0] for pod in pods for name in self.world.devices(pod)}
        return [shared for shared in self.world.shares.gpus if shared.gpu.uuid in uuids]

    def _expect_no_conflict(self) -> None:
        """Add a failed check if a device is allocated twice, or a GPU is in use both shared and whole."""
        devices = [name for held in self.world.held().values() for name in held]
        whole = {uuid for uuid, number in map(parse_id, devices) if number is None}
        shared = {uuid for uuid, number in map(parse_id, devices) if number is not None}
        if len(devices) > len(set(devices)) or whole & shared:
            self.check("No share is allocated twice, and no GPU is shared and whole at once.", held=False)


# The scenes in their order


def _gib(mib: int) -> str:
    return f"{mib / MIB_PER_GIB:.1f} GiB"


async def _begin(story: Story) -> None:
    world = story.world
    story.say(
        "A kubelet runs; the agent starts, finds the GPUs and registers. One share is "
        f"{format_mib(world.shares.share_mib)} of the memory of one GPU."
    )
    await story.pause(1.0)
    await world.agent.start()
    await story.expect("The kubelet knows every share and every whole GPU.", world.complete)
    story.offered_at_first = world.offered()


async def _share(story: Story) -> None:
    world = story.world
    smallest = min((room.total for room in story.open()), default=0)
    number = min(_SERVICES, smallest)
    if not number:
        story.check("There is a healthy GPU.", held=False)
        return
    each = smallest // number
    story.say(
        f"{counted(number, 'service')}, each with {world.memory}: {each}. The policy {world.policy} fills the "
        "fullest GPU that has room before it begins another."
    )
    pods = [await story.admit(f"web-{n}", world.memory, each) for n in range(1, number + 1)]
    story.check(f"All {number} run.", all(pod.phase == "Running" for pod in pods))
    story.check("They share one GPU.", len(story.gpus_of(*pods)) == 1)
    envs = [pod.only.received.envs for pod in pods]
    limit = str(each * world.shares.share_mib)
    story.check(
        f"The environment of each names its GPU and its {limit} MiB of memory.",
        all(
            env.get(VISIBLE_DEVICES) == shared.gpu.uuid and env.get(MEMORY_LIMIT) == limit
            for pod, env in zip(pods, envs, strict=True)
            for shared in story.gpus_of(pod)
        ),
    )
    names = (VISIBLE_DEVICES, MEMORY_LIMIT)
    story.quote("environment of web-1", " ".join(f"{name}={envs[0].get(name, '')}" for name in names))


async def _exceed(story: Story) -> None:
    world = story.world
    if world.set_events is None:
        story.leave_out(_NO_PROCESSES)
        return
    neighbours = story.neighbours()
    if neighbours is None:
        story.leave_out("no two services share a GPU")
        return
    taken = neighbours.spare_mib
    if not world.over_use.exceeded(taken, neighbours.granted_mib):
        story.leave_out(f"the services' parts leave nothing of their GPU that {neighbours.name} could take unnoticed")
        return
    name, pod = neighbours.name, neighbours.pod
    story.say(
        f"{name} takes {_gib(taken)} of its {_gib(neighbours.granted_mib)}. The agent reads which container uses what: "
        "it names the service, and evicts nobody while the GPU still has what the others were given."
    )
    world.use({**neighbours.halves, name: taken})
    told = f"uses {taken:,} MiB of GPU {neighbours.shared.position}, was given {neighbours.granted_mib:,} MiB"
    await story.expect(
        f"An Event names {name}, what it uses and what it was given.",
        lambda: told in (world.pods.event(pod, "GPUMemoryExceeded") or ""),
    )
    story.quote(f"Event of {name}: GPUMemoryExceeded", world.pods.event(pod, "GPUMemoryExceeded"))
    await story.expect(
        "So does an annotation of the pod.", lambda: told in world.pods.annotations(name).get(OVER_USE, "")
    )
    story.check("Nobody is evicted, and every service runs.", not world.pods.evictions and neighbours.all_run())


async def _evict(story: Story) -> None:
    world = story.world
    if world.set_events is None:
        story.leave_out(_NO_PROCESSES)
        return
    neighbours = story.neighbours()
    if neighbours is None:
        story.leave_out("no two services share a GPU")
        return
    name, pod, other = neighbours.name, neighbours.pod, neighbours.others[0]
    everything = neighbours.capacity_mib - sum(neighbours.halves.values())
    story.say(
        f"{name} takes the rest of the GPU, {_gib(everything)}: {other.name} could not take its whole part any more. "
        f"Over-use is set to {world.settings.over_use}, so the agent asks the API server to evict {name}."
    )
    story.check("It was not evicted before.", not world.pods.evictions and neighbours.all_run())
    world.use({**neighbours.halves, name: everything})
    await story.pause(1.5)
    await story.expect(
        f"{name} ends, and no other service does.",
        lambda: {each.uid for each in neighbours.pods} - {each.uid for each in world.kubelet.running} == {pod.uid},
    )
    await story.expect("An Event says why.", lambda: world.pods.event(pod, "GPUMemoryEvicted") is not None)
    story.quote(f"Event of {name}: GPUMemoryEvicted", world.pods.event(pod, "GPUMemoryEvicted"))
    story.check("The API server was asked once.", world.pods.evictions == 1)
    free = neighbours.capacity_mib - sum(world.used.values())
    story.check(
        f"The GPU has room for the whole part of {other.name} again.",
        free >= neighbours.granted_mib - neighbours.halves[other.name],
    )
    world.use({**neighbours.halves, other.name: neighbours.granted_mib})
    again = await story.admit(name, world.memory, len(world.devices(pod)))
    story.check(f"The next {name} gets the same part.", story.gpus_of(again) == [neighbours.shared])


async def _take_whole(story: Story) -> None:
    world = story.world
    if world.used:
        world.use({})  # the services are idle from here on
    if all(room.shared for room in world.node.rooms() if room.healthy):
        story.say(f"A pod requests {world.count}: 1. Every GPU is shared, so the services have to end first.")
        await story.end()
    else:
        story.say(f"A pod requests {world.count}: 1. It gets an unused GPU, which is not shared from then on.")
    await story.expect("An unused GPU is offered as a whole.", lambda: world.healthy(world.count) > 0)
    before = world.healthy(world.memory)
    pod = await story.admit("training", world.count, 1)
    story.check("The pod runs.", pod.phase == "Running")
    taken = sum(len(shared.shares) for shared in story.gpus_of(pod))
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
    though = f", though {story.gib(sum(free))} are free" if scattered else ""
    story.say(f"{begun} pod requests {story.gib(asked)}{though}. Its status says why it cannot run:")
    pod = await story.admit("large", story.world.memory, asked)
    story.quote(f"status of large: {pod.phase}, {pod.reason}", pod.message)
    story.check("The pod is refused.", (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError"))
    if scattered:
        story.check(
            f"The message names the requested {story.gib(asked)} and the {story.gib(most)} that one GPU has free.",
            f"{story.gib(asked)} asked" in pod.message and f"{story.gib(most)} free" in pod.message,
        )


async def _begin_notebooks(story: Story) -> str:
    """Start a notebook on every free GPU of the largest size; two notebooks do not fit on one GPU.

    Returns:
        The beginning of the next sentence.
    """
    largest = max((room.total for room in story.open()), default=0)
    size = largest * 9 // 14
    if not size:
        return "A"
    began = 0
    while any(room.free == largest for room in story.open()):
        story.say(f"Notebooks of {story.gib(size)} start.")
        if (await story.admit(f"notebook-{began + 1}", story.world.memory, size)).phase != "Running":
            break
        began += 1
    return f"After {counted(began, 'notebook')} of {story.gib(size)} a" if began else "A"


async def _fail(story: Story) -> None:
    world = story.world
    if world.set_events is None:
        story.leave_out("the demo breaks only fake GPUs whose description has no events of its own")
        return
    before, in_use = world.held(), story.gpus_of(*world.kubelet.running)
    if not in_use:
        story.check("A GPU is in use.", held=False)
        return
    broken = in_use[0]
    name = f"GPU {broken.position}"
    story.say(f"The driver reports XID {_XID} for {name}: {_XID_MEANING}. A new pod requests {world.memory}: 1.")

    def why() -> str | None:
        return world.agent.unhealthy(broken.gpu.uuid)

    error = {"at": 0, "gpu": broken.gpu.uuid, "xid": _XID}
    world.set_events(error)
    await story.expect(
        f"{name} is out of service, with all its devices.", lambda: world.node.unhealthy.keys() == {broken.gpu.uuid}
    )
    # Only now, so that the XID is the agent's first notice of the fault: a reading could come before the event.
    asks = {"at": 0, "gpu": broken.gpu.uuid, "xid": _XID_ASKS, "ecc": 1, "recovery_action": "gpu-reset"}
    world.set_events(error, asks)
    await story.expect("The log says why.", lambda: None not in (world.agent.said(f"XID {_XID_ASKS}"), why()))
    story.check("Running pods keep their GPUs.", world.held() == before)
    others = bool(story.open())
    pod = await story.admit("newcomer", world.memory, 1)
    if others:
        story.check("The new pod runs on another GPU.", bool(story.gpus_of(pod)) and broken not in story.gpus_of(pod))
    else:
        story.quote(f"status of newcomer: {pod.phase}, {pod.reason}", pod.message)
        story.check("The new pod is refused: no other GPU has free memory.", pod.phase == "Failed")


async def _recover(story: Story) -> None:
    world = story.world
    if world.set_events is None:
        story.leave_out("no GPU was broken")
        return
    story.say("The GPU is reset. The agent reads it until it is proven healthy, and logs why; no process restarts.")
    world.set_events()
    await story.expect("The GPU is offered again.", lambda: not world.node.unhealthy)
    await story.expect("The log says why.", lambda: world.agent.said("healthy again") is not None)
    story.quote("log of the agent", world.agent.said("healthy again"))


async def _crash(story: Story) -> None:
    world = story.world
    before, offered = world.held(), world.offered()
    story.say("The agent is killed (SIGKILL) and starts again: it reads the kubelet's records, then registers.")
    await world.agent.end(signal.SIGKILL)
    await story.expect("No device is offered while no agent runs.", lambda: not any(world.offered().values()))
    await story.pause(1.5)
    story.check("Pods continue to run.", world.held() == before)
    await world.agent.start()
    await story.expect("The agent offers the same devices as before.", lambda: world.offered() == offered)
    story.check("Every pod has the same devices as before.", world.held() == before)


async def _restart_kubelet(story: Story) -> None:
    world = story.world
    before, offered = world.held(), world.offered()
    story.say("The kubelet restarts and removes all sockets; at first only its checkpoint lists the pods.")
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
    world = story.world
    story.say("All pods end. No call notifies a device plugin of that: the agent reads the kubelet's records.")
    await story.end()
    await story.expect(
        "Every share and every whole GPU is offered again.", lambda: world.offered() == story.offered_at_first
    )


Scenes: TypeAlias = "Mapping[str, Callable[[Story], Awaitable[None]]]"
"""The scenes in their order, by title."""

SCENES: Scenes = {
    "The agent finds the GPUs": _begin,
    "Services share a GPU": _share,
    "A service takes more than it was given": _exceed,
    "The GPU runs short, and the service goes": _evict,
    "A pod gets a whole GPU": _take_whole,
    "A pod is refused, with the reason": _refuse,
    "A GPU fails": _fail,
    "The GPU recovers": _recover,
    "The agent is killed": _crash,
    "The kubelet restarts": _restart_kubelet,
    "All pods end": _end,
}
