"""A command of `kubectl inspect gpushare`: its arguments, what else is checked of them, and what runs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_device_plugin.report.rules.columns import Line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpu_device_plugin.kubernetes.kubectl import Access
    from gpu_device_plugin.model.resources import Resource

    Arguments = Callable[[argparse._ActionsContainer], object]
    """Adds arguments to a parser."""

T = TypeVar("T")

Output = tuple[Sequence[str | Line], int]
"""Lines, and the exit code."""

PODS_OF_KUBECTL = frozenset({"", "pod", "pods", "po"})
"""The words that kubectl accepts before the name of a pod."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line. Of its arguments `pod` and `node` may stand there as kubectl accepts them."""

    name: str
    what: str
    """What it is for, as a phrase."""
    run: Callable[[argparse.Namespace, Access, Sequence[Resource]], Awaitable[Output]] | None
    """Does it; None: the host does."""
    arguments: Sequence[Arguments] = ()
    """In the order of its help."""
    check: Callable[[argparse.Namespace], None] = lambda _: None
    """Completes what was parsed; raises UsageError if the arguments contradict each other."""
    after: str = "why"
    """The command behind which that of a feature stands."""


@dataclass(frozen=True, slots=True)
class Option:
    """A flag without a value that has a command of others do something else instead."""

    command: str
    name: str
    """Without its dashes."""
    what: str
    run: Callable[[argparse.Namespace, Access, Sequence[Resource]], Awaitable[Output]]
    check: Callable[[argparse.Namespace], None]

    def given(self, arguments: argparse.Namespace) -> bool:
        """Whether it is given."""
        return arguments.command.name == self.command and bool(getattr(arguments, self.name))

    def on(self, command: Command) -> Command:
        """Return the command with it."""

        def check(arguments: argparse.Namespace) -> None:
            command.check(arguments)
            if self.given(arguments):
                self.check(arguments)

        return replace(command, arguments=(*command.arguments, switch(f"--{self.name}", self.what)), check=check)


def argument(names: str, **options: Any) -> Arguments:
    """Return an argument, as of argparse, by all its names with spaces between."""
    return lambda parser: parser.add_argument(*names.split(), **options)


def switch(names: str, what: str) -> Arguments:
    """Return a flag without a value."""
    return argument(names, action="store_true", help=what)


def either(*arguments: Arguments) -> Arguments:
    """Return arguments of which one excludes the others."""

    def add(parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group()
        for each in arguments:
            each(group)

    return add


def valued(kind: Callable[[str], T], valid: Callable[[T], bool], advice: str) -> Callable[[str], T]:
    """Return what reads a value of a flag, and gives an advice if it cannot be read or is not valid."""

    def value(text: str) -> T:
        with suppress(ValueError):
            if valid(read := kind(text)):
                return read
        raise argparse.ArgumentTypeError(advice)

    return value


NODE = argument("node", nargs="?", metavar="NODE", help="this node alone")
NAMESPACE = argument("-n --namespace", help="of the pod or workload; default: that of kubectl's context")
AS_JSON = argument("-o --output", choices=("json",), default="summary", help="all data, for machines")
YES = switch("--yes", "with --apply or --drain: do not ask")
DRY_RUN = switch("--dry-run", "only print what would be done")
