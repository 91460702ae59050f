"""What borrowing gains and costs, for people, for machines, and as a picture."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from gpu_device_plugin.core.report.text import columns
from gpu_device_plugin.core.report.text.columns import Line, Tone
from gpu_device_plugin.programs.simulate.model import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.programs.simulate.burst import BurstOutcome
    from gpu_device_plugin.programs.simulate.experiment import Plan
    from gpu_device_plugin.programs.simulate.inputs.sources import Inputs

    Json = dict[str, Any]


def burst_document(outcomes: Sequence[BurstOutcome], inputs: Inputs, plan: Plan) -> Json:
    """Return what came of each choice of guarantees; all figures are means over the seeds."""
    workload = inputs.workload
    steps = max(len(each.use_gib) for each in workload.recordings)
    gpus = sum(node.shape.whole for node in inputs.nodes)
    choices = [
        {
            "percent": each.percent,
            "guaranteedShares": round(each.guaranteed / len(workload.pods), 2),
            "run": _mean(each.ran),
            "asked": _mean(seed.asked for seed in each.replayed),
            "evicted": _mean(seed.evicted for seed in each.replayed),
            "short": round(_mean(seed.short for seed in each.replayed) / (steps * gpus), 5),
        }
        for each in outcomes
    ]
    return {
        "policy": plan.policies[0],
        "answer": _answer(plan.policies[0], choices, steps * workload.step_s),
        "seconds": steps * workload.step_s,
        "stepSeconds": workload.step_s,
        "returnGraceSeconds": plan.return_grace_s,
        "choices": choices,
    }


def _mean(numbers: Iterable[int]) -> float:
    found = list(numbers)
    return round(sum(found) / len(found), 2)


def _answer(policy: str, choices: Sequence[Json], seconds: float) -> str:
    """Return the most pods that run without an eviction."""
    asked_for, *others = choices
    best = max((each for each in others if not each["evicted"]), key=lambda each: each["run"], default=asked_for)
    if best["run"] <= asked_for["run"]:
        return (
            f"{policy}: no more than {_told(asked_for['run'])} pods run without evictions, with any of these guarantees"
        )
    return (
        f"{policy}: {_told(best['run'])} pods run instead of {_told(asked_for['run'])}, if each is guaranteed what it "
        f"did not exceed for {best['percent']} % of the time; in {_time(seconds)} none is evicted, and "
        f"pods are asked {counted(round(best['asked']), 'time')} to return memory"
    )


def _time(seconds: float) -> str:
    days, hours = seconds / 86_400, seconds / 3600
    return f"{days:.1f} days" if days >= 2 else f"{hours:.1f} hours"


def _told(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


_COLUMNS: dict[str, Callable[[Json, Json], str]] = {
    "GUARANTEE": lambda each, _: "as requested" if each["percent"] is None else f"{each['percent']} % of the time",
    "SHARES": lambda each, _: f"{each['guaranteedShares']:.1f}",
    "RUN": lambda each, _: _told(each["run"]),
    "MORE": lambda each, first: "-" if each is first else f"{each['run'] - first['run']:+,.1f}".removesuffix(".0"),
    "ASKED": lambda each, _: _told(each["asked"]),
    "EVICTED": lambda each, _: _told(each["evicted"]),
    "SHORT": lambda each, _: f"{100 * each['short']:.1f} %",
}


def burst_table(document: Json) -> list[Line]:
    """Return the answer, and a row for each choice of guarantees."""
    choices = document["choices"]
    rows = [columns.Row(tuple(cell(each, choices[0]) for cell in _COLUMNS.values())) for each in choices]
    first, *numbers = _COLUMNS
    about = (
        "a pod is guaranteed what it did not exceed for that part of the time, and may use what it asks for; shares: "
        "the mean guarantee; short: part of the GPUs' time"
    )
    return [
        Line(document["answer"]),
        Line(""),
        *columns.table(columns.Layout((first, *numbers), frozenset(numbers)), rows, sys.maxsize),
        Line(about, Tone.FAINT),
    ]


# --- The picture ------------------------------------------------------------------------------------------------------

_LIGHT = ("#ffffff", "#1f2328", "#0a58a8", "#a04000", "#59636e")
_DARK = ("#151b23", "#e6edf3", "#6cb6ff", "#f0a35e", "#9198a1")
_WIDTH, _ROW, _TOP, _LEFT, _BAR = 760, 30, 56, 150, 300


def burst_picture(document: Json) -> str:
    """Return a picture in SVG: for each choice how many pods run, and how many of these are evicted."""
    choices = document["choices"]
    most = max(each["run"] for each in choices) or 1
    height = _TOP + _ROW * len(choices) + 12
    title = "Pods that run by the guarantee that they have, and how many of them are evicted"
    shapes = [_text(_LEFT, 20, title), *(_text(x, 44, word) for x, word in ((12, "guarantee"), (_LEFT, "pods")))]
    shapes += [_text(x, 44, word) for x, word in ((540, "asked"), (610, "evicted"), (690, "short"))]
    for at, each in enumerate(choices):
        top = _TOP + at * _ROW
        evicted = _BAR * each["evicted"] / most
        lasting = _BAR * each["run"] / most - evicted
        cells = {name: cell(each, choices[0]) for name, cell in _COLUMNS.items()}
        shapes += [
            f'<rect class="lasting" x="{_LEFT}" y="{top}" width="{lasting:.1f}" height="20"/>',
            f'<rect class="evicted" x="{_LEFT + lasting:.1f}" y="{top}" width="{evicted:.1f}" height="20"/>',
            _text(12, top + 15, cells["GUARANTEE"]),
            _text(round(_LEFT + lasting + evicted + 8), top + 15, cells["RUN"] + (f" ({cells['MORE']})" if at else "")),
            _text(540, top + 15, cells["ASKED"]),
            _text(610, top + 15, cells["EVICTED"]),
            _text(690, top + 15, cells["SHORT"]),
        ]
    size = f'width="{_WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {size} role="img">',
            f"<title>{title}</title>",
            f"<style>{_style(_LIGHT)}@media(prefers-color-scheme:dark){{{_style(_DARK)}}}</style>",
            f'<rect class="ground" {size} rx="8"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def _style(palette: tuple[str, ...]) -> str:
    ground, text, lasting, evicted, line = palette
    return (
        f".ground{{fill:{ground};stroke:{line}}}text{{fill:{text};font:14px ui-sans-serif,sans-serif}}"
        f".lasting{{fill:{lasting}}}.evicted{{fill:{evicted}}}"
    )


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
