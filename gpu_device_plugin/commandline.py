"""Command lines and output of all programs: flags, usage errors in one sentence, exit codes, lines for a terminal."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn, TextIO

from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.report.rules.columns import Line, Tone
from gpu_device_plugin.report.rules.printing import nearest, printable
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.settings.knobs import Knob, UsageError, knobs_of
from gpu_device_plugin.settings.sources import Sources

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)$")
"""argparse's words; newer ones leave out the quotation marks around what can be chosen."""
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
        """The flags that hints suggest: no short ones."""
        return tuple(flag for flag in self.options if flag.startswith("--"))

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        # For a flag without a value argparse writes "argument --gpus: expected one argument".
        said = message.removeprefix("argument ").replace(": expected one argument", " needs a value")
        hint = f"see {self.prog} --help"
        if chosen := _CHOICE.search(said):
            hint = nearest(chosen[1], re.findall(r"[^', ]+", chosen[2]), hint)
        raise UsageError(f"{said}; {hint}")


def ending(program: str, run: Callable[[], int]) -> int:
    """Return the exit code of `run`, of a usage error or a full disk (stderr says it), of a closed output or Ctrl-C."""
    try:
        return run()
    except UsageError as error:
        for sentence in error.sentences:
            say(sys.stderr, f"{program}: {sentence}")
        return MISUSED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            say(sys.stderr, f"{program}: the output cannot be written: {error.strerror}")
        elif not isinstance(error, BrokenPipeError):
            raise
        discard_output(sys.stdout)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def no_such_argument(word: str, known: Iterable[str], see: str) -> UsageError:
    """Return the error for an unknown argument, with the most similar one of `known` as a hint, else `see`."""
    hint = nearest(f"--{word.lstrip('-')}", known, see, prefix="--")
    return UsageError(f"{word}: there is no such argument; {hint}")


def add_settings(parser: argparse.ArgumentParser, knobs: Iterable[Knob], *, shown: bool = True) -> None:
    """Add a flag for each setting, which help may leave out.

    Its text becomes the attribute of the setting's name; None: the flag is absent.
    """
    for knob in knobs:
        switch = knob.form.shape == "true|false"  # the flag without a value means true
        parser.add_argument(
            knob.flag,
            dest=knob.name,
            metavar=knob.form.shape,
            nargs="?" if switch else None,
            const="true" if switch else None,
            help=f"{knob.help} [{knob.variable}; {knob.default or 'empty'}]".replace("%", "%%")
            if shown
            else argparse.SUPPRESS,
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


# --- Output that stays safe whatever text nodes and pods contain ------------------------------------------------------


_CODES: Mapping[Tone, str] = {Tone.HEADING: "1", Tone.GOOD: "32", Tone.WARNING: "33", Tone.BAD: "31", Tone.FAINT: "2"}
"""Of ECMA-48's Select Graphic Rendition."""
UNBOUNDED = 10_000
"""Columns, where the output goes to no terminal."""


def coloured(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")


def painted(line: Line, stream: TextIO, *, colour: bool) -> str:
    """Return a line for a stream, with control characters escaped, and in the colour of its tone."""
    encoding = getattr(stream, "encoding", "") or "utf-8"  # what Textual has for sys.stderr says none
    text = printable(line.text).encode(encoding, "replace").decode(encoding)
    code = _CODES.get(line.tone) if colour and text else None
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


def say(stream: TextIO, line: str) -> None:
    """Write a line. Control characters are escaped; characters that the stream cannot encode become question marks."""
    stream.write(painted(Line(line), stream, colour=False) + "\n")


def show(lines: Iterable[Line], environ: Mapping[str, str]) -> None:
    """Write lines to the standard output, in colours on a terminal whose user wants them."""
    colour = coloured(sys.stdout, environ)
    for line in lines:
        sys.stdout.write(painted(line, sys.stdout, colour=colour) + "\n")


def discard_output(stream: TextIO) -> None:
    """Discard the rest of an output that takes no more; the interpreter must not flush it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def width(otherwise: int = UNBOUNDED) -> int:
    """Return the columns of the terminal that shows the standard output; `otherwise` where it goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def encodes(stream: TextIO, text: str) -> bool:
    """Return whether a stream can show these characters."""
    try:
        text.encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
