"""The command lines of all programs: flags for settings, misuse in one sentence, and the exit codes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.programs.terminal import say
from gpu_device_plugin.settings.knobs import UsageError, flag, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_device_plugin.settings.knobs import Knob

OK, FAILED, MISUSED = 0, 1, 2
INTERRUPTED = 130
"""The exit code that a shell gives a process that Ctrl-C ended."""


class Parser(argparse.ArgumentParser):
    """Reports misuse as one line, like every other wrong input, and takes no flag that is cut short."""

    def __init__(self, **more: object) -> None:
        super().__init__(allow_abbrev=False, **more)  # type: ignore[arg-type] # as argparse takes them

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags that are worth a hint: not the short ones, nor the former names of settings."""
        shown = (action for action in self._actions if action.help is not argparse.SUPPRESS)
        return tuple(flag for action in shown for flag in action.option_strings if flag.startswith("--"))

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        # Of a flag without its value, argparse says "argument --gpus: expected one argument".
        said = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        raise UsageError(f"{said}; see {self.prog} --help")


def ending(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run`; misuse and Ctrl-C have codes of their own, and misuse is explained on stderr."""
    try:
        return run()
    except UsageError as error:
        for sentence in error.sentences:
            say(sys.stderr, f"{program}: {sentence}")
        return MISUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def no_such_argument(word: str, known: Iterable[str], see: str) -> UsageError:
    """Return the error about a word that is no flag, with the one of `known` that is most like it, else `see`."""
    hint = nearest(f"--{word.lstrip('-')}", known, see, prefix="--")
    return UsageError(f"{word}: there is no such argument; {hint}")


def add_settings(parser: argparse.ArgumentParser, knobs: Iterable[Knob]) -> None:
    """Add a flag for each setting; its text is then an attribute of this name, None where it was not given."""
    for knob in knobs:
        switch = knob.form.shape == "true|false"  # turned on by its mere name, too
        for name in (*knob.formerly, knob.name):
            parser.add_argument(
                flag(name),
                dest=name,
                metavar=knob.form.shape,
                nargs="?" if switch else None,
                const="true" if switch else None,
                help=f"{knob.description} [{knob.variable}; {knob.default or 'empty'}]".replace("%", "%%")
                if name == knob.name
                else argparse.SUPPRESS,
            )


def flags_in(arguments: argparse.Namespace, knobs: Iterable[Knob]) -> dict[str, str]:
    """Return the texts of the settings that were given as flags, and of ``config``, by the names that were used."""
    names = {"config", *(name for knob in knobs for name in (*knob.formerly, knob.name))}
    return {name: text for name, text in vars(arguments).items() if name in names and text is not None}
