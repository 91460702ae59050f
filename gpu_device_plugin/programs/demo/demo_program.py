"""The demo: the agent at work between a simulated kubelet and GPUs, shown scene by scene in a terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from gpu_device_plugin.programs.commandline import discard_output, encodes
from gpu_device_plugin.programs.demo.node_table import Look, ShareTone, table
from gpu_device_plugin.programs.demo.scenes import DEFAULT_GPUS, SCENES, WITH_PAGE
from gpu_device_plugin.programs.demo.story import Story
from gpu_device_plugin.programs.demo.world import DemoError, world
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.testing.cluster.api_server import ApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gpu_device_plugin.programs.demo.demo_page import DemoPage
    from gpu_device_plugin.programs.demo.scenes import Scenes
    from gpu_device_plugin.programs.demo.story import SceneContent
    from gpu_device_plugin.programs.demo.world import World

_NARROWEST, _WIDEST = 80, 120


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
    except BrokenPipeError:
        discard_output(sys.stdout)
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
    async with ApiServer() as api, AsyncExitStack() as nodes:

        async def visit(node: str, gpus: str, **settings: str) -> World:
            return await nodes.enter_async_context(world(api, node, gpus, metrics=page, **settings))

        made = await visit("node-1", gpus)
        stage.introduce(gpus)
        serving: AbstractAsyncContextManager[DemoPage | None] = nullcontext()
        if page:
            from gpu_device_plugin.programs.demo.demo_page import page_of  # noqa: PLC0415 - a tenth of a second

            serving = page_of(api, made.resources, used=made.scripted)
        async with serving as served:
            if served is not None:
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


async def no_pause(_seconds: float) -> None:
    """Pause for nobody: the output is not read while it is written."""


class DemoStage:
    """The output of the scenes: redrawn in place on a terminal, printed once everywhere else."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        colour: bool,
        pause: Callable[[float], Awaitable[None]] = no_pause,
    ) -> None:
        """Show on `stream`; if it is a terminal and `live`, every change, and in colour if wanted.

        `pause` waits so many seconds for a reader.
        """
        self.pause = pause
        self._stream = stream
        self._live = live
        self._colour = live and colour
        self._drawn: list[str] = []
        self._marks = ("█", "░") if stream.encoding and encodes(stream, "█░") else ("#", ".")

    def introduce(self, gpus: str) -> None:
        """Describe the parts of the demo."""
        source = "the GPUs of this machine" if gpus == "nvml" else f"fake GPUs ({gpus})"
        lines = _paragraph(
            f"A simulated kubelet, a simulated API server, {source}, and between them the agent as it runs in a "
            "cluster. All data below is read from these three; pods are real to all, and run no program: what they use "
            "of fake GPUs is fake, too.",
            self._look().width,
        )
        self._write(*lines, "")

    def point_to(self, url: str) -> None:
        """Say where the page is, on a line of its own, so that terminals make it a link."""
        self._write("The page of this cluster; the scenes begin when it is open in a browser:", url, "")

    async def stay(self, url: str) -> None:
        """Leave the page served until the demo is cancelled."""
        self._write("The page stays until Ctrl-C:", url)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    def conclude(self, failed: list[str]) -> None:
        """Summarize the checks."""
        if failed:
            text, tone = f"Not every check held: see NO in scene {', '.join(failed)}.", ShareTone.BAD
        else:
            text, tone = "Every check held, and no device was allocated twice in any scene.", ShareTone.GOOD
        look = self._look()
        self._write(*(look.paint(line, tone) for line in _paragraph(text, look.width)))

    @asynccontextmanager
    async def showing(self, number: str, story: Story) -> AsyncIterator[None]:
        """Show the scene that is being played in the body."""
        painter = asyncio.create_task(self._keep_drawing(number, story), name="draw") if self._live else None
        try:
            yield
        finally:
            if painter is not None:
                painter.cancel()
                await asyncio.gather(painter, return_exceptions=True)
            self._draw(frame(number, story.look(), self._look()))
            self._write("")
            self._drawn = []

    async def _keep_drawing(self, number: str, story: Story) -> None:
        while True:
            size = shutil.get_terminal_size()
            lines = frame(number, story.look(), self._look())
            # A terminal wraps wider lines, and its cursor cannot move up into lines that have scrolled away.
            if size.columns >= _NARROWEST and len(lines) < size.lines:
                self._draw(lines)
            await asyncio.sleep(0.1)

    def _draw(self, lines: list[str]) -> None:
        if lines == self._drawn:
            return
        if self._drawn:
            self._stream.write(f"\x1b[{len(self._drawn)}A\x1b[J")
        self._write(*lines)
        self._drawn = lines

    def _write(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()

    def _look(self) -> Look:
        width = shutil.get_terminal_size().columns if self._live else _NARROWEST
        return Look(min(max(width, _NARROWEST), _WIDEST), *self._marks, self._colour)


def frame(number: str, shown: SceneContent, look: Look) -> list[str]:
    """Draw one scene as lines of text."""
    rule = "─" if look.full == "█" else "-"
    lines = [look.paint(f"{number} {shown.title} ".ljust(look.width, rule), ShareTone.HEADING)]
    lines += [*_paragraph(shown.caption, look.width), ""]
    if shown.left_out:
        return lines[:-1]
    lines += [*table(shown.node, shown.held, look, shown.used, shown.unknown), ""]
    lines += _paragraph(f"Allocatable: {shown.allocatable}", look.width)
    for who, what in shown.quotes:
        lines += _paragraph(f"{who}: {what}", look.width, "    ")
    for sentence, held in shown.checks:
        mark, tone = ("ok", ShareTone.GOOD) if held else ("NO", ShareTone.BAD)
        first, *rest = _paragraph(sentence, look.width - 4)
        lines += [f"{look.paint(mark, tone)}  {first}", *(f"    {line}" for line in rest)]
    return lines


def _paragraph(text: str, width: int, indent: str = "") -> list[str]:
    together = text.replace(" GiB", "\N{NO-BREAK SPACE}GiB")  # an amount stays on one line
    lines = wrap(together, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
