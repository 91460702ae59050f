"""Values that an agent keeps on its node for the next agent, one value per file."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin import files
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.core.model.holds import DeviceHold, HoldSource
from gpu_device_plugin.core.model.limits import Enforcement
from gpu_device_plugin.core.node.kubelet.ended_pods import Remembered
from gpu_device_plugin.core.node.ledger import Reservation
from gpu_device_plugin.kubelet.sockets import OURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.resources import Names
    from gpu_device_plugin.core.node.ledger import ContainerKey

_log = logging.getLogger(__name__)

PROFILE = "profile"
"""The name of the node's settings profile; empty for none."""
SHARE_SIZE = "share-size"
"""The size of one share of the node's GPUs, in MiB."""
ENDED_PODS = "ended-pods"
"""UIDs, separated by spaces, of ended pods whose devices the kubelet's checkpoint still shows."""

WAY = "serve"
"""The way in which pods got the node's GPUs, a `core.node.serving_mode.ServingMode`."""

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
_LONGEST_ALLOCATIONS = 4 << 20
"""Bytes. 8,000 devices, each in use by another container, take 1.2 MB."""


class StateFile:
    """A file beside the lock. Only the lock's holder writes it."""

    def __init__(self, directory: Path, name: str, *, longest: int = _LONGEST, lasting: bool = True) -> None:
        """Name the file `name` of the device-plugin directory `directory`.

        A file of more than `longest` bytes is unreadable. With `lasting` False it may be empty after a power cut.
        """
        self._directory = directory
        self._name = f"{OURS}/{name}"
        self._longest = longest
        self._lasting = lasting

    def read(self) -> str | None:
        """Return the value, which may be empty; None if the file is missing or unreadable."""
        try:
            content, _ = files.read_below(self._directory, self._name, self._longest)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn("the state that the previous agent of this node left cannot be read", error)
            return None
        # After a power cut a file may be empty, or full of zeros, and must not count as an empty value.
        value, end, more = content.decode(errors="surrogateescape").partition("\n")
        return value if end and not more and value.isprintable() else None

    def number(self) -> int | None:
        """Return the value as a whole number above 0; None if it is unknown or not such a number."""
        value = self.read() or ""
        return int(value) or None if re.fullmatch(r"[0-9]{1,12}", value, re.ASCII) else None

    def write(self, value: str) -> bool:
        """Write `value` for the next agent; return whether the file has it. May wait for the disk.

        A failure is only logged: the agent can share its GPUs without the file.
        """
        if self.read() == value:
            return True
        try:
            files.replace_below(self._directory, self._name, f"{value}\n".encode(), lasting=self._lasting)
        except OSError as error:
            self._warn("the state for the next agent of this node cannot be written", error)
            return False
        return True

    async def keep(self, values: Observable[str | None]) -> NoReturn:
        """Write each value that is set, the newest at last, while others run; None is no value.

        Ends only by cancellation.
        """
        async for value in values.values():
            if value is not None:
                await in_thread(self.write, value)
        raise AssertionError  # pragma: no cover (an Observable never ends)

    def _warn(self, sentence: str, error: OSError) -> None:
        extra = {"path": str(self._directory / self._name), "why": str(error.strerror), "once_per_s": 3600}
        _log.warning("%s", sentence, extra=extra)


class SavedAllocations:
    """The kubelet's record of allocated devices, which holds until the node is rebooted."""

    def __init__(self, directory: Path, boot_id: str, names: Names) -> None:
        """Read and write below the device-plugin `directory`.

        An empty `boot_id` is unknown, and nothing is saved. `names` are those of our resources.
        """
        # A power cut begins another boot, in which the file does not count: it need not last.
        self._file = StateFile(directory, ALLOCATIONS, longest=_LONGEST_ALLOCATIONS, lasting=False)
        self._boot_id = boot_id
        self._names = names
        self._saved: Remembered = Remembered()

    def load(self) -> Remembered:
        """Return what was saved in this boot; nothing if there is no such file, or it is damaged."""
        text = self._file.read() if self._boot_id else None
        try:
            found: Any = json.loads(text or "{}")
            if found and found["boot"] == self._boot_id:
                recorded = self._holds(found["recorded"], HoldSource.CHECKPOINT)
                forgotten = self._holds(found["forgotten"], HoldSource.REMEMBERED)
                self._saved = Remembered(str(found["kubelet"]), recorded, forgotten)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = type(error).__name__
            _log.warning("the allocations that the previous agent of this node saved are damaged", extra={"why": why})
        return self._saved

    def save(self, allocations: Remembered) -> None:
        """Save `allocations` for the next agent. May wait for the disk."""
        if not self._boot_id or allocations == self._saved:
            return
        self._saved = allocations
        content = {
            "boot": self._boot_id,
            "kubelet": allocations.kubelet,
            "recorded": _rows(allocations.recorded),
            "forgotten": _rows(allocations.forgotten),
        }
        self._file.write(json.dumps(content, separators=(",", ":")))

    def _holds(self, rows: Any, source: HoldSource) -> frozenset[DeviceHold]:
        return frozenset(
            DeviceHold(
                str(uid),
                str(container),
                self._names.kind_of(str(resource)),
                frozenset(map(str, ids)),
                source,
                str(resource),
                # A later version may know other means of limiting.
                Enforcement(enforcement) if enforcement in list(Enforcement) else None,
            )
            for uid, container, resource, ids, enforcement in rows
        )


class SavedGuarantees:
    """What containers are guaranteed beyond their requests, for as long as they have their devices."""

    def __init__(self, directory: Path) -> None:
        """Read and write below the device-plugin `directory`."""
        self._file = StateFile(directory, GUARANTEES, longest=_LONGEST_ALLOCATIONS)
        self._saved: Mapping[ContainerKey, Reservation] | None = None

    def load(self) -> Mapping[ContainerKey, Reservation]:
        """Return what was saved; nothing if there is no such file, or it is damaged."""
        try:
            rows: Any = json.loads(self._file.read() or "[]")
            self._saved = {
                (str(uid), str(container)): Reservation(str(uuid), int(shares), frozenset(map(str, own)))
                for uid, container, uuid, shares, own in rows
            }
        except (ValueError, TypeError, RecursionError) as error:
            extra = {"why": type(error).__name__}
            _log.warning("the guarantees that the previous agent of this node saved are damaged", extra=extra)
        return self._saved or {}

    def save(self, reservations: Mapping[ContainerKey, Reservation]) -> bool:
        """Save `reservations` for the next agent; return whether that succeeded. May wait for the disk."""
        if reservations == self._saved:
            return True
        rows = [
            [*key, reservation.uuid, reservation.shares, sorted(reservation.own)]
            for key, reservation in sorted(reservations.items())
        ]
        if not reservations and self._file.read() is None:  # most nodes never have any
            return True
        written = self._file.write(json.dumps(rows, separators=(",", ":")))
        self._saved = dict(reservations) if written else None
        return written


def _rows(holds: Iterable[DeviceHold]) -> list[list[object]]:
    ordered = sorted(holds, key=lambda hold: (hold.pod_uid, hold.container, hold.through))
    return [[h.pod_uid, h.container, h.through, sorted(h.device_ids), h.enforcement or ""] for h in ordered]
