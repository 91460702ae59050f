"""Has MkDocs read lists as GitHub does, for the pages are read in both places.

What belongs to a point of a list stands below its text on GitHub, and four blanks to the right for MkDocs, which also
wants an empty line before each list, and between points of several paragraphs.
"""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt

_MARK = re.compile(r"\s*(?:[*+-]|\d+[.)])\s+")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of every page."""
    lines = markdown.split("\n")
    found = MarkdownIt("commonmark").parse(markdown)
    items = [token.map for token in found if token.type == "list_item_open" and token.map]
    apart = {token.map[0] for token in found if token.type.endswith("_list_open") and token.map}
    # A point after one of several paragraphs.
    apart |= {end for begin, end in items if not all(line.strip() for line in lines[begin:end])}
    told: list[str] = []
    for number, line in enumerate(lines):
        # The points that this line belongs to, the outermost first; it may begin the last one.
        around = sorted(begin for begin, end in items if begin <= number < end)
        beginning = number in around
        within = [begin for begin in around if begin != number]
        if number in apart and told and told[-1]:
            told.append("")
        indent = min(_text_of(lines[within[-1]]), _blanks(line)) if within else 0
        text = line.lstrip() if beginning else line[indent:]
        told.append(" " * 4 * len(within) + text if line.strip() else "")
    return "\n".join(told)


def _text_of(line: str) -> int:
    """Return where the text of a point begins."""
    mark = _MARK.match(line)
    return mark.end() if mark is not None else 0


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip())
