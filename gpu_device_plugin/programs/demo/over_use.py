"""The scenes of over-use: a service takes more than it was given, is named, and goes when its GPU runs short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import OVER_USE
from gpu_device_plugin.core.model.memory import MIB_PER_GIB, format_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.programs.demo.story import Story
    from gpu_device_plugin.programs.demo.world import World
    from gpu_device_plugin.testing.pods import Pod

_NO_PROCESSES = "the demo has processes only on fake GPUs whose description has no events of its own"


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
        return self.world.granted_mib(self.pod)

    @property
    def spare_mib(self) -> int:
        """What the pod can take without taking what the others were given."""
        return self.capacity_mib - sum(map(self.world.granted_mib, self.others))

    @property
    def halves(self) -> Mapping[str, int]:
        """Half of the part of each other pod, by its name."""
        return {pod.name: self.world.granted_mib(pod) // 2 for pod in self.others}

    def all_run(self) -> bool:
        """Return whether all of them run."""
        return {pod.uid for pod in self.pods} <= {pod.uid for pod in self.world.kubelet.running}


async def exceed(story: Story) -> None:
    """A service takes what nobody was given; nobody is hurt, and nobody is evicted."""
    if not story.world.scripted:
        story.leave_out(_NO_PROCESSES)
        return
    neighbours = neighbours_on(story)
    if neighbours is None:
        story.leave_out("no two services share a GPU")
        return
    world = story.world
    taken = neighbours.spare_mib
    if not world.over_use.exceeded(taken, neighbours.granted_mib):
        story.leave_out(
            "beside their parts the services' GPU has too little memory for one to take more and hurt nobody"
        )
        return
    name = neighbours.name
    story.say(
        f"{name} takes {_gib(taken)} and was given {format_mib(neighbours.granted_mib)}. The agent reads which "
        "container uses what: it names the service, and evicts nobody while the GPU has what the others were given."
    )
    await take(story, neighbours, taken)
    story.check("Nobody is evicted, and every service runs.", not world.pods.evictions and neighbours.all_run())


async def take(story: Story, neighbours: Neighbours, taken_mib: int) -> None:
    """Let the pod use so much, more than it was given, and wait until it is named."""
    world, name, pod = story.world, neighbours.name, neighbours.pod
    world.use({name: taken_mib})
    told = f"uses {taken_mib:,} MiB of GPU {neighbours.shared.position}, was given {neighbours.granted_mib:,} MiB"
    await story.expect(
        f"An Event names {name}, what it uses and what it was given.",
        lambda: told in (world.pods.event(pod, "GPUMemoryExceeded") or ""),
    )
    story.quote(f"Event of {name}: GPUMemoryExceeded", world.pods.event(pod, "GPUMemoryExceeded"))
    await story.expect(
        "So does an annotation of the pod.", lambda: told in world.pods.annotations(name).get(OVER_USE, "")
    )


async def run_short(story: Story) -> None:
    """The service takes what its neighbours were given, and is evicted; their parts are free again."""
    if not story.world.scripted:
        story.leave_out(_NO_PROCESSES)
        return
    neighbours = neighbours_on(story)
    if neighbours is None:
        story.leave_out("no two services share a GPU")
        return
    world = story.world
    name, pod, other = neighbours.name, neighbours.pod, neighbours.others[0]
    everything = neighbours.capacity_mib - sum(neighbours.halves.values())
    story.say(
        f"{name} takes the rest of the GPU, {_gib(everything)}: {other.name} could not take its whole part any more. "
        f"Over-use is set to {world.settings.over_use}, so the agent asks the API server to evict {name}."
    )
    story.check("It was not evicted before.", not world.pods.evictions and neighbours.all_run())
    world.pods.grace = story.linger
    world.use({name: everything})
    await story.expect(
        f"{name} ends, and no other service does.",
        lambda: {each.uid for each in neighbours.pods} - {each.uid for each in world.kubelet.running} == {pod.uid},
    )
    await story.expect("An Event says why.", lambda: world.pods.event(pod, "GPUMemoryEvicted") is not None)
    story.quote(f"Event of {name}: GPUMemoryEvicted", world.pods.event(pod, "GPUMemoryEvicted"))
    story.check("The API server was asked once.", world.pods.evictions == 1)
    free = neighbours.capacity_mib - sum(
        mib for (_, uuid), mib in world.used.items() if uuid == neighbours.shared.gpu.uuid
    )
    story.check(
        f"The GPU has room for the whole part of {other.name} again.",
        free >= neighbours.granted_mib - neighbours.halves[other.name],
    )
    world.use({other.name: neighbours.granted_mib})


def neighbours_on(story: Story, name: str = "") -> Neighbours | None:
    """Return the newest pod that shares a GPU with others, or that of this name, and those; None if there is none."""
    running = story.world.kubelet.running
    for pod in reversed(running):
        for shared in story.gpus_of(pod) if name in {"", pod.name} else ():
            others = tuple(each for each in running if each != pod and shared in story.gpus_of(each))
            if others:
                return Neighbours(story.world, shared, pod, others)
    return None


def _gib(mib: int) -> str:
    return f"{mib / MIB_PER_GIB:.1f} GiB"
