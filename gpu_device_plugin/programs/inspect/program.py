"""`kubectl inspect gpushare`: which pods use which GPU of the cluster, and why a pod gets none. Needs only kubectl."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_device_plugin import __version__
from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.core.telling.diagnosing import examine, exit_code, report
from gpu_device_plugin.core.telling.diagnosing_cluster import CHECKS
from gpu_device_plugin.core.telling.explaining import explain
from gpu_device_plugin.core.telling.overview import details, summary
from gpu_device_plugin.core.telling.overview_document import document
from gpu_device_plugin.core.telling.overview_wide import wide
from gpu_device_plugin.programs.commandline import FAILED, OK, Parser, add_settings, ending, flags_in, no_such_argument
from gpu_device_plugin.programs.inspect.doctor import symptoms
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError, Kubectl, unread
from gpu_device_plugin.programs.inspect.policy import gpu_policy
from gpu_device_plugin.programs.inspect.uninstall import uninstall
from gpu_device_plugin.programs.terminal import discard_output, say
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import UsageError, knobs_of, nearest
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.view.reading import cluster, events, pod_and_status, surroundings
from gpu_device_plugin.view.why import why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.view.reading import Cluster

_PODS, _NODES = "/api/v1/pods", "/api/v1/nodes"
_COUNTING = ("spec.nodeName!=", "status.phase!=Succeeded", "status.phase!=Failed")
"""Selects the pods that may hold a GPU or part of one."""

_REALLY = "really"
"""The word that a user has to write to end sharing on nodes that still share."""

_PODS_OF_KUBECTL = frozenset({"", "pod", "pods", "po"})
"""The words that kubectl accepts before the name of a pod."""

_MOST_EXPLAINED = 10
"""The number of nodes that are explained one by one without --all-nodes."""

_RIGHTS = "docs/inspect.md has the commands by which an administrator grants all rights that this command needs"

_OF_KUBECTL = (
    *("as", "as-group", "as-uid", "cache-dir", "certificate-authority", "client-certificate", "client-key", "cluster"),
    *("context", "kubeconfig", "password", "request-timeout", "server", "tls-server-name", "token", "user", "username"),
)
"""kubectl's flags with a value, which are passed on."""
_SWITCHES_OF_KUBECTL = ("disable-compression", "insecure-skip-tls-verify", "match-server-version")


def main(
    argv: Sequence[str],
    *,
    prog: str = "kubectl inspect gpushare",
    kubectl: str = "kubectl",
    environ: Mapping[str, str] = os.environ,
    web: Callable[..., int] | None = None,
) -> int:
    """Run the command in `argv`.

    Args:
        argv: the arguments, without the name of the program.
        prog: the command that the user typed, for messages.
        kubectl: the program through which the cluster is read.
        environ: the environment, which may hold settings.
        web: serves the page, with kubectl's flags, the resources, `port`, `browser`, `prog` and `kubectl`, and returns
            the exit code; None: this build has no page.

    Returns:
        0 on success; 1 if the cluster, the node or the pod cannot be read; 2 for a usage error; the doctor returns one
        of `EXIT_CODES`.
    """

    def run() -> int:
        try:
            arguments = parse(prog, argv)
            resources = _resources(arguments, environ)
            if arguments.command == "web":
                return _web(web, arguments, resources, prog=prog, kubectl=kubectl)
            lines, code = _COMMANDS[arguments.command](arguments, Kubectl(_passed_on(arguments), kubectl), resources)
            for line in lines:
                say(sys.stdout, line)
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


_Output = tuple[list[str], int]
"""Lines, and the exit code."""


def _raw_nodes(name: str, kubectl: Kubectl) -> list[msgspec.Raw]:
    """Return the node of this name as JSON, or all nodes if it is empty.

    Raises:
        ClusterUnreadableError: there is no such node, or nodes cannot be read.
    """
    raw_nodes = kubectl.items(_NODES, [f"metadata.name={_value(name)}"] if name else [])
    if name and not raw_nodes:
        raise ClusterUnreadableError(f'nodes "{name}" not found; kubectl get nodes lists the existing ones')
    return raw_nodes


