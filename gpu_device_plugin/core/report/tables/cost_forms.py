"""Show what GPUs cost: as a table, as JSON, and as CSV by FOCUS, the FinOps Open Cost and Usage Specification."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cost.accounting import NOBODY, Part
from gpu_device_plugin.core.cost.charges import HELD, By, rate_of, total
from gpu_device_plugin.core.report.text.columns import Layout, Line, Row, Tone, table
from gpu_device_plugin.core.report.text.printing import printable
from gpu_device_plugin.model.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.cost.accounting import Period
    from gpu_device_plugin.core.cost.charges import Rate
    from gpu_device_plugin.core.cost.charges import Row as CostRow

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
    co2_g_per_kwh: Fraction | None = None
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
        "KG CO2": costs.energy_known and costs.co2_g_per_kwh is not None,
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
            "KG CO2": _decimal(row.kwh * (costs.co2_g_per_kwh or 0) / 1000, 2) if energy else "",
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
            if costs.co2_g_per_kwh is not None:
                found["co2Kg"] = _decimal(row.kwh * costs.co2_g_per_kwh / 1000, 6)
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
