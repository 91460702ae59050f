"""Lines for people at a terminal, each with a tone that the terminal shows as a colour; the words say the same."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, takewhile


class Tone(Enum):
    """What a line means."""

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
