"""Show the scenes in a terminal: a node as a table of its GPUs, and below it what the scene has shown."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from gpu_device_plugin.commandline import encodes
from gpu_device_plugin.hardware.driver import DRIVERS
from gpu_device_plugin.model.gpus import short_model
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.shares import SharedGpu, parse_id
from gpu_device_plugin.node.rules.node import Node
from gpu_device_plugin.programs.demo.story import SceneContent, Story
from gpu_device_plugin.programs.demo.world import World
from gpu_device_plugin.settings.knobs import PROGRAM

_NARROWEST, _PRINTED, _WIDEST = 60, 80, 120
_HEADINGS = ("GPU", "MODEL", "MEMORY", "SHARES", "", "HEALTH")
_ALIGN = (str.rjust, str.ljust, str.rjust, str.ljust, str.rjust, str.ljust)
_BAR = _HEADINGS.index("SHARES")
_LONGEST_BAR, _SHORTEST_BAR = 14, len(_HEADINGS[_BAR])
_LONGEST_MODEL, _LONGEST_MODEL_ABOVE = 18, 14
_ROOMY_HOLDERS, _ROOMY_USERS, _NARROWEST_HOLDERS = 20, 28, 16
_GAP = "  "


class ShareTone(StrEnum):
    """The meaning of a part of a table; its value is the terminal's escape sequence for its colour."""

    PLAIN = ""
    HEADING = "\x1b[1m"
    FAINT = "\x1b[2m"
    GOOD = "\x1b[32m"
    SHARED = "\x1b[36m"
    WHOLE = "\x1b[35m"
    BAD = "\x1b[31m"


@dataclass(frozen=True, slots=True)
class Look:
    """The style of a table."""

    width: int = 80
    """Columns; no line is longer, unless a table needs more."""
    full: str = "█"
    empty: str = "░"
    colour: bool = False

    def paint(self, text: str, tone: ShareTone) -> str:
        """Return `text` in the colour of `tone`, if colours are on; escape sequences take no columns."""
        return f"{tone}{text}\x1b[0m" if self.colour and tone else text


def table(
    node: Node,
    holders: Mapping[str, frozenset[str]],
    look: Look,
    used: Mapping[tuple[str, str], int] | None = None,
    unknown: frozenset[str] = frozenset(),
) -> list[str]:
    """Draw the GPUs of a node as lines of text, each with the reason below it if it is unhealthy.

    On a narrow terminal the pods of a GPU stand below it, too.

    `holders` has the device IDs of pods by name; shares in the ledger that no holder has are in use by an unknown pod.
    `used` has the MiB that pods use, by name of the pod and UUID of a GPU that it holds shares of; `unknown` the
    UUIDs of the GPUs whose health nobody has told yet, whatever the node says of it.
    """
    node = replace(node, blocks={uuid: block for uuid, block in node.blocks.items() if uuid not in unknown})
    gpus, holders_below = node.shares.gpus, look.width < _PRINTED
    rows = [_cells(node, shared, unknown, _LONGEST_MODEL_ABOVE if holders_below else _LONGEST_MODEL) for shared in gpus]
    # The names of the holders get their columns first; a bar can be shorter.
    beside = sum(_widths(rows)) - _SHORTEST_BAR + len(_GAP) * len(_HEADINGS)
    largest = max((len(shared.shares) for shared in gpus), default=1)
    roomy = 0 if holders_below else _ROOMY_USERS if used else _ROOMY_HOLDERS
    longest = min(largest, max(look.width - beside - roomy, _SHORTEST_BAR), _LONGEST_BAR)
    for shared, cells in zip(gpus, rows, strict=True):
        bar = _bar(_used(node, shared), len(shared.shares), max(1, round(len(shared.shares) * longest / largest)), look)
        cells[_BAR] = bar, cells[_BAR][1]
    widths = _widths(rows)
    below = " " * (widths[0] + len(_GAP))
    indent = below if holders_below else " " * (beside + widths[_BAR])
    heading = _GAP.join(put(name, width) for put, name, width in zip(_ALIGN, _HEADINGS, widths, strict=True))
    lines = [look.paint(heading.rstrip() if holders_below else f"{heading}{_GAP}HELD BY", ShareTone.HEADING)]
    for shared, cells in zip(gpus, rows, strict=True):
        start = _GAP.join(
            look.paint(put(text, width), tone) for put, (text, tone), width in zip(_ALIGN, cells, widths, strict=True)
        )
        held_by = _held_by(node, shared, holders, used or {}, max(_NARROWEST_HOLDERS, look.width - len(indent)))
        first = held_by.pop(0) if held_by and not holders_below else ""
        lines += [f"{start}{_GAP}{first}".rstrip(), *(indent + more for more in held_by)]
        why = wrap(node.block(shared.gpu.uuid).everyone, look.width, initial_indent=below, subsequent_indent=below)
        lines += [look.paint(line, ShareTone.BAD) for line in why]
    return lines


