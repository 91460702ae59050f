"""The command line of `kubectl inspect gpushare`: a parser for each command, and the overview where none is named."""

from __future__ import annotations

import argparse
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin import __version__
from gpu_device_plugin.commandline import Parser, add_settings, no_such_argument
from gpu_device_plugin.features.history.contract import LAST_HOUR
from gpu_device_plugin.model.contract.cordons import LONGEST_REASON
from gpu_device_plugin.report.rules.agent_pods import AGENT_NAMESPACE
from gpu_device_plugin.report.rules.terminal_tables import SORTS
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import UsageError, knobs_of, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

REALLY = "really"
"""The word that a user has to write to end sharing on nodes that still share."""

_PODS_OF_KUBECTL = frozenset({"", "pod", "pods", "po"})
"""The words that kubectl accepts before the name of a pod."""

_CONTROLLERS = frozenset({"deployment", "deploy", "statefulset", "sts", "replicaset", "rs", "daemonset", "ds"})

_WORKLOADS: Mapping[str, str] = {
    **dict.fromkeys(("deployment", "deployments", "deploy"), "deployment"),
    **dict.fromkeys(("statefulset", "statefulsets", "sts"), "statefulset"),
    **dict.fromkeys(("notebook", "notebooks"), "notebook"),
}
"""The kinds of workloads that wake brings back, by the words for them."""

MOST_EXPLAINED = 10
"""The number of nodes that are explained one by one without --all-nodes."""

INTERVAL_S = 5.0
"""Between two pictures of top."""

_OF_KUBECTL = (
    *("as", "as-group", "as-uid", "cache-dir", "certificate-authority", "client-certificate", "client-key", "cluster"),
    *("context", "kubeconfig", "password", "request-timeout", "server", "tls-server-name", "token", "user", "username"),
)
"""kubectl's flags with a value, which are passed on."""
_SWITCHES_OF_KUBECTL = ("disable-compression", "insecure-skip-tls-verify", "match-server-version")


def parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; flags may stand before the command, too.

    Raises:
        UsageError: it is invalid.
    """
    parser, commands = _parsers(prog)
    named, words = _command(argv, commands)
    if not named and {"-h", "--help"} & {*argv}:
        parser.print_help()
        parser.exit()
    command = named or _OVERVIEW
    arguments, unknown = commands[command].parse_known_intermixed_args(words)
    if unknown:
        raise _misplaced(prog, unknown, command, arguments, commands)
    arguments.command = command
    if (check := _CHECKS.get(command)) is not None:
        check(arguments)
    # The tables show NAMESPACE/POD; kubectl accepts pod/POD.
    before, _, arguments.pod = (arguments.pod or "").rpartition("/")
    if before not in _PODS_OF_KUBECTL:
        arguments.namespace = arguments.namespace or before
    arguments.node = (arguments.node or "").removeprefix("node/")
    return arguments


def _command(argv: Sequence[str], commands: Mapping[str, Parser]) -> tuple[str, list[str]]:
    """Return the command, if there is one, and all other words: the first that is neither a flag nor a flag's value."""
    valued = {
        flag
        for each in commands.values()
        for action in each.actions
        if action.nargs is None
        for flag in action.option_strings
    }
    after_flag = False
    for at, word in enumerate(argv):
        if not after_flag and not word.startswith("-"):
            if word in commands:
                return word, [*argv[:at], *argv[at + 1 :]]
            break
        after_flag = not after_flag and word in valued
    return "top" if {"-w", "--watch"} & {*argv} else "", list(argv)


