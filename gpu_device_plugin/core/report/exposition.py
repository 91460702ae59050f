"""What a program shows to Prometheus at each scrape: values, with their names and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
