"""The demo: the agent at work between a simulated kubelet and GPUs, shown scene by scene in a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.demo.scenes import DEFAULT_GPUS, SCENES, WITH_PAGE, Scenes
from gpu_device_plugin.programs.demo.stage import DemoStage, no_pause
from gpu_device_plugin.programs.demo.story import DemoPage, Story
from gpu_device_plugin.programs.demo.world import DemoError, World, world
from gpu_device_plugin.programs.web.callers import LocalCallers
from gpu_device_plugin.programs.web.figures import AgentFigures
from gpu_device_plugin.programs.web.web_program import PageServer
from gpu_device_plugin.programs.web.web_routes import AboutPage
from gpu_device_plugin.settings.forms import Address
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.testing.cluster.api_server import ApiServer


def main(gpus: str | None, *, once: bool, page: bool = False) -> int:
    """Play the demo on GPUs as in the agent's settings, None: fake ones.

    With `once` every scene is printed at its end, without pauses and without colour. With `page` the cluster's page is
    served too, from before the first scene until a signal.

    Returns:
        0 if every check held; 1 if not, if there are no GPUs, or if the demo was stopped.

    Raises:
        UsageError: `gpus` names none, or `once` and `page` contradict each other.
    """
    if once and page:
        raise UsageError(
            "--once ends after the last scene, and --page serves the page until Ctrl-C: leave one of them out"
        )
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    live = terminal and not once
    pause = asyncio.sleep if live or page else no_pause
    stage = DemoStage(sys.stdout, live=live, colour="NO_COLOR" not in os.environ, pause=pause)
    try:
        return asyncio.run(_play_until_stopped(gpus or DEFAULT_GPUS, stage, page=page))
    except DemoError as error:
        print(error, file=sys.stderr)
    except asyncio.CancelledError:
        print("The demo was stopped by a signal.", file=sys.stderr)
    return 1


async def _play_until_stopped(gpus: str, stage: DemoStage, *, page: bool) -> int:
    """Play to the end, or until SIGTERM or SIGHUP, which must not leave the agent and its folder behind.

    Not `lifetime.until_stopped`: the demo ends by itself with an exit code, and a signal or a closed pipe is no success
    and no reason for a restart.
    """
    playing = asyncio.create_task(play(gpus, stage, page=page), name="demo")
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
    return await playing


async def play(gpus: str, stage: DemoStage, scenes: Scenes | None = None, *, page: bool = False) -> int:
    """Play `scenes`, by default all, on `stage` and return the exit code; see `main`.

    Raises:
        UsageError: `gpus` names none.
        DemoError: there is no GPU to share, or the agent ended by itself.
    """
    scenes = (WITH_PAGE if page else SCENES) if scenes is None else scenes
    failed = []
    async with ApiServer() as api, AsyncExitStack() as nodes, AsyncExitStack() as pages:

        async def visit(node: str, gpus: str, **settings: str) -> World:
            return await nodes.enter_async_context(world(api, node, gpus, metrics=page, **settings))

        made = await visit("node-1", gpus)
        stage.introduce(gpus)
        served = None
        if page:
            served = await pages.enter_async_context(page_of(api, made.resources, used=made.scripted))
            stage.point_to(served.url)
            await served.opened()
        story = Story(made, stage.pause, visit, served)
        for number, (title, scene) in enumerate(scenes.items(), 1):
            async with stage.showing(f"{number}/{len(scenes)}", story):
                shown = await story.play(title, scene)
                await stage.pause(3.0)
            if not shown.passed:
                failed.append(str(number))
        stage.conclude(failed)
        if served is not None:
            await stage.stay(served.url)
    return 1 if failed else 0


# --- The page of the demo's cluster -----------------------------------------------------------------------------------

_HOST = "127.0.0.1"


class _DemoFigures(AgentFigures):
    """Read as often as the demo's agents read who uses what. A page asks its two agents, and not those of a cluster."""

    every_s, longest_s, round_s, pods_s, idle_s = 0.3, 1.0, 0.3, 1.0, 0.1


@asynccontextmanager
async def page_of(api: ApiServer, resources: Sequence[Resource], *, used: bool) -> AsyncIterator[DemoPage]:
    """Serve the page on this machine while the block runs; `used`: the agents know who uses what.

    Raises:
        ListenError: no port is free.
    """
    callers = LocalCallers("")
    about = AboutPage("kubeconfig", "demo", frozenset({_HOST, "localhost"}))
    async with Client(ClusterConfig(api.url)) as client:
        figures = _DemoFigures(client) if used else None
        server = PageServer(client, resources, callers, about=about, figures=figures)
        async with server.serving(Address(_HOST, 0)) as port:
            yield DemoPage(server, f"http://{_HOST}:{port}/#token={callers.token}")
