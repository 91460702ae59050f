"""`kubectl inspect gpushare top --history` and `incident`: what the agents of a bounded number of nodes remember."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from textwrap import wrap
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.core.report.text.columns import Layout, Line, Row, Tone, aligned, columns, fitted, table
from gpu_device_plugin.core.report.text.printing import counted, first, printable, short_uuid
from gpu_device_plugin.core.report.text.use_texts import container, duration, limit, mib, uses
from gpu_device_plugin.features.history import contract
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from gpu_device_plugin.model.telemetry import Throttle
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.inspect.agent_answers import AgentAnswers, of_each
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.programs.terminal import encodes, say
from gpu_device_plugin.view.objects import Named, decoded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.report.finding import Unknown
    from gpu_device_plugin.features.history.contract import (
        ContainerHistory,
        GpuHistory,
        Incident,
        IncidentSummary,
        NodeHistory,
        Series,
    )
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

    _Output = tuple[Sequence[str | Line], int]


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


LONGER = "A Prometheus that reads the agents' metrics knows more than the last hour (docs/operations.md)."


def history(arguments: argparse.Namespace, kubectl: Kubectl, _: Sequence[Resource]) -> _Output:
    """Draw the last hour of a node's GPUs and their containers, of a namespace's containers, or of all GPUs.

    Raises:
        ClusterUnreadableError: there is no node to read, or no right to find it.
    """
    agents, namespace = AgentAnswers.of(kubectl, arguments.agents_namespace), arguments.namespace or ""

    def read(node: str, path: str = contract.HISTORY_PATH) -> contract.NodeHistory:
        return agents.read(node, path, contract.NodeHistory)

    def with_containers(node: str) -> contract.NodeHistory:
        whole = read(node)
        each = [read(node, contract.gpu_path(gpu.gpu)) for gpu in whole.gpus]
        containers = tuple(container for one in each for container in one.containers)
        return replace(whole, containers=containers, left_out=sum(one.left_out for one in each))

    nodes = [arguments.node] if arguments.node else _nodes(agents, arguments.selector)
    of_namespace = partial(read, path=contract.namespace_path(namespace))
    ask = of_namespace if namespace else with_containers if arguments.node else read
    found, silent = of_each(nodes, ask)
    columns, marks = _terminal()
    lines: list[str | Line] = []
    for node, each in found.items():
        if each.containers or not namespace:
            lines += [*history_lines(node, each, columns, marks), ""]
    if not lines and found:
        say(sys.stderr, f"No pod of {namespace} has had a GPU within the last hour, as far as nodes remember.")
    return [*lines, *([Line(LONGER, Tone.FAINT)] if lines else [])], _ending(found, silent)


def incidents(arguments: argparse.Namespace, kubectl: Kubectl, _: Sequence[Resource]) -> _Output:
    """List the incidents of all nodes or of one, or show one incident.

    Raises:
        ClusterUnreadableError: there is no such incident, or no node to read.
    """
    agents, node, name = AgentAnswers.of(kubectl, arguments.agents_namespace), arguments.node, arguments.pod
    nodes = _nodes(agents)
    if node and not name and node not in nodes:  # the name alone, as an Event has it
        node, name = "", node
    found, silent = of_each(
        [node] if node else nodes,
        partial(agents.read, path=contract.INCIDENTS_PATH, kind=contract.IncidentList),
    )
    listed = [(at, one) for at, each in found.items() for one in each.incidents]
    if name:
        at = next((at for at, one in listed if one.name == name), "")
        if not at:
            where = f"node {node}; leave the name out to list them" if node else "any node, nor a node with GPUs"
            raise ClusterUnreadableError("; ".join((f"{name} is no incident of {where}", *_warnings(silent))))
        whole = agents.read(at, contract.INCIDENTS_PATH + name, contract.Incident)
        return _json(whole) if arguments.output == "json" else incident_lines(whole, *_terminal()), OK
    if arguments.output == "json":
        documents = [{"node": at, **msgspec.to_builtins(one)} for at, one in listed]
        unread_nodes = [{"node": at, "why": str(why)} for at, why in silent.items()]
        return _json({"version": 1, "incidents": documents, "unread": unread_nodes}), _ending(found, silent)
    if not listed and found:
        say(sys.stderr, "No incident has been recorded.")
    return incident_table(listed, _terminal()[0]) if listed else [], _ending(found, silent)


def _nodes(agents: AgentAnswers, selector: str = "") -> list[str]:
    """Return the nodes that share GPUs, also those without an agent; with a selector those with an agent that match."""
    try:
        raw = agents.kubectl.items("/api/v1/nodes", labels=selector or f"{SWITCH_LABEL}=true", optional=True)
    except ClusterUnreadableError as error:
        if selector:
            raise ClusterUnreadableError(f"-l {selector}: {unread(error)}") from error
        raw = []
    names, there = {decoded(one, Named).metadata.name for one in raw}, agents.agents.by_node.keys()
    if selector and not names & there:
        raise ClusterUnreadableError(f"-l {selector}: no node with an agent has these labels")
    if not (names or there):
        raise ClusterUnreadableError("no node shares GPUs; kubectl inspect gpushare doctor says why")
    return sorted(names & there if selector else names | there)


def _warnings(silent: Mapping[str, Unknown]) -> Iterator[str]:
    """Yield a sentence for each reason, with its nodes."""
    reasons: dict[str, list[str]] = {}
    for node, unknown in sorted(silent.items()):
        why = "; ".join(filter(None, (str(unknown), unknown.remedy))).replace(f"node {node}", "the node")
        reasons.setdefault(why, []).append(node)
    for why, nodes in reasons.items():
        yield f"not read: {first(nodes)}: {why}"


def _ending(found: Mapping[str, object], silent: Mapping[str, Unknown]) -> int:
    """Say which nodes were not read, and return the exit code."""
    for warning in _warnings(silent):
        say(sys.stderr, f"warning: {warning}")
    return OK if found else FAILED


def _terminal() -> tuple[int, Marks]:
    shown = encodes(sys.stdout, f"{BLOCKS.ramp}{BLOCKS.calm}{BLOCKS.celsius}")
    return shutil.get_terminal_size((120, 24)).columns, BLOCKS if shown else ASCII


def _json(document: object) -> list[str]:
    return json.dumps(msgspec.to_builtins(document), indent=2).splitlines()
