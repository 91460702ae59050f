"""`kubectl inspect gpushare top --history` and `incident`: what the agents of a bounded number of nodes remember."""

from __future__ import annotations

import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from gpu_device_plugin.core.contract.history import (
    HISTORY_PATH,
    INCIDENTS_PATH,
    LARGEST_HISTORY,
    LARGEST_INCIDENT,
    Incident,
    IncidentList,
    NodeHistory,
)
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL
from gpu_device_plugin.core.report.tables.history_tables import (
    ASCII,
    BLOCKS,
    history_lines,
    incident_lines,
    incident_table,
)
from gpu_device_plugin.core.report.text.columns import Line, Tone
from gpu_device_plugin.core.report.text.printing import first
from gpu_device_plugin.programs.commandline import FAILED, OK
from gpu_device_plugin.programs.inspect.agent_answers import AgentAnswers
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, unread
from gpu_device_plugin.programs.terminal import encodes, say
from gpu_device_plugin.view.objects import Named, decoded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.report.tables.history_tables import Marks
    from gpu_device_plugin.programs.kubectl import Kubectl

    _Output = tuple[Sequence[str | Line], int]

T = TypeVar("T")

MOST_NODES = 64
"""The most nodes that one command reads."""
_AT_ONCE = 8
_BEGUN_WITHIN_S = 30.0
"""No node is asked later than that, so that silent ones do not hold up the command for ever."""
_PIPE_COLUMNS = 120
LONGER = "For longer than an hour ask Prometheus, where one reads the agents' metrics (docs/operations.md)."


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """What nodes answered, by name, and why others did not."""

    answers: Mapping[str, T]
    unread: Mapping[str, str]

    def warnings(self) -> Iterable[str]:
        """Yield a sentence for each reason, with its nodes."""
        reasons: dict[str, list[str]] = {}
        for node, why in self.unread.items():
            reasons.setdefault(why.replace(f"node {node}", "the node"), []).append(node)
        for why, nodes in reasons.items():
            yield f"{first(nodes)} not read: {why}"


def history(arguments: argparse.Namespace, kubectl: Kubectl, _: Sequence[Resource]) -> _Output:
    """Draw the last hour of a node's GPUs and their containers, of a namespace's containers, or of all GPUs.

    Raises:
        ClusterUnreadableError: no agent can be read.
    """
    agents, node, namespace = AgentAnswers.of(kubectl), arguments.node, arguments.namespace or ""
    nodes = [node] if node else _nodes(agents, arguments.selector)
    path = f"{HISTORY_PATH}namespaces/{namespace}" if namespace else HISTORY_PATH
    read = partial(agents.read, kind=NodeHistory, most=LARGEST_HISTORY)
    if node and not namespace:
        found = _Read({node: _whole(node, read)}, {})
    else:
        found = _of_each(nodes, lambda name: read(name, path))
    shown = {name: each for name, each in found.answers.items() if each.containers or not namespace}
    columns, marks = _terminal()
    lines: list[str | Line] = []
    for name, each in sorted(shown.items()):
        lines += [*history_lines(name, each, columns, marks), ""]
    if namespace and not shown:
        say(sys.stderr, f"No pod of {namespace} has used a GPU within the last hour, as far as nodes were read.")
    return [*lines, *([Line(LONGER, Tone.FAINT)] if lines else [])], _ending(found)


def _whole(node: str, read: Callable[[str, str], NodeHistory]) -> NodeHistory:
    """Return the history of a node's GPUs and of all containers on them."""
    whole = read(node, HISTORY_PATH)
    each = [read(node, f"{HISTORY_PATH}gpus/{gpu.gpu}") for gpu in whole.gpus]
    containers = tuple(container for one in each for container in one.containers)
    return replace(whole, containers=containers, left_out=sum(one.left_out for one in each))


