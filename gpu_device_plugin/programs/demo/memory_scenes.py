"""The scenes of the demo in which pods use or borrow more memory than they were granted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, MEMORY_DIRECTORY, MEMORY_FILE
from gpu_device_plugin.features.over_use import OverUseSettings
from gpu_device_plugin.features.use import UseSettings
from gpu_device_plugin.model.contract.keys import ASSIGNED, MEMORY_LIMIT, OVER_USE
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.programs.demo.story import Story
from gpu_device_plugin.programs.demo.world import World
from gpu_device_plugin.testing.pod_specs import Pod

# --- A service uses more than it was granted, is named, and is evicted when memory runs short -------------------------


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """A pod, and the others on its GPU."""

    world: World
    shared: SharedGpu
    pod: Pod
    others: tuple[Pod, ...]
    granted_mib: int
    """What the pod was granted."""
    spare_mib: int
    """What the pod can take without taking what the others were given."""

    def ended(self) -> set[str]:
        """Return the UIDs of those that run no more."""
        return {pod.uid for pod in (self.pod, *self.others)} - {pod.uid for pod in self.world.kubelet.running}


async def exceed(story: Story) -> None:
    """A service uses more than it was granted, and is named."""
    if (neighbours := _neighbours(story)) is None:
        return
    world = story.world
    taken = neighbours.spare_mib
    if not world.over_use.exceeded(taken, neighbours.granted_mib):
        story.leave_out("the services' shares fill their GPU, so that none can use more without hurting a neighbour")
        return
    name = neighbours.pod.name
    story.say(
        f"{name} was granted {format_mib(neighbours.granted_mib)} and uses {_gib(taken)}. The agent reads what each "
        "container uses: it reports the service, but evicts nothing while the others can still get their shares."
    )
    await show_excess(story, neighbours, taken)
    story.check("No pod is evicted; every service is running.", not world.pods.evictions and not neighbours.ended())


async def show_excess(story: Story, neighbours: _Neighbours, taken_mib: int) -> None:
    """Let the pod use so much, more than it was given, and wait until it is named."""
    world, name, pod = story.world, neighbours.pod.name, neighbours.pod
    world.use({name: taken_mib})
    told = f"uses {taken_mib:,} MiB of GPU {neighbours.shared.position}, was granted {neighbours.granted_mib:,} MiB"
    await story.event(pod, "GPUMemoryExceeded", f"An Event says what {name} uses and what it was granted.", told)
    await story.expect(
        "So does an annotation on the pod.", lambda: told in world.pods.annotations(name).get(OVER_USE, "")
    )


async def run_short(story: Story) -> None:
    """The memory of that GPU runs short, and the service is evicted."""
    if (neighbours := _neighbours(story)) is None:
        return
    world = story.world
    name, pod, other = neighbours.pod.name, neighbours.pod, neighbours.others[0]
    halves = {each.name: world.granted_mib(each) // 2 for each in neighbours.others}
    capacity_mib = neighbours.shared.gpu.capacity_mib
    everything = capacity_mib - sum(halves.values())
    story.say(
        f"{name} takes the rest of the GPU, {_gib(everything)}: {other.name} can no longer get all of its shares. "
        f"The setting over_use is {world.settings.of(OverUseSettings).over_use}, so the agent asks the API server to "
        f"evict {name}."
    )
    story.check("It was not evicted before.", not world.pods.evictions and not neighbours.ended())
    world.pods.grace = story.linger
    world.use({name: everything})
    await story.expect(
        f"{name} ends; no other service does.",
        lambda: neighbours.ended() == {pod.uid},
    )
    await story.event(pod, "GPUMemoryEvicted", "An Event says why.")
    story.check("The API server was asked once.", world.pods.evictions == 1)
    free = capacity_mib - sum(mib for (_, uuid), mib in world.used.items() if uuid == neighbours.shared.gpu.uuid)
    story.check(
        f"{other.name} can get all of its shares again.",
        free >= neighbours.granted_mib - halves[other.name],
    )
    world.use({other.name: neighbours.granted_mib})


def _neighbours(story: Story) -> _Neighbours | None:
    """Return the newest pod that shares a GPU, with the others there; None, and the scene is left out, if none does."""
    neighbours = neighbours_on(story) if story.world.scripted else None
    if neighbours is None:
        story.leave_out(
            "no two services share a GPU"
            if story.world.scripted
            else "processes are simulated only on simulated GPUs without events of their own"
        )
    return neighbours


def neighbours_on(story: Story, name: str = "") -> _Neighbours | None:
    """Return the newest pod that shares a GPU with others, or that of this name, and those; None if there is none."""
    world = story.world
    for pod in reversed(world.kubelet.running):
        for shared in world.gpus_of(pod) if name in {"", pod.name} else ():
            others = tuple([each for each in world.kubelet.running if each != pod and shared in world.gpus_of(each)])
            if others:
                spare_mib = shared.gpu.capacity_mib - sum(map(world.granted_mib, others))
                return _Neighbours(world, shared, pod, others, world.granted_mib(pod), spare_mib)
    return None


def _gib(mib: int) -> str:
    return f"{mib / MIB_PER_GIB:.1f} GiB"


# --- A pod borrows memory beyond its guarantee: one returns it, the other does not ------------------------------------

_LEAST_SHARES = 6
"""Of a GPU on which a third borrows the other two."""


@dataclass(frozen=True, slots=True)
class _Borrower:
    """A pod that uses almost all of a GPU, of which it is guaranteed a third."""

    pod: Pod
    guaranteed: int
    limit: int

    @property
    def rest(self) -> int:
        """The shares that are nobody's guarantee."""
        return self.limit - self.guaranteed


