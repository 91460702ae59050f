"""Draw the last minutes of GPUs and containers in the width of a terminal, and incidents in tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from textwrap import wrap

from gpu_device_plugin.features.history.contract import (
    ContainerHistory,
    GpuHistory,
    Incident,
    IncidentSummary,
    NodeHistory,
    Series,
)
from gpu_device_plugin.features.use.report import uses
from gpu_device_plugin.model.telemetry import Throttle
from gpu_device_plugin.report.rules.columns import Layout, Line, Row, Tone, aligned, columns, fitted, table
from gpu_device_plugin.report.rules.printing import container, counted, duration, limit, mib, printable, short_uuid

_NOTHING = "-"
_LABEL, _NARROWEST, _TAIL = 13, 8, 22
"""Columns before a drawing, of it at least, and after it: ``103.3 of 139.8 GiB``."""
_LONGEST_S = 86_400.0
_HOTTEST_C = 100
"""The end of the scale of a GPU that does not tell the temperature at which it slows down."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters of a drawing."""

    ramp: str
    """From the lowest part of a scale to the highest."""
    calm: str
    """The clocks are as high as they can be."""
    celsius: str


BLOCKS = Marks("▁▂▃▄▅▆▇█", "·", "°C")
ASCII = Marks("_.:-=+*#", ".", "C")
"""For a terminal that has no others."""

REASONS: Mapping[Throttle, tuple[str, str]] = {
    Throttle.HARDWARE_HEAT: ("H", "hardware heat"),
    Throttle.HEAT: ("h", "heat"),
    Throttle.POWER_BRAKE: ("b", "power brake"),
    Throttle.HARDWARE: ("x", "hardware"),
    Throttle.POWER_CAP: ("p", "power limit"),
    Throttle.SYNC: ("s", "sync boost"),
}
"""Letter and name of each reason for lower clocks; where several are given, the letter of the first is drawn."""


