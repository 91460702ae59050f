"""`kubectl inspect gpushare top --history` and `incident`: what the agents of a bounded number of nodes remember."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec

from gpu_device_plugin.commandline import FAILED, OK, encodes, say
from gpu_device_plugin.features.history import contract
from gpu_device_plugin.features.history import report as tables
from gpu_device_plugin.kubernetes.agent_reader import (
    AGENT_LABELS,
    AgentReader,
    AgentUnreadableError,
    agent_pods,
    agents,
)
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import Named
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.commands import (
    AS_JSON,
    MISSING_RIGHT,
    NODE,
    Command,
    Output,
    argument,
    needed,
    refusal,
    switch,
    unread,
)
from gpu_device_plugin.report.rules.columns import Line, Tone
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.report.rules.printing import first
from gpu_device_plugin.settings.knobs import UsageError

T = TypeVar("T")

LONGER = "For older data, use Prometheus (docs/operations.md)."
MOST_NODES = 64
"""The most nodes that one command reads."""
_AT_ONCE = 8
BEGUN_WITHIN_S = 30.0
"""No node is asked later than that, so that silent ones do not hold up a command for ever."""


async def agents_of(access: Access, namespace: str) -> AgentReader:
    """Find the agents, which are in this namespace.

    Raises:
        ClusterUnreadableError: the right to list pods is missing.
        ApiError: pods cannot be listed.
    """
    with needed("agents are found among all of them"):
        pods = await access.items(PODS, labels=AGENT_LABELS)
    return AgentReader(access.client, known=agents(agent_pods(pods), namespace))


async def of_each(
    nodes: Sequence[str], read: Callable[[str], Awaitable[T]]
) -> tuple[Mapping[str, T], Mapping[str, Unknown]]:
    """Ask a bounded number of nodes within a bounded time; return the answers, and why others did not answer."""
    until = time.monotonic() + BEGUN_WITHIN_S
    beyond = Unknown("node-not-read", "one command reads {most} nodes; name this one", most=MOST_NODES)
    found: dict[str, T] = {}
    silent: dict[str, Unknown] = dict.fromkeys(nodes[MOST_NODES:], beyond)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(node: str) -> None:
        async with gate:
            try:
                if time.monotonic() < until:
                    found[node] = await read(node)
                else:
                    silent[node] = Unknown("node-not-read", f"others took {BEGUN_WITHIN_S:g} s; name this one")
            except (AgentUnreadableError, ApiError) as error:
                silent[node] = unread(error)

    await asyncio.gather(*map(one, nodes[:MOST_NODES]))
    return {node: found[node] for node in nodes if node in found}, silent


async def histories(
    access: Access, raw_agents: Iterable[msgspec.Raw], namespace: str
) -> dict[str, contract.NodeHistory | str] | Unknown:
    """Return the histories of nodes, given pods with the labels of agents, and the agents' namespace.

    In place of a history stands why it cannot be read, as of an older agent; of all, if a right is missing.
    """
    reader = AgentReader(access.client, known=agents(agent_pods(raw_agents), namespace))
    read = partial(reader.read, path=contract.HISTORY_PATH, kind=contract.NodeHistory)
    found, silent = await of_each(sorted(reader.known.by_node), read)
    denied = next((why for why in silent.values() if why.code == MISSING_RIGHT), None)
    return denied or {**found, **{node: str(why) for node, why in silent.items()}}


async def history(arguments: argparse.Namespace, access: Access, _: Sequence[Resource]) -> Output:
    """Draw the last hour of a node's GPUs and their containers, of a namespace's containers, or of all GPUs.

    Raises:
        ClusterUnreadableError: there is no node to read, or no right to find it.
        ApiError: pods cannot be listed.
    """
    reader, namespace = await agents_of(access, arguments.agents_namespace), arguments.namespace or ""

    async def read(node: str, path: str = contract.HISTORY_PATH) -> contract.NodeHistory:
        return await reader.read(node, path, contract.NodeHistory)

    async def with_containers(node: str) -> contract.NodeHistory:
        whole = await read(node)
        each = [await read(node, contract.gpu_path(gpu.gpu)) for gpu in whole.gpus]
        containers = tuple(container for one in each for container in one.containers)
        return replace(whole, containers=containers, left_out=sum(one.left_out for one in each))

    nodes = [arguments.node] if arguments.node else await _nodes(access, reader, arguments.selector)
    of_namespace = partial(read, path=contract.namespace_path(namespace))
    ask = of_namespace if namespace else with_containers if arguments.node else read
    found, silent = await of_each(nodes, ask)
    columns, marks = _terminal()
    lines: list[str | Line] = []
    for node, each in found.items():
        if each.containers or not namespace:
            lines += [*tables.history_lines(node, each, columns, marks), ""]
    if not lines and found:
        say(sys.stderr, f"No node remembers a pod of {namespace} with a GPU within {contract.LAST_HOUR}.")
    return [*lines, *([Line(LONGER, Tone.FAINT)] if lines else [])], _ending(found, silent)


async def incidents(arguments: argparse.Namespace, access: Access, _: Sequence[Resource]) -> Output:
    """List the incidents of all nodes or of one, or show one incident.

    Raises:
        ClusterUnreadableError: there is no such incident, or no node to read.
        AgentUnreadableError: the incident cannot be read.
        ApiError: pods cannot be listed.
    """
    reader, node, name = await agents_of(access, arguments.agents_namespace), arguments.node, arguments.pod
    nodes = await _nodes(access, reader)
    if node and not name and node not in nodes:  # the name alone, as an Event has it
        node, name = "", node
    found, silent = await of_each(
        [node] if node else nodes,
        partial(reader.read, path=contract.INCIDENTS_PATH, kind=contract.IncidentList),
    )
    listed = [(at, one) for at, each in found.items() for one in each.incidents]
    if name:
        at = next((at for at, one in listed if one.name == name), "")
        if not at:
            where = f"node {node}; leave the name out to list them" if node else "any node, nor a node with GPUs"
            raise ClusterUnreadableError("; ".join((f"{name} is no incident of {where}", *_warnings(silent))))
        whole = await reader.read(at, contract.INCIDENTS_PATH + name, contract.Incident)
        return _json(whole) if arguments.output == "json" else tables.incident_lines(whole, *_terminal()), OK
    if arguments.output == "json":
        documents = [{"node": at, **msgspec.to_builtins(one)} for at, one in listed]
        unread_nodes = [{"node": at, "why": str(why)} for at, why in silent.items()]
        return _json({"version": 1, "incidents": documents, "unread": unread_nodes}), _ending(found, silent)
    if not listed and found:
        say(sys.stderr, "No incident has been recorded.")
    return tables.incident_table(listed, _terminal()[0]) if listed else [], _ending(found, silent)


async def _nodes(access: Access, reader: AgentReader, selector: str = "") -> list[str]:
    """Return the nodes that share GPUs, also those without an agent; with a selector those with an agent that match."""
    try:
        found = await access.every(NODES, Named, labels=selector or f"{SWITCH_LABEL}=true")
    except ApiError as error:
        if selector:
            raise ClusterUnreadableError(f"-l {selector}: {refusal(error)}") from error
        found = []
    names, there = {one.metadata.name for one in found}, reader.known.by_node.keys()
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


def _check_history(arguments: argparse.Namespace) -> None:
    if arguments.sort_by or arguments.interval is not None:
        raise UsageError(f"--history: it draws {contract.LAST_HOUR} once; leave out --sort-by and --interval")


_ONCE = f"draw {contract.LAST_HOUR} of GPUs and pods, once"
HISTORY = Command("history", _ONCE, history, (switch("--history", _ONCE),), _check_history, after="top")

INCIDENT = Command(
    "incident",
    "list incidents on GPUs, or show one",
    incidents,
    (NODE, argument("pod", nargs="?", metavar="NAME", help="show this incident, also without its node"), AS_JSON),
    after="top",
)
