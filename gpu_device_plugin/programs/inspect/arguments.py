"""The command line of `kubectl inspect gpushare`."""

from __future__ import annotations

import argparse
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin import __version__
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE
from gpu_device_plugin.core.report.tables.terminal_tables import SORTS
from gpu_device_plugin.features.history.contract import LAST_HOUR
from gpu_device_plugin.model.contract.cordons import LONGEST_REASON
from gpu_device_plugin.programs.commandline import Parser, add_settings, no_such_argument
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import UsageError, knobs_of, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

REALLY = "really"
"""The word that a user has to write to end sharing on nodes that still share."""

_PODS_OF_KUBECTL = frozenset({"", "pod", "pods", "po"})
"""The words that kubectl accepts before the name of a pod."""

_CONTROLLERS = frozenset({"deployment", "deploy", "statefulset", "sts", "replicaset", "rs", "daemonset", "ds"})

_WORKLOADS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("deployment", "deployments", "deploy"), "deployment"),
        **dict.fromkeys(("statefulset", "statefulsets", "sts"), "statefulset"),
        **dict.fromkeys(("notebook", "notebooks"), "notebook"),
    }
)
"""The kinds of workloads that wake brings back, by the words for them."""

COMMANDS = (
    *("top", "incident", "why", "resize", "wake", "plan", "cordon", "uncordon", "prices"),
    *("web", "doctor", "uninstall"),
)
"""The words that are no node."""
_CORDONING = frozenset({"cordon", "uncordon"})
"""Those that are followed by a node and a GPU."""

MOST_EXPLAINED = 10
"""The number of nodes that are explained one by one without --all-nodes."""

INTERVAL_S, _SHORTEST_S, _LONGEST_S = 5.0, 0.5, 3600.0

_OF_KUBECTL = (
    *("as", "as-group", "as-uid", "cache-dir", "certificate-authority", "client-certificate", "client-key", "cluster"),
    *("context", "kubeconfig", "password", "request-timeout", "server", "tls-server-name", "token", "user", "username"),
)
"""kubectl's flags with a value, which are passed on."""
_SWITCHES_OF_KUBECTL = ("disable-compression", "insecure-skip-tls-verify", "match-server-version")


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
    amount: str | None = None
    arguments.workload = None
    if arguments.words[:1] == ["wake"]:
        arguments.command, arguments.node, pod = "wake", "", ""
        arguments.workload = _woken(arguments.words[1:])
    elif arguments.words[:1] == ["resize"]:
        arguments.command, arguments.node = "resize", ""
        pod, amount = _resized(prog, arguments.words[1:])
    else:
        arguments.command, node, pod = _command(prog, arguments.words)
        arguments.node = node.removeprefix("node/")
    if arguments.watch and arguments.command == "overview":
        arguments.command = "top"
    # The tables show NAMESPACE/POD; kubectl accepts pod/POD.
    if arguments.for_pod is not None and arguments.command == "plan":
        pod = arguments.for_pod
    before, _, arguments.pod = pod.rpartition("/")
    if arguments.command == "resize" and before in _CONTROLLERS:
        raise UsageError(f"resize {before}/{arguments.pod}: it changes one running pod; kubectl get pods names them")
    if before not in _PODS_OF_KUBECTL:
        arguments.namespace = arguments.namespace or before
    arguments.gpu = arguments.pod if arguments.command in _CORDONING else ""
    _refuse_what_belongs_elsewhere(parser, arguments)
    _read_amounts(arguments, amount)
    if arguments.all not in {"", REALLY}:
        raise UsageError(f"--all: this ends sharing on nodes that still share; to confirm, write --all={REALLY}")
    return arguments


def _resized(prog: str, words: Sequence[str]) -> tuple[str, str | None]:
    """Return the pod and the amount after the word resize; None: no amount is given."""
    if len(words) > 1 and words[0] in _PODS_OF_KUBECTL and not words[1].isdigit():
        words = words[1:]
    match words:
        case [pod]:
            return pod, None
        case [pod, amount]:
            return pod, amount
    raise UsageError(f"resize: name a pod: {prog} resize POD [AMOUNT] [--limit N] [-n NAMESPACE]")