def parts(series: Series, width: int) -> list[list[int]]:
    """Return the known values of a series in at most `width` parts, each of the same time; empty ones are gaps."""
    size, number = len(series), min(len(series), width)
    return [
        [value for value in series[at * size // number : (at + 1) * size // number] if value is not None]
        for at in range(number)
    ]


def sparkline(series: Series, width: int, most: int, ramp: str) -> str:
    """Draw a series from 0 to `most` in at most `width` columns: of each part its highest value, spaces for gaps."""
    levels = len(ramp)
    return "".join(
        ramp[max(0, min(levels - 1, max(known) * levels // max(1, most)))] if known else " "
        for known in parts(series, width)
    )


def throttle_marks(series: Series, width: int, calm: str) -> str:
    """Draw why clocks were low, in at most `width` columns: the letter of `REASONS`, `calm` for none."""
    return "".join((_reasons(known) or calm)[0] if known else " " for known in parts(series, width))


def _reasons(values: Iterable[int | None]) -> str:
    """Name the reasons that were given at any of some times."""
    bits = reduce(or_, (value or 0 for value in values), 0)
    return ", ".join(f"{letter} {name}" for reason, (letter, name) in REASONS.items() if bits & reason)


# --- The last hour of a node ------------------------------------------------------------------------------------------


def history_lines(node: str, history: NodeHistory, width: int, marks: Marks) -> list[Line]:
    """Return the drawings of a node's GPUs, each with its containers below it, and the time above all of them."""
    when = Line(fitted(f"{node}, read at {history.at}", width), Tone.HEADING)
    return [when, *_drawings(history, width, marks, "now")]


def _drawings(history: NodeHistory, width: int, marks: Marks, end: str) -> Iterator[Line]:
    recorded = [gpu.used_mib for gpu in history.gpus] + [each.used_mib for each in history.containers]
    size = max(map(len, recorded), default=0)
    if not size:
        yield Line("  nothing has been recorded yet", Tone.FAINT)
        return
    drawing = _Drawing(width, min(size, max(_NARROWEST, width - _LABEL - _TAIL)), marks)
    begin = f"-{duration(min(history.step_s * size, _LONGEST_S))}"
    yield Line(f"{'':<{_LABEL}}{begin}{end:>{max(1 + len(end), drawing.room - len(begin))}}", Tone.FAINT)
    for gpu in sorted(history.gpus, key=lambda gpu: gpu.gpu):
        yield from drawing.of_gpu(gpu)
        for each in history.containers:
            if each.gpu == gpu.gpu:
                yield from drawing.of_container(each, gpu.total_mib)
    if history.left_out:
        yield Line(f"  {counted(history.left_out, 'more container is', 'more containers are')} not recorded.")


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Draws series in `room` columns of lines of `width`, each with its newest value and the end of its scale."""

    width: int
    room: int
    marks: Marks

    def of_gpu(self, gpu: GpuHistory) -> Iterator[Line]:
        yield Line(fitted(f"  GPU {gpu.gpu}  {printable(short_uuid(gpu.uuid))}", self.width), Tone.HEADING)
        yield from self._scaled("  memory", gpu.used_mib, gpu.total_mib, "GiB")
        yield from self._scaled("  SM", gpu.sm_percent, 100, "%")
        slowdown_c = None if gpu.condition is None else gpu.condition.slowdown_c
        yield from self._scaled("  temp", gpu.temperature_c, slowdown_c or _HOTTEST_C, self.marks.celsius)
        if _known(gpu.throttle):
            named = _reasons(gpu.throttle)
            drawn = throttle_marks(gpu.throttle, self.room, self.marks.calm)
            yield self._row("  throttle", drawn, named or "never", Tone.WARNING if named else Tone.PLAIN)

    def of_container(self, each: ContainerHistory, gpu_mib: int) -> Iterator[Line]:
        yield Line(fitted(f"    {printable(container(each))}", self.width))
        yield from self._scaled("    memory", each.used_mib, each.most_mib or gpu_mib, "GiB")
        yield from self._scaled("    SM", each.sm_percent, 100, "%")
        if any(each.cpu_throttled_percent):
            yield from self._scaled("    CPU held", each.cpu_throttled_percent, 100, "%")

    def _scaled(self, label: str, series: Series, most: int, unit: str) -> Iterator[Line]:
        if _known(series):
            tail = f"{_amount(series[-1], unit)} of {_amount(most, unit)} {unit}"
            yield self._row(label, sparkline(series, self.room, most, self.marks.ramp), tail)

    def _row(self, label: str, drawn: str, tail: str, tone: Tone = Tone.PLAIN) -> Line:
        return Line(fitted(f"{label:<{_LABEL}}{drawn:>{self.room}}  {tail}", self.width), tone)


def _known(series: Series) -> bool:
    """Return whether a series was read at some time."""
    return any(value is not None for value in series)


def _amount(value: int | None, unit: str) -> str:
    if value is None:
        return _NOTHING
    return f"{value / 1024:.1f}".removesuffix(".0") if unit == "GiB" else str(value)


# --- Incidents --------------------------------------------------------------------------------------------------------

_OF_INCIDENTS = Layout(
    ("TIME", "NODE", "KIND", "GPU", "POD", "WHAT", "NAME"), shrink={"WHAT": 24, "POD": 12, "NODE": 8}
)


def incident_table(found: Iterable[tuple[str, IncidentSummary]], width: int) -> list[Line]:
    """Return a table of incidents, each with its node, the newest first; two lines of each if `width` is too narrow."""
    newest = sorted(sorted(found, key=lambda each: (each[0], each[1].name)), key=lambda each: each[1].at, reverse=True)
    rows = [
        Row(
            (
                each.at,
                node,
                each.kind.value,
                _NOTHING if each.gpu is None else str(each.gpu),
                "/".join(filter(None, (each.namespace, each.pod))) or _NOTHING,
                each.sentence,
                each.name,
            )
        )
        for node, each in newest
    ]
    lines = table(_OF_INCIDENTS, rows, width)
    if max(columns(line.text) for line in lines) <= width:
        return lines
    lines = []
    for node, one in newest:
        head = printable("  ".join(filter(None, (one.name, node, container(one)))))
        lines.append(Line(fitted(head, width), Tone.HEADING))
        lines += [Line(f"  {line.text}") for line in _wrapped(one.sentence, width - 2)]
    return lines


def incident_lines(incident: Incident, width: int, marks: Marks) -> list[Line]:
    """Return all that is recorded of an incident: what led to it, drawn, then processes, limits and decisions."""
    about = incident.summary
    gpu = "" if about.gpu is None else f"GPU {about.gpu}"
    head = [about.at, incident.node, about.kind.value, gpu, container(about)]
    processes = [
        (f"GPU {each.gpu}", f"pid {each.pid}", container(each) or "(no pod)", mib(each.used_mib))
        for each in incident.processes
    ]
    use = [f"{container(each)} {uses(each)}; limit: {limit(each)}" for each in incident.use.parts]
    blind = [f"who used the GPUs is not known: {incident.use.blind}"] if incident.use.blind else []
    sections = {
        "Processes": aligned(processes) or ["none on the GPU"],
        "Limits and use": [*blind, *use] or ["no container"],
        "Decisions": [f"{each.at}  {each.text}" for each in incident.decisions] or ["none"],
    }
    lines = [
        Line(fitted("  ".join(filter(None, head)), width), Tone.HEADING),
        *_wrapped(about.sentence, width),
        Line(""),
        *_drawings(incident.history, width, marks, "then"),
    ]
    for title, texts in sections.items():
        lines += [Line(""), Line(title, Tone.HEADING), *(line for text in texts for line in _wrapped(text, width))]
    return lines


def _wrapped(text: str, width: int) -> list[Line]:
    return [Line(line) for line in wrap(printable(text), max(20, width), subsequent_indent="  ")]
