"""The kubelet double's files: sockets that its start removes, its own that outlive its process, and its checkpoint."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse

if TYPE_CHECKING:
    import grpc.aio


def wipe(device_plugin_dir: Path) -> None:
    """Remove the files that a kubelet removes at its start: sockets."""
    for entry in device_plugin_dir.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a stopping plugin removes its own sockets meanwhile
            if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                entry.unlink()


async def serve(server: grpc.aio.Server, socket: Path, listening: Path) -> None:
    """Start a server at `socket`, which stays behind as a dead file after the server stops, like a kubelet's.

    grpcio unlinks its listening path when it stops. So the server listens in the folder `listening`, and `socket` is a
    hard link to that socket.
    """
    shutil.rmtree(hidden := listening / socket.parent.name, ignore_errors=True)
    hidden.mkdir()
    server.add_insecure_port(f"unix:{hidden / 's'}")
    await server.start()
    _link(hidden / "s", socket)


def _link(socket: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    name.hardlink_to(socket)


# --- The checkpoint: the devices of each container, by NUMA node ------------------------------------------------------

CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Grant:
    """The devices of one resource that one container holds, as an entry of the file has them."""

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    """Device IDs by NUMA node; -1 for devices without one."""
    response: ContainerAllocateResponse
    """The plugin's answer to Allocate, replayed at every start of the container."""

    @property
    def ids(self) -> frozenset[str]:
        """The device IDs on all NUMA nodes."""
        return frozenset[str]().union(*self.devices.values())


def write_checkpoint(path: Path, grants: Iterable[Grant], registered: Mapping[str, Iterable[str]]) -> None:
    """Replace the file atomically, mode 0600. OSError: the directory does not exist, or the disk is full.

    `registered` has the healthy IDs of every resource, in no order. The kubelet also syncs the file to
    disk, which matters only in a power failure.
    """
    written = [
        {
            "PodUID": grant.pod_uid,
            "ContainerName": grant.container,
            "ResourceName": grant.resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in grant.devices.items()},
            "AllocResp": base64.b64encode(grant.response.SerializeToString()).decode(),
        }
        for grant in grants
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


def read_checkpoint(path: Path) -> tuple[list[Grant], list[str]]:
    """Return the grants and the registered resources; none of a file that is missing, damaged or edited by hand."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        data = document["Data"]
        if document["Checksum"] != _checksum(data):
            return [], []
        grants = [
            Grant(
                written["PodUID"],
                written["ContainerName"],
                written["ResourceName"],
                {int(node): tuple(ids) for node, ids in written["DeviceIDs"].items()},
                ContainerAllocateResponse.FromString(base64.b64decode(written["AllocResp"])),
            )
            for written in data["PodDeviceEntries"] or ()
        ]
        return grants, list(data["RegisteredDevices"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return [], []


def _checksum(data: Mapping[str, Any]) -> int:
    # The kubelet hashes a dump of its Go data structures, which no other program can compute; readers have to ignore
    # the number, so any hash will do here.
    return zlib.crc32(json.dumps(data).encode())
