"""Tables for people at a terminal: cells in columns, and lines with a tone that the terminal shows as a colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate, groupby, takewhile
from operator import itemgetter

from gpu_device_plugin.report.rules.printing import printable

_GAP = 2


class Tone(Enum):
    """What a line means; its words say the same."""

    PLAIN = auto()
    HEADING = auto()
    GOOD = auto()
    WARNING = auto()
    BAD = auto()
    FAINT = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


def columns(text: str) -> int:
    """Return the columns that a text takes: wide characters of East Asia take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def fitted(text: str, width: int) -> str:
    """Return a text within `width` columns, with ``…`` where its end was cut off."""
    if columns(text) <= width:
        return text
    kept = sum(1 for _ in takewhile(width.__gt__, accumulate(map(columns, text))))
    return text[:kept] + "…" * (width > 0)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text cut or filled with spaces to `width` columns; `right`: with the spaces before it."""
    cut = fitted(text, width)
    spaces = " " * (width - columns(cut))
    return spaces + cut if right else cut + spaces


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines with their cells aligned in columns, as Go's text/tabwriter does with a padding of two spaces.

    A column is as wide as its widest cell within a run of lines that all have it, and the last cell of a line belongs
    to no column. So a line of one cell, even an empty one, begins new columns.
    """
    rows = [list(cells) for cells in lines]
    for column in range(max(map(len, rows), default=0)):
        marked = ((len(cells) > column + 1, cells) for cells in rows)
        for has_column, run in groupby(marked, itemgetter(0)):
            together = [cells for _, cells in run] if has_column else []
            width = max((len(cells[column]) for cells in together), default=0) + _GAP
            for cells in together:
                cells[column] = cells[column].ljust(width)
    return ["".join(cells) for cells in rows]


# --- Within the width of a terminal -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row, one for each column."""

    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table."""

    heading: tuple[str, ...]
    right: frozenset[str] = frozenset()
    """The columns whose cells end at the same place."""
    shrink: Mapping[str, int] = field(default_factory=dict)
    """The columns that give way where the table is too wide, in this order, each with the width that it keeps."""


def table(layout: Layout, rows: Sequence[Row], width: int) -> list[Line]:
    """Return the heading and the rows within `width` columns, or wider if the table cannot shrink to them.

    The last column is left out where all its cells are empty.
    """
    heading = layout.heading
    rows = [Row(tuple(map(printable, row.cells)), row.tone) for row in rows]
    last = len(heading) - 1
    shown = [at for at in range(len(heading)) if at != last or any(row.cells[at] for row in rows)]
    whole = [Row(heading, Tone.HEADING), *rows]
    widths = [max(columns(row.cells[at]) for row in whole) for at in range(len(heading))]
    excess = sum(widths[at] for at in shown) + _GAP * (len(shown) - 1) - width
    for name, least in layout.shrink.items():
        at = heading.index(name)
        cut = min(max(0, excess), max(0, widths[at] - least)) if at in shown else 0
        widths[at] -= cut
        excess -= cut
    return [
        Line(
            (" " * _GAP)
            .join(padded(row.cells[at], widths[at], right=heading[at] in layout.right) for at in shown)
            .rstrip(),
            row.tone,
        )
        for row in whole
    ]
