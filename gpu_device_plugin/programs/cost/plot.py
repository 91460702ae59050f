"""The picture of costs: a bar for each holder of GPUs, and one for each part that nobody had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_device_plugin.features.cost.report import HELD, By, CostRow, Costs
from gpu_device_plugin.features.cost.rules import NOBODY, Part
from gpu_device_plugin.plotting import BLUE, GREY, ORANGE, legend_below, picture
from gpu_device_plugin.report.rules.printing import printable, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_HOLDERS = 20
_LONGEST_NAME = 40
_STYLES: Mapping[Part, tuple[str, str, str]] = {
    Part.USED: ("memory in use", BLUE, ""),
    Part.IDLE: ("held, not in use", ORANGE, "//"),
    Part.UNMEASURED: ("held, use not measured", "white", ".."),
    Part.FREE: ("held by nobody", GREY, ""),
    Part.STRANDED: ("held by nobody", GREY, ""),
    Part.UNOBSERVED: ("held by nobody", GREY, ""),
}
_REST = {Part.FREE: "free", Part.STRANDED: "stranded", Part.UNOBSERVED: "not observed"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of the picture: GPU-hours by part, and what they cost."""

    name: str
    hours: Mapping[Part, float] = field(default_factory=dict)
    cents: int = 0


def bars(costs: Costs) -> list[Bar]:
    """Return the bars: those who had most first, then all others together, then what nobody had."""
    holders = [row for row in costs.rows if row.holder != NOBODY]
    shown = [_bar(_name(row, costs.by), [row], HELD) for row in holders[:_MOST_HOLDERS]]
    if rest := holders[_MOST_HOLDERS:]:
        shown.append(_bar(f"{len(rest):,} others", rest, HELD))
    nobody = [row for row in costs.rows if row.holder == NOBODY]
    unknown = _bar("pods not known", nobody, HELD)
    shown += [unknown] if sum(unknown.hours.values()) else []
    return [*shown, *(_bar(name, nobody, (part,)) for part, name in _REST.items())]


def _bar(name: str, rows: Sequence[CostRow], parts: Sequence[Part]) -> Bar:
    hours = {part: float(sum(row.hours(part) for row in rows)) for part in parts}
    return Bar(name, hours, sum(row.cost(*parts) for row in rows))


def _name(row: CostRow, by: By) -> str:
    holder = row.holder
    owner = f"{holder.owner_kind}/{holder.owner}" if holder.owner else ""
    names = {
        By.NAMESPACE: (holder.namespace,),
        By.OWNER: (holder.namespace, owner),
        By.POD: (holder.namespace, holder.pod),
    }
    return shortened(printable(" ".join(filter(None, names[by]))), _LONGEST_NAME)


def draw_costs(path: Path, heading: str, costs: Costs) -> None:
    """Draw who had the GPUs, and what that cost if there are prices.

    Raises:
        UsageError: the file cannot be written.
    """
    shown = bars(costs)
    title = f"GPU-hours{' and cost' * bool(costs.currency)} by {costs.by}"
    with picture(path, title, heading, (9.0, 2.4 + 0.36 * len(shown))) as figure:
        show_bars(figure, shown, costs.currency)


def show_bars(figure: Figure, shown: Sequence[Bar], currency: str) -> None:
    """Draw a line for each bar, with its cost at its end; without a currency with its hours."""
    axes = figure.subplots()
    at, left = range(len(shown)), [0.0] * len(shown)
    labels: set[str] = set()
    for part, (label, colour, hatch) in _STYLES.items():
        hours = [bar.hours.get(part, 0.0) for bar in shown]
        if any(hours):
            new = "_" * (label in labels) + label  # what begins with _ is not in the legend again
            axes.barh(at, hours, 0.7, left, color=colour, hatch=hatch, edgecolor="#333333", linewidth=0.6, label=new)
            labels.add(label)
        left = [before + more for before, more in zip(left, hours, strict=True)]
    longest = max(left) or 1.0
    for row, (bar, end) in enumerate(zip(shown, left, strict=True)):
        amount = f"{bar.cents / 100:,.2f} {currency}" if currency else f"{end:,.1f} h"
        axes.text(end + longest / 100, row, amount, va="center", fontsize=9)
    axes.set_yticks(at, [bar.name for bar in shown])
    axes.set_xlim(0, longest * 1.25)
    axes.set_xlabel("GPU-hours (a quarter of a GPU's memory for 4 hours is 1)")
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    legend_below(figure, axes)
