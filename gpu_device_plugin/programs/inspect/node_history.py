"""`kubectl inspect gpushare top --history` and `incident`: what the agents of a bounded number of nodes remember."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.core.report.tables import history_tables as tables
from gpu_device_plugin.core.report.text.columns import Line, Tone
from gpu_device_plugin.core.report.text.printing import first
from gpu_device_plugin.features.history import contract
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.inspect.agent_answers import AgentAnswers, of_each
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.programs.terminal import encodes, say
from gpu_device_plugin.view.objects import Named, decoded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from gpu_device_plugin.core.report.finding import Unknown
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

    _Output = tuple[Sequence[str | Line], int]

LONGER = f"A Prometheus that reads the agents' metrics knows more than {contract.LAST_HOUR} (docs/operations.md)."


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
            lines += [*tables.history_lines(node, each, columns, marks), ""]
    if not lines and found:
        say(sys.stderr, f"No pod of {namespace} has had a GPU within {contract.LAST_HOUR}, as far as nodes remember.")
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
        return _json(whole) if arguments.output == "json" else tables.incident_lines(whole, *_terminal()), OK
    if arguments.output == "json":
        documents = [{"node": at, **msgspec.to_builtins(one)} for at, one in listed]
        unread_nodes = [{"node": at, "why": str(why)} for at, why in silent.items()]
        return _json({"version": 1, "incidents": documents, "unread": unread_nodes}), _ending(found, silent)
    if not listed and found:
        say(sys.stderr, "No incident has been recorded.")
    return tables.incident_table(listed, _terminal()[0]) if listed else [], _ending(found, silent)


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


def _terminal() -> tuple[int, tables.Marks]:
    shown = encodes(sys.stdout, f"{tables.BLOCKS.ramp}{tables.BLOCKS.calm}{tables.BLOCKS.celsius}")
    return shutil.get_terminal_size((120, 24)).columns, tables.BLOCKS if shown else tables.ASCII


def _json(document: object) -> list[str]:
    return json.dumps(msgspec.to_builtins(document), indent=2).splitlines()
