"""Command lines of all programs: a flag for each setting, usage errors in one sentence, and the exit codes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.programs.terminal import say
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import UsageError, knobs_of, nearest
from gpu_device_plugin.settings.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.settings.knobs import Knob

OK, FAILED, MISUSED = 0, 1, 2
INTERRUPTED = 130
"""The exit code that a shell reports for a process that Ctrl-C ended."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError for a wrong command line, and accepts no abbreviated flag."""

    def __init__(self, **more: object) -> None:
        super().__init__(allow_abbrev=False, **more)  # type: ignore[arg-type] # as argparse takes them

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """All arguments."""
        return self._actions

    @property
    def options(self) -> tuple[str, ...]:
        """All flags, also those that help does not show."""
        return tuple(flag for action in self._actions for flag in action.option_strings)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that hints suggest: neither short flags nor former names of settings."""
        shown = (action for action in self._actions if action.help is not argparse.SUPPRESS)
        return tuple(flag for action in shown for flag in action.option_strings if flag.startswith("--"))

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        # For a flag without a value argparse writes "argument --gpus: expected one argument".
        said = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        raise UsageError(f"{said}; see {self.prog} --help")


def ending(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run`, or that of a usage error, which is printed on stderr, or of Ctrl-C."""
    try:
        return run()
    except UsageError as error:
        for sentence in error.sentences:
            say(sys.stderr, f"{program}: {sentence}")
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def no_such_argument(word: str, known: Iterable[str], see: str) -> UsageError:
    """Return the error for an unknown argument, with the most similar one of `known` as a hint, else `see`."""
    hint = nearest(f"--{word.lstrip('-')}", known, see, prefix="--")
    return UsageError(f"{word}: there is no such argument; {hint}")


def add_settings(parser: argparse.ArgumentParser, knobs: Iterable[Knob]) -> None:
    """Add a flag for each setting. Its text becomes the attribute of the setting's name; None: the flag is absent."""
    for knob in knobs:
        switch = knob.form.shape == "true|false"  # the flag without a value means true
        parser.add_argument(
            knob.flag,
            dest=knob.name,
            metavar=knob.form.shape,
            nargs="?" if switch else None,
            const="true" if switch else None,
            help=f"{knob.help} [{knob.variable}; {knob.default or 'empty'}]".replace("%", "%%"),
        )


def flags_in(arguments: argparse.Namespace, knobs: Iterable[Knob]) -> dict[str, str]:
    """Return the texts of the settings given as flags, and of ``config``, by its name."""
    names = {"config", *(knob.name for knob in knobs)}
    return {name: text for name, text in vars(arguments).items() if name in names and text is not None}


def resources_in(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[Resource]:
    """Return the resources by the names in flags and environment; no other setting of the environment is read."""
    knobs = knobs_of(ResourceSettings)
    named = {knob.variable: environ[knob.variable] for knob in knobs if knob.variable in environ}
    return Sources(ResourceSettings, flags_in(arguments, knobs), named).read().offered