def _woken(words: Sequence[str]) -> tuple[str, str] | None:
    """Return kind and name of the workload after the word wake; None: none is named."""
    if not words:
        return None
    kind, _, name = "/".join(words).partition("/")
    if kind not in _WORKLOADS or not name or "/" in name:
        raise UsageError(
            f"wake {' '.join(words)}: name a workload as deployment/NAME, statefulset/NAME or notebook/NAME"
        )
    return _WORKLOADS[kind], name


def _read_amounts(arguments: argparse.Namespace, amount: str | None) -> None:
    """Parse the amounts of resize; one that is not given is None."""
    arguments.amount, arguments.limit = _units("AMOUNT", amount), _units("--limit", arguments.limit)
    if arguments.clear and (arguments.amount or arguments.limit):
        raise UsageError("--clear: it returns to the request; leave out AMOUNT and --limit, or leave it out")
    if arguments.amount and arguments.limit and arguments.limit < arguments.amount:
        raise UsageError(f"--limit: {arguments.limit} is less than the guarantee of {arguments.amount}; choose more")


def _units(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0:
        return int(text)
    begin = "".join(takewhile(str.isdigit, text))
    meant = f"write {begin}, not {text}" if begin.strip("0") else "write it like 6"
    raise UsageError(f"{name}: an amount is a whole number of units of gpu-mem, from 1 on: {meant}")


_OF_ALL_NODES: Mapping[str, str] = {
    "doctor": "it examines the whole cluster; for one node run gpu-device-plugin doctor there",
    "web": "it shows the whole cluster; the page itself has filters",
    "plan": "it moves pods between all nodes; to name a pod that waits write --for POD",
    "prices": "it learns from the pods of the whole cluster; leave the name out",
}


def _command(prog: str, words: Sequence[str]) -> tuple[str, str, str]:
    """Return the command, the node and the pod; a node or pod that is not named is empty."""
    match words:
        case ["why"]:
            raise UsageError(f"why: name a pod: {prog} why POD [-n NAMESPACE]")
        case ["why", *kind, pod] if not kind or (len(kind) == 1 and kind[0] in _PODS_OF_KUBECTL):
            return "why", "", pod
        case ["cordon" | "uncordon" as command, node, gpu] if "/" not in gpu:
            return command, node, gpu
        case ["cordon" | "uncordon" as command, *_]:
            raise UsageError(
                f"{command}: name a node and one of its GPUs, by number or UUID: {prog} {command} NODE GPU"
            )
        case ["top" | "uninstall" | "incident" as command, *names] if len(names) < 2 + (command == "incident"):
            node, name = (*names, "", "")[:2]
            return command, node, name
        case ["doctor" | "web" | "prices" | "plan" as command, *names] if len(names) < 2:
            if names:
                raise UsageError(f"{command}: {_OF_ALL_NODES[command]}")
            return command, "", ""
        case [word, _, *more]:
            meant = nearest(word, [command for command in COMMANDS if command not in {"doctor", word}], "")
            hint = f"name one node, {prog} NODE, or why POD" if not more else f"too many arguments; see {prog} --help"
            raise UsageError(f"{' '.join(words)}: {f'there is no such command; {meant}' if meant else hint}")
        case _:
            return "overview", "".join(words), ""


_GOES_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "output": ("-d or -o", ("overview", "prices", "plan", "incident")),
    "namespace": ("-n", ("overview", "top", "why", "resize", "wake", "plan")),
    "selector": ("-l", ("overview", "top")),
    "watch": ("-w", ("overview", "top")),
    "sort_by": ("--sort-by", ("top",)),
    "interval": ("--interval", ("top",)),
    "history": ("--history", ("top",)),
    "all_nodes": ("--all-nodes", ("why",)),
    "limit": ("--limit", ("resize",)),
    "container": ("-c", ("resize",)),
    "clear": ("--clear", ("resize",)),
    "for_pod": ("--for", ("plan",)),
    "nodes_free": ("--nodes-free", ("plan",)),
    "apply": ("--apply", ("plan",)),
    "yes": ("--yes", ("plan", "cordon")),
    "reason": ("--reason", ("cordon",)),
    "drain": ("--drain", ("cordon",)),
    "json": ("--json", ("doctor",)),
    "port": ("--port", ("web",)),
    "no_browser": ("--no-browser", ("web",)),
    "all": ("--all", ("uninstall",)),
    "dry_run": ("--dry-run", ("uninstall", "cordon", "uncordon")),
}
"""The commands of each flag that not all of them have."""
_OVERVIEW = "no command (the overview)"