def _widths(rows: Iterable[Iterable[tuple[str, ShareTone]]]) -> list[int]:
    texts = ((text for text, _ in cells) for cells in rows)
    return [max(map(len, column)) for column in zip(_HEADINGS, *texts, strict=True)]


def _used(node: Node, shared: SharedGpu) -> int:
    use = node.use(shared)
    return len(shared.shares) if use.whole else len(use.shares)


def _cells(node: Node, shared: SharedGpu, unknown: frozenset[str], longest_model: int) -> list[tuple[str, ShareTone]]:
    """Return the cells of one GPU but for its bar."""
    used, whole, unhealthy = _used(node, shared), node.use(shared).whole, node.block(shared.gpu.uuid).everyone
    tone = ShareTone.BAD if unhealthy else ShareTone.WHOLE if whole else ShareTone.SHARED if used else ShareTone.FAINT
    return [
        (str(shared.position), ShareTone.PLAIN),
        (_model(shared, longest_model), ShareTone.PLAIN),
        (f"{shared.gpu.total_mib / MIB_PER_GIB:.1f} GiB", ShareTone.PLAIN),
        ("", tone),
        ("whole" if whole else f"{used}/{'-' if unhealthy else len(shared.shares)}", tone),
        ("unknown", ShareTone.FAINT)
        if shared.gpu.uuid in unknown
        else ("unhealthy", ShareTone.BAD)
        if unhealthy
        else ("healthy", ShareTone.GOOD),
    ]


def _model(shared: SharedGpu, longest: int) -> str:
    instance = shared.gpu.instance
    name = short_model(shared.gpu.product) if instance is None else f"MIG {instance.profile}"
    return name if len(name) <= longest else f"{name[: longest - 2]}.."


def _bar(used: int, total: int, length: int, look: Look) -> str:
    """Draw the shares of one GPU; the bar is full or empty only if the GPU is."""
    full = round(used * length / total)
    if 0 < used < total and length > 1:
        full = min(max(full, 1), length - 1)
    return look.full * full + look.empty * (length - full)


def _held_by(
    node: Node,
    shared: SharedGpu,
    holders: Mapping[str, frozenset[str]],
    used: Mapping[tuple[str, str], int],
    room: int,
) -> list[str]:
    """Name the holders of one GPU, grouped by size and use, the largest first."""
    held = {name: sum(parse_id(each)[0] == shared.gpu.uuid for each in ids) for name, ids in holders.items()}
    if node.use(shared).whole:
        return wrap(", ".join(name for name, size in held.items() if size), room)
    lines: list[str] = []
    groups = {name: (size, used.get((name, shared.gpu.uuid), -1)) for name, size in held.items() if size}
    for size, use in sorted(set(groups.values()), reverse=True):
        names = [name for name, group in groups.items() if group == (size, use)]
        each = " each" if len(names) > 1 else ""
        amount = _use_of(use, size * node.shares.share_mib)
        lines += wrap(f"{', '.join(_runs(names))}: {amount}{each}", room)
    return lines


def _use_of(used_mib: int, held_mib: int) -> str:
    """Return a part, after the use of it if that is known (not negative): ``1.4 of 1 GiB``."""
    held = format_mib(held_mib)
    if used_mib < 0:
        return held
    return f"{used_mib / MIB_PER_GIB:.1f} of {held}" if held.endswith("GiB") else f"{used_mib} of {held}"


