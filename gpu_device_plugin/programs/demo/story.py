"""The story of the demo as it is told: the elements of a scene, and what it has shown so far, also on the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import Room
from gpu_device_plugin.model.shares import SharedGpu, parse_id
from gpu_device_plugin.programs.demo.world import World
from gpu_device_plugin.programs.web.web_program import PageServer
from gpu_device_plugin.testing.pod_specs import Pod


@dataclass(slots=True)
class SceneContent:
    """The content of a scene so far, beside its node."""

    title: str
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


@dataclass(eq=False)
class Story:
    """The events on the nodes, scene by scene."""

    home: World
    """The first node."""
    pause: Callable[[float], Awaitable[None]]
    """Waits the given seconds for a reader, if there is one."""
    _visit: Callable[..., Awaitable[World]]
    """Makes a further node, with its name, its GPUs and the settings of its agent; it lives to the end of the demo."""
    page: DemoPage | None = None
    """The page of the cluster, if it is served; each scene stays until it shows the scene."""
    offered_at_first: Mapping[str, frozenset[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.world = self.home
        self._worlds = [self.home]
        self.now = SceneContent("")

    async def play(self, title: str, scene: Callable[[Story], Awaitable[None]]) -> SceneContent:
        """Play one scene and return what it showed."""
        self.now = SceneContent(title)
        await scene(self)
        if not await self.world.until(self.world.settled):
            self.check("GPUs in use through one resource are withheld from the other.", held=False)
        self._expect_no_conflict()
        if self.page is not None and self.page.read and not self.now.left_out:
            await self.expect("The page shows it.", self._page_shows)
        return self.now

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
        self.now.caption = f"Skipped: {why}."

    def check(self, sentence: str, held: bool) -> None:  # noqa: FBT001 (the value to be shown)
        """Show a check and its result."""
        self.now.checks.append((sentence, held))

    async def expect(self, sentence: str, condition: Callable[[], bool]) -> None:
        """Show a check, and whether `condition` comes to hold."""
        self.check(sentence, await self.world.until(condition))

    async def linger(self) -> None:
        """Stay for a moment, and until the page shows what there is."""
        await self.world.until(self._page_shows)
        await self.pause(1.5)

    async def event(self, pod: Pod, reason: str, sentence: str, told: str = "") -> None:
        """Expect an Event about a pod, with this text in it, and quote it."""
        pods = self.world.pods
        await self.expect(sentence, lambda: (note := pods.event(pod, reason)) is not None and told in note)
        self.quote(f"Event of {pod.name}: {reason}", pods.event(pod, reason))

    async def wait(self, name: str, resource: str, amount: int, namespace: str) -> None:
        """Have a pod that requests `amount` of a resource wait for a node."""
        await self.world.until(self._page_shows)  # else the page would look for room as there was before
        self.world.pods.wait(name, resource, amount, namespace)

    async def visit(self, node: str, gpus: str, **settings: str) -> None:
        """Go on with a further node, for this scene and those after it."""
        self.world = await self._visit(node, gpus, **settings)
        self._worlds.append(self.world)

    async def admit(
        self,
        name: str,
        resource: str,
        amount: int,
        namespace: str = "default",
        *,
        busy: float = 0.0,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """Have the kubelet start a pod with one container that requests `amount` of a resource.

        It uses the part `busy` of what it is given.
        """
        pod = await self.world.pods.admit(name, resource, amount, namespace, annotations)
        if pod.phase == "Running":
            self.world.use({name: round(self.world.granted_mib(pod) * busy)})
        else:
            await self.world.pods.end(pod)  # as its controller would; its message was read
        await self.pause(0.4)
        return pod

    async def end(self, *names: str) -> None:
        """End these pods, as far as they run; without names all running pods, and give up those that wait."""
        for name in () if names else self.home.pods.waiting:
            self.home.pods.give_up(name)
        for world, pod in [(there, pod) for there in self._worlds for pod in there.kubelet.running]:
            if not names or pod.name in names:
                await world.pods.end(pod)
                await self.pause(0.15)

    def open(self) -> list[Room]:
        """Return the GPUs with a free share."""
        return [room for room in self.world.node.rooms() if room.healthy and not room.whole and room.free]

    def gib(self, shares: int) -> str:
        """Return the memory of a number of shares, as text."""
        return format_mib(shares * self.world.shares.share_mib)

    def _page_shows(self) -> bool:
        return self.page is None or self.page.shows(self._worlds)

    def _expect_no_conflict(self) -> None:
        """Add a failed check if a device is allocated twice, or a GPU is in use both shared and whole."""
        devices = [name for held in self.world.held().values() for name in held]
        whole = {uuid for uuid, number in map(parse_id, devices) if number is None}
        shared = {uuid for uuid, number in map(parse_id, devices) if number is not None}
        if len(devices) > len(set(devices)) or whole & shared:
            self.check("No share is allocated twice, and no GPU is shared and whole at once.", held=False)


# --- The page of the cluster ------------------------------------------------------------------------------------------

_Part = tuple[str, int, int | None, bool]
"""A pod on a GPU: its name, its shares, the MiB that it uses (None: unknown), and whether it uses too much."""


class DemoPage:
    """The page, as its readers have it."""

    def __init__(self, server: PageServer, url: str) -> None:
        """Follow what `server` has told its readers; `url` is its address, with the token that it needs."""
        self._server = server
        self.url = url

    @property
    def read(self) -> bool:
        """Whether it is open in a browser."""
        return self._server.streams.readers > 0

    async def opened(self) -> None:
        """Return once it is open in a browser."""
        while not self.read:  # noqa: ASYNC110 - streams count their readers and tell nobody
            await asyncio.sleep(0.05)

    def shows(self, worlds: Iterable[World]) -> bool:
        """Return whether all readers were told the newest, and this is how the nodes and the waiting pods are."""
        state, there = self._server.page_state, list(worlds)
        waiting = {each["name"] for each in state.waiting.documents(lambda _: True) if each.get("why")}
        return not self.read or (
            state.current
            and self._server.streams.told >= state.mark.value
            and waiting == {name for world in there for name in world.pods.waiting}
            and all(map(self._shows_node, there))
        )

    def _shows_node(self, world: World) -> bool:
        shown = self._server.page_state.node(world.kubelet.node)
        if shown is None:
            return False
        node = json.loads(shown.document)
        whole = [gpu for offer in node.get("instances", ()) for gpu in offer["instances"]]
        gpus = {gpu["index"]: gpu for gpu in (*node["gpus"], *whole)}
        return all(
            _parts_of(gpus[shared.position]) == _expected(world, shared)
            and bool(gpus[shared.position].get("reason")) == (shared.gpu.uuid in world.node.blocks)
            if shared.position in gpus
            else shared.gone and not _expected(world, shared)
            for shared in world.shares.gpus
        )


def _parts_of(gpu: Any) -> set[_Part]:
    parts = (*gpu.get("pods", ()), *gpu.get("strangers", ()))
    return {(part["name"], part.get("shares", 0), part.get("usedMiB"), "overSince" in part) for part in parts}


def _expected(world: World, shared: SharedGpu) -> set[_Part]:
    parts = set()
    for pod in world.kubelet.running:
        numbers = [number for uuid, number in map(parse_id, world.devices(pod)) if uuid == shared.gpu.uuid]
        if numbers:
            size = len(shared.shares) if None in numbers else len(numbers)
            used = world.used.get((pod.name, shared.gpu.uuid), 0) if world.scripted and not shared.gone else None
            over = used is not None and None not in numbers and world.over_use.exceeded(used, world.granted_mib(pod))
            parts.add((pod.name, size, used, over))
    return parts
