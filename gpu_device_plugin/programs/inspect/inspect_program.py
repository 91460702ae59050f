"""`kubectl inspect gpushare`: which pods use which GPU of the cluster, and why a pod gets none. Needs only kubectl."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_device_plugin.cluster.objects.decoding import NOT_ENDED, UnreadableObjectError
from gpu_device_plugin.core.report.finding import examine, exit_code, report
from gpu_device_plugin.core.report.findings.cluster_checks import CHECKS, examine_partly
from gpu_device_plugin.core.report.overview_document import document
from gpu_device_plugin.core.report.tables.overview import details, summary, wide
from gpu_device_plugin.core.report.tables.terminal_tables import (
    Picture,
    by_name,
    folded,
    folded_details,
    pod_rows,
    pod_table,
    rows_alone,
    rows_claimed,
    rows_waiting,
)
from gpu_device_plugin.core.report.text.columns import Line, columns
from gpu_device_plugin.core.report.text.use_texts import at_a_glance
from gpu_device_plugin.core.report.why.explanations import explain, explain_briefly
from gpu_device_plugin.features.claims.claim_objects import CLAIMS
from gpu_device_plugin.programs.commandline import FAILED, OK, ending, resources_in
from gpu_device_plugin.programs.inspect.agent_answers import histories_of
from gpu_device_plugin.programs.inspect.arguments import COMMANDS, INTERVAL_S, MOST_EXPLAINED, REALLY, parse, passed_on
from gpu_device_plugin.programs.inspect.cluster_reading import symptoms_in
from gpu_device_plugin.programs.inspect.cordon import cordon, uncordon
from gpu_device_plugin.programs.inspect.node_history import history, incidents
from gpu_device_plugin.programs.inspect.plan import plan_moves
from gpu_device_plugin.programs.inspect.resize import named_pod, resize
from gpu_device_plugin.programs.inspect.top_screen import top
from gpu_device_plugin.programs.inspect.uninstall import uninstall
from gpu_device_plugin.programs.inspect.wake import wake
from gpu_device_plugin.programs.kubectl import (
    GRANT,
    NO_SUCH_PATH,
    ClusterUnreadableError,
    Kubectl,
    items,
    readable_items,
    unread,
)
from gpu_device_plugin.programs.terminal import discard_output, say, show, width
from gpu_device_plugin.settings.knobs import UsageError, nearest
from gpu_device_plugin.view.following import cluster
from gpu_device_plugin.view.learned_mix import lesson_of, price_document, price_lines
from gpu_device_plugin.view.objects import ABSENT, ConfigMap, gpu_pods, readable_claims, unseen
from gpu_device_plugin.view.poddetails import events
from gpu_device_plugin.view.why_pod import CONFIGURATION, assumed, on_gpus, policy_in, why, with_slowness

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.report.tables.terminal_tables import PodRow
    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.view.following import FollowedCluster
    from gpu_device_plugin.view.why_pod import Policy

_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"
_CONFIGMAPS = f"/api/v1/configmaps?fieldSelector=metadata.name%3D{CONFIGURATION}"
_COUNTING = ("spec.nodeName!=", *NOT_ENDED)
"""Selects the pods that may hold a GPU or part of one."""

_VIEWER = "an administrator gives the rights by binding the ClusterRole gpushare-viewer"
_RIGHTS = "docs/inspect.md has the commands by which an administrator grants all rights that this command needs"


def main(
    argv: Sequence[str],
    *,
    prog: str = "kubectl inspect gpushare",
    kubectl: str = "kubectl",
    environ: Mapping[str, str] = os.environ,
    web: Callable[..., int] | None = None,
) -> int:
    """Run the command in `argv`, which the user typed as `prog`.

    `web` serves the page, see `kubeconfig.main`, and returns the exit code; None: this build has no page.

    Returns:
        0 on success; 1 if the cluster, the node or the pod cannot be read; 2 for a usage error; the doctor returns one
        of `EXIT_CODES`.
    """

    def run() -> int:
        try:
            arguments = parse(prog, argv)
            resources = resources_in(arguments, environ)
            if arguments.command == "web":
                if web is None:
                    raise UsageError("web: this build has no page; install the package gpu-device-plugin")
                flags, port, browser = passed_on(arguments), arguments.port or 0, not arguments.no_browser
                return web(
                    *(flags, resources),
                    port=port,
                    browser=browser,
                    prog=prog,
                    kubectl=kubectl,
                    agents_namespace=arguments.agents_namespace,
                )
            access = Kubectl(passed_on(arguments), kubectl)
            if arguments.command == "top" and not arguments.history:
                return _top(arguments, access, resources, environ)
            lines, code = _COMMANDS[arguments.command](arguments, access, resources)
            show((Line(line) if isinstance(line, str) else line for line in lines), environ)
            sys.stdout.flush()
        except (ClusterUnreadableError, UnreadableObjectError) as error:
            say(sys.stderr, f"{prog}: {error}")
            return FAILED
        except BrokenPipeError:
            discard_output(sys.stdout)
            return FAILED
        return code

    return ending(prog, run)


# --- The commands -----------------------------------------------------------------------------------------------------


_Output = tuple["Sequence[str | Line]", int]
"""Lines, and the exit code."""


def _raw_nodes(name: str, kubectl: Kubectl, labels: str = "") -> list[msgspec.Raw]:
    """Return the node of this name as JSON, or if it is empty all nodes that match a label selector."""
    raw_nodes = kubectl.items(_NODES, [f"metadata.name={_value(name)}"] if name else [], labels=labels)
    if name and not raw_nodes:
        meant = nearest(name, COMMANDS, "kubectl get nodes lists the existing ones")
        raise ClusterUnreadableError(f'nodes "{name}" not found; {meant}')
    return raw_nodes


def _overview(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    if arguments.namespace:
        return _pods_of(arguments.namespace, kubectl, resources)
    name = arguments.node
    try:
        raw_nodes = _raw_nodes(name, kubectl, arguments.selector)
    except ClusterUnreadableError as error:
        if name or not (lacking := kubectl.denied("nodes")):
            raise
        return _without_nodes(lacking, error, kubectl, resources)
    placed = (f"spec.nodeName={_value(name)}", *_COUNTING[1:]) if name else _COUNTING
    try:
        raw_pods = kubectl.items(_PODS, placed)
    except ClusterUnreadableError:
        if not (lacking := kubectl.denied("pods")):
            raise
        if arguments.output not in {"summary", "details", "gpushare"}:
            raise ClusterUnreadableError(f"{lacking}, and GPUs would seem freer than they are; {GRANT}") from None
        namespace = kubectl.namespace()
        raw_pods = kubectl.items(_pods_in(namespace), placed, optional=True)
        say(sys.stderr, f"warning: {lacking}: only pods of {namespace} are counted, so GPUs may be fuller ({_VIEWER})")
    nodes = _cluster(raw_nodes, raw_pods, resources, kubectl).views
    if not nodes:
        doctor = "No node shares GPUs; run kubectl inspect gpushare doctor to see why."
        selected = f"No node with the labels {arguments.selector} shares GPUs." if arguments.selector else doctor
        say(sys.stderr, f"Node {name} shares no GPUs." if name else selected)
    lines = _LAYOUTS[arguments.output](nodes)
    fold = _FOLDED.get(arguments.output)
    if fold and (room := width(0)) and any(columns(line) > room for line in lines):
        return [*fold(nodes, room), *at_a_glance(nodes)], OK
    return lines, OK


def _cluster(
    raw_nodes: Sequence[msgspec.Raw],
    raw_pods: Sequence[msgspec.Raw],
    resources: Sequence[Resource],
    kubectl: Kubectl,
    namespace: str = "",
) -> FollowedCluster:
    """Return the cluster with its claims, of one namespace or all, and warn of objects that cannot be read."""
    found, warnings = cluster(raw_nodes, raw_pods, resources)
    for warning in (*warnings, *_add_claims(found, kubectl, namespace)):
        say(sys.stderr, f"warning: {warning}")
    return found


def _raw_claims(kubectl: Kubectl, namespace: str = "") -> tuple[list[msgspec.Raw], str]:
    """Return all claims as JSON, or those of one namespace; and why they cannot be read, empty if they were.

    Only after a call that may log in: kubectl's stderr is not shown.
    """
    try:
        return kubectl.items(CLAIMS.path(namespace=namespace), optional=True), ""
    except ClusterUnreadableError as error:
        return [], ABSENT if NO_SUCH_PATH in str(error) else str(unread(error))


def _add_claims(cluster: FollowedCluster, kubectl: Kubectl, namespace: str = "") -> list[str]:
    """Add the claims of a namespace, or of all, if a node serves claims; return a sentence for each unreadable one."""
    if not cluster.serves_claims:
        return []
    raw, why = _raw_claims(kubectl, namespace)
    claims, warnings = readable_claims(raw)
    cluster.claims.replace(claims)
    return [unseen(why)] if why else warnings


def _claims_of_pod(
    kubectl: Kubectl, namespace: str, cluster: FollowedCluster | None, missing: list[str]
) -> Sequence[Claim] | None:
    """Return the claims of a pod's namespace; None if they cannot be read, and why is added to `missing`."""
    if cluster is not None and (claims := cluster.claims_of()):
        return claims
    raw, why = _raw_claims(kubectl, namespace)
    if why:
        missing.append(why)
        return None
    return readable_claims(raw)[0]


