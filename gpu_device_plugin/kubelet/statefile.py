"""Values that an agent keeps on its node for the next agent, one value per file."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import msgspec

from gpu_device_plugin import files
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.kubelet.sockets import OURS
from gpu_device_plugin.model.holds import DeviceHold, HoldSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.node.rules.ended_pods import Remembered
from gpu_device_plugin.node.rules.ledger import Reservation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.model.resources import Names
    from gpu_device_plugin.node.rules.ledger import Reservations

_log = logging.getLogger(__name__)

T = TypeVar("T")

PROFILE = "profile"
"""The name of the node's settings profile; empty for none."""
SHARE_SIZE = "share-size"
"""The size of one share of the node's GPUs, in MiB."""
ENDED_PODS = "ended-pods"
"""UIDs, separated by spaces, of ended pods whose devices the kubelet's checkpoint still shows."""

WAY = "serve"
"""The way in which pods got the node's GPUs, a `node.rules.serving_mode.ServingMode`."""

AUDITED = "audited"
"""Until when an agent recorded who has which GPU, RFC 3339."""

ALLOCATIONS = "allocations"
"""The kubelet's record of allocated devices as last read, see `SavedAllocations`."""

GUARANTEES = "guarantees"
"""What containers are guaranteed beyond their requests, see `SavedGuarantees`."""

PUT_ASIDE = "cordons"
"""The cordons of the node's GPUs as last read, in the form of the annotation; empty for none."""

_LONGEST = 1000
"""Bytes; the value of a label has at most 63."""
_LONGEST_DOCUMENT = 4 << 20
"""Bytes. 8,000 devices, each in use by another container, take 1.2 MB."""