def incidents(arguments: argparse.Namespace, kubectl: Kubectl, _: Sequence[Resource]) -> _Output:
    """List the incidents of all nodes or of one, or show one incident.

    Raises:
        ClusterUnreadableError: there is no such node or incident, or no agent can be read.
    """
    agents, node, name = AgentAnswers.of(kubectl), arguments.node, arguments.pod
    nodes = _nodes(agents, "")
    word = "" if name or node in nodes else node
    found = _of_each(
        nodes if word or not node else [node],
        lambda each: agents.read(each, INCIDENTS_PATH, IncidentList, most=LARGEST_HISTORY),
    )
    as_json = arguments.output == "json"
    if wanted := name or word:
        at = next((at for at, each in found.answers.items() if any(one.name == wanted for one in each.incidents)), "")
        if not at:
            where = f"node {node}" if name else "any node, and no node has this name"
            unread_too = "".join(f"; {why}" for why in found.warnings())
            raise ClusterUnreadableError(
                f"{wanted}: no such incident is remembered by {where}{unread_too}; "
                "kubectl inspect gpushare incident lists them"
            )
        whole = agents.read(at, f"{INCIDENTS_PATH}{wanted}", Incident, most=LARGEST_INCIDENT)
        return _json(whole) if as_json else incident_lines(whole, *_terminal()), OK
    listed = [(at, one) for at, each in found.answers.items() for one in each.incidents]
    if as_json:
        documents = [{"node": at, **msgspec.to_builtins(one)} for at, one in listed]
        unread_nodes = [{"node": at, "why": why} for at, why in found.unread.items()]
        return _json({"version": 1, "incidents": documents, "unread": unread_nodes}), _ending(found)
    if not listed and found.answers:
        say(sys.stderr, "No incident is remembered.")
    return incident_table(listed, _terminal()[0]) if listed else [], _ending(found)


# --- Reading ----------------------------------------------------------------------------------------------------------


def _nodes(agents: AgentAnswers, selector: str) -> list[str]:
    """Return the nodes that share GPUs, also those without an agent; with a selector those among them that match."""
    try:
        raw = agents.kubectl.items("/api/v1/nodes", labels=selector or f"{SWITCH_LABEL}=true", optional=True)
    except ClusterUnreadableError as error:
        if selector:
            raise ClusterUnreadableError(f"-l {selector}: {unread(error)}") from error
        raw = []
    names = {decoded(one, Named).metadata.name for one in raw}
    there = agents.agents.by_node.keys()
    return sorted(names & there if selector else names | there)


def _of_each(nodes: Sequence[str], read: Callable[[str], T]) -> _Read[T]:
    """Ask a bounded number of nodes within a bounded time; raise ClusterUnreadableError if there is none to ask."""
    if not nodes:
        raise ClusterUnreadableError("no node shares GPUs; run kubectl inspect gpushare doctor to see why")
    begin_until = time.monotonic() + _BEGUN_WITHIN_S

    def one(node: str) -> T | ClusterUnreadableError:
        if time.monotonic() > begin_until:
            return ClusterUnreadableError(f"others took {_BEGUN_WITHIN_S:g} s; name the node")
        try:
            return read(node)
        except ClusterUnreadableError as error:
            return error

    asked = nodes[:MOST_NODES]
    with ThreadPoolExecutor(_AT_ONCE, "read an agent") as pool:
        answers = dict(zip(asked, pool.map(one, asked), strict=True))
    unread_nodes = {
        node: str(unread(error)) for node, error in answers.items() if isinstance(error, ClusterUnreadableError)
    }
    left = dict.fromkeys(nodes[MOST_NODES:], f"one command reads {MOST_NODES} nodes; name the node")
    known = {node: each for node, each in answers.items() if not isinstance(each, ClusterUnreadableError)}
    return _Read(known, unread_nodes | left)


def _ending(found: _Read[T]) -> int:
    """Say which nodes were not read, and return the exit code."""
    for warning in found.warnings():
        say(sys.stderr, f"warning: {warning}")
    return OK if found.answers else FAILED


def _terminal() -> tuple[int, Marks]:
    marks = BLOCKS if encodes(sys.stdout, f"{BLOCKS.ramp}{BLOCKS.calm}{BLOCKS.celsius}") else ASCII
    return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns, marks


def _json(document: object) -> list[str]:
    return json.dumps(msgspec.to_builtins(document), indent=2).splitlines()
