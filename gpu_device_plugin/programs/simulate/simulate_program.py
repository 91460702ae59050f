"""`gpu-device-plugin simulate`: what would fit, under which policy, on which nodes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO, TypeVar

from gpu_device_plugin.commandline import FAILED, OK, resources_in, say, show
from gpu_device_plugin.kubernetes.kubectl import ClusterUnreadableError, nodes_and_pods
from gpu_device_plugin.plotting import plot_path
from gpu_device_plugin.programs.simulate import plot
from gpu_device_plugin.programs.simulate.burst import burst_table, simulate_burst
from gpu_device_plugin.programs.simulate.experiment import POLICIES, REJECTED, Plan, nodes_needed, simulate
from gpu_device_plugin.programs.simulate.model import Inputs, SimulationOutcome
from gpu_device_plugin.programs.simulate.results import document, heading, needed_document, policy_document, table
from gpu_device_plugin.programs.simulate.sources import CLUSTER, inputs_of
from gpu_device_plugin.report.rules.columns import Line
from gpu_device_plugin.settings.forms import duration, number, one_of, several
from gpu_device_plugin.settings.knobs import Form, UsageError

T = TypeVar("T")

_PROG = "gpu-device-plugin simulate"
_MOST_NOTES = 5
_LEAST_PERCENT = 5


def main(arguments: argparse.Namespace, environ: Mapping[str, str], *, kubectl: str = "kubectl") -> int:
    """Simulate, and print the result; return 0, or 1 if the cluster cannot be read.

    Raises:
        UsageError: the arguments, or what they name, cannot be used.
    """
    bar = Bar(sys.stderr)
    try:
        plan = _plan(arguments)
        path = plot_path(arguments.plot) if arguments.plot is not None else None
        flags = [f"--{name}={text}" for name in ("context", "kubeconfig") if (text := getattr(arguments, name))]
        nodes, added = arguments.nodes or CLUSTER, arguments.nodes_needed or ""
        # Pods that are named need no cluster to be counted in nodes of a kind.
        alone = bool(added) and arguments.nodes is None and arguments.pods not in {None, CLUSTER}
        bar.show("reading", 0.0)
        inputs = inputs_of(
            added if alone else nodes,
            arguments.pods,
            "" if alone else added,
            nodes_flag="--nodes-needed" if alone else "--nodes",
            resources=resources_in(arguments, environ),
            kubectl=partial(nodes_and_pods, flags, kubectl),
            from_empty=arguments.from_empty,
            skip_misfits=arguments.skip_misfits,
        )
        bar.clear()
        for note in inputs.notes[:_MOST_NOTES]:
            say(sys.stderr, f"{_PROG}: {note}")
        if (more := len(inputs.notes) - _MOST_NOTES) > 0:
            say(sys.stderr, f"{_PROG}: {more} more notes like these; -o json has them all")
        about = heading(inputs, plan)
        if plan.burst:
            policies = [simulate_burst(plan, inputs, bar.show)]
            draw = partial(plot.draw_burst, heading=about.text, document=policies[0])
        elif arguments.nodes_needed is not None:
            policies = [needed_document(each, inputs) for each in nodes_needed(plan, inputs, bar.show)]
            draw = partial(plot.draw_needed, heading=about.text, policies=policies)
        else:
            outcomes = simulate(plan, inputs, bar.show)
            policies = [policy_document(each, inputs, plan) for each in outcomes.values()]
            draw = partial(_draw_courses, heading=about.text, plan=plan, inputs=inputs, outcomes=outcomes)
        if path is not None:
            bar.show("drawing", 1.0)
            draw(path)
        bar.clear()
        if arguments.output == "json":
            sys.stdout.write(json.dumps(document(inputs, plan, policies), indent=2) + "\n")
        else:
            lines = burst_table(policies[0]) if plan.burst else table(policies, plan)
            show([about, Line(""), *lines], environ)
        sys.stdout.flush()
    except ClusterUnreadableError as error:
        bar.clear()
        say(sys.stderr, f"{_PROG}: {error}")
        return FAILED
    finally:
        bar.clear()
    return OK


def _draw_courses(
    path: Path, heading: str, plan: Plan, inputs: Inputs, outcomes: Mapping[str, Sequence[SimulationOutcome]]
) -> None:
    plot.draw_courses(path, heading, plan, plot.courses(plan, inputs, outcomes))


def _plan(arguments: argparse.Namespace) -> Plan:
    policies = _read("--policy", several("", one_of(*POLICIES).read), arguments.policy)
    if not policies:
        raise UsageError(f"--policy: no policy is named; there are {', '.join(POLICIES)}")
    until, load = arguments.until, arguments.departures
    burst: tuple[int, ...] = ()
    if arguments.burst is not None:
        burst = _read("--burst", several("", number(1, 100).read), arguments.burst)
        if until == REJECTED or load is not None or arguments.nodes_needed is not None or not burst:
            raise UsageError("--burst: give percentages, as in 100,95,90, and no other question but --until PERCENT")
    return Plan(
        policies,
        _read("--seeds", number(1, 100), arguments.seeds),
        until if until in {None, REJECTED} else _part("--until", until, 1000, f"{REJECTED}, or "),
        None if load is None else _part("--departures", load, 200),
        skip_misfits=arguments.skip_misfits,
        burst=burst,
        return_grace_s=_read("--return-grace", duration(zero=True), arguments.return_grace),
    )


def _read(flag: str, form: Form[T], text: str) -> T:
    try:
        return form.read(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _part(flag: str, text: str, most: int, other: str = "") -> float:
    percent = text.removesuffix("%").strip()
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", percent) or not _LEAST_PERCENT <= float(percent) <= most:
        raise UsageError(
            f"{flag}: {text[:40]!r} is not {other}a percentage from {_LEAST_PERCENT} to {most}; write 95 for 95 %"
        )
    return float(percent) / 100


_CELLS = 30


class Bar:
    """Draws how much is done; nothing on a stream that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._drawn = ""

    def show(self, what: str, part: float) -> None:
        """Show that a part of everything is done, 1.0 being all, and what is under way."""
        if not self._live:
            return
        full = round(_CELLS * part)
        text = f"[{'#' * full}{'.' * (_CELLS - full)}] {100 * part:3.0f} % {what}"
        if text != self._drawn:
            # Erases the rest of the line (ECMA-48, EL), which may be longer.
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._drawn = text

    def clear(self) -> None:
        """Remove the bar."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = ""