def _misplaced(
    prog: str, unknown: Sequence[str], command: str, arguments: argparse.Namespace, commands: Mapping[str, Parser]
) -> UsageError:
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
    words = [word for word in (arguments.node, *unknown) if word]
    if flag in {"-A", "--all-namespaces"}:
        return UsageError(f"{flag}: the overview shows the pods of all namespaces; leave it out")
    if elsewhere := [_called(name) for name, each in commands.items() if flag in each.options]:
        return UsageError(f"{flag} goes with {', '.join(elsewhere)}, and not with {_called(command)}; leave it out")
    if flag:
        known = [each for parser in commands.values() for each in parser.flags]
        return no_such_argument(flag, known, f"see {prog} --help")
    if command != _OVERVIEW:
        return UsageError(f"{command}: too many arguments; see {prog} {command} --help")
    meant = nearest(words[0], [name for name in commands if name not in {"doctor", words[0]}], "")
    hint = f"there is no such command; {meant}" if meant else f"name one node, {prog} NODE, or why POD"
    return UsageError(f"{' '.join(words)}: {hint}")


_OVERVIEW = "overview"


def _called(command: str) -> str:
    return "no command (the overview)" if command == _OVERVIEW else command


_COMMANDS: Mapping[str, str] = {
    _OVERVIEW: "show which pods use which GPU; this is also done without a command",
    "top": "draw GPUs and pods again and again, or their last hour",
    "incident": "list incidents on GPUs, or show one",
    "why": "explain why a pod waits, runs where it does, or is slow",
    "resize": "change the memory of a running pod",
    "plan": "plan which pods to move so that others have room, and move them",
    "cordon": "let no new pod have a GPU, and move those there away",
    "uncordon": "let new pods have the GPU again",
    "wake": "bring back what was scaled to zero as idle, or list it",
    "prices": "show what room is worth to the policy fit",
    "web": "show the cluster live in a browser",
    "doctor": "diagnose the cluster",
    "uninstall": "clean up nodes that no longer share GPUs",
}
"""What each command is for."""
COMMANDS = tuple(_COMMANDS)
"""The words that are no node."""


