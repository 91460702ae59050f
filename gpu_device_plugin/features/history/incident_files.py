"""Keep records of incidents on the node, over restarts: one private file each, a bounded number of them."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin import files
from gpu_device_plugin.features.history.contract import LARGEST_INCIDENT, Incident, IncidentList
from gpu_device_plugin.features.history.rules.incidents import is_name, making_room
from gpu_device_plugin.kubelet.sockets import OURS, advice

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_device_plugin.features.history.contract import IncidentSummary

_log = logging.getLogger(__name__)

_FOLDER = f"{OURS}/incidents"
_END = ".json"


class IncidentFiles:
    """The records below the device-plugin directory. Only the holder of the node's lock writes them.

    Its methods wait for the disk and log what fails; one of them runs at a time. Names of other forms are left alone.
    """

    def __init__(self, directory: Path) -> None:
        """Name the records below the device-plugin `directory`; nothing is opened yet."""
        self._directory = directory
        self._known: dict[str, IncidentSummary | None] = {}
        """By name; None: the record is damaged."""
        self.listing = IncidentList()
        """The records as last known."""

    def load(self) -> None:
        """Read the records of earlier agents, and remove what an agent that was killed has left half written."""
        for file in sorted(self._names()):
            name = file.removesuffix(_END)
            if is_name(name) and file != name:
                incident = self.read(name)
                self._known[name] = None if incident is None else incident.summary
            elif is_name(file.removeprefix(".").removesuffix(f"{_END}.new")):
                with contextlib.suppress(OSError):  # it is a directory
                    files.remove_below(self._directory, f"{_FOLDER}/{file}")
        if damaged := [name for name, about in self._known.items() if about is None]:
            _log.warning("records of incidents are damaged and not shown", extra={"names": damaged})
        self._list()

    def read(self, name: str) -> Incident | None:
        """Return a record; None: there is none, or it is damaged."""
        try:
            content, _ = files.read_below(self._directory, f"{_FOLDER}/{name}{_END}", LARGEST_INCIDENT)
            incident = msgspec.json.decode(content, type=Incident)
        except (OSError, ValueError, RecursionError):
            return None
        return incident if incident.summary.name == name else None

    def write(self, summary: IncidentSummary, content: bytes) -> bool:
        """Write a record of at most `LARGEST_INCIDENT` bytes, and make room for it; return whether it is there."""
        name = summary.name
        try:
            files.make_folder_below(self._directory, _FOLDER)
            for old in making_room(self._known, summary):
                try:
                    files.remove_below(self._directory, f"{_FOLDER}/{old}{_END}")
                except OSError:
                    if self._known[old] is not None:  # a damaged one may be a directory with such a name
                        raise
                del self._known[old]
            files.replace_below(self._directory, f"{_FOLDER}/{name}{_END}", content)
        except OSError as error:
            extra = {"path": str(self._directory / _FOLDER), "why": f"{error.strerror}{advice(error)}"}
            _log.warning("an incident cannot be recorded", extra={**extra, "once_per_s": 3600})
            return False
        else:
            self._known[name] = summary
            return True
        finally:
            self._list()

    def _list(self) -> None:
        newest = (self._known[name] for name in sorted(self._known, reverse=True))
        self.listing = IncidentList(tuple(about for about in newest if about is not None))

    def _names(self) -> list[str]:
        try:
            return files.names_below(self._directory, _FOLDER)
        except FileNotFoundError:
            return []
        except OSError as error:
            extra = {"path": str(self._directory / _FOLDER), "why": f"{error.strerror}{advice(error)}"}
            _log.warning("the records of incidents cannot be read", extra=extra)
            return []
