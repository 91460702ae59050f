"""Serve the page of the demo's cluster, and say whether it shows the cluster as it is."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.cluster.client.api_client import Client
from gpu_device_plugin.cluster.client.config import ClusterConfig
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.programs.web.callers import LocalCallers
from gpu_device_plugin.programs.web.figures import AgentFigures, FiguresTiming
from gpu_device_plugin.programs.web.web_program import PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.forms import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.model.shares import SharedGpu
    from gpu_device_plugin.programs.demo.world import World
    from gpu_device_plugin.testing.cluster.api_server import ApiServer

_HOST = "127.0.0.1"
_OFTEN = FiguresTiming(every_s=0.3, longest_s=1.0, round_s=0.3, pods_s=1.0, idle_s=0.1)
"""As often as the demo's agents read who uses what. A page asks its two agents alone, and not those of a cluster."""

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
        server = self._server
        waiting = {each["name"] for each in server.page_state.waiting.documents(lambda _: True) if each.get("why")}
        there = list(worlds)
        return (
            server.page_state.current
            and server.streams.told >= server.page_state.mark.value
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


@asynccontextmanager
async def page_of(api: ApiServer, resources: Sequence[Resource], *, used: bool) -> AsyncIterator[DemoPage]:
    """Serve the page on this machine while the block runs; `used`: the agents know who uses what.

    Raises:
        ListenError: no port is free.
    """
    callers = LocalCallers("")
    about = AboutPage("kubeconfig", "demo", frozenset({_HOST, "localhost"}))
    async with Client(ClusterConfig(api.url)) as client:
        figures = AgentFigures(client, timing=_OFTEN) if used else None
        server = PageServer(client, resources, callers, about=about, figures=figures)
        async with server.serving(Address(_HOST, 0)) as port:
            yield DemoPage(server, f"http://{_HOST}:{port}/#token={callers.token}")