class StateFile:
    """A file beside the lock. Only the lock's holder writes it, and knows what it says from then on."""

    def __init__(
        self, directory: Path, name: str, *, longest: int = _LONGEST, lasting: bool = True, nothing: str | None = None
    ) -> None:
        """Name the file `name` of the device-plugin directory `directory`.

        A file of more than `longest` bytes is unreadable. With `lasting` False it may be empty after a power cut. No
        file is made for the value `nothing`.
        """
        self._directory = directory
        self._name = f"{OURS}/{name}"
        self._longest = longest
        self._lasting = lasting
        self._nothing = nothing
        self._known: str | None = None
        """The value as last read or written; None: not known."""

    def read(self) -> str | None:
        """Return the value, which may be empty; None if the file is missing or unreadable."""
        self._known = None
        try:
            content, _ = files.read_below(self._directory, self._name, self._longest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.warn("the state that the previous agent of this node left cannot be read", error)
            return None
        # After a power cut a file may be empty, or full of zeros, and must not count as an empty value.
        value, end, more = content.decode(errors="surrogateescape").partition("\n")
        self._known = value if end and not more and value.isprintable() else None
        return self._known

    def number(self) -> int | None:
        """Return the value as a whole number above 0; None if it is unknown or not such a number."""
        value = self.read() or ""
        return int(value) or None if re.fullmatch(r"[0-9]{1,12}", value, re.ASCII) else None

    def write(self, value: str) -> bool:
        """Write `value` for the next agent; return whether the file has it. May wait for the disk.

        A failure is only logged: the agent can share its GPUs without the file.
        """
        if value == (self._known if (self._directory / self._name).exists() else self._nothing):
            return True
        self._known = None
        try:
            files.replace_below(self._directory, self._name, f"{value}\n".encode(), lasting=self._lasting)
        except OSError as error:
            self.warn("the state for the next agent of this node cannot be written", error)
            return False
        self._known = value
        return True

    async def keep(self, values: Observable[str | None]) -> NoReturn:
        """Write each value that is set, the newest at last, while others run; None is no value.

        Ends only by cancellation.
        """
        await values.follow(lambda value: None if value is None else in_thread(self.write, value), initial=True)

    def warn(self, sentence: str, error: Exception) -> None:
        """Log what is wrong with the file."""
        why = error.strerror if isinstance(error, OSError) else str(error)
        extra = {"path": str(self._directory / self._name), "why": str(why), "once_per_s": 3600}
        _log.warning("%s", sentence, extra=extra)


_Row: TypeAlias = tuple[str, str, str, frozenset[str], Any]  # pod, container, resource, IDs, means of limiting or ""


class _Allocations(msgspec.Struct):
    boot: str = ""
    kubelet: str = ""
    recorded: list[_Row] = []
    forgotten: list[_Row] = []


class SavedAllocations:
    """The kubelet's record of allocated devices, which holds until the node is rebooted."""

    def __init__(self, directory: Path, boot_id: str, names: Names) -> None:
        """Read and write below the device-plugin `directory`.

        An empty `boot_id` is unknown, and nothing is saved. `names` are those of our resources.
        """
        # A power cut begins another boot, in which the file does not count: it need not last.
        self._file = StateFile(directory, ALLOCATIONS, longest=_LONGEST_DOCUMENT, lasting=False)
        self._boot_id = boot_id
        self._names = names
        self._saved: Remembered | None = None

    def load(self) -> Remembered:
        """Return what was saved in this boot; nothing if there is no such file, or it is damaged."""
        found = _decoded(self._file, _Allocations, _Allocations())
        if not self._boot_id or found.boot != self._boot_id:
            return Remembered()
        recorded = self._holds(found.recorded, HoldSource.CHECKPOINT)
        return Remembered(found.kubelet, recorded, self._holds(found.forgotten, HoldSource.REMEMBERED))

    def save(self, allocations: Remembered) -> None:
        """Save `allocations` for the next agent. May wait for the disk."""
        if self._boot_id and allocations != self._saved:  # thousands of devices take 80 ms to encode
            rows = _rows(allocations.recorded), _rows(allocations.forgotten)
            written = self._file.write(_line(_Allocations(self._boot_id, allocations.kubelet, *rows)))
            self._saved = allocations if written else None

    def _holds(self, rows: Iterable[_Row], source: HoldSource) -> frozenset[DeviceHold]:
        # A later version may know other means of limiting.
        means = {each.value: each for each in Enforcement}
        return frozenset(
            DeviceHold(
                uid, container, self._names.kind_of(resource), ids, source, resource, means.get(str(enforcement))
            )
            for uid, container, resource, ids, enforcement in rows
        )


class SavedGuarantees:
    """What containers are guaranteed beyond their requests, for as long as they have their devices."""

    def __init__(self, directory: Path) -> None:
        """Read and write below the device-plugin `directory`."""
        # Most nodes never have any.
        self._file = StateFile(directory, GUARANTEES, longest=_LONGEST_DOCUMENT, nothing="[]")

    def load(self) -> Reservations:
        """Return what was saved; nothing if there is no such file, or it is damaged."""
        rows: list[_Reserved] = _decoded(self._file, list[_Reserved], [])
        return {(uid, container): Reservation(uuid, shares, own) for uid, container, uuid, shares, own in rows}

    def save(self, reservations: Reservations) -> bool:
        """Save `reservations` for the next agent; return whether that succeeded. May wait for the disk."""
        return self._file.write(
            _line([(*key, each.uuid, each.shares, each.own) for key, each in sorted(reservations.items())])
        )


_Reserved: TypeAlias = tuple[str, str, str, int, frozenset[str]]  # pod, container, GPU, shares, IDs


def _rows(holds: Iterable[DeviceHold]) -> list[_Row]:
    ordered = sorted(holds, key=lambda hold: (hold.pod_uid, hold.container, hold.through))
    return [(h.pod_uid, h.container, h.through, h.device_ids, h.enforcement or "") for h in ordered]


def _line(document: object) -> str:
    return msgspec.json.encode(document, order="deterministic").decode()


def _decoded(file: StateFile, kind: type[T], otherwise: T) -> T:
    try:
        text = file.read()
        return otherwise if text is None else msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        file.warn("the state that the previous agent of this node left is damaged", error)
        return otherwise