async def borrow_and_return(story: Story) -> None:
    """A notebook borrows the rest of its GPU, and returns it when a new pod needs it."""
    if (borrower := await _borrower(story, "notebook")) is None:
        return
    world, pod = story.world, borrower.pod
    story.say(
        f"{pod.name} is guaranteed {story.gib(borrower.guaranteed)}, may use {story.gib(borrower.limit)}, and "
        f"uses almost all of it. Then a new pod is guaranteed {story.gib(borrower.rest)} of the same GPU: it waits "
        "while a file in the notebook's container asks for the memory back."
    )
    coming = asyncio.create_task(story.admit("assistant", world.memory, borrower.rest), name="admit the assistant")
    await story.event(pod, "GPUMemoryAsked", "An Event asks the notebook to return what it borrows.")
    await story.expect("So does the file in its container.", lambda: "default/assistant" in _file(pod))
    story.quote(IN_CONTAINER, _file(pod))
    story.check("The new pod does not start yet.", not coming.done())
    world.use({pod.name: borrower.guaranteed * world.shares.share_mib})
    assistant = await coming
    story.check("The notebook returns it; the new pod is running.", assistant.phase == "Running")
    story.check("Both share the GPU; no pod was evicted.", pod.uid in _running(story))


async def borrow_and_go(story: Story) -> None:
    """A notebook that does not return what it borrows is evicted."""
    await story.end("notebook", "assistant")
    if (borrower := await _borrower(story, "hoarder")) is None:
        return
    world, pod = story.world, borrower.pod
    story.say(
        f"{pod.name} borrows in the same way but returns nothing: after the setting return_grace, "
        f"{world.settings.of(ElasticSettings).return_grace_s:g} s here, the agent evicts it, because the setting "
        f"borrowers is {world.settings.of(ElasticSettings).borrowers}."
    )
    before = world.pods.evictions
    world.pods.grace = partial(asyncio.sleep, 0)  # the page shows nothing new before it has ended
    coming = asyncio.create_task(story.admit("assistant-2", world.memory, borrower.rest), name="admit the assistant")
    await story.expect(f"{pod.name} ends.", lambda: pod.uid not in _running(story))
    await story.event(pod, "GPUMemoryNotReturned", "An Event says why.")
    assistant = await coming
    story.check("The new pod is running.", assistant.phase == "Running")
    story.check("The API server was asked once.", world.pods.evictions == before + 1)


async def _borrower(story: Story, name: str) -> _Borrower | None:
    """Return a pod that borrows on a GPU of its own; None, and the scene is left out, if there is none for it."""
    world = story.world
    unused = [room for room in story.open() if not room.shared and room.card is None and room.total >= _LEAST_SHARES]
    if not world.scripted or not unused:
        story.leave_out("no simulated GPU is unused and large enough for a pod that borrows")
        return None
    limit = min(room.total for room in unused)
    guaranteed = limit // 3
    pod = await story.admit(name, world.memory, guaranteed, annotations={MEMORY_LIMIT: str(limit)})
    (shared,) = story.world.gpus_of(pod) or (None,)
    if shared is None or shared.position not in {room.position for room in unused}:
        await world.pods.end(pod)
        story.leave_out("the policy places a pod that borrows next to others")
        return None
    world.use({name: shared.gpu.capacity_mib - MIB_PER_GIB})
    # Who comes at the same moment does not wait: no container borrows before it runs.
    await world.until(lambda: world.pods.annotations(name).get(ASSIGNED) == "true")
    await asyncio.sleep(2 * world.settings.of(UseSettings).usage_interval_s)
    return _Borrower(pod, guaranteed, len(shared.shares))


def _file(pod: Pod) -> str:
    """Return the text of the file of a container in one line; empty: it has none."""
    mounts = [mount.host_path for mount in pod.only.received.mounts if mount.container_path == MEMORY_DIRECTORY]
    with suppress(OSError, IndexError):
        return " ".join((Path(mounts[0]) / MEMORY_FILE).read_text(encoding="utf-8").split())
    return ""


def _running(story: Story) -> set[str]:
    return {pod.uid for pod in story.world.kubelet.running}
