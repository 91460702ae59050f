"""Align cells in columns like Go's text/tabwriter with a padding of two spaces."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PADDING = 2


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines with their cells aligned in columns.

    A column is as wide as its widest cell within a run of lines that all have it, and the last cell of a line belongs
    to no column. So a line of one cell, even an empty one, begins new columns.
    """
    rows = [list(cells) for cells in lines]
    for column in range(max(map(len, rows), default=0)):
        marked = ((len(cells) > column + 1, cells) for cells in rows)
        for has_column, run in groupby(marked, itemgetter(0)):
            together = [cells for _, cells in run] if has_column else []
            width = max((len(cells[column]) for cells in together), default=0) + _PADDING
            for cells in together:
                cells[column] = cells[column].ljust(width)
    return ["".join(cells) for cells in rows]
