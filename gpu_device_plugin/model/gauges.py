"""Gauges: values that Prometheus reads, what each is called, and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Row = tuple[Sequence[str], Sequence[float | None]]
"""Labels, and a value for each gauge; None: unknown."""


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


def columns(gauges: Iterable[Gauge], rows: Sequence[Row]) -> Gauges:
    """Yield gauges that have the same labels. A value that is not known is left out: 0 would say that there is none."""
    for column, gauge in enumerate(gauges):
        yield gauge, [(labels, value) for labels, values in rows if (value := values[column]) is not None]


def as_bytes(mib: int | None) -> int | None:
    """Return an amount in bytes; None: unknown."""
    return None if mib is None else mib << 20
