"""The two files by which the node agent and a helper program of the node meet.

The agent writes what is wanted, the helper writes its state; each replaces its file atomically and reads the other's.
Either may run without the other, and be restarted at any time. The helpers are privileged: every value that they read
has its bounds in its type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
Wanted = TypeVar("Wanted")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class HelperFiles(Generic[Wanted, State]):
    """The names and the codecs of both files. Reading raises `HelperFileError`."""

    wanted_file: str
    state_file: str
    largest: int
    """Bytes of a file."""
    nothing: Wanted
    """What is wanted where no file says it."""
    write_wanted: Callable[[Wanted], str]
    read_wanted: Callable[[str | bytes], Wanted]
    write_state: Callable[[State, float], str]
    """With the helper's sign of life: when it is written, in seconds since the machine started (CLOCK_BOOTTIME)."""
    read_state: Callable[[str | bytes], tuple[State, float]]


class HelperFileError(ValueError):
    """A file cannot be parsed; the message names the fault."""


VERSION = 1
"""Of all these files."""
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class Document(msgspec.Struct):
    """What every file says first."""

    version: int

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError("another version")


def parsed(form: type[T], name: str, content: str | bytes) -> T:
    """Return the content of the file `name`. Raises HelperFileError."""
    try:
        return msgspec.json.decode(content, type=form)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise HelperFileError(f"{name} cannot be parsed: {str(error)[:200]}") from error


def text_of(document: object) -> str:
    """Return a document as JSON."""
    return msgspec.json.encode(document).decode()
