"""A place in a description of fake hardware, with the checks and error messages that all places share."""

from __future__ import annotations

from gpu_device_plugin.core.model.memory import InvalidSizeError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    from gpu_device_plugin.hardware.forms import Reader

    Fields: TypeAlias = dict[str, Any]
    Readers: TypeAlias = Mapping[str, Reader]


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
            except (ValueError, InvalidSizeError) as error:
                raise self.inside(key).error(str(error)) from error
        return fields
