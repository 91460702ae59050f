"""Read chosen series of a page of metrics in Prometheus' text format, with bounds on what its writer may cost us.

The format is https://prometheus.io/docs/instrumenting/exposition_formats/. prometheus_client's parser takes a page as
its own program wrote it; this page comes from another machine, and most of its series do not matter here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

MOST_LABELS = 16
LONGEST_LINE = 4096
"""Characters. Names of namespaces, pods and containers have 253 at most."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)\s*')
_REST = re.compile(r"\s+([+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|[Ii]nf|NaN))(?:\s+-?[0-9]+)?\s*")
"""The value, and perhaps a time, which does not matter."""
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


class MalformedMetricsError(ValueError):
    """A page is no page of metrics. The message is a phrase that quotes nothing of it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float
    """Finite."""


def samples(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Yield the samples of these names, in their order on the page; those without a finite value are left out.

    Raises:
        MalformedMetricsError: a line of one of these names, or of none at all, is not in the format.
    """
    # Not splitlines, which also splits where a label's value has a character like U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")  # noqa: PLW2901
        if not line or line.startswith("#"):
            continue
        named = _NAME.match(line)
        if named is None:
            raise MalformedMetricsError(f"line {number} is none of Prometheus' text format")
        if named[0] not in names:
            continue
        labels, at = _labels(line, named.end(), number)
        rest = _REST.fullmatch(line, at)
        if rest is None:
            raise MalformedMetricsError(f"line {number} has no value")
        value = _value(rest[1], number)
        if math.isfinite(value):
            yield Sample(named[0], labels, value)


def _labels(line: str, at: int, number: int) -> tuple[Mapping[str, str], int]:
    """Return the labels of a sample, and where they end."""
    found: dict[str, str] = {}
    if len(line) > LONGEST_LINE:
        raise MalformedMetricsError(f"line {number} is longer than {LONGEST_LINE} characters")
    if not line.startswith("{", at):
        return found, at
    at += 1
    while not line.startswith("}", at):
        label = _LABEL.match(line, at)
        if label is None or len(found) == MOST_LABELS or label[1] in found:
            raise MalformedMetricsError(f"line {number} has labels that cannot be read")
        found[label[1]] = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), label[2])
        at = label.end()
        if not label[3] and not line.startswith("}", at):
            raise MalformedMetricsError(f"line {number} has labels that cannot be read")
    return found, at + 1


def _value(text: str, number: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise MalformedMetricsError(f"line {number} has no value") from None
