"""Read and write the kubelet double's checkpoint file: the devices of each container, by NUMA node."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILE_NAME = "kubelet_internal_checkpoint"


class CorruptCheckpointError(Exception):
    """The file exists, but it is damaged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    """Device IDs by NUMA node; -1 for devices without one."""
    response: ContainerAllocateResponse
    """The plugin's answer to Allocate, replayed at every start of the container."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the file. `registered` has the healthy IDs of every resource, in no order."""

    entries: tuple[Entry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] | None = None


def write(path: Path, entries: Iterable[Entry], registered: Mapping[str, Iterable[str]]) -> None:
    """Replace the file atomically, mode 0600. OSError: the directory does not exist, or the disk is full.

    The kubelet also syncs the file to disk, which matters only in a power failure.
    """
    written = [
        {
            "PodUID": entry.pod_uid,
            "ContainerName": entry.container,
            "ResourceName": entry.resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in entry.devices.items()},
            "AllocResp": base64.b64encode(entry.response.SerializeToString()).decode(),
        }
        for entry in entries
    ]
    # Go encodes a nil slice as null.
    data = {
        "PodDeviceEntries": written or None,
        "RegisteredDevices": {resource: list(ids) for resource, ids in registered.items()},
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"Data": data, "Checksum": _checksum(data)}, file, separators=(",", ":"))
    os.replace(temporary, path)  # noqa: PTH105  (names the system call that makes it atomic)


def read(path: Path) -> Checkpoint:
    """Read a file of `write`. FileNotFoundError: there is none. CorruptCheckpointError: damaged or edited by hand."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        data = document["Data"]
        if document["Checksum"] != _checksum(data):
            raise CorruptCheckpointError(f"{path}: checkpoint is corrupted")
        return Checkpoint(
            entries=tuple(_entry(written) for written in data["PodDeviceEntries"] or ()),
            registered={resource: tuple(ids) for resource, ids in data["RegisteredDevices"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def _entry(written: Mapping[str, Any]) -> Entry:
    return Entry(
        pod_uid=written["PodUID"],
        container=written["ContainerName"],
        resource=written["ResourceName"],
        devices={int(node): tuple(ids) for node, ids in written["DeviceIDs"].items()},
        response=ContainerAllocateResponse.FromString(base64.b64decode(written["AllocResp"])),
    )


def _checksum(data: Mapping[str, Any]) -> int:
    # The kubelet hashes a dump of its Go data structures, which no other program can compute; readers have to ignore
    # the number, so any hash will do here.
    return zlib.crc32(json.dumps(data).encode())