def _pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def _without_nodes(
    lacking: str, error: ClusterUnreadableError, kubectl: Kubectl, resources: Sequence[Resource]
) -> _Output:
    """Show the pods of the user's namespace, where nodes must not be read; `error` if these cannot be read either."""
    namespace = kubectl.namespace()
    try:
        raw_pods = kubectl.items(_pods_in(namespace), _COUNTING, optional=True)
    except ClusterUnreadableError:
        raise error from None
    say(
        sys.stderr, f"warning: {lacking}: only the pods of {namespace} are shown, without use and free GPUs ({_VIEWER})"
    )
    return _table_of(_alone(raw_pods, resources, kubectl, namespace), namespace), OK


def _alone(
    raw_pods: Sequence[msgspec.Raw], resources: Sequence[Resource], kubectl: Kubectl, namespace: str
) -> list[PodRow]:
    """Return the pods of a namespace by their limits and claims, where nodes cannot be read."""
    claims, _ = readable_claims(_raw_claims(kubectl, namespace)[0])
    return [*rows_alone(gpu_pods(raw_pods, resources)), *rows_claimed(claims)]


def _pods_of(namespace: str, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    """Show the pods of one namespace, with their use if nodes can be read."""
    raw_pods = kubectl.items(_pods_in(namespace), _COUNTING[1:])
    try:
        raw_nodes = kubectl.items(_NODES, optional=True)
    except ClusterUnreadableError as error:
        say(sys.stderr, f"warning: {unread(error)}: what the pods use is not shown ({_VIEWER})")
        waiting = rows_waiting(cluster((), raw_pods, resources)[0].waiting_pods, resources)
        return _table_of([*_alone(raw_pods, resources, kubectl, namespace), *waiting], namespace), OK
    found = _cluster(raw_nodes, raw_pods, resources, kubectl, namespace)
    waiting = rows_waiting(found.waiting_pods, resources, found.claims_of())
    return _table_of([*pod_rows(found.views, namespace), *waiting], namespace), OK


def _table_of(rows: Sequence[PodRow], namespace: str) -> Sequence[Line]:
    if not rows:
        say(sys.stderr, f"No pod of {namespace} has a GPU.")
        return []
    return pod_table(sorted(rows, key=by_name), width())


def _top(
    arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource], environ: Mapping[str, str]
) -> int:
    first = True

    def read() -> Picture:
        nonlocal first
        # Only the first reading may log in; the messages of later ones would spoil the picture.
        optional, first = not first, False
        fields = [f"metadata.name={_value(arguments.node)}"] if arguments.node else []
        rights = () if optional else ("nodes", "pods")
        with kubectl.needing(*rights, why="without -w the overview shows what it can"):
            raw_nodes = kubectl.items(_NODES, fields, labels=arguments.selector, optional=optional)
            raw_pods = kubectl.items(_PODS, _COUNTING[1:], optional=optional)
        if arguments.node and not raw_nodes:
            raise ClusterUnreadableError(f'nodes "{arguments.node}" not found')
        found, warnings = cluster(raw_nodes, raw_pods, resources)
        warnings += _add_claims(found, kubectl)
        at, notes = time.strftime("%H:%M:%S"), warnings[:3]
        sort, namespace = arguments.sort_by or "name", arguments.namespace or ""
        return Picture(found.views, len(found.waiting), at, notes, sort, namespace)

    try:
        top(read, interval_s=arguments.interval or INTERVAL_S, environ=environ)
    finally:
        kubectl.abandon()
    return OK


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


