"""The overview of `kubectl inspect gpushare`: nodes with their pods, and claims where a node serves them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.commandline import OK, say, width
from gpu_device_plugin.features.claims.report import claims_waiting, rows_claimed
from gpu_device_plugin.features.report_features import ReportParts
from gpu_device_plugin.features.use.report import at_a_glance
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.kubectl import Access, ClusterUnreadableError
from gpu_device_plugin.kubernetes.objects.api_objects import escaped, readable
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, NODES, NOT_ENDED, PODS, PodReader
from gpu_device_plugin.model import pods
from gpu_device_plugin.model.contract.keys import READ_BY_AGENT
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.inspect.gpushare_layout import details, summary, wide
from gpu_device_plugin.report.commands import (
    GRANT,
    MISSING_RIGHT,
    NODE,
    Command,
    Output,
    all_of,
    argument,
    cluster_of,
    either,
    refusal,
    switch,
    unread,
)
from gpu_device_plugin.report.followed_cluster import cluster
from gpu_device_plugin.report.rules.columns import Line, columns
from gpu_device_plugin.report.rules.finding import Unknown
from gpu_device_plugin.report.rules.held_instances import instance_pod
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import document
from gpu_device_plugin.report.rules.terminal_tables import (
    PodRow,
    by_name,
    folded,
    folded_details,
    pod_rows,
    pod_table,
    rows_alone,
    rows_waiting,
)
from gpu_device_plugin.scheduler.rules.usage import NOTHING, Usage, usage_of
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    import msgspec


COUNTING = ("spec.nodeName!=", *NOT_ENDED)
"""Selects the pods that may hold a GPU or part of one."""
_VIEWER = "an administrator grants the rights by binding the ClusterRole gpushare-viewer"


async def overview(arguments: argparse.Namespace, access: Access, resources: Sequence[Resource]) -> Output:
    """Show the nodes that share GPUs, one of them, or the pods of one namespace; as far as the user's rights reach.

    Raises:
        ClusterUnreadableError: there is no such node, or what is asked for needs a right that is missing.
        ApiError: not even the pods of the user's namespace can be read.
    """
    parts: ReportParts = arguments.parts
    if arguments.namespace:
        return await _pods_of(arguments.namespace, access, resources, parts)
    name = arguments.node
    try:
        raw_nodes = await nodes_named(arguments, access)
    except ForbiddenError as error:
        if name:
            raise
        # The pods of the user's namespace are shown, unless these must not be read either.
        try:
            return await _pods_of(access.namespace, access, resources, parts)
        except ApiError:
            raise error from None
    placed = (f"spec.nodeName={escaped(name)}", *NOT_ENDED) if name else COUNTING
    try:
        raw_pods = await access.items(PODS, placed)
    except ForbiddenError as error:
        lacking, namespace = error.call.missing_right, access.namespace
        if arguments.output not in {"summary", "details", "gpushare"}:
            raise ClusterUnreadableError(f"{lacking}, and GPUs would seem freer than they are; {GRANT}") from error
        raw_pods = await access.items(PODS, placed, namespace=namespace)
        say(
            sys.stderr,
            f"warning: {lacking}: only pods of {namespace} are counted, so GPU usage may be under-reported ({_VIEWER})",
        )
    found = await cluster_of(raw_nodes, raw_pods, resources, access, features=parts, kind=parts.kind)
    nodes = found.views
    if not nodes:
        doctor = "No node shares GPUs; run kubectl inspect gpushare doctor to see why."
        chosen = f"No node with the labels {arguments.selector} shares GPUs." if arguments.selector else doctor
        say(sys.stderr, f"Node {name} shares no GPUs." if name else chosen)
    lines = _LAYOUTS[arguments.output](nodes)
    fold = _FOLDED.get(arguments.output)
    if fold and (room := width(0)) and any(columns(line) > room for line in lines):
        return [*fold(nodes, room), *at_a_glance(nodes)], OK
    return lines, OK


async def nodes_named(arguments: argparse.Namespace, access: Access) -> list[msgspec.Raw]:
    """Return the node in the arguments as JSON; without one all nodes that match their label selector.

    Raises:
        ClusterUnreadableError: there is no node of this name.
        ApiError: nodes cannot be read.
    """
    name: str = arguments.node
    fields = [f"metadata.name={escaped(name)}"] if name else []
    try:
        raw_nodes = await access.items(NODES, fields, labels=arguments.selector)
    except InvalidError as error:
        if not arguments.selector:
            raise
        raise ClusterUnreadableError(f"-l {arguments.selector}: {error.said}; write -l zone=b, for example") from error
    if name and not raw_nodes:
        raise ClusterUnreadableError(f'nodes "{name}" not found; {arguments.instead}')
    return raw_nodes


async def _pods_of(namespace: str, access: Access, resources: Sequence[Resource], parts: ReportParts) -> Output:
    """Show the pods of one namespace, with their use if nodes can be read."""
    raw_pods = await access.items(PODS, NOT_ENDED, namespace=namespace)
    try:
        raw_nodes = await access.items(NODES)
    except ApiError as error:
        shown, why = f"only the pods of {namespace} are shown, without use and free GPUs", unread(error)
        say(sys.stderr, f"warning: {why}: {shown}" + (f" ({_VIEWER})" if why.code == MISSING_RIGHT else ""))
        read = await all_of(parts.kind, access, namespace)
        claims = () if isinstance(read, Unknown) else read[0]
        waiting = rows_waiting(cluster((), raw_pods, resources)[0].waiting_pods, resources)
        rows = [*rows_alone(gpu_pods(raw_pods, resources)), *rows_claimed(claims), *waiting]
        return await _table_of(rows, namespace, access), OK
    found = await cluster_of(raw_nodes, raw_pods, resources, access, namespace, features=parts, kind=parts.kind)
    waiting = [*rows_waiting(found.waiting_pods, resources), *claims_waiting(found.more_of())]
    return await _table_of([*pod_rows(found.views, namespace), *waiting], namespace, access), OK


async def _table_of(rows: Sequence[PodRow], namespace: str, access: Access) -> Sequence[Line]:
    if not rows:
        try:
            await access.get(NAMESPACES, namespace)
        except NotFoundError as error:  # pods of a namespace that does not exist are an empty list
            raise ClusterUnreadableError(f"{refusal(error)}; is {namespace} spelt right?") from error
        except ApiError:  # it may be there
            pass
        say(sys.stderr, f"No pod of {namespace} has a GPU.")
        return []
    return pod_table(sorted(rows, key=by_name), width())


def _as_yaml(nodes: Sequence[NodeView]) -> list[str]:
    import yaml  # noqa: PLC0415 - 3 MB that only -o yaml needs

    text: str = yaml.safe_dump(document(nodes), sort_keys=False, width=4096)
    return text.splitlines()


_LAYOUTS: Mapping[str, Callable[[Sequence[NodeView]], list[str]]] = {
    "summary": summary,
    "gpushare": summary,
    "details": details,
    "wide": wide,
    "json": lambda nodes: json.dumps(document(nodes), indent=2).splitlines(),
    "yaml": _as_yaml,
}

_FOLDED: Mapping[str, Callable[[Sequence[NodeView], int], list[Line]]] = {"summary": folded, "details": folded_details}
"""The layouts that take another form where a terminal is too narrow for them."""


def _check(arguments: argparse.Namespace) -> None:
    if arguments.namespace and (arguments.node or arguments.selector):
        raise UsageError("-n: the pods of a namespace are shown wherever they run; leave out the node and -l")
    if arguments.namespace and arguments.output != "summary":
        raise UsageError("-n: -d and -o show the pods of all namespaces; leave one of the two out")


CHOICE = (
    argument("-n --namespace", help="show only the pods of this namespace"),
    argument("-l --selector", default="", metavar="LABELS", help="only nodes with these labels"),
    switch("-w --watch", "same as top"),
)
"""Of the overview and of top."""

OVERVIEW = Command(
    "overview",
    "show which pods use which GPU; the default command",
    overview,
    (
        NODE,
        either(
            argument(
                "-d",
                dest="output",
                action="store_const",
                const="details",
                default="summary",
                help="every pod on every GPU",
            ),
            argument(
                "-o --output",
                choices=("gpushare", "wide", "json", "yaml"),
                default="summary",
                help="gpushare's own layout, however wide; one line for each GPU with model, health and pods; or all "
                "data, for machines",
            ),
        ),
        *CHOICE,
    ),
    _check,
)


def gpu_pods(raw_pods: Iterable[msgspec.Raw], resources: Sequence[Resource]) -> list[tuple[pods.Pod, Usage]]:
    """Return the pods that hold GPUs, each with its usage as its annotations tell it, by namespace and name.

    The usage of pods that hold only MIG instances is `NOTHING`. Pods that cannot be read are left out.
    """
    reader = PodReader([resource.name for resource in resources], READ_BY_AGENT.__contains__, mig=True)
    found = []
    for pod, _ in readable(raw_pods, reader.read):
        usage = usage_of(pod, resources) if pod.node_name and not pod.ended else NOTHING
        if usage != NOTHING or instance_pod(pod) is not None:
            found.append((pod, usage))
    return sorted(found, key=lambda each: (each[0].namespace, each[0].name))