def _refuse_what_belongs_elsewhere(parser: Parser, arguments: argparse.Namespace) -> None:
    command = arguments.command
    for name, (flag, commands) in _GOES_WITH.items():
        if command not in commands and getattr(arguments, name) not in {parser.get_default(name), ""}:
            names, here = (", ".join(commands).replace("overview", _OVERVIEW), command.replace("overview", _OVERVIEW))
            raise UsageError(f"{flag} goes with {names}, and not with {here}; leave it out")
    if arguments.interval is not None and not _SHORTEST_S <= arguments.interval <= _LONGEST_S:
        raise UsageError(f"--interval: {arguments.interval:g} s; choose {_SHORTEST_S:g} to {_LONGEST_S:g} seconds")
    if not 0 <= (port := arguments.port or 0) < 1 << 16:
        raise UsageError(f"--port: {port} is no port; choose one from 1024 to 65535, or leave it out")
    if command in {"prices", "plan", "incident"} and arguments.output not in {"summary", "json"}:
        raise UsageError(f"-o {arguments.output}: {command} prints a table or -o json; write one of them")
    if (check := _CHECKS.get(command)) is not None:
        check(arguments)


def _check_overview(arguments: argparse.Namespace) -> None:
    if arguments.namespace and (arguments.node or arguments.selector):
        raise UsageError("-n: the pods of a namespace are shown wherever they run; leave out the node and -l")
    if arguments.namespace and arguments.output != "summary":
        raise UsageError("-n: -d and -o show the pods of all namespaces; leave one of the two out")


def _check_top(arguments: argparse.Namespace) -> None:
    if arguments.history and (arguments.sort_by or arguments.interval is not None):
        raise UsageError(f"--history: it draws {LAST_HOUR} once; leave out --sort-by and --interval")


def _check_plan(arguments: argparse.Namespace) -> None:
    if arguments.apply and arguments.output == "json":
        raise UsageError("--apply: it shows the plan in a table; leave out -o json")
    if arguments.yes and not arguments.apply:
        raise UsageError("--yes: there is nothing to confirm; write --apply too, or leave it out")
    if arguments.nodes_free is not None and arguments.for_pod is not None:
        raise UsageError("--nodes-free: a plan has one goal; leave out --for")
    if arguments.nodes_free is not None and arguments.nodes_free < 1:
        raise UsageError(f"--nodes-free: {arguments.nodes_free} is no number of nodes; write 1, for example")


def _check_cordon(arguments: argparse.Namespace) -> None:
    if arguments.yes and not arguments.drain:
        raise UsageError("--yes: there is nothing to confirm; write --drain too, or leave it out")
    if len(arguments.reason) > LONGEST_REASON or not arguments.reason.isprintable():
        raise UsageError(f"--reason: write one line of at most {LONGEST_REASON} characters")


_CHECKS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "overview": _check_overview,
    "top": _check_top,
    "plan": _check_plan,
    "cordon": _check_cordon,
}
"""What else is checked of a command."""


