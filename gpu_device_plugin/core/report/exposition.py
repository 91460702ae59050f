"""Prometheus' text format, written a few lines at a time, and read.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. The text is that of prometheus_client,
character for character. That library costs an agent 1 MB, and builds three objects for every sample of a page before it
writes the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
Observed: TypeAlias = "tuple[Sequence[str], Sequence[tuple[str, float]], float]"
"""Labels; how many values each bucket and all below it have, by its bound, the last ``+Inf``; and the sum."""
Gauges: TypeAlias = "Iterable[tuple[Gauge, Iterable[Value]]]"


def family(gauge: Gauge, values: Iterable[Value]) -> Iterator[str]:
    """Yield a gauge with all its values as pieces of text, of at most `LINES_AT_ONCE` values each.

    `values` are read piece by piece.
    """
    name, kind = (f"{gauge.name}_total", "counter") if gauge.grows else (gauge.name, "gauge")
    yield _head(name, gauge.help, kind)
    yield from _lines(name, gauge.labels, values)


def histogram(name: str, explained: str, labels: Sequence[str], observed: Iterable[Observed]) -> Iterator[str]:
    """Yield a histogram as pieces of text."""
    yield _head(name, explained, "histogram")
    for texts, buckets, total in observed:
        count = buckets[-1][1]
        yield from _lines(f"{name}_bucket", (*labels, "le"), (((*texts, bound), upto) for bound, upto in buckets))
        yield from _lines(f"{name}_count", labels, [(texts, count)])
        yield from _lines(f"{name}_sum", labels, [(texts, total)])


def samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield (name, labels, value) of each line of a page. Escapes in labels are left as they are."""
    for name, labels, value in _SAMPLE.findall(text):
        yield name, dict(_LABEL.findall(labels)), float(value)


_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([-+.0-9e]+)$", re.MULTILINE | re.ASCII)
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', re.ASCII)


def _head(name: str, explained: str, kind: str) -> str:
    explained = explained.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {explained}\n# TYPE {name} {kind}\n"


def _lines(name: str, labels: Sequence[str], values: Iterable[Value]) -> Iterator[str]:
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
