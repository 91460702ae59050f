"""A picture of a simulation as SVG: what is allocated while pods come, and what is rejected by entry or size of pod.

Every attribute is written out, "none" too: many viewers know neither style sheets nor variables nor the defaults.
"""

from __future__ import annotations

from html import escape
from math import floor, log10
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.text.columns import fitted
from gpu_device_plugin.core.report.text.printing import printable
from gpu_device_plugin.programs.simulate.results import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpu_device_plugin.programs.simulate.results import Result

_WIDTH = 760
_LEFT, _RIGHT = 56, 20
_TOP, _HEIGHT, _BELOW = 64, 240, 84
_BAR, _GAP = 11, 10
_LABELS, _MOST_LABEL = 190, 28
# Okabe and Ito's colours, which people with any colour vision tell apart; dashes tell lines apart in print.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4")
_INK, _FAINT, _GRID, _PAPER = "#1f2328", "#59636e", "#d1d9e0", "#ffffff"
_FONT = 'font-family="sans-serif"'


def picture(results: Sequence[Result], about: str, *, leaving: bool) -> str:
    """Return the picture.

    Args:
        results: of each policy, at most as many as there are policies.
        about: what was simulated, in a line.
        leaving: pods leave again, so that the curve is what was accepted so far and not what is in use.
    """
    what = "accepted so far" if leaving else "allocated"
    body = [*_legend(results, what), *_curves(results)]
    below = _TOP + _HEIGHT + _BELOW
    body.append(_text(_LEFT, _TOP + _HEIGHT + 36, "GPU asked for by the pods that came, % (first seed)"))
    names = rows_of(results)
    rows = len(results) * _BAR + _GAP
    height = below + len(names) * rows + 30
    body += _bars(results, names, below, rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(f"GPU {what}, and pods rejected, by policy")}</title>\n'
        f'<desc id="desc">{_escaped(_described(results, about))}</desc>\n'
        f'<rect x="0" y="0" width="{_WIDTH}" height="{height}" fill="{_PAPER}" stroke="none"/>\n'
        + "\n".join(body)
        + f"\n{_text(_LEFT, height - 10, about, size=11, colour=_FAINT)}\n</svg>\n"
    )


def _described(results: Sequence[Result], about: str) -> str:
    """Return the figures in words, for those who do not see the picture."""
    plan = [f"{each.policy}, all seeds: {100 * each.rejected:.1f} % of the GPU asked for rejected." for each in results]
    return " ".join([f"{about}.", *[f"{each.answer}." for each in results], *plan])


def _escaped(text: str) -> str:
    return escape(printable(text))


def _text(
    x: float, y: float, text: str, *, size: int = 12, bold: bool = False, colour: str = _INK, anchor: str = ""
) -> str:
    weight = ' font-weight="bold"' * bold
    at = f' text-anchor="{anchor}"' if anchor else ""
    style = f'{_FONT} font-size="{size}"{weight} fill="{colour}" stroke="none"{at}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{_escaped(text)}</text>'


def _line(n: int) -> str:
    dashes = f' stroke-dasharray="{_DASHES[n]}"' if _DASHES[n] else ""
    return f'fill="none" stroke="{_COLOURS[n]}" stroke-width="2"{dashes}'


def _legend(results: Sequence[Result], what: str) -> Iterator[str]:
    yield _text(_LEFT, 22, f"GPU {what}, % of what was free at first", size=14, bold=True)
    at = _LEFT
    for n, each in enumerate(results):
        yield f'<path {_line(n)} d="M{at} 42h26"/>'
        yield _text(at + 32, 46, each.policy)
        at += 110


# --- The curves -------------------------------------------------------------------------------------------------------


def _curves(results: Sequence[Result]) -> Iterator[str]:
    across = max((each.curve[-1][0] for each in results if each.curve), default=1.0) or 1.0
    high = max(1.0, max((got for each in results for _, got in each.curve), default=1.0))
    plot = _WIDTH - _LEFT - _RIGHT

    def x(came: float) -> float:
        return _LEFT + plot * came / across

    def y(got: float) -> float:
        return _TOP + _HEIGHT * (high - got) / high

    for level in _round_numbers(high, 5):
        yield f'<path d="M{_LEFT} {y(level):.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}" stroke-width="1" fill="none"/>'
        yield _text(_LEFT - 8, y(level) + 4, f"{100 * level:g}", anchor="end")
    for came in _round_numbers(across, 10):
        yield _text(x(came), _TOP + _HEIGHT + 18, f"{100 * came:g}", anchor="middle")
    for n, each in enumerate(results):
        points = " ".join(f"{x(came):.1f},{y(got):.1f}" for came, got in each.curve)
        yield f'<polyline {_line(n)} points="{points}"><title>{_escaped(each.policy)}</title></polyline>'


def _round_numbers(high: float, most: int) -> Sequence[float]:
    """Return at most so many round numbers besides 0, in hundredths, that divide what is below `high` evenly."""
    power = 10 ** floor(log10(100 * high / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * most >= 100 * high)
    return [number * step / 100 for number in range(floor(100 * high / step) + 1)]


# --- The bars ---------------------------------------------------------------------------------------------------------


def _bars(results: Sequence[Result], names: Sequence[str], top: int, rows: int) -> Iterator[str]:
    yield _text(_LEFT, top - 12, "Rejected pods, % of the pods of a row", size=14, bold=True)
    left, plot = _LEFT + _LABELS, _WIDTH - _LEFT - _RIGHT - _LABELS - 44
    for row, name in enumerate(names):
        y = top + row * rows
        yield _text(left - 8, y + rows / 2, fitted(name, _MOST_LABEL), anchor="end")
        yield f'<path d="M{left} {y}v{rows - _GAP}" stroke="{_GRID}" stroke-width="1" fill="none"/>'
        for n, each in enumerate(results):
            count = each.rows.get(name)
            refused = 1 - count.part if count is not None else 0.0
            said = f"{each.policy}: {100 * refused:.1f} % of {name} rejected"
            yield (
                f'<rect x="{left}" y="{y + n * _BAR}" width="{plot * refused:.1f}" height="{_BAR - 2}" '
                f'fill="{_COLOURS[n]}" stroke="none"><title>{_escaped(said)}</title></rect>'
            )
            yield _text(left + plot * refused + 5, y + (n + 1) * _BAR - 3, f"{100 * refused:.1f}", size=9)
