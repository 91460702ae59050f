"""Serve the page of the demo's cluster while its scenes are played."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.client import Client
from gpu_device_plugin.cluster.config import ClusterConfig
from gpu_device_plugin.programs.web.local import LocalCallers
from gpu_device_plugin.programs.web.routes import About
from gpu_device_plugin.programs.web.server import PageServer
from gpu_device_plugin.settings.forms import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpu_device_plugin.programs.demo.world import World

_HOST = "127.0.0.1"


@asynccontextmanager
async def page_of(world: World) -> AsyncIterator[str]:
    """Serve the page on this machine while the block runs.

    Yields:
        Its address, with the token that it needs.

    Raises:
        ListenError: no port is free.
    """
    callers = LocalCallers("")
    about = About("kubeconfig", "demo")
    async with Client(ClusterConfig(world.api.url)) as client:
        server = PageServer(client, world.resources, callers, about=lambda: about)
        async with server.serving(Address(_HOST, 0)) as port:
            about = About("kubeconfig", "demo", frozenset({f"{_HOST}:{port}", f"localhost:{port}"}))
            yield f"http://{_HOST}:{port}/#token={callers.token}"
