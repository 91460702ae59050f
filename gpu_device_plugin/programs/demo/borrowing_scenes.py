"""The scenes of the demo in which a pod borrows memory beyond its guarantee: one returns it, the other does not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, MEMORY_DIRECTORY, MEMORY_FILE
from gpu_device_plugin.features.elastic.settings import ElasticSettings
from gpu_device_plugin.features.use.settings import UseSettings
from gpu_device_plugin.model.contract.keys import ASSIGNED, MEMORY_LIMIT
from gpu_device_plugin.model.memory import MIB_PER_GIB

if TYPE_CHECKING:
    from gpu_device_plugin.programs.demo.story import Story
    from gpu_device_plugin.testing.pod_specs import Pod

_LEAST_SHARES = 6
"""Of a GPU on which a third borrows the other two."""


@dataclass(frozen=True, slots=True)
class _Borrower:
    """A pod that uses almost all of a GPU, of which it is guaranteed a third."""

    pod: Pod
    position: int
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
        f"{pod.name} is guaranteed {story.gib(borrower.guaranteed)}, may use {story.gib(borrower.limit)}, and takes "
        f"almost all of it. Then a pod comes that is guaranteed {story.gib(borrower.rest)} of the same GPU: it waits "
        "until that memory is there, and the notebook reads in its file that it is needed back."
    )
    coming = asyncio.create_task(story.admit("assistant", world.memory, borrower.rest), name="admit the assistant")
    await story.expect(
        "An Event asks the notebook to return what it borrows.",
        lambda: world.pods.event(pod, "GPUMemoryAsked") is not None,
    )
    story.quote(f"Event of {pod.name}: GPUMemoryAsked", world.pods.event(pod, "GPUMemoryAsked"))
    await story.expect("So does the file in its container.", lambda: "default/assistant" in _file(pod))
    story.quote(IN_CONTAINER, _file(pod))
    story.check("The new pod does not start before.", not coming.done())
    world.use({pod.name: borrower.guaranteed * world.shares.share_mib})
    assistant = await coming
    story.check("The notebook returns it, and the new pod runs.", assistant.phase == "Running")
    story.check("Both share the GPU, and nobody was evicted for it.", pod.uid in _running(story))


async def borrow_and_go(story: Story) -> None:
    """A notebook that does not return what it borrows is evicted."""
    await story.end("notebook", "assistant")
    if (borrower := await _borrower(story, "hoarder")) is None:
        return
    world, pod = story.world, borrower.pod
    story.say(
        f"{pod.name} borrows in the same way, and does not return it: after return_grace, "
        f"{world.settings.of(ElasticSettings).return_grace_s:g} s here, the agent has it evicted, because borrowers is "
        f"{world.settings.of(ElasticSettings).borrowers}."
    )
    before = world.pods.evictions
    world.pods.grace = partial(asyncio.sleep, 0)  # the page shows nothing new before it has ended
    coming = asyncio.create_task(story.admit("assistant-2", world.memory, borrower.rest), name="admit the assistant")
    await story.expect(f"{pod.name} ends.", lambda: pod.uid not in _running(story))
    await story.expect("An Event says why.", lambda: world.pods.event(pod, "GPUMemoryNotReturned") is not None)
    story.quote(f"Event of {pod.name}: GPUMemoryNotReturned", world.pods.event(pod, "GPUMemoryNotReturned"))
    assistant = await coming
    story.check("The new pod runs.", assistant.phase == "Running")
    story.check("The API server was asked once.", world.pods.evictions == before + 1)


async def _borrower(story: Story, name: str) -> _Borrower | None:
    """Return a pod that borrows on a GPU of its own; None, and the scene is left out, if there is none for it."""
    world = story.world
    unused = [room for room in story.open() if not room.shared and room.card is None and room.total >= _LEAST_SHARES]
    if not world.scripted or not unused:
        story.leave_out("no fake GPU is unused and large enough for a pod that borrows")
        return None
    limit = min(room.total for room in unused)
    guaranteed = limit // 3
    pod = await story.admit(name, world.memory, guaranteed, annotations={MEMORY_LIMIT: str(limit)})
    (shared,) = story.gpus_of(pod) or (None,)
    if shared is None or shared.position not in {room.position for room in unused}:
        await world.pods.end(pod)
        story.leave_out("the policy puts a pod that borrows beside others")
        return None
    world.use({name: shared.gpu.capacity_mib - MIB_PER_GIB})
    # Who comes at the same moment does not wait: no container borrows before it runs.
    await world.until(lambda: world.pods.annotations(name).get(ASSIGNED) == "true")
    await asyncio.sleep(2 * world.settings.of(UseSettings).usage_interval_s)
    return _Borrower(pod, shared.position, guaranteed, len(shared.shares))


def _file(pod: Pod) -> str:
    """Return the text of the file of a container in one line; empty: it has none."""
    mounts = [mount.host_path for mount in pod.only.received.mounts if mount.container_path == MEMORY_DIRECTORY]
    with suppress(OSError, IndexError):
        return " ".join((Path(mounts[0]) / MEMORY_FILE).read_text(encoding="utf-8").split())
    return ""


def _running(story: Story) -> set[str]:
    return {pod.uid for pod in story.world.kubelet.running}