def _overview(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    name = arguments.node
    raw_nodes = _raw_nodes(name, kubectl)
    placed = (f"spec.nodeName={_value(name)}", *_COUNTING[1:]) if name else _COUNTING
    found = cluster(raw_nodes, kubectl.items(_PODS, placed), resources)
    _warn(found)
    if not found.nodes:
        doctor = "No node shares GPUs; run kubectl inspect gpushare doctor to see why."
        say(sys.stderr, f"Node {name} shares no GPUs." if name else doctor)
    return _LAYOUTS[arguments.output](found), OK


def _as_yaml(found: Cluster) -> list[str]:
    import yaml  # noqa: PLC0415 - 3 MB that only -o yaml needs

    text: str = yaml.safe_dump(document(found.nodes), sort_keys=False, width=4096)
    return text.splitlines()


_LAYOUTS: Mapping[str, Callable[[Cluster], list[str]]] = MappingProxyType(
    {
        "summary": lambda found: summary(found.nodes),
        "details": lambda found: details(found.nodes),
        "wide": lambda found: wide(found.nodes),
        "json": lambda found: json.dumps(document(found.nodes), indent=2).splitlines(),
        "yaml": _as_yaml,
    }
)


def _why(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    namespace = arguments.namespace or kubectl.namespace()
    pod, status = pod_and_status(_pod(kubectl, namespace, arguments.pod), resources)
    missing: list[str] = []
    of_pod = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
    raw_events = _optional_items(kubectl, of_pod, [f"involvedObject.uid={_value(pod.uid)}"], missing)
    raw_nodes = _optional_items(kubectl, _NODES, [], missing)
    raw_pods = _optional_items(kubectl, _PODS, _COUNTING, missing)
    status = replace(status, events=events(raw_events or (), status))
    found = None if raw_nodes is None or raw_pods is None else cluster(raw_nodes, raw_pods, resources)
    most = _MOST_EXPLAINED if not arguments.all_nodes else sys.maxsize
    views = None if found is None else found.nodes
    said = why(
        pod, status, resources, views, surroundings(raw_nodes or ()), most=most, policy=lambda: gpu_policy(kubectl)
    )
    if found is not None:
        _warn(found)
    unknown = [f"The explanation is incomplete: {'; '.join(missing)} ({_RIGHTS})."] if missing else []
    waits = [f"{namespace}/{pod.name} waits for {said.asks}."] if said.asks else []
    by_node = [] if said.ask is None else explain(said.ask, said.answers, most)
    return [*waits, *said.facts, *unknown, *by_node], OK


def _optional_items(kubectl: Kubectl, path: str, fields: Sequence[str], missing: list[str]) -> list[msgspec.Raw] | None:
    """Return all objects of a kind, or None if they cannot be read, and add the reason to `missing`."""
    try:
        return kubectl.items(path, fields, optional=True)
    except ClusterUnreadableError as error:
        missing.append(unread(str(error)).found)
        return None


def _doctor(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    findings = examine(CHECKS, symptoms(kubectl, resources))
    return report(findings, as_json=arguments.json), exit_code(findings)


def _web(
    serve: Callable[..., int] | None,
    arguments: argparse.Namespace,
    resources: Sequence[Resource],
    *,
    prog: str,
    kubectl: str,
) -> int:
    if not 0 <= (port := arguments.port or 0) < 1 << 16:
        raise UsageError(f"--port: {port} is no port; choose one from 1024 to 65535, or leave it out")
    if serve is None:
        raise UsageError("web: this build has no page; install the package gpu-device-plugin")
    flags = _passed_on(arguments)
    return serve(flags, resources, port=port, browser=not arguments.no_browser, prog=prog, kubectl=kubectl)


def _uninstall(arguments: argparse.Namespace, kubectl: Kubectl, resources: Sequence[Resource]) -> _Output:
    lines, complete = uninstall(
        kubectl,
        _raw_nodes(arguments.node, kubectl),
        resources,
        labelled_too=arguments.all == _REALLY,
        dry_run=arguments.dry_run,
    )
    return lines, OK if complete else FAILED


def _pod(kubectl: Kubectl, namespace: str, name: str) -> msgspec.Raw:
    """Return one pod as JSON.

    Raises:
        ClusterUnreadableError: the namespace has no pod of this name, or it may not be read.
    """
    try:
        return kubectl.one(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
    except ClusterUnreadableError as error:
        raise ClusterUnreadableError(
            f"pod {namespace}/{name} cannot be read, and kubectl's message stands above; if it is in another "
            "namespace, name that with -n"
        ) from error


def _value(text: str) -> str:
    """Escape a text for a field selector."""
    return "".join(f"\\{char}" if char in "\\,=" else char for char in text)


def _warn(found: Cluster) -> None:
    for warning in found.warnings:
        say(sys.stderr, f"warning: {warning}")


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Kubectl, Sequence[Resource]], _Output]] = MappingProxyType(
    {"overview": _overview, "why": _why, "doctor": _doctor, "uninstall": _uninstall}
)


# --- The command line -------------------------------------------------------------------------------------------------


def parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Raises:
        UsageError: it is invalid.
    """
    parser = _parser(prog)
    arguments, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        flag = unknown[0].partition("=")[0]
        if flag in {"-A", "--all-namespaces"}:
            raise UsageError(f"{flag}: the overview shows the pods of all namespaces; leave it out")
        raise no_such_argument(flag, parser.flags, f"see {prog} --help")
    arguments.command, arguments.node, pod = _command(prog, arguments.words)
    # The tables show NAMESPACE/POD; kubectl accepts pod/POD.
    before, _, arguments.pod = pod.rpartition("/")
    if before not in _PODS_OF_KUBECTL:
        arguments.namespace = arguments.namespace or before
    _refuse_what_belongs_elsewhere(arguments)
    if arguments.all not in {"", _REALLY}:
        raise UsageError(f"--all: this ends sharing on nodes that still share; to confirm, write --all={_REALLY}")
    return arguments


_OF_ALL_NODES: Mapping[str, str] = MappingProxyType(
    {
        "doctor": "it examines the whole cluster; for one node run gpu-device-plugin doctor there",
        "web": "it shows the whole cluster; the page itself has filters",
    }
)


def _command(prog: str, words: Sequence[str]) -> tuple[str, str, str]:
    """Return the command, the node and the pod; a node or pod that is not named is empty.

    Raises:
        UsageError: the words are no command.
    """
    match words:
        case ["why"]:
            raise UsageError(f"why: name a pod: {prog} why POD [-n NAMESPACE]")
        case ["why", pod]:
            return "why", "", pod
        case ["why", kind, pod] if kind in _PODS_OF_KUBECTL:
            return "why", "", pod
        case ["doctor" | "web" as command]:
            return command, "", ""
        case ["doctor" | "web" as command, _]:
            raise UsageError(f"{command}: {_OF_ALL_NODES[command]}")
        case ["uninstall", *nodes] if len(nodes) < 2:
            return "uninstall", "".join(nodes), ""
        case [word, other]:
            meant = nearest(word, ["why", "uninstall", "web"], "")
            hint = f"there is no such command; {meant}" if meant else f"name one node, {prog} NODE, or why POD"
            raise UsageError(f"{word} {other}: {hint}")
        case [_, _, *_]:
            raise UsageError(f"{' '.join(words)}: too many arguments; see {prog} --help")
        case _:
            return "overview", "".join(words), ""


def _refuse_what_belongs_elsewhere(arguments: argparse.Namespace) -> None:
    """Refuse flags of other commands.

    Raises:
        UsageError: there is one.
    """
    command = arguments.command
    given = (
        (
            "why",
            arguments.namespace or arguments.all_nodes,
            "-n and --all-nodes go with why POD; the overview shows the pods of all namespaces",
        ),
        ("overview", arguments.output != "summary", f"{command}: -d and -o are for the overview; leave them out"),
        ("doctor", arguments.json, "--json goes with doctor; the overview has -o json"),
        (
            "web",
            arguments.port is not None or arguments.no_browser,
            "--port and --no-browser go with web; leave them out",
        ),
        ("uninstall", arguments.all or arguments.dry_run, "--all and --dry-run go with uninstall; leave them out"),
    )
    for its_own, value, sentence in given:
        if value and command != its_own:
            raise UsageError(sentence)


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        usage="%(prog)s [-d | -o wide|json|yaml] [NODE]\n       %(prog)s why POD [-n NAMESPACE]\n"
        "       %(prog)s web [--port N] [--no-browser]\n       %(prog)s doctor [--json]\n"
        f"       %(prog)s uninstall [NODE] [--dry-run] [--all={_REALLY}]",
        description="Show which pods use which GPU of the cluster, also live in a browser, why a pod gets none, or "
        "what is wrong; or clean up.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE | why POD | web | doctor | uninstall [NODE]",
        help="show one node; explain a pod; show the cluster live in a browser; diagnose it; or clean up nodes that no "
        "longer share GPUs",
    )
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument(
        "-d", dest="output", action="store_const", const="details", default="summary", help="every pod on every GPU"
    )
    layout.add_argument(
        "-o",
        "--output",
        dest="output",
        choices=("wide", "json", "yaml"),
        help="one line for each GPU with model, health and pods; or all data, for machines",
    )
    parser.add_argument("-n", "--namespace", help="namespace of the pod; default: that of kubectl's context")
    parser.add_argument(
        "--all-nodes", action="store_true", help=f"explain more than the nearest {_MOST_EXPLAINED} nodes"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of the page on 127.0.0.1; default: a free one")
    parser.add_argument("--no-browser", action="store_true", help="only print the address of the page")
    parser.add_argument("--json", action="store_true", help="print the doctor's findings as JSON")
    parser.add_argument("--dry-run", action="store_true", help="only print what uninstall would remove")
    parser.add_argument(
        "--all", default="", metavar=_REALLY, help="uninstall from labelled nodes too, which ends sharing there"
    )
    parser.add_argument("--version", action="version", version=f"gpu-device-plugin {__version__}")
    add_settings(parser, knobs_of(ResourceSettings))
    passed_on = parser.add_argument_group("flags that are passed on to kubectl")
    for name in _OF_KUBECTL:
        short = ("-s",) if name == "server" else ()
        passed_on.add_argument(*short, f"--{name}", dest=f"kubectl {name}", metavar="VALUE", action="append")
    for name in _SWITCHES_OF_KUBECTL:
        passed_on.add_argument(f"--{name}", dest=f"kubectl {name}", action="append_const", const="true")
    return parser


def _passed_on(arguments: argparse.Namespace) -> list[str]:
    return [
        f"--{name.removeprefix('kubectl ')}={value}"
        for name, values in vars(arguments).items()
        if name.startswith("kubectl ")
        for value in values or ()
    ]


def _resources(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[Resource]:
    """Return the resources with their configured names.

    Raises:
        UsageError: a name cannot be used.
    """
    knobs = knobs_of(ResourceSettings)
    named = {knob.variable: environ[knob.variable] for knob in knobs if knob.variable in environ}
    return Sources(ResourceSettings, flags_in(arguments, knobs), named).read().offered
