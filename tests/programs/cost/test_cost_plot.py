"""The picture of costs has the figures of the table."""

import re
from fractions import Fraction
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gpu_device_plugin.features.cost.report import By, CostRow, Costs
from gpu_device_plugin.features.cost.rules import NOBODY, Holder, Part, Period
from gpu_device_plugin.programs.cost.plot import Bar, bars, draw_costs, show_bars

PERIOD = Period(0, 3600, 60)


def row(holder: Holder, cents: int = 0, **hours: float) -> CostRow:
    seconds = {Part[name.upper()]: Fraction(amount) * 3600 for name, amount in hours.items()}
    return CostRow(holder, seconds=seconds, cents=dict.fromkeys(seconds, cents))


WEB, TRAIN = Holder("shop", "Deployment", "web"), Holder("ml", "Job", "train")


def test_a_bar_for_each_holder_and_for_what_nobody_had() -> None:
    """Each part costs as much in cents as is said."""
    rows = [row(TRAIN, 150, used=2, idle=1), row(WEB, 25, used=0.5), row(NOBODY, 10, free=3, stranded=0.25)]
    found = bars(Costs(rows, PERIOD, By.OWNER, 4, "EUR"))
    assert [(bar.name, bar.cents) for bar in found] == [
        ("ml Job/train", 300),
        ("shop Deployment/web", 25),
        ("free", 10),
        ("stranded", 10),
        ("not observed", 0),
    ]
    assert found[0].hours == {Part.USED: 2.0, Part.IDLE: 1.0, Part.UNMEASURED: 0.0}
    assert found[2].hours == {Part.FREE: 3.0}


@pytest.mark.parametrize(
    ("by", "holder", "name"),
    [
        (By.NAMESPACE, Holder("shop"), "shop"),
        (By.OWNER, Holder("shop"), "shop"),
        (By.POD, Holder("shop", "Deployment", "web", "web-7d"), "shop web-7d"),
        (By.NAMESPACE, Holder("\x1b[31m" + "x" * 50), "\\x1b[31mxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."),
    ],
)
def test_a_holder_has_its_name(by: By, holder: Holder, name: str) -> None:
    assert bars(Costs([row(holder, used=1)], PERIOD, by, 1))[0].name == name


def test_of_many_holders_the_rest_is_one_bar_and_pods_that_are_not_known_another() -> None:
    rows = [*(row(Holder(f"n{n}"), 5, used=1) for n in range(23)), row(NOBODY, used=2, free=1)]
    found = bars(Costs(rows, PERIOD, By.NAMESPACE, 4, "EUR"))
    assert [bar.name for bar in found[19:]] == ["n19", "3 others", "pods not known", "free", "stranded", "not observed"]
    assert (found[20].hours[Part.USED], found[20].cents, found[21].hours[Part.USED]) == (3.0, 15, 2.0)


def test_what_is_drawn() -> None:
    figure = Figure()
    shown = [
        Bar("a", {Part.USED: 2.0, Part.IDLE: 1.0}, 1234),
        Bar("free", {Part.FREE: 4.0}, 5),
        Bar("stranded", {Part.STRANDED: 1.0}, 0),
    ]
    show_bars(figure, shown, "EUR")
    (axes,) = figure.axes
    drawn = [[(bar.get_x(), bar.get_width()) for bar in each] for each in axes.containers]
    assert drawn == [
        [(0, 2), (0, 0), (0, 0)],
        [(2, 1), (0, 0), (0, 0)],
        [(3, 0), (0, 4), (0, 0)],
        [(3, 0), (4, 0), (0, 1)],
    ]
    assert [text.get_text() for text in axes.texts] == ["12.34 EUR", "0.05 EUR", "0.00 EUR"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "free", "stranded"]
    assert axes.get_xlabel() == "GPU-hours (a quarter of a GPU's memory for 4 hours is 1)"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["memory in use", "held, not in use", "held by nobody"]


def test_without_prices_hours_stand_beside_the_bars(tmp_path: Path) -> None:
    costs = Costs([row(WEB, used=1.5), row(NOBODY)], PERIOD, By.OWNER, 1)
    draw_costs(tmp_path / "cost.svg", "1 GPU for an hour", costs)
    texts = re.findall(r">([^<>\n]+)</text>", (tmp_path / "cost.svg").read_text(encoding="utf-8"))
    assert {"GPU-hours by owner", "1 GPU for an hour", "shop Deployment/web", "1.5 h"} <= {*texts}


def test_no_time_at_all_is_a_picture_too() -> None:
    show_bars(Figure(), bars(Costs([], PERIOD, By.OWNER, 0)), "")
