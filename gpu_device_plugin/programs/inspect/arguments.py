"""The command line of `kubectl inspect gpushare`: a parser for each command, and the overview where none is named."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from gpu_device_plugin import __version__
from gpu_device_plugin.commandline import Parser, add_settings, no_such_argument
from gpu_device_plugin.model.contract.keys import AGENT_NAMESPACE
from gpu_device_plugin.report.commands import PODS_OF_KUBECTL, Command
from gpu_device_plugin.report.rules.printing import nearest
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import UsageError, knobs_of

_OF_KUBECTL = (
    *("as", "as-group", "as-uid", "cache-dir", "certificate-authority", "client-certificate", "client-key", "cluster"),
    *("context", "kubeconfig", "password", "request-timeout", "server", "tls-server-name", "token", "user", "username"),
)
"""kubectl's flags with a value, which are passed on."""
_PROGRAMS = ("node", "extender", "mps", "limits", "simulate", "cost", "demo")
"""What gpu-device-plugin runs, and this program does not."""
_OTHER_WORDS = {
    **dict.fromkeys(("list", "ls", "get", "show", "status", "nodes", "gpus"), "{prog} shows all nodes"),
    **dict.fromkeys(("pod", "pods", "describe", "explain"), "{prog} why POD explains one; {prog} -d shows all"),
    **dict.fromkeys(("dashboard", "ui", "page", "serve"), "did you mean {prog} web?"),
    **dict.fromkeys(("watch", "live", "monitor"), "did you mean {prog} top?"),
    **dict.fromkeys(("check", "diagnose", "debug", "health"), "did you mean {prog} doctor?"),
    **dict.fromkeys(("drain", "taint", "disable"), "did you mean {prog} cordon NODE GPU --drain?"),
    **dict.fromkeys(("logs", "exec"), "did you mean kubectl {word}?"),
}
"""What people try as a command, and what they mean."""
_SWITCHES_OF_KUBECTL = ("disable-compression", "insecure-skip-tls-verify", "match-server-version")


def parse(prog: str, argv: Sequence[str], every: Mapping[str, Command]) -> argparse.Namespace:
    """Parse a command line of one of the commands, by their names; flags may stand before the command, too.

    Raises:
        UsageError: it is invalid.
    """
    if "" in argv:
        raise UsageError("an argument is empty: is a variable of your shell not set?")
    parser, commands = _parsers(prog, every.values())
    first, words = _command(argv, commands)
    named = first if first in commands else ""
    match first:
        case "help":
            return parse(prog, [*words, "--help"], every)
        case "version":
            return parse(prog, [*words, "--version"], every)
        case word if not named and (meant := _meant(prog, word)) and not {"-h", "--help", "--version"} & {*argv}:
            raise UsageError(f"{word}: there is no such command; {meant} (node/{word} is a node of this name)")
    if not named:
        named, words = "top" if {"-w", "--watch"} & {*argv} else "", [*argv]
    if not named and {"-h", "--help"} & {*argv}:
        parser.print_help()
        parser.exit()
    command = named or _OVERVIEW
    arguments, unknown = commands[command].parse_known_intermixed_args(words)
    if unknown:
        raise _misplaced(prog, unknown, command, arguments, commands)
    arguments.command = every[command]
    arguments.command.check(arguments)
    # The tables show NAMESPACE/POD; kubectl accepts pod/POD.
    before, _, arguments.pod = (arguments.pod or "").rpartition("/")
    if before not in PODS_OF_KUBECTL:
        arguments.namespace = arguments.namespace or before
    arguments.node = (arguments.node or "").removeprefix("node/")
    arguments.instead = nearest(arguments.node, every, "kubectl get nodes lists the existing ones")
    return arguments


def _meant(prog: str, word: str) -> str:
    """Return what somebody means by a word that is no command here; empty: nothing is known of it."""
    if word in _PROGRAMS:
        return f"did you mean gpu-device-plugin {word}?"
    return _OTHER_WORDS.get(word, "").format(prog=prog, word=word)


def _command(argv: Sequence[str], commands: Mapping[str, Parser]) -> tuple[str, list[str]]:
    """Return the first word that is neither a flag nor a flag's value, which may be a command, and all other words."""
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
            return word, [*argv[:at], *argv[at + 1 :]]
        after_flag = not after_flag and word in valued
    return "", list(argv)


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
        of = "" if command == _OVERVIEW else f" {command}"
        return no_such_argument(flag, known, f"see {prog}{of} --help")
    if command == "plan":
        return UsageError(f"plan {words[0]}: did you mean plan --for {words[0]}?")
    if command != _OVERVIEW:
        return UsageError(f"{command}: too many arguments; see {prog} {command} --help")
    meant = nearest(words[0], [name for name in commands if name not in {"doctor", words[0]}], "")
    hint = f"there is no such command; {meant}" if meant else f"name one node, {prog} NODE, or why POD"
    return UsageError(f"{' '.join(words)}: {hint}")


_OVERVIEW = "overview"


def _called(command: str) -> str:
    return "no command (the overview)" if command == _OVERVIEW else command


def _parsers(prog: str, every: Iterable[Command]) -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser that shows the commands, and that of each."""
    common = Parser(add_help=False)
    common.add_argument("--version", action="version", version=f"gpu-device-plugin {__version__}")
    common.add_argument(
        "--agents-namespace",
        default=AGENT_NAMESPACE,
        metavar="NAME",
        help=f"namespace of the node agents; pods elsewhere are ignored [{AGENT_NAMESPACE}]",
    )
    add_settings(common, knobs_of(ResourceSettings))
    for name in _OF_KUBECTL:
        short = ("-s",) if name == "server" else ()
        common.add_argument(*short, f"--{name}", dest=f"kubectl {name}", action="append", help=argparse.SUPPRESS)
    for name in _SWITCHES_OF_KUBECTL:
        dest = f"kubectl {name}"
        common.add_argument(f"--{name}", dest=dest, action="append_const", const="true", help=argparse.SUPPRESS)
    common.set_defaults(node="", pod="", namespace=None, selector="")
    passed = f"Passed on to kubectl: {', '.join(f'--{name}' for name in (*_OF_KUBECTL, *_SWITCHES_OF_KUBECTL))}."
    parser = Parser(
        prog=prog,
        parents=[common],
        usage="%(prog)s [COMMAND] [flags]",
        description="Show which pods use which GPUs (also live in a browser), why a pod is pending, and what is "
        "wrong; resize or move pods, cordon GPUs, wake workloads, or clean up.",
        epilog=f"COMMAND --help shows its flags. {passed}",
    )
    added = parser.add_subparsers(title="commands", metavar="COMMAND", prog=prog)
    commands: dict[str, Parser] = {}
    for each in every:
        said = f"{each.what[:1].upper()}{each.what[1:]}."
        commands[each.name] = added.add_parser(
            each.name, parents=[common], help=each.what, description=said, epilog=passed
        )
        for add in each.arguments:
            add(commands[each.name])
    return parser, commands


def passed_on(arguments: argparse.Namespace) -> list[str]:
    """Return the flags of kubectl among the arguments."""
    return [
        f"--{name.removeprefix('kubectl ')}={value}"
        for name, values in vars(arguments).items()
        if name.startswith("kubectl ")
        for value in values or ()
    ]
