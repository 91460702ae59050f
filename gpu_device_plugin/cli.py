"""From argv and the environment to settings, to one program, to an exit code: 0, 1 (failed), 2 (wrong input)."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import __version__, logs
from gpu_device_plugin.programs import frugal
from gpu_device_plugin.settings import KNOBS, Sources, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "gpu-device-plugin"
OK, FAILED, MISUSED = 0, 1, 2
INTERRUPTED = 130
"""What a shell makes of a process that Ctrl-C ended."""


def main(argv: Sequence[str] | None = None, programs: Mapping[str, Program] | None = None) -> int:
    """Run what `argv` asks for (the process's own by default) and return the exit code."""
    try:
        arguments = parse(argv)
        return (programs or PROGRAMS)[arguments.command](arguments)
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # the last place where it can become a log line that machines can read
        logging.getLogger(__name__).critical("ends because of an error in the program itself", exc_info=True)
        return FAILED


# --- The programs -----------------------------------------------------------------------------------------------------


def _node(arguments: argparse.Namespace) -> int:
    sources = sources_of(arguments, os.environ)
    settings = sources.read()
    logs.quiet_grpc(os.environ)
    logs.configure(settings.log_level, settings.log_format, sys.stderr, colour="NO_COLOR" not in os.environ)
    if settings.http is None and not settings.reaches_api(os.environ):
        frugal.without_tls()
    from gpu_device_plugin.programs import node_agent  # noqa: PLC0415 - half a second that --help need not take

    return node_agent.main(settings, reread=sources.read)


def _demo(arguments: argparse.Namespace) -> int:
    logs.quiet_grpc(os.environ)
    from gpu_device_plugin.programs import demo  # noqa: PLC0415 - half a second that --help need not take

    return demo.main(gpus=arguments.gpus, once=arguments.once)


Program = Callable[[argparse.Namespace], int]
PROGRAMS: Mapping[str, Program] = MappingProxyType({"node": _node, "demo": _demo})


def sources_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sources:
    """Return where the settings of a `node` command line come from."""
    flags = {name: text for name, text in vars(arguments).items() if name in _SETTINGS and text is not None}
    return Sources(flags=flags, environ=environ)


# --- The command line -------------------------------------------------------------------------------------------------

_SETTINGS = {"config", *(knob.name for knob in KNOBS)}
_DEMO_FLAGS = ("--once", "--gpus")


class _Parser(argparse.ArgumentParser):
    """Reports misuse as one line, like every other wrong input."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read a command line.

    Raises:
        UsageError: there is no such command or flag.
    """
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = _DEMO_FLAGS if arguments.command == "demo" else [knob.flag for knob in KNOBS]
        hint = nearest(flag, known, f"see {PROGRAM} {arguments.command} --help", prefix="--")
        raise UsageError(f"{flag}: there is no such argument; {hint}")
    return arguments


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Share the GPUs of a Kubernetes node between pods, by GPU memory.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)

    node = commands.add_parser(
        "node",
        usage="%(prog)s [--config FILE] [settings]",
        help="the agent that runs on every GPU node",
        description="Offer the GPUs of this node to the kubelet, and hand them to containers.",
        epilog="A flag beats the environment variable, which beats the file. SIGHUP reads all of it again.",
        allow_abbrev=False,
    )
    node.add_argument(
        "--config",
        metavar="FILE",
        help="YAML or JSON file with settings, named as in the variables: share_size: 1GiB [GPUSHARE_CONFIG]",
    )
    for knob in KNOBS:
        switch = knob.form.shape == "true|false"  # turned on by its mere name, too
        node.add_argument(
            knob.flag,
            dest=knob.name,
            metavar=knob.form.shape,
            nargs="?" if switch else None,
            const="true" if switch else None,
            help=f"{knob.help} [{knob.variable}; {knob.default or 'empty'}]".replace("%", "%%"),
        )

    demo = commands.add_parser(
        "demo",
        help="GPUs shared between pods, live in this terminal, with no cluster at all",
        description="Run the agent against a kubelet made for the purpose, and show what happens as tables.",
        allow_abbrev=False,
    )
    demo.add_argument("--once", action="store_true", help="print what happens and exit, for scripts")
    demo.add_argument(
        "--gpus", metavar="SOURCE", help="nvml for the GPUs of this machine, fake:4xT4, or the path of a .yaml file"
    )
    return parser
