"""The device manager's checkpoint: which container the kubelet gave which devices, ended init containers included.

A JSON file of the kubelet (``kubelet_internal_checkpoint``, mode 0600 and root's), written atomically by rename when a
plugin's list arrives or a container's devices are allocated, and at no other time. We only ever read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpu_device_plugin import files
from gpu_device_plugin.kubelet.sockets import advice

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "kubelet_internal_checkpoint"
_LARGEST = 64 << 20
"""Bytes. 8,000 devices, all in use by containers of their own, are 4 MB."""

Stamp: TypeAlias = tuple[int, int, int]
"""Identity of one writing of the file: inode, modification time in ns, size."""


class CheckpointUnreadableError(Exception):
    """The file is there and cannot be read or understood; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container was given."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file said. A missing file is an empty one: the kubelet creates it with the first list it gets."""

    entries: tuple[Entry, ...] = ()
    registered: frozenset[str] = frozenset()
    """Resources that plugins had registered when it was written."""
    stamp: Stamp | None = None

    def device_ids(self, resources: frozenset[str]) -> frozenset[str]:
        """Return all device IDs that containers were given of these resources."""
        return frozenset().union(*(entry.device_ids for entry in self.entries if entry.resource in resources))

    def by_pod(self, resources: frozenset[str]) -> Mapping[str, frozenset[str]]:
        """Return the device IDs that the containers of each pod were given of these resources, by pod UID."""
        found: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            if entry.resource in resources:
                found[entry.pod_uid] = found.get(entry.pod_uid, frozenset()) | entry.device_ids
        return found

    def foreign(self, resources: frozenset[str]) -> Mapping[str, str]:
        """Return the device IDs that containers were given of any other resource, and its name."""
        others = (entry for entry in self.entries if entry.resource not in resources)
        return {name: entry.resource for entry in others for name in entry.device_ids}


def stamp_of(path: Path) -> Stamp | None:
    """Return the identity of the file as it is now, None if it is missing.

    Raises:
        CheckpointUnreadableError: its directory cannot be looked into.
    """
    try:
        found = path.lstat()  # a link is not the kubelet's, and is not read either
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnreadableError(f"looking at {path}: {error.strerror}{advice(error)}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def read(path: Path) -> Checkpoint:
    """Read the checkpoint, in which device IDs stand by NUMA node.

    Raises:
        CheckpointUnreadableError: the file is there and cannot be read or understood.
    """
    try:
        content, found = files.read_below(path.parent, path.name, _LARGEST)
    except FileNotFoundError:
        return Checkpoint()
    except files.IrregularFileError as error:
        raise CheckpointUnreadableError(
            f"{path} is not the kubelet's checkpoint: {error.strerror}; remove it, and restart the kubelet, which then "
            "writes its own"
        ) from error
    except OSError as error:
        raise CheckpointUnreadableError(
            f"reading the kubelet's checkpoint {path}: {error.strerror}{advice(error)}"
        ) from error
    try:
        data: Any = json.loads(content)["Data"]
        entries = tuple(_entry(each) for each in data.get("PodDeviceEntries") or ())
        registered = frozenset(data.get("RegisteredDevices") or ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadableError(
            f"the kubelet's checkpoint {path} is damaged ({type(error).__name__}); the kubelet writes it anew with the "
            "next device list, and until then no further device is given out"
        ) from error
    return Checkpoint(entries, registered, (found.st_ino, found.st_mtime_ns, found.st_size))


def _entry(found: Any) -> Entry:
    by_numa_node: Any = found["DeviceIDs"] or {}
    names: frozenset[Any] = frozenset().union(*(ids or () for ids in by_numa_node.values()))
    if not set(map(type, names)) <= {str}:
        raise TypeError("device IDs are texts")
    return Entry(str(found["PodUID"]), str(found["ContainerName"]), str(found["ResourceName"]), names)
