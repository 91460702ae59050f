"""Pictures of a simulation: what is allocated and stranded while pods come, the GPUs at the end, and what it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.marginal_value import Appraiser, FreeCapacity
from gpu_device_plugin.features.learning.rules.price_learning import learning
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType
from gpu_device_plugin.plotting import BLUE, GREEN, ORANGE, RED, legend_below, picture
from gpu_device_plugin.programs.simulate.experiment import Plan, gpu_nodes, pods_and_stays, run
from gpu_device_plugin.programs.simulate.model import Inputs, SimulationOutcome, capacity_of, counted, demand_of
from gpu_device_plugin.report.rules.printing import printable, shortened
from gpu_device_plugin.scheduler.rules.packing import finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = dict[str, Any]

_MOMENTS = 100
"""In which a course is drawn."""
_MOST_NODES, _MOST_NAMED = 40, 12
"""Nodes whose GPUs are drawn, and which are named."""
_LONGEST_NAME = 16
_WIDE, _HIGH = 0.84, 0.84
"""A GPU's box, from one node or GPU to the next being 1."""
_OF_POLICY = {"fit": (BLUE, "o"), "binpack": (ORANGE, "s"), "spread": (GREEN, "^")}
"""The colour and the mark of each."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU, or a MIG instance, at the end; as parts of its memory, 1.0 being all."""

    allocated: float
    stranded: float


@dataclass(frozen=True, slots=True)
class Course:
    """What one policy made of the pods of the first seed."""

    policy: str
    x: tuple[float, ...]
    """What pods had asked for, in % of what was free at first; where pods leave, how many had come."""
    allocated: tuple[float, ...]
    """In % of what was free at first."""
    stranded: tuple[float, ...]
    """Likewise: free memory that is of no use to the pods of the list."""
    nodes: tuple[tuple[str, tuple[GpuState, ...]], ...]
    """The GPUs of each node at the end."""


def courses(plan: Plan, inputs: Inputs, outcomes: Mapping[str, Sequence[SimulationOutcome]]) -> list[Course]:
    """Let the pods of the first seed come once more, and take notes."""
    strandings = _Strandings(inputs)
    _, stays = pods_and_stays(plan, inputs, 0)
    return [_course(plan, inputs, each[0], stays, strandings) for each in outcomes.values()]


