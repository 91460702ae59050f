"""Lines of cells, set in columns the way Go's text/tabwriter sets them with a padding of two blanks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PADDING = 2


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines whose cells stand below each other.

    A column is as wide as its widest cell within a run of lines that all have it, and the last cell of a line belongs
    to no column. So a line of one cell, even an empty one, begins new columns.
    """
    widths = [[0] * (len(cells) - 1) for cells in lines]
    for column in range(max((len(row) for row in widths), default=0)):
        run: list[int] = []
        for number, row in enumerate(widths):
            if len(row) > column:
                run.append(number)
            if run and (len(row) <= column or number == len(widths) - 1):
                widest = max(len(lines[n][column]) for n in run) + _PADDING
                for n in run:
                    widths[n][column] = widest
                run = []
    return [
        "".join(cell.ljust(width) for cell, width in zip(cells, (*row, 0), strict=True))
        for cells, row in zip(lines, widths, strict=True)
    ]
