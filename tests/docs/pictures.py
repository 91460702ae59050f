"""Pictures drawn from text: docs/img/NAME.svg shows docs/img/NAME.txt; `python -m tests.docs.pictures` draws all.

Line-drawing characters become lines, blocks become the shares of a GPU, and all else is text, each cell at its place
whatever font the reader has. Every picture brings its own ground, so that it is legible on a light page and on a dark.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[2] / "docs" / "img"

WIDTH, HEIGHT, MARGIN = 8.5, 19.0, 12.0
"""Of a character, and around all of them, in pixels."""
MIDDLE, BASE = HEIGHT / 2, 14.0
"""Where in a line of text its lines are drawn, and where its letters stand."""

PALETTES = {
    "light": {"ground": "#ffffff", "text": "#1f2328", "line": "#59636e", "used": "#0a58a8", "whole": "#a04000"},
    "dark": {"ground": "#151b23", "text": "#e6edf3", "line": "#9198a1", "used": "#6cb6ff", "whole": "#f0a35e"},
}

_SIDES = {
    "─": "lr", "│": "ud", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu", "├": "udr", "┤": "udl", "┬": "lrd", "┴": "lru",
    "┼": "lrud", "◀": "r", "▶": "l", "▲": "d", "▼": "u",
}  # fmt: skip
_ENDS = {"l": f"h-{WIDTH / 2:g}", "r": f"h{WIDTH / 2:g}", "u": f"v-{MIDDLE:g}", "d": f"v{MIDDLE:g}"}
_HEADS = {
    "◀": "m4,-4l-8,4l8,4z",
    "▶": "m-4,-4l8,4l-8,4z",
    "▲": "m-4,4l4,-8l4,8z",
    "▼": "m-4,-4l4,8l4,-8z",
}
"""Arrow heads, from the middle of their cell."""
_SHARES = {"█": "used", "▓": "whole", "░": "free"}


def draw(text: str) -> str:
    """Return the picture of a text, whose first line is what is read to those who cannot see it."""
    title, _, *lines = text.rstrip("\n").split("\n")
    width = max(map(len, lines)) * WIDTH + 2 * MARGIN
    height = len(lines) * HEIGHT + 2 * MARGIN
    size = f'width="{width:g}" height="{height:g}"'
    shapes: dict[str, list[str]] = {}
    for row, line in enumerate(lines):
        for column, char in enumerate(line):
            for kind, path in _shapes(MARGIN + column * WIDTH, MARGIN + row * HEIGHT, char):
                shapes.setdefault(kind, []).append(path)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style('light')}@media(prefers-color-scheme:dark){{{_style('dark')}}}</style>",
            f'<rect class="ground" {size} rx="8"/>',
            *(f'<path class="{kind}" d="{"".join(paths)}"/>' for kind, paths in shapes.items()),
            *(text for row, line in enumerate(lines) for text in _texts(MARGIN + row * HEIGHT, line)),
            "</svg>\n",
        ]
    )


def _style(palette: str) -> str:
    colour = PALETTES[palette]
    return (
        f".ground{{fill:{colour['ground']}}}"
        f"text{{fill:{colour['text']};font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}"
        f".line{{stroke:{colour['line']};fill:none}}.head{{fill:{colour['line']}}}"
        f".used{{fill:{colour['used']}}}.whole{{fill:{colour['whole']}}}.free{{stroke:{colour['line']};fill:none}}"
    )


def _shapes(left: float, top: float, char: str) -> Iterator[tuple[str, str]]:
    """Yield what a character is drawn with: the kind of a path, and the path."""
    middle = f"M{left + WIDTH / 2:g},{top + MIDDLE:g}"
    for side in _SIDES.get(char, ""):
        yield "line", middle + _ENDS[side]
    if char in _HEADS:
        yield "head", middle + _HEADS[char]
    if char in _SHARES:
        across = WIDTH - 2
        yield _SHARES[char], f"M{left + 1:g},{top + 3:g}h{across:g}v{HEIGHT - 6:g}h-{across:g}z"


def _texts(top: float, line: str) -> Iterator[str]:
    """Yield the words of a line; two blanks part them from others."""
    drawn = "".join(_SIDES.keys() | _SHARES.keys())
    for run in re.finditer(rf"[^\s{drawn}]+(?: [^\s{drawn}]+)*", line):
        left, long = MARGIN + run.start() * WIDTH, len(run[0]) * WIDTH
        yield (
            f'<text x="{left:g}" y="{top + BASE:g}" textLength="{long:g}" lengthAdjust="spacingAndGlyphs">'
            f"{escape(run[0])}</text>"
        )


if __name__ == "__main__":
    for source in sorted(IMAGES.glob("*.txt")):
        source.with_suffix(".svg").write_text(draw(source.read_text(encoding="utf-8")), encoding="utf-8")
