"""Read the device manager's checkpoint: the devices allocated to each container, including ended init containers.

It is a JSON file (``kubelet_internal_checkpoint``, owned by root, mode 0600). The kubelet writes it atomically by
rename when a plugin's list arrives or a container's devices are allocated, and at no other time. We only read it.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_device_plugin import files
from gpu_device_plugin.kubelet.sockets import advice
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind, Names

NAME = "kubelet_internal_checkpoint"
_LARGEST = 64 << 20
"""Bytes. 8,000 devices, each in use by another container, take 4 MB."""

# A variable, or an annotation, in a serialized ContainerAllocateResponse: an entry of a map is a message with the key
# as field 1 and the value as field 2, each after its length. Every serializer writes the key first.
_ENFORCEMENT, _LIMITED_BY_DRIVER, _LIMIT, _GRANTED_TO = (
    b"\n%c%s\x12" % (len(name), name.encode())
    for name in (variables.LIMITS, variables.DRIVER_LIMIT, variables.MEMORY_LIMIT, variables.GRANTED_TO)
)
_WORDS = {bytes([len(enforcement)]) + enforcement.encode(): enforcement for enforcement in Enforcement}

# What gives a container a GPU, wherever it stands in an answer: the toolkit's variable with a value that is some GPU's
# name, after its length of one byte or two, a device node, or a CDI name. Nodes in /dev/dri are of displays too.
_GIVES_GPU = re.compile(
    rb"NVIDIA_VISIBLE_DEVICES\x12(?:[\x01-\x7f]|[\x80-\xff][\x01-\x7f])(?!void|none)[0-9A-Za-z]|/dev/nvidia[0-9]|/dev/kfd|nvidia\.com/gpu=",
    re.DOTALL,
)
_UUID = re.compile(rb"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OURS = (b"GPUSHARE_MEMORY", b"ALIYUN_COM_GPU")
"""In each answer of an agent of ours, which may have had other names for its resources."""


class CheckpointUnreadableError(Exception):
    """The file exists and cannot be read or parsed; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of the file. A missing file counts as empty: the kubelet creates it with the first device list."""

    allocations: tuple[Allocation, ...] = ()
    """Of all resources."""
    registered: frozenset[str] = frozenset()
    """Resources that were registered by plugins when the file was written."""
    stamp: files.Stamp | None = None

    def by_pod(self, kinds: Container[Kind | None] = frozenset(Kind)) -> Mapping[str, frozenset[str]]:
        """Return the device IDs of our resources of these kinds that are allocated to each pod, by pod UID."""
        found: dict[str, frozenset[str]] = {}
        for allocation in self.allocations:
            if allocation.kind in kinds:
                found[allocation.pod_uid] = found.get(allocation.pod_uid, frozenset()) | allocation.device_ids
        return found


def stamp_of(path: Path) -> files.Stamp | None:
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
    return files.stamp(found)


def read(path: Path, names: Names) -> Checkpoint:
    """Read the checkpoint, which lists device IDs by NUMA node; `names` are those of our resources.

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
        allocations = tuple(_hold(entry, names) for entry in data.get("PodDeviceEntries") or ())
        registered = frozenset(data.get("RegisteredDevices") or ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadableError(
            f"the kubelet's checkpoint {path} is damaged ({type(error).__name__}); the kubelet rewrites it after the "
            "next device list, and until then no further device is allocated"
        ) from error
    return Checkpoint(allocations, registered, files.stamp(found))


def _hold(entry: Any, names: Names) -> Allocation:
    """Return an entry of the file. Of the answer that the container got, its limit and the means of that are kept."""
    by_numa_node: Any = entry["DeviceIDs"] or {}
    device_ids: frozenset[Any] = frozenset().union(*(ids or () for ids in by_numa_node.values()))
    if not set(map(type, device_ids)) <= {str}:
        raise TypeError("device IDs must be strings")
    resource, answer = str(entry["ResourceName"]), _answer(entry.get("AllocResp"))
    kind = names.kind_of(resource)
    return Allocation(
        str(entry["PodUID"]),
        str(entry["ContainerName"]),
        kind,
        device_ids,
        through=resource,
        gpus=_gpus(answer) if kind is None else None,
        enforcement=_enforcement(answer),
        limit_mib=_limit_mib(answer),
        granted_to=(_value(answer, _GRANTED_TO) or b"")[1:].decode(errors="replace"),
    )


def _answer(text: Any) -> bytes:
    """Return a plugin's answer; empty if it cannot be read."""
    try:
        return binascii.a2b_base64(text)
    except (ValueError, TypeError):  # the answer is the kubelet's affair: we need no more of it than two words
        return b""


def _gpus(answer: bytes) -> frozenset[str] | None:
    """Return the UUIDs in the answer of another plugin that gave the container GPUs; None: it gave none."""
    if _GIVES_GPU.search(answer) is None or any(word in answer for word in _OURS):
        return None
    return frozenset(uuid.decode() for uuid in _UUID.findall(answer))


def _value(answer: bytes, variable: bytes) -> bytes | None:
    """Find the value of a variable in a plugin's answer, after its length; parsing it all would take twice as long."""
    if (found := answer.find(variable)) < 0:
        return None
    value = found + len(variable)
    return answer[value : value + 1 + sum(answer[value : value + 1])]


def _enforcement(answer: bytes) -> Enforcement | None:
    """Return the means of limiting. An older agent does not name it, and asks the driver by other variables."""
    if (value := _value(answer, _ENFORCEMENT)) is not None:
        return _WORDS.get(value)
    return Enforcement.DRIVER if _LIMITED_BY_DRIVER in answer else None


def _limit_mib(answer: bytes) -> int | None:
    digits = (_value(answer, _LIMIT) or b"")[1:]
    return int(digits) if digits.isdigit() else None
