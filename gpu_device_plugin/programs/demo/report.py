"""A node as a table: its GPUs, what is in use of each, and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.core.model.shares import parse_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.node import Node

_BAR = 3
"""The column of the bars."""
_LONGEST_BAR, _SHORTEST_BAR = 14, 6
_LONGEST_MODEL = 18
_ROOMY_HOLDERS, _NARROWEST_HOLDERS = 20, 16
_GAP = "  "


class Tone(StrEnum):
    """The meaning of a piece of a table; its value begins the colour of that in a terminal."""

    PLAIN = ""
    HEADING = "\x1b[1m"
    FAINT = "\x1b[2m"
    GOOD = "\x1b[32m"
    SHARED = "\x1b[36m"
    WHOLE = "\x1b[35m"
    BAD = "\x1b[31m"


@dataclass(frozen=True, slots=True)
class Look:
    """How a table is drawn."""

    width: int = 80
    """Columns; no line is longer, unless there are fewer than a table needs."""
    full: str = "█"
    empty: str = "░"
    paint: Callable[[str, Tone], str] = lambda text, _tone: text
    """May wrap a text into what colours it; adds nothing that takes room on a line."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever holds devices: a pod or a container, by the name under which people know it."""

    name: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class GpuRow:
    """What there is to tell of one GPU."""

    position: int
    uuid: str
    model: str
    memory_mib: int
    shares: int
    used: int
    """Shares in use; all of them where the GPU is taken whole."""
    whole: bool
    unhealthy: str | None
    """Why it is out of service, None if it is not."""
    holders: tuple[tuple[str, int], ...] = ()
    """(name, shares) of everybody on this GPU, as they were given; whoever holds it whole has all of its shares."""


def rows(node: Node, holders: Iterable[Holder] = ()) -> tuple[GpuRow, ...]:
    """Return every GPU of a node. What the ledger holds and no holder claims is in use by nobody known."""
    holders = tuple(holders)
    return tuple(_row(node, shared, holders) for shared in node.shares.gpus)


def _row(node: Node, shared: SharedGpu, holders: Iterable[Holder]) -> GpuRow:
    use, uuid, total = node.use(shared), shared.gpu.uuid, len(shared.shares)
    amounts = ((holder.name, [n for u, n in map(parse_id, holder.device_ids) if u == uuid]) for holder in holders)
    return GpuRow(
        position=shared.position,
        uuid=uuid,
        model=shared.gpu.product,
        memory_mib=shared.gpu.total_mib,
        shares=total,
        used=total if use.whole else len(use.shares),
        whole=use.whole,
        unhealthy=node.unhealthy.get(uuid),
        holders=tuple((name, total if None in numbers else len(numbers)) for name, numbers in amounts if numbers),
    )


def table(gpus: Sequence[GpuRow], share_mib: int, look: Look | None = None) -> list[str]:
    """Draw GPUs as lines of text, each with the reason below it if it is out of service.

    Args:
        gpus: see `rows`.
        share_mib: size of one share, MiB.
        look: how to draw it.
    """
    look = look or Look()
    names = ("GPU", "MODEL", "MEMORY", "SHARES", "", "HEALTH")
    align = (str.rjust, str.ljust, str.rjust, str.ljust, str.rjust, str.ljust)
    cells = [_cells(row) for row in gpus]
    widths = [max(len(name), *(len(row[n][0]) for row in cells), 0) for n, name in enumerate(names)]
    # Who holds a GPU needs its room first; a bar can be shorter.
    beside = sum(widths) - widths[_BAR] + len(_GAP) * len(names)
    most = min(max(look.width - beside - _ROOMY_HOLDERS, _SHORTEST_BAR), _LONGEST_BAR)
    largest = max((row.shares for row in gpus), default=1)
    for row, texts in zip(gpus, cells, strict=True):
        texts[_BAR] = (_bar(row, largest, most, look), texts[_BAR][1])
    widths[_BAR] = max(widths[_BAR], *(len(row[_BAR][0]) for row in cells), 0)
    indent = beside + widths[_BAR]
    room = max(_NARROWEST_HOLDERS, look.width - indent)
    heading = _GAP.join(put(name, width) for put, name, width in zip(align, names, widths, strict=True))
    lines = [look.paint(f"{heading}{_GAP}HELD BY", Tone.HEADING)]
    for row, texts in zip(gpus, cells, strict=True):
        start = _GAP.join(
            look.paint(put(text, width), tone) for put, (text, tone), width in zip(align, texts, widths, strict=True)
        )
        first, *rest = _held_by(row, share_mib, room) or [""]
        lines += [f"{start}{_GAP}{first}".rstrip(), *(" " * indent + more for more in rest)]
        if row.unhealthy is not None:
            below = " " * (widths[0] + len(_GAP))
            why = wrap(row.unhealthy, look.width, initial_indent=below, subsequent_indent=below)
            lines += [look.paint(line, Tone.BAD) for line in why]
    return lines


def _cells(row: GpuRow) -> list[tuple[str, Tone]]:
    """Return what stands before the holders, without the bar."""
    tone = _tone_of_use(row)
    return [
        (str(row.position), Tone.PLAIN),
        (_model(row.model), Tone.PLAIN),
        (f"{row.memory_mib / MIB_PER_GIB:.1f} GiB", Tone.PLAIN),
        ("", tone),
        ("whole" if row.whole else f"{row.used}/{row.shares}", tone),
        ("healthy", Tone.GOOD) if row.unhealthy is None else ("unhealthy", Tone.BAD),
    ]


def _model(product: str) -> str:
    name = product.removeprefix("NVIDIA ")
    return name if len(name) <= _LONGEST_MODEL else f"{name[: _LONGEST_MODEL - 2]}.."


def _bar(row: GpuRow, largest: int, most: int, look: Look) -> str:
    """Draw the shares of one GPU, as long as it is large, and neither full nor empty unless it is."""
    longest = min(largest, most)
    length = max(1, round(row.shares * longest / largest))
    full = round(row.used * length / row.shares)
    if 0 < row.used < row.shares and length > 1:
        full = min(max(full, 1), length - 1)
    return look.full * full + look.empty * (length - full)


def _tone_of_use(row: GpuRow) -> Tone:
    if row.unhealthy is not None:
        return Tone.BAD
    if row.whole:
        return Tone.WHOLE
    return Tone.SHARED if row.used else Tone.FAINT


def _held_by(row: GpuRow, share_mib: int, room: int) -> list[str]:
    """Name everybody on a GPU, those of one size together, the largest first."""
    if row.whole:
        return wrap(", ".join(name for name, _ in row.holders), room)
    lines: list[str] = []
    for size in sorted({shares for _, shares in row.holders}, reverse=True):
        names = [name for name, shares in row.holders if shares == size]
        each = " each" if len(names) > 1 else ""
        lines += wrap(f"{', '.join(_runs(names))}: {format_mib(size * share_mib)}{each}", room)
    return lines


def _runs(names: Iterable[str]) -> list[str]:
    """Shorten three or more names that differ in the number at their end, one more each time: ``web-1..7``."""
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
