"""Align cells in columns within the width of a terminal: long cells of some columns give way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.printing import printable
from gpu_device_plugin.core.telling.tones import Line, Tone, columns, padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_GAP = 2


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
    """Return the heading and the rows. The last column is left out where all its cells are empty.

    Args:
        layout: the columns.
        rows: in their order.
        width: the columns of the terminal. A table that cannot shrink to it is wider.
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
