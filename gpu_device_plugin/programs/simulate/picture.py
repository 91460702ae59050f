"""A picture of a simulation as SVG: what is allocated while pods come, and what is rejected by size of pod."""

from __future__ import annotations

from html import escape
from math import ceil
from typing import TYPE_CHECKING

from gpu_device_plugin.programs.simulate.classes import order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpu_device_plugin.programs.simulate.results import Result

_WIDTH = 760
_LEFT, _RIGHT = 56, 20
_TOP, _HEIGHT = 64, 240
_BAR, _GAP = 9, 10
_TICK, _MOST_TICKS = 0.1, 10
_ROUNDING = 1e-9
# Okabe and Ito's colours, which people with any colour vision tell apart; dashes tell lines apart in print.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4")
_STYLE = """
  svg { background: #ffffff; color: #1f2328; }
  text { font: 12px system-ui, sans-serif; fill: currentColor; }
  .h { font-weight: 600; font-size: 14px; }
  .grid { stroke: currentColor; stroke-opacity: 0.18; }
  .line { fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3; }
    .p0 { --c: #56b4e9; }
  }
"""


def picture(results: Sequence[Result], about: str, *, leaving: bool) -> str:
    """Return the picture.

    Args:
        results: of each policy, at most as many as there are policies.
        about: what was simulated, in a line.
        leaving: pods leave again, so that the curve is what was accepted so far and not what is in use.
    """
    names = sorted({name for each in results for name in each.classes}, key=order)
    rows = len(results) * _BAR + _GAP
    below = _TOP + _HEIGHT + 84
    height = below + len(names) * rows + 30
    what = "accepted so far" if leaving else "allocated"
    body = "\n".join((*_curves(results, what), *_bars(results, names, below, rows)))
    colours = "\n".join(f"  .p{at} {{ --c: {colour}; }}" for at, colour in enumerate(_COLOURS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(f"GPU {what}, and pods rejected, by policy")}</title>\n'
        f'<desc id="desc">{escape(_described(results, about, leaving=leaving))}</desc>\n'
        f"<style>\n{colours}{_STYLE}</style>\n{body}\n"
        f'<text x="{_LEFT}" y="{height - 10}" opacity="0.75">{escape(about)}</text>\n</svg>\n'
    )


def _described(results: Sequence[Result], about: str, *, leaving: bool) -> str:
    """Return the figures in words, for those who do not see the picture."""
    parts = [f"{about}."]
    for each in results:
        end = "" if leaving or each.at_end is None else f"{100 * each.at_end:.1f} % of the GPUs allocated at the end, "
        parts.append(f"{each.policy}: {end}{100 * each.rejected:.1f} % of the GPU asked for rejected.")
    return " ".join(parts)


def _curves(results: Sequence[Result], what: str) -> Iterator[str]:
    across = max((each.curve[-1][0] for each in results if each.curve), default=1.0) or 1.0
    most = max(1.0, max((got for each in results for _, got in each.curve), default=1.0))
    plot = _WIDTH - _LEFT - _RIGHT

    def x(came: float) -> float:
        return _LEFT + plot * came / across

    def y(got: float) -> float:
        return _TOP + _HEIGHT * (1 - got / most)

    yield f'<text class="h" x="{_LEFT}" y="22">GPU {what}, % of what was free at first</text>'
    at = _LEFT
    for n, each in enumerate(results):
        yield f'<path class="line p{n}" style="stroke:var(--c);stroke-dasharray:{_DASHES[n]}" d="M{at} 42h26"/>'
        yield f'<text x="{at + 32}" y="46">{escape(each.policy)}</text>'
        at += 110
    for step in range(5):
        level = most * step / 4
        yield f'<path class="grid" d="M{_LEFT} {y(level):.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{100 * level:.0f}</text>'
    tick = _TICK * max(1, ceil(across / _TICK / _MOST_TICKS))
    for number in range(int(across / tick + _ROUNDING) + 1):
        came = number * tick
        yield (f'<text x="{x(came):.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{100 * came:.0f}</text>')
    yield f'<text x="{_LEFT}" y="{_TOP + _HEIGHT + 36}">GPU asked for by the pods that came, % (first seed)</text>'
    for n, each in enumerate(results):
        points = " ".join(f"{x(came):.1f},{y(got):.1f}" for came, got in each.curve)
        yield (
            f'<polyline class="line p{n}" style="stroke:var(--c);stroke-dasharray:{_DASHES[n]}" points="{points}">'
            f"<title>{escape(each.policy)}</title></polyline>"
        )


def _bars(results: Sequence[Result], names: Sequence[str], top: int, rows: int) -> Iterator[str]:
    labels = 96
    yield f'<text class="h" x="{_LEFT}" y="{top - 12}">Rejected pods by size, % of the pods of that size</text>'
    left, plot = _LEFT + labels, _WIDTH - _LEFT - _RIGHT - labels - 44
    for row, name in enumerate(names):
        y = top + row * rows
        yield f'<text x="{left - 8}" y="{y + rows / 2:.0f}" text-anchor="end">{escape(name)}</text>'
        yield f'<path class="grid" d="M{left} {y}v{rows - _GAP}"/>'
        for n, each in enumerate(results):
            count = each.classes.get(name)
            refused = 1 - count.part if count is not None else 0.0
            said = f"{each.policy}: {100 * refused:.1f} % of {name} rejected"
            yield (
                f'<rect class="p{n}" style="fill:var(--c)" x="{left}" y="{y + n * _BAR}" width="{plot * refused:.1f}" '
                f'height="{_BAR - 2}"><title>{escape(said)}</title></rect>'
            )
            yield (
                f'<text x="{left + plot * refused + 5:.1f}" y="{y + (n + 1) * _BAR - 2}" style="font-size:9px">'
                f"{100 * refused:.1f}</text>"
            )