def _parsers(prog: str) -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser that shows the commands, and that of each."""
    common = Parser(add_help=False)
    common.add_argument("--version", action="version", version=f"gpu-device-plugin {__version__}")
    common.add_argument(
        "--agents-namespace",
        default=AGENT_NAMESPACE,
        metavar="NAME",
        help=f"namespace of the node agents; no pod elsewhere is believed [{AGENT_NAMESPACE}]",
    )
    add_settings(common, knobs_of(ResourceSettings))
    for name in _OF_KUBECTL:
        short = ("-s",) if name == "server" else ()
        common.add_argument(*short, f"--{name}", dest=f"kubectl {name}", action="append", help=argparse.SUPPRESS)
    for name in _SWITCHES_OF_KUBECTL:
        dest = f"kubectl {name}"
        common.add_argument(f"--{name}", dest=dest, action="append_const", const="true", help=argparse.SUPPRESS)
    common.set_defaults(node="", pod="", namespace=None)
    passed = f"Passed on to kubectl: {', '.join(f'--{name}' for name in (*_OF_KUBECTL, *_SWITCHES_OF_KUBECTL))}."
    parser = Parser(
        prog=prog,
        parents=[common],
        usage="%(prog)s [COMMAND] [flags]",
        description="Show which pods use which GPU of the cluster, also live in a browser, why a pod gets none, or "
        "what is wrong; resize or move pods, put a GPU aside, wake a workload, or clean up.",
        epilog=f"COMMAND --help shows its flags. {passed}",
    )
    added = parser.add_subparsers(title="commands", metavar="COMMAND", prog=prog)
    commands: dict[str, Parser] = {
        name: added.add_parser(
            name, parents=[common], help=what, description=f"{what[:1].upper()}{what[1:]}.", epilog=passed
        )
        for name, what in _COMMANDS.items()
    }
    _add_arguments(commands)
    return parser, commands


def _add_arguments(commands: Mapping[str, Parser]) -> None:
    def add(names: str, to: str, **options: Any) -> None:
        for name in to.split():
            commands[name].add_argument(*names.split(), **options)

    switch = {"action": "store_true"}
    add("node", "overview top incident uninstall", nargs="?", metavar="NODE", help="this node alone")
    add("node", "cordon uncordon", metavar="NODE")
    add("gpu", "cordon uncordon", metavar="GPU", help="its number, UUID or the beginning of one, as tables show them")
    add("pod", "incident", nargs="?", metavar="NAME", help="show this incident, also without its node")
    add("words", "why", nargs="+", metavar="POD", help="as POD, pod/POD or NAMESPACE/POD")
    add("words", "resize", nargs="+", metavar="POD [AMOUNT]", help="the amount to guarantee, in units of gpu-mem")
    add("words", "wake", nargs="*", metavar="KIND/NAME", help="without one, list what sleeps")
    layout = commands[_OVERVIEW].add_mutually_exclusive_group()
    layout.add_argument(
        "-d", dest="output", action="store_const", const="details", default="summary", help="every pod on every GPU"
    )
    layout.add_argument(
        "-o",
        "--output",
        choices=("gpushare", "wide", "json", "yaml"),
        default="summary",
        help="gpushare's own layout, however wide; one line for each GPU with model, health and pods; or all data, for "
        "machines",
    )
    add("-o --output", "prices plan incident", choices=("json",), default="summary", help="all data, for machines")
    add("-n --namespace", "overview top", help="show only the pods of this namespace")
    add("-n --namespace", "why resize wake plan", help="of the pod or workload; default: that of kubectl's context")
    add("-l --selector", "overview top", default="", metavar="LABELS", help="only nodes with these labels")
    add("-w --watch", "overview top", help="as top", **switch)
    add("--sort-by", "top", choices=tuple(SORTS), help="sort nodes and pods, amounts with the largest first")
    interval = _valued(float, lambda seconds: 0.5 <= seconds <= 3600, "choose 0.5 to 3600 seconds")
    add("--interval", "top", type=interval, metavar="SECONDS", help=f"between two pictures; default {INTERVAL_S:g}")
    add("--history", "top", help=f"draw {LAST_HOUR} of GPUs and pods, once", **switch)
    add("--all-nodes", "why", help=f"explain more than the nearest {MOST_EXPLAINED} nodes", **switch)
    add("--limit", "resize", type=_units, metavar="N", help="the most that the container may use, in units of gpu-mem")
    add("--clear", "resize", help="back to the container's request", **switch)
    add("-c --container", "resize", default="", help="the container to resize, where several have shares")
    goal = commands["plan"].add_mutually_exclusive_group()
    goal.add_argument("--for", dest="pod", metavar="POD", help="plan moves after which this waiting pod fits")
    number = _valued(int, lambda nodes: nodes > 0, "write 1, for example")
    goal.add_argument("--nodes-free", type=number, metavar="N", help="plan moves after which N nodes have no GPU pods")
    add("--apply", "plan", help="make the moves of the plan, one after the other", **switch)
    one_line = _valued(
        str,
        lambda text: len(text) <= LONGEST_REASON and text.isprintable(),
        f"write one line of at most {LONGEST_REASON} characters",
    )
    add("--reason", "cordon", type=one_line, default="", metavar="TEXT", help="why it is put aside, for all to read")
    add("--drain", "cordon", help="also move the pods on the GPU elsewhere, as plan does", **switch)
    add("--yes", "plan cordon", help="with --apply or --drain: do not ask", **switch)
    port = _valued(int, lambda port: 0 <= port < 1 << 16, "choose one from 1024 to 65535, or leave it out")
    add("--port", "web", type=port, metavar="N", help="port of the page on 127.0.0.1; default: a free one")
    add("--no-browser", "web", help="only print the address of the page", **switch)
    add("--json", "doctor", help="print the findings as JSON", **switch)
    add("--dry-run", "uninstall cordon uncordon", help="only print what would be done", **switch)
    sure = f"this ends sharing on nodes that still share; to confirm, write --all={REALLY}"
    really = {"nargs": "?", "type": _valued(str, lambda text: text in {"", REALLY}, sure), "const": "no value"}
    add(
        "--all", "uninstall", default="", metavar=REALLY, help="also labelled nodes, which ends sharing there", **really
    )


def _valued(kind: Callable[[str], T], valid: Callable[[T], bool], advice: str) -> Callable[[str], T]:
    """Return what reads a value of a flag, and gives an advice if it cannot be read or is not valid."""

    def value(text: str) -> T:
        with suppress(ValueError):
            if valid(read := kind(text)):
                return read
        raise argparse.ArgumentTypeError(advice)

    return value


def _units(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 9 and int(text) > 0:
        return int(text)
    begin = "".join(takewhile(str.isdigit, text))
    meant = f"write {begin}, not {text}" if begin.strip("0") else "write it like 6"
    raise argparse.ArgumentTypeError(f"an amount is a whole number of units of gpu-mem, from 1 on: {meant}")


# --- What else is checked of a command, and made of its words ---------------------------------------------------------


def _check_overview(arguments: argparse.Namespace) -> None:
    if arguments.namespace and (arguments.node or arguments.selector):
        raise UsageError("-n: the pods of a namespace are shown wherever they run; leave out the node and -l")
    if arguments.namespace and arguments.output != "summary":
        raise UsageError("-n: -d and -o show the pods of all namespaces; leave one of the two out")


def _check_top(arguments: argparse.Namespace) -> None:
    if arguments.history and (arguments.sort_by or arguments.interval is not None):
        raise UsageError(f"--history: it draws {LAST_HOUR} once; leave out --sort-by and --interval")


def _check_why(arguments: argparse.Namespace) -> None:
    *kind, arguments.pod = arguments.words
    if len(kind) > 1 or not _PODS_OF_KUBECTL.issuperset(kind):
        raise UsageError(f"why {' '.join(arguments.words)}: too many arguments; name one pod")


def _check_resize(arguments: argparse.Namespace) -> None:
    words = arguments.words
    if len(words) > 1 and words[0] in _PODS_OF_KUBECTL and not words[1].isdigit():
        words = words[1:]
    arguments.pod, amount = (*words, "")[:2]
    if len(words) > 2:
        raise UsageError(f"resize {' '.join(words)}: too many arguments; name one pod and one amount")
    before, _, name = arguments.pod.rpartition("/")
    if before in _CONTROLLERS:
        raise UsageError(f"resize {before}/{name}: it changes one running pod; kubectl get pods names them")
    try:
        arguments.amount = _units(amount) if amount else None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"AMOUNT: {error}") from error
    if arguments.clear and (arguments.amount or arguments.limit):
        raise UsageError("--clear: it returns to the request; leave out AMOUNT and --limit, or leave it out")
    if arguments.amount and arguments.limit and arguments.limit < arguments.amount:
        raise UsageError(f"--limit: {arguments.limit} is less than the guarantee of {arguments.amount}; choose more")


def _check_plan(arguments: argparse.Namespace) -> None:
    if arguments.apply and arguments.output == "json":
        raise UsageError("--apply: it shows the plan in a table; leave out -o json")
    if arguments.yes and not arguments.apply:
        raise UsageError("--yes: there is nothing to confirm; write --apply too, or leave it out")


def _check_cordon(arguments: argparse.Namespace) -> None:
    if arguments.yes and not arguments.drain:
        raise UsageError("--yes: there is nothing to confirm; write --drain too, or leave it out")


def _check_wake(arguments: argparse.Namespace) -> None:
    """Have kind and name of a workload; None: none is named."""
    kind, _, name = "/".join(arguments.words).partition("/")
    arguments.workload = (_WORKLOADS.get(kind, ""), name) if arguments.words else None
    if arguments.words and (kind not in _WORKLOADS or not name or "/" in name):
        named = "name a workload as deployment/NAME, statefulset/NAME or notebook/NAME"
        raise UsageError(f"wake {' '.join(arguments.words)}: {named}")


_CHECKS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    _OVERVIEW: _check_overview,
    "top": _check_top,
    "why": _check_why,
    "resize": _check_resize,
    "plan": _check_plan,
    "cordon": _check_cordon,
    "wake": _check_wake,
}


def passed_on(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of kubectl among the arguments."""
    return [
        f"--{name.removeprefix('kubectl ')}={value}"
        for name, values in vars(arguments).items()
        if name.startswith("kubectl ")
        for value in values or ()
    ]
