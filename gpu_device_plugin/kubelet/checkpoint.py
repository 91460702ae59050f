"""Read the device manager's checkpoint: the devices allocated to each container, including ended init containers.

It is a JSON file (``kubelet_internal_checkpoint``, owned by root, mode 0600). The kubelet writes it atomically by
rename when a plugin's list arrives or a container's devices are allocated, and at no other time. We only read it.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpu_device_plugin import files
from gpu_device_plugin.core.contract import variables
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.kubelet.sockets import advice

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

NAME = "kubelet_internal_checkpoint"
_LARGEST = 64 << 20
"""Bytes. 8,000 devices, each in use by another container, take 4 MB."""

# A variable in a serialized ContainerAllocateResponse: an entry of a map is a message with the key as field 1 and the
# value as field 2, each after its length. Every serializer writes the key first.
_RUNG, _LIMITED_BY_DRIVER = (
    b"\n%c%s\x12" % (len(name), name.encode()) for name in (variables.LIMITS, variables.DRIVER_LIMIT)
)
_WORDS = {bytes([len(rung)]) + rung.encode(): rung for rung in Rung}

Stamp: TypeAlias = tuple[int, int, int]
"""Identity of one version of the file: inode, modification time in ns, size."""


class CheckpointUnreadableError(Exception):
    """The file exists and cannot be read or parsed; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that are allocated to one container."""

    pod_uid: str
    container: str
    resource: str
    device_ids: frozenset[str]
    rung: str = ""
    """The `core.model.limits.Rung` in the answer that the container got; empty: the answer names none. The rest of the
    answer, with the container's variables, is not kept."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the file. A missing file counts as empty: the kubelet creates it with the first device list."""

    entries: tuple[Entry, ...] = ()
    registered: frozenset[str] = frozenset()
    """Resources that were registered by plugins when the file was written."""
    stamp: Stamp | None = None

    def device_ids(self, resources: Container[str]) -> frozenset[str]:
        """Return all allocated device IDs of these resources."""
        return frozenset().union(*(entry.device_ids for entry in self.entries if entry.resource in resources))

    def by_pod(self, resources: Container[str]) -> Mapping[str, frozenset[str]]:
        """Return the device IDs of these resources that are allocated to each pod, by pod UID."""
        found: dict[str, frozenset[str]] = {}
        for entry in self.entries:
            if entry.resource in resources:
                found[entry.pod_uid] = found.get(entry.pod_uid, frozenset()) | entry.device_ids
        return found


def stamp_of(path: Path) -> Stamp | None:
    """Return the identity of the file's current version; None if it is missing.

    Raises:
        CheckpointUnreadableError: its directory is not accessible.
    """
    try:
        found = path.lstat()  # the kubelet writes no link there, and `read` does not follow one either
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnreadableError(f"looking at {path}: {error.strerror}{advice(error)}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def read(path: Path) -> Checkpoint:
    """Read the checkpoint, which lists device IDs by NUMA node.

    Raises:
        CheckpointUnreadableError: the file exists and cannot be read or parsed.
    """
    try:
        content, found = files.read_below(path.parent, path.name, _LARGEST)
    except FileNotFoundError:
        return Checkpoint()
    except files.IrregularFileError as error:
        raise CheckpointUnreadableError(
            f"{path} is not the kubelet's checkpoint: {error.strerror}; remove it and restart the kubelet, which then "
            "writes a new one"
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
            f"the kubelet's checkpoint {path} is damaged ({type(error).__name__}); the kubelet rewrites it after the "
            "next device list, and until then no further device is allocated"
        ) from error
    return Checkpoint(entries, registered, (found.st_ino, found.st_mtime_ns, found.st_size))


def _entry(found: Any) -> Entry:
    by_numa_node: Any = found["DeviceIDs"] or {}
    names: frozenset[Any] = frozenset().union(*(ids or () for ids in by_numa_node.values()))
    if not set(map(type, names)) <= {str}:
        raise TypeError("device IDs must be strings")
    rung = _rung(found.get("AllocResp"))
    return Entry(str(found["PodUID"]), str(found["ContainerName"]), str(found["ResourceName"]), names, rung)


def _rung(answer: Any) -> str:
    """Find the means of limiting in a plugin's answer; parsing it whole would take twice as long.

    An older agent does not name it, and asks the driver for a limit by other variables.
    """
    try:
        content = binascii.a2b_base64(answer)
    except (ValueError, TypeError):  # the answer is the kubelet's affair: we need no more of it than this word
        return ""
    if (found := content.find(_RUNG)) >= 0:
        value = found + len(_RUNG)
        return _WORDS.get(content[value : value + 1 + sum(content[value : value + 1])], "")
    return Rung.DRIVER if _LIMITED_BY_DRIVER in content else ""
