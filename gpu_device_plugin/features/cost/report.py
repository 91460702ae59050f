"""Put a price on divided GPU time, and show it: as a table, as JSON, and as CSV by FOCUS.

What the parts cost adds up to what all GPUs cost, to the cent. FOCUS is the FinOps Open Cost and Usage Specification.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction

from gpu_device_plugin.features.cost.rules import NOBODY, Account, Holder, Key, Part, Period, apportion
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.report.rules.columns import Layout, Line, Row, Tone, table
from gpu_device_plugin.report.rules.printing import printable

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
class CostRow:
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


def rows(account: Account, by: By, prices: Mapping[tuple[Key, Part], int], *, models: bool = False) -> list[CostRow]:
    """Return a row for each holder that `by` tells apart, those who had most first, and nobody's last.

    `prices` are `cents`, or empty; with `models` each model has a row of its own.
    """
    found: dict[tuple[Holder, str], CostRow] = {}

    def row(key: Key) -> CostRow:
        of = by.of(key.holder), key.model if models else ""
        return found.setdefault(of, CostRow(*of))

    for (key, part), seconds in account.parts.items():
        row(key).seconds[part] += seconds
        row(key).cents[part] += prices.get((key, part), 0)
    for key, seconds in account.borrowed.items():
        row(key).borrowed += seconds
    for key, energy_mj in account.energy_mj.items():
        row(key).energy_mj += energy_mj
    return sorted(found.values(), key=lambda each: (each.holder == NOBODY, -each.hours(*HELD), each.holder, each.model))


def total(all_rows: Iterable[CostRow]) -> CostRow:
    """Return the sum of rows."""
    whole = CostRow(NOBODY)
    for row in all_rows:
        for part in Part:
            whole.seconds[part] += row.seconds.get(part, Fraction())
            whole.cents[part] += row.cents.get(part, 0)
        whole.borrowed += row.borrowed
        whole.energy_mj += row.energy_mj
    return whole


# --- Forms -----------------------------------------------------------------------------------------------------------

_HELD = {"USED": Part.USED, "IDLE": Part.IDLE, "NOT MEASURED": Part.UNMEASURED}
_REST = {Part.FREE: "free", Part.STRANDED: "stranded", Part.UNOBSERVED: "not observed"}
UNKNOWN = "(pods not known)"
_FOCUS = {
    "ChargeCategory": "Usage",
    "ChargeClass": "",
    "ChargeFrequency": "Usage-Based",
    "PricingCategory": "Standard",
    "ResourceType": "GPU",
    "ServiceCategory": "Compute",
    "ServiceName": "Shared GPUs",
}
"""The columns that are the same in every charge."""


# OWASP's "CSV Injection", with the wide forms of the characters. Some spreadsheets part cells at other characters, too.
_FORMULA = re.compile(r"(^|[,;|])(\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


@dataclass(frozen=True, slots=True)
class Costs:
    """What is shown."""

    rows: Sequence[CostRow]
    """Those who had most first; that of nobody last."""
    period: Period
    by: By
    cards: int
    currency: str = ""
    """Empty: there are no prices."""
    notes: Sequence[str] = ()

    @property
    def energy_known(self) -> bool:
        """Whether any power was known."""
        return any(row.energy_mj for row in self.rows)


def cost_table(costs: Costs, width: int) -> list[Line]:
    """Return the costs as lines of at most this width, or wider if they cannot shrink to it."""
    unmeasured = any(row.seconds.get(Part.UNMEASURED) for row in costs.rows)
    names = {By.NAMESPACE: ("NAMESPACE",), By.OWNER: ("NAMESPACE", "OWNER"), By.POD: ("NAMESPACE", "OWNER", "POD")}
    optional = {
        "NOT MEASURED": unmeasured,
        f"COST ({costs.currency})": bool(costs.currency),
        "KWH": costs.energy_known,
    }
    figures = ("GPU-HOURS", "USED", "IDLE", "BORROWED", *(name for name, shown in optional.items() if shown))

    def cells(row: CostRow, given: Sequence[Part], *, split: bool = True) -> tuple[str, ...]:
        energy = row.holder != NOBODY or Part.FREE in given
        texts = {
            "GPU-HOURS": _decimal(row.hours(*given), 2),
            **{name: _decimal(row.hours(part), 2) if split else "" for name, part in _HELD.items()},
            "BORROWED": _decimal(row.borrowed / 3600, 2) if split else "",
            f"COST ({costs.currency})": _decimal(Fraction(row.cost(*given), 100), 2),
            "KWH": _decimal(row.kwh, 2) if energy else "",
        }
        return tuple(texts[name] for name in figures)

    blank = ("",) * (len(names[costs.by]) - 1)
    lines = []
    for row in costs.rows:
        if row.holder != NOBODY:
            holder = row.holder
            owner = f"{holder.owner_kind}/{holder.owner}" if holder.owner else ""
            named = (holder.namespace, owner, holder.pod)[: len(names[costs.by])]
            lines.append(Row((*named, *cells(row, HELD))))
            continue
        if row.hours(*HELD):
            lines.append(Row((UNKNOWN, *blank, *cells(row, HELD))))
        lines += [Row((name, *blank, *cells(row, (part,), split=False)), Tone.FAINT) for part, name in _REST.items()]
    lines.append(Row(("total", *blank, *cells(total(costs.rows), tuple(Part))), Tone.HEADING))
    layout = Layout((*names[costs.by], *figures), frozenset(figures), dict.fromkeys(names[costs.by], 12))
    return [*table(layout, lines, width), *(Line(f"* {note}") for note in costs.notes)]


def cost_document(costs: Costs) -> Mapping[str, object]:
    """Return the costs for JSON. GPU-hours and money are texts, so that no reader rounds them."""

    def amounts(row: CostRow) -> dict[str, object]:
        found: dict[str, object] = {
            f"{part}GpuHours": _decimal(row.hours(part), 6) for part in Part if row.seconds.get(part)
        }
        found["borrowedGpuHours"] = _decimal(row.borrowed / 3600, 6)
        if costs.currency:
            found["cost"] = {part: _decimal(Fraction(row.cost(part), 100), 2) for part in Part if row.seconds.get(part)}
            found["totalCost"] = _decimal(Fraction(row.cost(*Part), 100), 2)
        if costs.energy_known:
            found["energyKwh"] = _decimal(row.kwh, 6)
        return found

    return {
        "version": 1,
        "from": rfc3339(costs.period.start),
        "to": rfc3339(costs.period.end),
        "stepSeconds": costs.period.step_s,
        "by": costs.by,
        "gpus": costs.cards,
        "currency": costs.currency or None,
        "rows": [
            {
                "namespace": row.holder.namespace,
                "ownerKind": row.holder.owner_kind,
                "owner": row.holder.owner,
                "pod": row.holder.pod,
                **amounts(row),
            }
            for row in costs.rows
            if row.holder != NOBODY
        ],
        "nobody": next((amounts(row) for row in costs.rows if row.holder == NOBODY), {}),
        "total": amounts(total(costs.rows)),
        "notes": [*costs.notes],
    }


def focus_csv(costs: Costs, rates: Sequence[Rate], account_name: str) -> str:
    """Return the costs as CSV with the mandatory columns of FOCUS 1.2, and those that fit.

    `Costs.rows` have a row for each model. What nobody had is charged to no sub account. What a spreadsheet would take
    for a formula gets an apostrophe: the names of owners are what the creators of pods wrote.
    """
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in costs.rows:
        price = rate_of(row.model, rates)
        for part in Part:
            if not row.seconds.get(part):
                continue
            cost, holder = _decimal(Fraction(row.cost(part), 100), 2), row.holder
            named = "/".join(filter(None, (holder.namespace, holder.owner_kind, holder.owner, holder.pod)))
            tags = {"gpushare/use": str(part), "gpushare/model": row.model} | {
                f"gpushare/{key}": value for key, value in holder._asdict().items() if value
            }
            line = {
                **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), cost),
                **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), _decimal(price, 9)),
                **dict.fromkeys(("BillingAccountId", "BillingAccountName", "InvoiceIssuerName"), account_name),
                **dict.fromkeys(("ProviderName", "PublisherName"), account_name),
                **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), rfc3339(costs.period.start)),
                **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), rfc3339(costs.period.end)),
                **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), _decimal(row.hours(part), 9)),
                **dict.fromkeys(("ConsumedUnit", "PricingUnit"), "GPU Hours"),
                **dict.fromkeys(("SubAccountId", "SubAccountName"), holder.namespace),
                **_FOCUS,
                "BillingCurrency": costs.currency,
                "ChargeDescription": f"{row.model}: GPU time {part}" + (f", of {named}" if named else ""),
                "ResourceId": named or str(part),
                "ResourceName": holder.pod or holder.owner or holder.namespace or str(part),
                "SkuId": row.model,
                "SkuPriceId": f"{row.model} per GPU Hour",
                "Tags": json.dumps(tags, sort_keys=True),
            }
            if writer is None:
                writer = csv.DictWriter(out, list(line))
                writer.writeheader()
            writer.writerow({name: _FORMULA.sub(r"\1\2'", printable(text)) for name, text in line.items()})
    return out.getvalue()


def _decimal(value: Fraction, places: int) -> str:
    """Return a number of at least 0 with so many decimal places, rounded half to even."""
    digits = round(value * 10**places)
    return f"{digits // 10**places}.{digits % 10**places:0{places}d}"
