"""Write gauges in Prometheus' text format, a few lines at a time.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. prometheus_client builds three objects for
every sample of a page before it writes the first; a page of a thousand containers or nodes is cheaper written directly.
The text is the same, character for character, and so are the rules of escaping.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LINES_AT_ONCE = 256
"""Lines in one piece of text: they take about half a millisecond."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that is read at each scrape."""

    name: str
    help: str
    """What it means, for people."""
    labels: tuple[str, ...] = ()
    grows: bool = False
    """It is a counter, which never decreases; its name on the page ends in ``_total``."""


Value: TypeAlias = "tuple[Sequence[str], float]"
"""Labels in the order of ``Gauge.labels``, and the value."""
Gauges: TypeAlias = "Iterable[tuple[Gauge, Iterable[Value]]]"


def family(gauge: Gauge, values: Iterable[Value]) -> Iterator[str]:
    """Yield a gauge with all its values as pieces of text, of at most `LINES_AT_ONCE` values each.

    `values` are read piece by piece.
    """
    name, kind = (f"{gauge.name}_total", "counter") if gauge.grows else (gauge.name, "gauge")
    explained = gauge.help.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {explained}\n# TYPE {name} {kind}\n"
    labels = gauge.labels
    order = sorted(range(len(labels)), key=labels.__getitem__)
    begins = [(f'{labels[place]}="', place) for place in order]
    left = iter(values)
    while piece := list(islice(left, LINES_AT_ONCE)):
        lines = []
        for texts, value in piece:
            pairs = ",".join([f'{begin}{_escaped(texts[place])}"' for begin, place in begins])
            lines.append(f"{name}{{{pairs}}} {number(value)}\n" if pairs else f"{name} {number(value)}\n")
        yield "".join(lines)


def _escaped(text: str) -> str:
    if not text.isascii():
        # A lone surrogate, as JSON may hold one, cannot be sent as UTF-8.
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """Return a finite number as Go writes it, and so Prometheus' own libraries: ``1.073741824e+09``."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        digits = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{digits}e+{dot - 1:02d}"
    return text
