"""Put a price on divided GPU time, so that what the parts cost adds up to what all GPUs cost, to the cent."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cost.accounting import NOBODY, Holder, Key, Part, apportion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.cost.accounting import Account

HELD = (Part.USED, Part.IDLE, Part.UNMEASURED)
"""The parts that somebody was given."""


class By(StrEnum):
    """Which holders are added up."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    POD = "pod"

    def of(self, holder: Holder) -> Holder:
        """Return the holder without the names that are not told apart."""
        return holder if self is By.POD else Holder(*holder[: 3 if self is By.OWNER else 1])


@dataclass(frozen=True, slots=True)
class Rate:
    """The price of an hour of a whole GPU."""

    models: str
    """A pattern of models as in a shell, in which only ``*`` and ``?`` and ``[...]`` are special."""
    per_hour: Fraction


class NoRateError(ValueError):
    """A model has no rate; the message is a sentence."""


def rate_of(model: str, rates: Iterable[Rate]) -> Fraction:
    """Return the price of an hour: that of the first rate whose pattern the model matches. Raises NoRateError."""
    for rate in rates:
        if fnmatchcase(model.casefold(), rate.models.casefold()):
            return rate.per_hour
    name = f"the model {model!r}" if model else "GPUs whose model is not known (no gpushare_gpu_info)"
    raise NoRateError(f"there is no rate for {name}; add --rate '{model or '*'}=PRICE'")


@dataclass(slots=True)
class Row:
    """What a holder had, or nobody; see `Account`."""

    holder: Holder
    model: str = ""
    """Empty: of all models."""
    seconds: dict[Part, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    cents: dict[Part, int] = field(default_factory=lambda: defaultdict(int))
    borrowed: Fraction = Fraction()
    energy_mj: int = 0

    def hours(self, *parts: Part) -> Fraction:
        """Return the GPU-hours of these parts."""
        return sum((self.seconds.get(part, Fraction()) for part in parts), Fraction()) / 3600

    @property
    def kwh(self) -> Fraction:
        """Energy in kilowatt-hours."""
        return Fraction(self.energy_mj, 3_600_000_000)

    def cost(self, *parts: Part) -> int:
        """Return the cents of these parts."""
        return sum(self.cents.get(part, 0) for part in parts)


def cents(account: Account, rates: Sequence[Rate]) -> Mapping[tuple[Key, Part], int]:
    """Return what each part costs: together exactly what all GPUs cost, rounded once. Raises NoRateError."""
    by_model = {key.model: rate_of(key.model, rates) for key, _ in account.parts}
    exact = {cell: seconds * by_model[cell[0].model] / 36 for cell, seconds in account.parts.items()}
    return apportion(round(sum(exact.values(), Fraction())), exact)


def rows(account: Account, by: By, prices: Mapping[tuple[Key, Part], int], *, models: bool = False) -> list[Row]:
    """Return a row for each holder that `by` tells apart, those who had most first, and nobody's last.

    `prices` are `cents`, or empty; with `models` each model has a row of its own.
    """
    found: dict[tuple[Holder, str], Row] = {}

    def row(key: Key) -> Row:
        of = by.of(key.holder), key.model if models else ""
        return found.setdefault(of, Row(*of))

    for (key, part), seconds in account.parts.items():
        row(key).seconds[part] += seconds
        row(key).cents[part] += prices.get((key, part), 0)
    for key, seconds in account.borrowed.items():
        row(key).borrowed += seconds
    for key, energy_mj in account.energy_mj.items():
        row(key).energy_mj += energy_mj
    return sorted(found.values(), key=lambda each: (each.holder == NOBODY, -each.hours(*HELD), each.holder, each.model))


def total(all_rows: Iterable[Row]) -> Row:
    """Return the sum of rows."""
    whole = Row(NOBODY)
    for row in all_rows:
        for part in Part:
            whole.seconds[part] += row.seconds.get(part, Fraction())
            whole.cents[part] += row.cents.get(part, 0)
        whole.borrowed += row.borrowed
        whole.energy_mj += row.energy_mj
    return whole
