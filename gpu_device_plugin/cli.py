"""Read settings from argv and the environment, run one program, return its exit code: 0, 1 (failed), 2 (misuse)."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin import __version__, logs
from gpu_device_plugin.aio import low_memory_imports
from gpu_device_plugin.commandline import FAILED, Parser, add_settings, ending, flags_in, no_such_argument
from gpu_device_plugin.features.limits import LimitHelperSettings
from gpu_device_plugin.features.mps import MpsSupervisorSettings
from gpu_device_plugin.report.rules.printing import nearest
from gpu_device_plugin.settings.common import LogSettings
from gpu_device_plugin.settings.knobs import PROGRAM, Settings, UsageError, knobs_of
from gpu_device_plugin.settings.sources import Sources, Texts
from gpu_device_plugin.settings.web import WebSettings

if TYPE_CHECKING:
    from gpu_device_plugin.programs.doctor.node_reading import Running
    from gpu_device_plugin.settings.node import NodeSettings


S = TypeVar("S", bound=Settings)
P = TypeVar("P", bound=LogSettings)


def main(argv: Sequence[str] | None = None, programs: Mapping[str, Program] | None = None) -> int:
    """Run the command in `argv` (by default that of the process) and return the exit code."""
    return _run(PROGRAM, sys.argv[1:] if argv is None else argv, programs or PROGRAMS)


def inspect_plugin(argv: Sequence[str] | None = None, programs: Mapping[str, Program] | None = None) -> int:
    """Run ``kubectl inspect gpushare``, for which kubectl looks up the program ``kubectl-inspect-gpushare``."""
    words = sys.argv[1:] if argv is None else argv
    # krew gives plugins no name of two words: it links kubectl-inspect_gpushare, which is `kubectl inspect-gpushare`.
    called = "kubectl inspect-gpushare" if "inspect_gpushare" in Path(sys.argv[0]).name else "kubectl inspect gpushare"
    return _run(called, ["inspect", *words], programs or PROGRAMS)


def _run(name: str, argv: Sequence[str], programs: Mapping[str, Program]) -> int:
    def run() -> int:
        arguments = parse(argv)
        arguments.called = name
        return programs[arguments.command](arguments)

    try:
        return ending(name, run)
    except Exception:  # the last place that can turn it into a machine-readable log line
        logging.getLogger(__name__).critical("exits because of a bug in the program", exc_info=True)
        return FAILED


# --- The programs -----------------------------------------------------------------------------------------------------


def _node(arguments: argparse.Namespace) -> int:
    logs.quiet_grpc(os.environ)
    from gpu_device_plugin.features.node_features import NODE_FEATURES, NODE_SETTINGS  # noqa: PLC0415 - see _services

    sources, texts, settings = _begin(NODE_SETTINGS, arguments)
    if settings.http is None and not settings.reaches_api(os.environ):
        low_memory_imports.without_tls()
    from gpu_device_plugin.programs.agent import node_program as program  # noqa: PLC0415 - half a second that --help need not take

    return program.NodeProgram(sources, texts, settings, NODE_FEATURES).main()


def _service(arguments: argparse.Namespace) -> int:
    """Run a program with settings, imported only now: a fifth of a second or more that --help need not take."""
    make, path, *_ = _services()[arguments.command]
    sources, texts, settings = _begin(make, arguments)
    return int(import_module(path).main(sources, texts, settings))


def _tool(arguments: argparse.Namespace) -> int:
    """Run a program with arguments of its own, imported only now as well."""
    name = arguments.command
    return int(import_module(f"gpu_device_plugin.programs.{name}.{name}_program").main(arguments, os.environ))


def _begin(make: type[P], arguments: argparse.Namespace) -> tuple[Sources[P], Texts, P]:
    """Read the settings of a program, and configure its log by them."""
    sources = sources_of(make, arguments, os.environ)
    texts = sources.texts()
    settings = sources.read(texts=texts)
    logs.configure(settings.log_level, settings.log_format, sys.stderr, colour="NO_COLOR" not in os.environ)
    return sources, texts, settings


def _inspect(arguments: argparse.Namespace) -> int:
    from gpu_device_plugin.programs.inspect import inspect_program as program  # noqa: PLC0415 - nothing that another program needs

    def web(*given: Any, **more: Any) -> int:
        logs.configure("error", "human", sys.stderr, colour="NO_COLOR" not in os.environ)
        from gpu_device_plugin.programs.web.local_page import on_this_machine  # noqa: PLC0415 - only where it is served

        return on_this_machine(*given, **more)

    called = arguments.called
    return program.main(arguments.words, prog=f"{PROGRAM} inspect" if called == PROGRAM else called, web=web)


def _doctor(arguments: argparse.Namespace) -> int:
    logs.quiet_grpc(os.environ)
    logs.configure("critical", "text", sys.stderr, colour=False)
    # A second that --help need not take.
    from gpu_device_plugin.programs.doctor import doctor_program as program  # noqa: PLC0415
    from gpu_device_plugin.programs.doctor import node_reading  # noqa: PLC0415

    running = node_reading.agents(Path("/proc"))
    where = program.place(arguments.host_root or "", os.environ)
    sources, texts = sources_of_the_agent(arguments, running or [])
    followed = [str(each) for each in running or () if _theirs(each) is not None and not each.alone]
    settings, profiles = program.settings_of(sources, texts, where)
    count = None if running is None or (where.in_container and not running) else len(running)
    return program.main(
        settings, where, agents_running=count, as_json=arguments.json, profiles=profiles, followed=followed
    )


def sources_of_the_agent(
    arguments: argparse.Namespace, running: Sequence[Running]
) -> tuple[Sources[NodeSettings], Texts]:
    """Return the sources of this node's agent and the content of its files; our own arguments and environment override.

    Files that are not visible here count as empty.
    """
    from gpu_device_plugin.features.node_features import NODE_SETTINGS  # noqa: PLC0415 - see _services

    ours = sources_of(NODE_SETTINGS, arguments, os.environ)
    for agent in running:
        if (theirs := _theirs(agent)) is None:
            continue
        flags, environ = {**theirs.flags, **ours.flags}, {**agent.environ, **ours.environ}
        both = Sources(NODE_SETTINGS, flags, environ, ours.others)
        seen_here = ours.config or not both.config
        return both, both.texts() if seen_here else _texts_of_the_agent(both, agent.root)
    return ours, ours.texts()


def _theirs(agent: Running) -> Sources[NodeSettings] | None:
    """Return the sources of an agent's settings; None: they cannot be read, as it is of another version."""
    from gpu_device_plugin.features.node_features import NODE_SETTINGS  # noqa: PLC0415 - see _services

    try:
        return sources_of(NODE_SETTINGS, parse(agent.arguments), agent.environ)
    except UsageError:
        return None