def _runs(names: Iterable[str]) -> list[str]:
    """Shorten three or more names with consecutive numbers at their end: ``web-1..7``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _following(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [text for run in runs for text in ([f"{run[0]}..{_number(run[-1])}"] if len(run) > 2 else run)]


def _following(name: str) -> str | None:
    number = _number(name)
    return f"{name.removesuffix(number)}{int(number) + 1}" if number and len(number) <= 9 else None


def _number(name: str) -> str:
    return name[len(name.rstrip("0123456789")) :]


# --- Scene by scene: redrawn in place on a terminal, printed once everywhere else -------------------------------------


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
        """Say what will be seen, and what of it is real."""
        simulated = "The kubelet and the API server" if gpus in DRIVERS else f"GPUs ({gpus}), kubelet and API server"
        paragraphs = (
            (
                "You will see several services share one GPU, one of them take too much memory and be "
                "evicted, a notebook borrow memory and return it, a training job get a whole GPU, a pod be refused "
                "with the reason, and a GPU fail and recover, all while pods keep running."
            ),
            (
                f"The agent is the real one. {simulated} are simulated: pods are API objects; nothing runs in them. "
                "Ctrl-C stops the demo."
            ),
        )
        for text in paragraphs:
            self._write(*_paragraph(text, self._look().width), "")

    def point_to(self, url: str) -> None:
        """Say where the page is, on a line of its own, so that terminals make it a link."""
        self._write("Open the page in a browser; the scenes begin then:", url, "")

    async def stay(self, url: str) -> None:
        """Leave the page served until the demo is cancelled."""
        self._write("The page stays open until Ctrl-C:", url)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    def conclude(self, failed: list[str]) -> None:
        """Summarize the checks."""
        if failed:
            text, tone = f"Some checks failed: see NO in scene {', '.join(failed)}.", ShareTone.BAD
        else:
            text, tone = "All checks passed; no device was allocated twice.", ShareTone.GOOD
        look = self._look()
        self._write(*(look.paint(line, tone) for line in _paragraph(text, look.width)), "", *_next_commands())

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
            self._draw(frame(number, story.now, story.world, self._look()))
            self._write("")
            self._drawn = []

    async def _keep_drawing(self, number: str, story: Story) -> None:
        while True:
            size = shutil.get_terminal_size()
            lines = frame(number, story.now, story.world, self._look())
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
        width = shutil.get_terminal_size().columns if self._live or self._stream.isatty() else _PRINTED
        return Look(min(max(width, _NARROWEST), _WIDEST), *self._marks, self._colour)


def frame(number: str, shown: SceneContent, world: World, look: Look) -> list[str]:
    """Draw one scene as lines of text, with the node as it is at this moment."""
    rule = "─" if look.full == "█" else "-"
    lines = [look.paint(f"{number} {shown.title} ".ljust(look.width, rule), ShareTone.HEADING)]
    lines += [*_paragraph(shown.caption, look.width), ""]
    if shown.left_out:
        return lines[:-1]
    lines += [*table(world.node, world.held(), look, world.used, world.unknown), ""]
    offered = (f"{name} {world.healthy(name)} of {len(ids)}" for name, ids in world.devices_listed.items())
    lines += _paragraph(f"Allocatable: {', '.join(offered)}", look.width)
    for who, what in shown.quotes:
        lines += _paragraph(f"{who}: {what}", look.width, "    ")
    for sentence, held in shown.checks:
        mark, tone = ("ok", ShareTone.GOOD) if held else ("NO", ShareTone.BAD)
        first, *rest = _paragraph(sentence, look.width - 4)
        lines += [f"{look.paint(mark, tone)}  {first}", *(f"    {line}" for line in rest)]
    return lines


def _next_commands() -> list[str]:
    """Return what to try next, as commands that can be copied: the environment of `make demo` is not on the PATH."""
    program = PROGRAM if shutil.which(PROGRAM) else os.path.relpath(Path(sys.executable).with_name(PROGRAM))
    commands = {
        f"{program} demo --page": "watch this in a browser",
        f"{program} simulate": "ask what would fit on your cluster",
        "make deploy IMAGE=...": "install it on your cluster: docs/install.md",
    }
    return ["Next:", *(line for command, what in commands.items() for line in (f"  {command}", f"      {what}"))]


def _paragraph(text: str, width: int, indent: str = "") -> list[str]:
    together = text.replace(" GiB", "\N{NO-BREAK SPACE}GiB")  # an amount stays on one line
    lines = wrap(together, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
