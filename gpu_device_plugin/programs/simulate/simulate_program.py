"""`gpu-device-plugin simulate`: what would fit, under which policy, on which nodes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.text.columns import Line
from gpu_device_plugin.programs.commandline import FAILED, OK, resources_in
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, Kubectl
from gpu_device_plugin.programs.simulate.arguments import load_in, policies_in, seeds_in, until_in
from gpu_device_plugin.programs.simulate.experiment import Plan, nodes_needed, simulate
from gpu_device_plugin.programs.simulate.inputs.sources import InputSources
from gpu_device_plugin.programs.simulate.results import document, heading, needed_document, policy_document, table
from gpu_device_plugin.programs.simulate.run import POLICIES
from gpu_device_plugin.programs.terminal import discard_output, say, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import TextIO


_PROG = "gpu-device-plugin simulate"
_MOST_NOTES = 5


def main(arguments: argparse.Namespace, environ: Mapping[str, str], *, kubectl: str = "kubectl") -> int:
    """Simulate, and print the result; return 0, or 1 if the cluster cannot be read.

    Raises:
        UsageError: the arguments, or what they name, cannot be used.
    """
    bar = Bar(sys.stderr)
    try:
        plan = Plan(
            policies_in(arguments.policy, POLICIES),
            seeds_in(arguments.seeds),
            until_in(arguments.until),
            load_in(arguments.departures),
            cold=arguments.cold,
            skip_misfits=arguments.skip_misfits,
        )
        flags = [f"--{name}={text}" for name in ("context", "kubeconfig") if (text := getattr(arguments, name))]
        sources = InputSources(
            resources_in(arguments, environ), Kubectl(flags, kubectl), from_empty=arguments.from_empty
        )
        inputs = sources.inputs(
            arguments.nodes, arguments.pods, arguments.nodes_needed or "", skip_misfits=arguments.skip_misfits
        )
        for note in inputs.notes[:_MOST_NOTES]:
            say(sys.stderr, f"{_PROG}: {note}")
        if (more := len(inputs.notes) - _MOST_NOTES) > 0:
            say(sys.stderr, f"{_PROG}: {more} more notes like these; -o json has them all")
        if arguments.nodes_needed is not None:
            policies = [needed_document(each, inputs) for each in nodes_needed(plan, inputs, bar.show)]
        else:
            outcomes = simulate(plan, inputs, bar.show)
            policies = [policy_document(each, inputs, plan) for each in outcomes.values()]
        bar.clear()
        if arguments.output == "json":
            sys.stdout.write(json.dumps(document(inputs, plan, policies), indent=2) + "\n")
        else:
            show([heading(inputs, plan), Line(""), *table(policies, plan)], environ)
        sys.stdout.flush()
    except ClusterUnreadableError as error:
        bar.clear()
        say(sys.stderr, f"{_PROG}: {error}")
        return FAILED
    except BrokenPipeError:
        discard_output(sys.stdout)
        return FAILED
    finally:
        bar.clear()
    return OK


_CELLS = 30


class Bar:
    """Draws how much is done; nothing on a stream that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._drawn = ""

    def show(self, what: str, part: float) -> None:
        """Show that a part of everything is done, 1.0 being all, and what is under way."""
        full = round(_CELLS * part)
        text = f"[{'#' * full}{'.' * (_CELLS - full)}] {100 * part:3.0f} % {what}"
        if self._live and text != self._drawn:
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