def _parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        usage="%(prog)s [-d | -o gpushare|wide|json|yaml] [-w] [-l LABELS] [NODE]\n       %(prog)s -n NAMESPACE\n"
        "       %(prog)s top [--sort-by WORD] [--interval SECONDS] [-n NAMESPACE] [-l LABELS] [NODE]\n"
        "       %(prog)s top --history [-n NAMESPACE] [-l LABELS] [NODE]\n"
        "       %(prog)s incident [NODE [NAME] | NAME] [-o json]\n"
        "       %(prog)s why POD [-n NAMESPACE]\n"
        "       %(prog)s resize POD [AMOUNT] [--limit N] [--clear] [-c CONTAINER] [-n NAMESPACE]\n"
        "       %(prog)s plan [--for POD | --nodes-free N] [-n NAMESPACE] [-o json | --apply [--yes]]\n"
        "       %(prog)s cordon NODE GPU [--reason TEXT] [--drain [--yes]] [--dry-run]\n"
        "       %(prog)s uncordon NODE GPU [--dry-run]\n"
        "       %(prog)s wake [KIND/NAME] [-n NAMESPACE]\n"
        "       %(prog)s prices [-o json]\n"
        "       %(prog)s web [--port N] [--no-browser]\n       %(prog)s doctor [--json]\n"
        f"       %(prog)s uninstall [NODE] [--dry-run] [--all={REALLY}]",
        description="Show which pods use which GPU of the cluster, also live in a browser, why a pod gets none, or "
        "what is wrong; resize or move pods, put a GPU aside, wake a workload, or clean up.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE | top [NODE] | incident [NODE [NAME]] | why POD | resize POD [AMOUNT] | plan | "
        "cordon NODE GPU | uncordon NODE GPU | wake [KIND/NAME] | prices | web | doctor | uninstall [NODE]",
        help="show one node; draw GPUs and pods again and again; list incidents on GPUs, or show one; "
        "explain a pod; change the memory of a running pod; plan which pods to move so that others have room; "
        "let no new pod have a GPU, or let them again; bring back what was scaled to zero as idle, or list it; "
        "show what room is worth to the policy fit; show the cluster live in a browser; diagnose it; or clean up nodes "
        "that no longer share GPUs",
    )
    layout = parser.add_mutually_exclusive_group()
    layout.add_argument(
        "-d", dest="output", action="store_const", const="details", default="summary", help="every pod on every GPU"
    )
    layout.add_argument(
        "-o",
        "--output",
        dest="output",
        choices=("gpushare", "wide", "json", "yaml"),
        help="gpushare's own layout, however wide; one line for each GPU with model, health and pods; or all data, for "
        "machines",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        help="with why, resize, plan and wake: namespace of the pod or workload, by default that of kubectl's context; "
        "else show only its pods",
    )
    parser.add_argument("-w", "--watch", action="store_true", help="as top")
    parser.add_argument("-l", "--selector", default="", metavar="LABELS", help="only nodes with these labels")
    parser.add_argument(
        "--sort-by", choices=tuple(SORTS), help="how top sorts nodes and pods, amounts with the largest first"
    )
    parser.add_argument("--interval", type=float, metavar="SECONDS", help=f"between pictures of top; {INTERVAL_S:g}")
    parser.add_argument("--history", action="store_true", help=f"with top: draw {LAST_HOUR} of GPUs and pods, once")
    parser.add_argument(
        "--all-nodes", action="store_true", help=f"explain more than the nearest {MOST_EXPLAINED} nodes"
    )
    parser.add_argument("--limit", metavar="N", help="the most that resize lets the container use, in units of gpu-mem")
    parser.add_argument("--clear", action="store_true", help="resize back to the container's request")
    parser.add_argument("-c", "--container", default="", help="the container to resize, where several have shares")
    parser.add_argument("--for", dest="for_pod", metavar="POD", help="plan moves after which this waiting pod fits")
    parser.add_argument("--nodes-free", type=int, metavar="N", help="plan moves after which N nodes have no GPU pods")
    parser.add_argument("--apply", action="store_true", help="make the moves of the plan, one after the other")
    parser.add_argument("--yes", action="store_true", help="with --apply or --drain: do not ask")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why the GPU is put aside, for everybody to read")
    parser.add_argument("--drain", action="store_true", help="also move the pods on the GPU elsewhere, as plan does")
    parser.add_argument("--port", type=int, metavar="N", help="port of the page on 127.0.0.1; default: a free one")
    parser.add_argument("--no-browser", action="store_true", help="only print the address of the page")
    parser.add_argument("--json", action="store_true", help="print the doctor's findings as JSON")
    parser.add_argument("--dry-run", action="store_true", help="only print what uninstall or cordon would do")
    parser.add_argument(
        "--all",
        nargs="?",
        default="",
        const="no value",
        metavar=REALLY,
        help="uninstall from labelled nodes too, which ends sharing there",
    )
    parser.add_argument(
        "--agents-namespace",
        default=AGENT_NAMESPACE,
        metavar="NAME",
        help=f"namespace of the node agents; no pod elsewhere is believed [{AGENT_NAMESPACE}]",
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


def passed_on(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of kubectl among the arguments."""
    return [
        f"--{name.removeprefix('kubectl ')}={value}"
        for name, values in vars(arguments).items()
        if name.startswith("kubectl ")
        for value in values or ()
    ]
