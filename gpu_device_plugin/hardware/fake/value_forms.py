"""Values in descriptions of fake hardware: their forms, and the places that errors name.

Each reader raises a ValueError that names the right form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, TypeAlias

from gpu_device_plugin.model import times
from gpu_device_plugin.model.memory import parse_mib

Fields: TypeAlias = dict[str, Any]
Reader: TypeAlias = Callable[[Any], Any]
Readers: TypeAlias = Mapping[str, Reader]

_MOST_DEVICES = 8
_DEVICE = re.compile("/dev/[A-Za-z0-9/_-]{1,64}", re.ASCII)


def text(value: object) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a non-empty string")
    return value


def whole(value: object) -> int:
    """Read a number from 0 on."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def or_null(read: Reader) -> Reader:
    """Accept null besides the values of `read`."""
    return lambda value: None if value is None else read(value)


def at_most(most: int) -> Reader:
    """Read a number from 0 to `most`."""

    def read(value: object) -> int:
        if (number := whole(value)) > most:
            raise ValueError(f"{number} is more than {most}")
        return number

    return read


def switch(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - a wrong description, not a wrong call
    return value


def size(value: object) -> int:
    """Read an amount of memory; the value is in MiB."""
    return parse_mib(text(value))


def seconds(value: object) -> float:
    """Read a duration; the value is in seconds."""
    if type(value) in {int, float} and value >= 0:  # type: ignore[operator]  # the same line checks the type
        return float(value)  # type: ignore[arg-type]  # the same
    # Space may stand between number and unit, and nowhere else.
    found = (
        times.seconds(re.sub(r"(?<=[0-9])\s+(?=[a-z])", "", value, flags=re.ASCII)) if isinstance(value, str) else None
    )
    if found is None:
        raise ValueError(f"{value!r} is not a duration; write it like 5s or 500ms")
    return found


def hang(value: object) -> float:
    """Read the length of a hang: a duration, true for an endless one, or false, which ends it."""
    return {True: math.inf, False: 0.0}[value] if isinstance(value, bool) else seconds(value)


def one_of(names: Collection[str], what: str = "one of") -> Reader:
    """Accept one of `names`; `what` introduces them in the message."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"{value!r} is not {what} {', '.join(names)}")
        return value

    return read


def name_of(value: Enum) -> str:
    """Return the name of a value in a description, such as ``host-bridge``."""
    return value.name.lower().replace("_", "-")


class DescriptionError(ValueError):
    """An invalid description. The message names the place in it and the accepted values."""


class Where:
    """One place of a description."""

    def __init__(self, source: str, path: str = "") -> None:
        self._source = source
        self._path = path

    def inside(self, name: str) -> Where:
        """Return the place of a key within a mapping."""
        return Where(self._source, f"{self._path}.{name}" if self._path else name)

    def item(self, position: int) -> Where:
        """Return the place of an item of a list."""
        return Where(self._source, f"{self._path}[{position}]")

    def error(self, message: str) -> DescriptionError:
        """Return an error that names this place."""
        return DescriptionError(": ".join(part for part in (self._source, self._path, message) if part))

    def list(self, value: object) -> list[Any]:
        """Read a list."""
        if not isinstance(value, list):
            raise self.error(f"{value!r} is not a list")
        return value

    def fields(self, value: object, known: Readers) -> Fields:
        """Read a mapping with some of the `known` keys, each value by its reader."""
        if not isinstance(value, dict):
            raise self.error(f"{value!r} is not a mapping; it may have the keys {', '.join(known)}")
        fields = {}
        for key, raw in value.items():
            if key not in known:
                raise self.error(f"unknown key {key!r}; known are {', '.join(known)}")
            try:
                fields[key] = known[key](raw)
            except ValueError as error:
                raise self.inside(key).error(str(error)) from error
        return fields


def _limit(value: object) -> Fields:
    """Read the memory limit of a cgroup: a size, or what the driver answers."""
    optional = or_null(size)
    known = {"code": whole, "hard": optional, "soft": size, "used": optional}
    fields = Where("").fields(value, known) if isinstance(value, dict) else {"hard": size(value)}
    return {"code": 0, "hard": None, "soft": 0, "used": None, **fields}


def limits(value: object) -> dict[str, Fields]:
    """Read the memory limits of cgroups, by a pattern of their path."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a mapping of paths to limits")  # noqa: TRY004 - as in switch
    return {text(pattern): _limit(limit) for pattern, limit in value.items()}


def devices(value: object) -> list[str]:
    """Read the paths of a GPU's device nodes."""
    paths: list[Any] = value if isinstance(value, list) and len(value) <= _MOST_DEVICES else [None]
    if not all(isinstance(path, str) and _DEVICE.fullmatch(path) for path in paths):
        raise ValueError(f"{value!r} is no list of up to {_MOST_DEVICES} paths like /dev/dri/renderD128")
    return paths