def _course(
    plan: Plan, inputs: Inputs, outcome: SimulationOutcome, stays: Sequence[int], strandings: _Strandings
) -> Course:
    pods, capacity = outcome.pods, capacity_of(inputs.nodes) or 1.0
    demand = demand_of(inputs.workload, inputs.nodes)
    asked = [0.0, *accumulate(demand[pod] for pod in pods)]
    shapes = [node.shape for node in outcome.nodes]
    points: list[tuple[float, float, float]] = [
        (0.0, 0.0, 100 * sum(strandings.of(node.shape, node.left) for node in inputs.nodes) / capacity)
    ]
    every = max(1, len(pods) // _MOMENTS)

    def watch(came: int, lefts: Sequence[FreeCapacity]) -> None:
        if came % every and came != len(pods):
            return
        free = sum(left.shares for left in lefts)
        stranded = sum(map(strandings.of, shapes, lefts))
        x = float(came) if plan.departures is not None else 100 * asked[came] / capacity
        points.append((x, 100 * (1 - free / capacity), 100 * stranded / capacity))

    # Nothing leaves after the last pod that counts.
    ended = run(outcome.policy, inputs.nodes, inputs.workload, pods, 0, stays=stays[: len(pods)], watch=watch)
    order = {node.name: at for at, node in enumerate(inputs.nodes)}
    nodes = sorted(ended.nodes, key=lambda node: (_numbers_by_value(node.name), order[node.name]))
    x, allocated, stranded = zip(*points, strict=True)
    return Course(outcome.policy, x, allocated, stranded, tuple([(node.name, strandings.gpus(node)) for node in nodes]))


def _numbers_by_value(name: str) -> list[tuple[int, str]]:
    """Return the place of a cluster's node by its name, gpu-2 before gpu-10; nodes in words keep their order."""
    parts = [] if _in_words(name) else re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _in_words(name: str) -> bool:
    return name.startswith("'")


class _Strandings:
    """Says of free memory which is of no use to the pods of the list, and remembers what it said."""

    def __init__(self, inputs: Inputs) -> None:
        self._appraiser = Appraiser(finished(learning(inputs.workload.mix(), gpu_nodes(inputs.nodes))))
        self._known: dict[tuple[NodeType, FreeCapacity], float] = {}

    def of(self, shape: NodeType, left: FreeCapacity) -> float:
        """Return the stranded shares of a node."""
        key = shape, left
        if key not in self._known:
            room = self._appraiser.appraise(shape, left)
            self._known[key] = room.stranded if room is not None else 0.0
        return self._known[key]

    def gpus(self, node: Start) -> tuple[GpuState, ...]:
        """Return the GPUs of a node; those out of service have nothing."""
        room = self._appraiser.appraise(node.shape, node.left)
        found = []
        for at, (size, free) in enumerate(zip(node.shape.sizes, node.left.frees, strict=True)):
            group = room.group_at[at] if room is not None else -1
            stranded = room.stranded_of(room.groups[group]) if room is not None and group >= 0 else 0.0
            found.append(GpuState((size - free) / size if free >= 0 else 0.0, stranded / size))
        return tuple(found)


# --- Pods that come ---------------------------------------------------------------------------------------------------


def draw_courses(path: Path, heading: str, plan: Plan, found: Sequence[Course]) -> None:
    """Draw what was allocated and stranded by each policy, and the GPUs of each node at the end.

    Raises:
        UsageError: the file cannot be written.
    """
    tallest = max((len(gpus) for _, gpus in found[0].nodes[:_MOST_NODES]), default=1)
    below = 0.9 + 0.24 * tallest
    size = 10.0, 4.6 + len(found) * below + 0.5
    about = heading if plan.seeds == 1 else f"{heading}, of which this is the first"
    with picture(path, "GPU memory allocated and stranded as pods arrive", about, size) as figure:
        show_courses(figure, found, below, leaving=plan.departures is not None)


def show_courses(figure: Figure, found: Sequence[Course], below: float = 1.0, *, leaving: bool = False) -> None:
    """Draw all courses into one diagram, and the GPUs of each at the end below it, so many inches high."""
    rows = figure.subplots(1 + len(found), 1, height_ratios=[4.0, *[below] * len(found)])
    _draw_lines(rows[0], found, leaving=leaving)
    for axes, course in zip(rows[1:], found, strict=True):
        _draw_gpus(axes, course)
    rows[-1].set_xlabel(_about_nodes(found[0]))
    legend_below(figure, rows[-1])


def _draw_lines(axes: Axes, found: Sequence[Course], *, leaving: bool) -> None:
    for at, course in enumerate(found):
        colour, mark = _OF_POLICY[course.policy]
        # The first lines are wider, and marked elsewhere: equal ones are all seen.
        step = max(1, len(course.x) // 8)
        marks: dict[str, Any] = {
            "color": colour,
            "marker": mark,
            "markevery": (step * (at + 1) // (len(found) + 1), step),
        }
        width = 2.0 + 1.5 * (len(found) - 1 - at)
        label = f"{course.policy}: allocated"
        axes.plot(course.x, course.allocated, label=label, linewidth=width, markersize=width + 4, **marks)
        label = f"{course.policy}: stranded"
        axes.plot(
            course.x,
            course.stranded,
            label=label,
            linewidth=width - 0.5,
            markersize=width + 4,
            linestyle="--",
            markerfacecolor="white",
            **marks,
        )
    last = max(course.x[-1] for course in found)
    if not leaving:
        axes.plot(
            [0, min(last, 100)],
            [0, min(last, 100)],
            color="black",
            linewidth=0.8,
            linestyle=":",
            label="all that was requested",
        )
        axes.set_xlabel("GPU memory requested so far, in % of what was free at the start")
    else:
        axes.set_xlabel("pods that have arrived; many of them have left again")
    axes.set_ylabel("% of GPU memory free at the start")
    axes.set_xlim(0, last or 1)
    highest = max(max(*course.allocated, *course.stranded) for course in found)
    axes.set_ylim(0, min(103, max(1.0, 1.3 * highest)))
    axes.set_title("Stranded: free memory that no set of the listed pods can use")
    axes.legend(loc="upper left", fontsize=9, ncols=1)


def _draw_gpus(axes: Axes, course: Course) -> None:
    nodes = course.nodes[:_MOST_NODES]
    parts = [(at, gpu, state) for at, (_, gpus) in enumerate(nodes, 1) for gpu, state in enumerate(gpus)]
    whole = [(at - _WIDE / 2, float(gpu), _HIGH) for at, gpu, _ in parts]
    used = [(x, low, _HIGH * state.allocated) for (x, low, _), (_, _, state) in zip(whole, parts, strict=True)]
    lost = [(x, low + high, _HIGH * state.stranded) for (x, low, high), (_, _, state) in zip(used, parts, strict=True)]
    _add_boxes(axes, whole, label="free", facecolor="white", edgecolor="#555555")
    _add_boxes(axes, used, label="allocated", facecolor=BLUE)
    _add_boxes(axes, lost, label="stranded", facecolor="white", edgecolor=RED, hatch="xxxx", linewidth=0)
    _add_boxes(axes, whole, fill=False, edgecolor="#555555", linewidth=0.8)
    tallest = max((len(gpus) for _, gpus in nodes), default=1)
    axes.set_ylim(-0.1, tallest)
    axes.set_xlim(0.4, len(nodes) + 0.6)
    axes.set_yticks([gpu + _HIGH / 2 for gpu in range(tallest)], [f"{gpu}" for gpu in range(tallest)])
    named = len(nodes) <= _MOST_NAMED and not any(_in_words(name) for name, _ in nodes)
    axes.set_xticks(
        range(1, len(nodes) + 1),
        [shortened(printable(name), _LONGEST_NAME) if named else f"{n}" for n, (name, _) in enumerate(nodes, 1)],
        fontsize=9 if len(nodes) <= _MOST_NAMED else 7,
    )
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_ylabel("GPU")
    axes.set_title(f"GPUs at the end: {course.policy}")


def _add_boxes(axes: Axes, boxes: Sequence[tuple[float, float, float]], **style: Any) -> None:
    """Draw boxes, each by its left, its bottom and its height: as one path, which keeps pictures small."""
    from matplotlib.patches import PathPatch  # noqa: PLC0415 - only pictures need it
    from matplotlib.path import Path as Shape  # noqa: PLC0415

    corners = [
        corner
        for x, low, high in boxes
        if high > 0
        for corner in ((x, low), (x + _WIDE, low), (x + _WIDE, low + high), (x, low + high), (x, low))
    ]
    codes = [Shape.MOVETO, Shape.LINETO, Shape.LINETO, Shape.LINETO, Shape.CLOSEPOLY] * (len(corners) // 5)
    if corners:
        axes.add_patch(PathPatch(Shape(corners, codes), **style))


def _about_nodes(course: Course) -> str:
    more = len(course.nodes) - _MOST_NODES
    return "node" if more <= 0 else f"node: the first {_MOST_NODES} of {len(course.nodes):,}"


# --- Nodes that are needed, and guarantees ----------------------------------------------------------------------------


def draw_needed(path: Path, heading: str, policies: Sequence[Json]) -> None:
    """Draw how many nodes each policy needs.

    Raises:
        UsageError: the file cannot be written.
    """
    with picture(path, "Nodes needed for all pods, by policy", heading, (8.0, 2.2 + 0.5 * len(policies))) as figure:
        show_needed(figure, policies)


def show_needed(figure: Figure, policies: Sequence[Json]) -> None:
    """Draw a bar for each policy, and what none can do without."""
    axes = figure.subplots()
    names, numbers = [each["policy"] for each in policies], [each["nodes"] for each in policies]
    bars = axes.barh(names, numbers, color=[_OF_POLICY[name][0] for name in names], height=0.6)
    axes.bar_label(bars, [counted(number, "node") for number in numbers], padding=4)
    least = policies[0]["atLeast"]
    axes.axvline(least, color="black", linestyle="--", label=f"no policy needs fewer than {least:,}")
    axes.set_xlim(0, max(1, *numbers, least) * 1.18)
    axes.set_xlabel("nodes")
    axes.locator_params(axis="x", integer=True)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    legend_below(figure, axes)


def draw_burst(path: Path, heading: str, document: Json) -> None:
    """Draw what lower guarantees gain and cost.

    Raises:
        UsageError: the file cannot be written.
    """
    with picture(path, "Lower guarantees: more pods run, and more are evicted", heading, (8.0, 6.0)) as figure:
        show_burst(figure, document["choices"])


def show_burst(figure: Figure, choices: Sequence[Json]) -> None:
    """Draw for each choice of guarantees how many pods run, and below it how long memory was short."""
    names = ["as\nrequested" if each["percent"] is None else f"{each['percent']} %" for each in choices]
    evicted, short = [each["evicted"] for each in choices], [100 * each["short"] for each in choices]
    stay = [each["run"] - gone for each, gone in zip(choices, evicted, strict=True)]
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.5])
    above.bar(names, stay, 0.7, color=BLUE, label="run to the end")
    bars = above.bar(
        names, evicted, 0.7, bottom=stay, color="white", edgecolor=RED, hatch="xxxx", linewidth=0, label="are evicted"
    )
    above.bar_label(bars, [f"{each['run']:.1f}".removesuffix(".0") for each in choices], padding=3)
    above.set_ylim(0, max(1, *(each["run"] for each in choices)) * 1.15)
    above.set_ylabel("pods")
    above.set_title("Pods that find room (means over all orders)")
    above.legend(loc="upper left", fontsize=9)
    bars = below.bar(names, short, 0.7, color=ORANGE, hatch="//", edgecolor="white")
    below.bar_label(bars, [f"{part:.1f} %" for part in short], padding=2)
    below.set_ylim(0, max(1, *short) * 1.3)
    below.set_ylabel("% of GPU time")
    below.set_title("Time in which less memory was free than was guaranteed")
    below.set_xlabel("guarantee: the memory that a pod did not exceed in this fraction of its time")
    for axes in (above, below):
        axes.grid(visible=False, axis="x")