def _texts_of_the_agent(sources: Sources[NodeSettings], root: Path) -> Texts:
    for folder in (root, Path("/")):
        with suppress(UsageError):
            texts = replace(sources, flags={"config": str(folder / sources.config.lstrip("/"))}).texts()
            return replace(texts, folder=texts.folder and sources.config)
    return Texts()


def _demo(arguments: argparse.Namespace) -> int:
    logs.quiet_grpc(os.environ)
    from gpu_device_plugin.programs.demo import demo_program as program  # noqa: PLC0415 - half a second that --help need not take

    return program.main(gpus=arguments.gpus, once=arguments.once, page=arguments.page)


Program = Callable[[argparse.Namespace], int]
PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "node": _node,
        **dict.fromkeys(("extender", "mps", "limits", "web"), _service),
        "inspect": _inspect,
        "doctor": _doctor,
        **dict.fromkeys(("simulate", "cost"), _tool),
        "demo": _demo,
    }
)


def sources_of(make: type[S], arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sources[S]:
    """Return the sources of the settings `make` for a command line."""
    others = tuple(knob for other, *_ in _services().values() if other is not make for knob in knobs_of(other))
    return Sources(make, flags_in(arguments, knobs_of(make)), environ, others)


# --- The command line -------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. The words after `inspect` are left to that program, as ``words``.

    Raises:
        UsageError: there is no such command or flag.
    """
    if list(argv[:1]) == ["inspect"]:
        return argparse.Namespace(command="inspect", words=list(argv[1:]))
    command, *more = [word for word in argv if not word.startswith("-")] or [""]
    if command == "help":
        return parse([*more[:1], "--help"])
    if command == "version":
        return parse(["--version"])
    parser, commands = _parsers()
    if command not in commands and not {"-h", "--help", "--version"}.intersection(argv[:1]):
        *most, last = PROGRAMS
        choice = f"begin with a command, {', '.join(most)} or {last}; see {PROGRAM} --help"
        if argv[:1] in (["-v"], ["-V"]):
            return parse(["--version"])
        if not command and (hint := nearest(" ".join(argv[:1]), parser.flags, "", prefix="--")):
            raise UsageError(f"{argv[0]}: there is no such argument; {hint}")
        if not command or command in PROGRAMS:
            raise UsageError(choice)
        raise UsageError(f"{command}: there is no such command; {_command_meant(command, argv, choice)}")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        raise _misplaced(unknown[0].partition("=")[0], command, commands, argv)
    return arguments


_OTHER_WORDS = {
    **dict.fromkeys(("agent", "plugin", "device-plugin", "daemon"), "node"),
    "scheduler": "extender",
    **dict.fromkeys(("dashboard", "ui", "page"), "web"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("costs", "bill"), "cost"),
}
"""What people try as a command, and what they mean."""


def _command_meant(word: str, argv: Sequence[str], choice: str) -> str:
    """Return the command that somebody means by an unknown word: of the cluster, of this program, or none known."""
    from gpu_device_plugin.features.terminal_features import TERMINAL  # noqa: PLC0415 - only a mistake needs it
    from gpu_device_plugin.programs.inspect.inspect_program import commands  # noqa: PLC0415 - likewise

    if word in _OTHER_WORDS:
        return f"did you mean {_OTHER_WORDS[word]}?"
    if word in (of_cluster := commands(TERMINAL)):
        return f"it is one of kubectl inspect gpushare, or {PROGRAM} inspect {' '.join(argv)}"
    of_inspect = nearest(word.lower(), [f"inspect {name}" for name in of_cluster], choice, prefix="inspect ")
    return nearest(word.lower(), PROGRAMS, of_inspect.replace("mean inspect", f"mean {PROGRAM} inspect"))


def _misplaced(word: str, command: str, commands: Mapping[str, Parser], argv: Sequence[str]) -> UsageError:
    flags = commands[command].flags
    elsewhere = [other for other, parser in commands.items() if word in parser.flags]
    if word in flags and list(argv).index(command) > 0:
        hint = f"write it after {command}"
    elif word.endswith((".yaml", ".yml", ".json")) and _CONFIG in flags:
        hint = f"did you mean {_CONFIG}={word}?"
    elif command == "doctor" and not word.startswith("-"):
        hint = "it examines this machine; see also kubectl inspect gpushare doctor"
    elif elsewhere:
        hint = f"it belongs to {PROGRAM} {elsewhere[0]}"
    else:
        return no_such_argument(word, flags, f"see {PROGRAM} {command} --help")
    return UsageError(f"{word}: there is no such argument; {hint}")


_CONFIG = "--config"
_USAGE = "%(prog)s [--config PATH] [settings]"
_PRECEDENCE = (
    "A flag overrides the environment variable, which overrides the file. Files are reloaded on change and on SIGHUP."
)


def _services() -> Mapping[str, tuple[type[LogSettings], str, str, str]]:
    """Return the programs that run permanently, each with settings, module, a few words, and a sentence."""
    # The kubectl plugin never comes here, and has no features of these.
    from gpu_device_plugin.features.extender_features import EXTENDER_SETTINGS  # noqa: PLC0415
    from gpu_device_plugin.features.node_features import NODE_SETTINGS  # noqa: PLC0415

    return {
        "node": (
            NODE_SETTINGS,
            "gpu_device_plugin.programs.agent.node_program",
            "the agent that runs on every GPU node",
            "Offer the GPUs of this node to the kubelet, and hand them to containers.",
        ),
        "extender": (
            EXTENDER_SETTINGS,
            "gpu_device_plugin.programs.extender.extender_program",
            "the scheduler extender, which finds nodes with enough free memory on one GPU",
            "Answer kube-scheduler's calls: which nodes fit a pod, which fit best, and bind it to a GPU.",
        ),
        "mps": (
            MpsSupervisorSettings,
            "gpu_device_plugin.features.mps.supervisor.mps_program",
            "the MPS supervisor, which runs the control daemons of NVIDIA's MPS that the agent requests",
            "Run a control daemon of NVIDIA's MPS on each GPU whose memory MPS limits, with the compute mode for it.",
        ),
        "limits": (
            LimitHelperSettings,
            "gpu_device_plugin.features.limits.helper_program",
            "the limit helper, which changes the memory limits of running containers",
            "Set the memory limits of running containers that this node's agent requests, through the driver (r615).",
        ),
        "web": (
            WebSettings,
            "gpu_device_plugin.programs.web.web_program",
            "the page in the cluster: its GPUs at a glance, live, for callers with a token",
            "Show each caller what it may see of the GPUs; on your own machine use kubectl inspect gpushare web.",
        ),
    }


def _parsers() -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the command line, and those of its commands except `inspect`, which has its own."""
    parser = Parser(prog=PROGRAM, description="Share the GPUs of a Kubernetes cluster between pods, by GPU memory.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    services = _services()
    for name, (make, _, short, what) in services.items():
        service = commands.add_parser(name, help=short, description=what, usage=_USAGE, epilog=_PRECEDENCE)
        _add_config(service, make)
    commands.add_parser("inspect", help="show which pods use which GPU of the cluster", add_help=False)  # see parse
    doctor = commands.add_parser(
        "doctor",
        usage="%(prog)s [--json] [--host-root DIR] [settings of the agent]",
        help="find the faults of this node, with a remedy for each",
        description="Examine everything that sharing this node's GPUs needs: driver, container runtime, kubelet, agent "
        "and API server. Nothing is changed.",
        epilog="By default the doctor uses the settings of the agent on this node; flags of "
        f"{PROGRAM} node, whose --help explains them, override them. Exit code 0: no fault; 3: there "
        "are warnings; 4: there are errors; 1 and 2: the doctor itself failed.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.add_argument("--host-root", metavar="DIR", help="directory where the node's own file system is mounted")
    _add_config(doctor, services["node"][0], shown=False)
    # The kubectl plugin in one file has no simulator, and never comes here.
    from gpu_device_plugin.programs.simulate.arguments import add_simulate  # noqa: PLC0415

    add_simulate(commands)
    _add_cost(commands)
    demo = commands.add_parser(
        "demo",
        help="share GPUs between pods, live in this terminal, without a cluster",
        description="Run the agent against a simulated kubelet, and show each step as a table.",
    )
    demo.add_argument("--once", action="store_true", help="print each scene once and exit, for scripts")
    demo.add_argument(
        "--page", action="store_true", help="also serve the page of this cluster, for your browser, until Ctrl-C"
    )
    demo.add_argument(
        "--gpus", metavar="SOURCE", help="nvml for the GPUs of this machine, fake:4xT4, or the path of a .yaml file"
    )
    return parser, {name: each for name, each in commands.choices.items() if name != "inspect"}


def _add_config(command: Parser, make: type[Settings], *, shown: bool = True) -> None:
    command.add_argument(
        _CONFIG,
        metavar="PATH",
        help="YAML or JSON file with settings, each named like its flag without the leading dashes and with _ for -, "
        "as in share_size: 1GiB; or a directory, in which default.yaml applies everywhere and any other .yaml file to "
        "nodes whose label gpu-device-plugin/config names it [GPUSHARE_CONFIG]",
    )
    add_settings(command, knobs_of(make), shown=shown)


def _add_cost(commands: Any) -> None:
    cost: Parser = commands.add_parser(
        "cost",
        help="who held the GPUs in a period, and what that cost",
        usage="%(prog)s --prometheus URL  [--from TIME] [--to TIME] [--step DURATION]\n"
        "       [--by namespace|owner|pod] [--rate 'MODEL=PRICE'] [-o table|json|focus] [--plot FILE]",
        description="Show who held the GPUs in a period, how much they used, what was free, and what it cost. All "
        "rows add up to the price of all GPUs, to the cent.",
        epilog="TIME is 2026-10-01, 2026-10-01T06:00:00Z, or how long ago: 30d, 12h. Exit code 0: done; 1: there are "
        "no samples, or they cannot be read; 2: the arguments cannot be used; 3: samples may be missing.",
    )
    for flag, metavar, text in (
        ("--prometheus", "URL", "read Prometheus' HTTP API [PROMETHEUS_URL]"),
        ("--token-file", "PATH", "send the bearer token in this file [PROMETHEUS_TOKEN]"),
        ("--ca", "PATH", "trust these certificates [SSL_CERT_FILE]"),
        ("--select", "LABELS", "read only series with these labels, as in 'cluster=\"prod\"'"),
        ("--from", "TIME", "start of the period [24h]"),
        ("--to", "TIME", "its end, which is not part of it [now]"),
        ("--step", "DURATION", "for how long a sample counts [a minute or more]"),
        ("--rates", "PATH", "YAML with currency, and with rates, a map from models to prices"),
        ("--currency", "CODE", "of the prices [USD]"),
        ("--account", "NAME", "the billing account of FOCUS [gpushare]"),
        ("--plot", "FILE", "draw the result too, as FILE.svg or FILE.png (needs matplotlib)"),
    ):
        cost.add_argument(flag, metavar=metavar, help=text)
    for flag, metavar, text in (
        ("--header", "'NAME: VALUE'", "send it to Prometheus, as in 'X-Scope-OrgID: team'; repeatable"),
        (
            "--rate",
            "'MODEL=PRICE'",
            "the price of an hour of a GPU, as in 'NVIDIA H100*=2.50'; first match; repeatable",
        ),
    ):
        cost.add_argument(flag, metavar=metavar, action="append", default=[], help=text)
    cost.add_argument("--by", default="owner", choices=("namespace", "owner", "pod"), help="what to add up by [owner]")
    cost.add_argument(
        "-o", "--output", default="table", choices=("table", "json", "focus"), help="the form of the result"
    )