def _why(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    namespace = arguments.namespace or kubectl.namespace()
    pod, status = named_pod(kubectl, namespace, arguments.pod, resources)
    missing: list[str] = []
    of_pod = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
    raw_events = readable_items(kubectl, of_pod, [f"involvedObject.uid={_value(pod.uid)}"], missing)
    raw_nodes = readable_items(kubectl, _NODES, [], missing)
    raw_pods = readable_items(kubectl, _PODS, _COUNTING, missing)
    status = replace(status, events=events(raw_events or (), status))
    found = None if raw_nodes is None or raw_pods is None else _cluster(raw_nodes, raw_pods, resources, kubectl)
    most = MOST_EXPLAINED if not arguments.all_nodes else sys.maxsize
    claims = _claims_of_pod(kubectl, namespace, found, missing) if status.claims else ()
    # Without the right to list pods no agent is found.
    asked = raw_pods is not None and on_gpus(pod, status, resources)
    histories = histories_of(kubectl, pod, missing, arguments.agents_namespace) if asked else None
    views = None if found is None else found.views
    said = why(pod, status, resources, views, most=most, policy=lambda: _policy(kubectl), claims=claims)
    said = with_slowness(said, pod, histories)
    unknown = [f"The explanation is incomplete: {'; '.join(missing)} ({_RIGHTS})."] if missing else []
    waits = [f"{namespace}/{pod.name} waits for {said.asks}."] if said.asks else []
    told = [*waits, *map(str, said.facts), *unknown]
    if not said.answers:
        return told, OK
    if (room := width(0)) and not arguments.all_nodes:
        rows = sum(1 + max(0, columns(line) - 1) // room for line in told)
        return [*told, *explain_briefly(said.answers, shutil.get_terminal_size().lines - rows - 1)], OK
    return [*told, *explain(said.answers, most)], OK


def _policy(kubectl: Kubectl) -> Policy:
    """Read the extender's policy from its ConfigMap, if the user may; otherwise assume the built-in policy."""
    try:
        return policy_in(items(kubectl, _CONFIGMAPS, ConfigMap))
    except (ClusterUnreadableError, UnreadableObjectError) as error:
        return assumed(f"the ConfigMap {CONFIGURATION} cannot be read ({error})")


def _prices(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    found = lesson_of(*kubectl.every_node_and_pod("prices are learned from all of them"), resources)
    if arguments.output == "json":
        return json.dumps(price_document(found), indent=2).splitlines(), OK
    return price_lines(found, width()), OK


def _doctor(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    """Examine the cluster, as far as the rights of the user reach.

    Raises:
        ClusterUnreadableError: nodes or pods cannot be read for another reason than a missing right, or not even the
            pods of the user's namespace can.
    """
    missing: list[str] = []
    raw_nodes = _if_allowed(kubectl, "nodes", (), missing)
    raw_pods = _if_allowed(kubectl, "pods", _COUNTING[1:], missing)
    namespace = ""
    if raw_pods is None:
        namespace = kubectl.namespace()
        raw_pods = kubectl.items(_pods_in(namespace), _COUNTING[1:])
    symptoms = symptoms_in(kubectl, resources, raw_nodes or (), raw_pods, arguments.agents_namespace)
    if missing:
        pods = [pod for pod, _ in gpu_pods(raw_pods, resources)]
        found = examine_partly(symptoms, pods, missing, GRANT, nodes=raw_nodes is not None, namespace=namespace)
    else:
        found = examine(CHECKS, symptoms)
    return report(found, as_json=arguments.json), exit_code(found)


def _if_allowed(kubectl: Kubectl, kind: str, fields: Sequence[str], missing: list[str]) -> list[msgspec.Raw] | None:
    """Return all objects of a kind, or None without the right to list them, which is added to `missing`."""
    try:
        return kubectl.items(f"/api/v1/{kind}", fields)
    except ClusterUnreadableError:
        if not (right := kubectl.denied(kind)):
            raise
        missing.append(right)
        return None


def _uninstall(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    labelled_too, nodes = arguments.all == REALLY, _raw_nodes(arguments.node, kubectl)
    lines, complete = uninstall(
        *(kubectl, nodes, resources),
        labelled_too=labelled_too,
        dry_run=arguments.dry_run,
        agents_namespace=arguments.agents_namespace,
    )
    return lines, OK if complete else FAILED


def _value(text: str) -> str:
    """Escape a text for a field selector."""
    return "".join(f"\\{char}" if char in "\\,=" else char for char in text)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Kubectl, Sequence[Resource]], _Output]] = {
    "overview": _overview,
    "top": history,
    "incident": incidents,
    "why": _why,
    "resize": resize,
    "wake": wake,
    "prices": _prices,
    "plan": partial(plan_moves, of=_cluster),
    "cordon": partial(cordon, of=_cluster),
    "uncordon": uncordon,
    "doctor": _doctor,
    "uninstall": _uninstall,
}
