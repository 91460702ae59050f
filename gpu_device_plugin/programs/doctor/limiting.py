"""How memory limits stand on this node, by the files of the kubelet and of the MPS supervisor."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from gpu_device_plugin import files
from gpu_device_plugin.core.contract.mpsfiles import STATE_FILE, MpsFileError, MpsStatus, read_state
from gpu_device_plugin.core.contract.variables import DRIVER_LIMIT
from gpu_device_plugin.core.node.mps import NOT_THERE, SILENT, silent
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ContainerAllocateResponse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gpu_device_plugin.core.contract.mpsfiles import MpsGpu, MpsState

_LARGEST_STATE = 1 << 20
_LARGEST_CHECKPOINT = 64 << 20


def mps_daemons(directory: Path) -> Mapping[str, MpsGpu] | str:
    """Return the daemons of the node's MPS supervisor, by the GPU's UUID, or why there is none."""
    state = _state(directory)
    if isinstance(state, str):
        return state
    return SILENT if _silent(state) else state.gpus


def left_by_mps(directory: Path) -> tuple[str, ...]:
    """Return the GPUs (by UUID) that a supervisor which no longer runs did not give back, sorted."""
    state = _state(directory)
    if isinstance(state, str) or not _silent(state):
        return ()
    return tuple(sorted(uuid for uuid, gpu in state.gpus.items() if gpu.status is not MpsStatus.STOPPED))


def _state(directory: Path) -> MpsState | str:
    try:
        return read_state(files.read(directory / STATE_FILE, _LARGEST_STATE)[0].decode(errors="replace"))
    except FileNotFoundError:
        return NOT_THERE
    except OSError as problem:
        return f"{directory / STATE_FILE}: {problem.strerror}"
    except MpsFileError as problem:
        return str(problem)


def _silent(state: MpsState) -> bool:
    return silent(state, time.clock_gettime(time.CLOCK_BOOTTIME))


def with_driver_limits(checkpoint: Path, resource: str) -> tuple[str, ...]:
    """Return the containers whose answers carry the driver's limits, as ``<pod's UID>/<name>``, sorted.

    The kubelet keeps each answer, and gives it to the container again when it restarts. Of an unreadable checkpoint
    nothing is returned: another check tells of it.
    """
    try:
        data: Any = json.loads(files.read(checkpoint, _LARGEST_CHECKPOINT)[0])["Data"]
        return tuple(sorted(_carrying(data.get("PodDeviceEntries") or (), resource)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DecodeError):
        return ()


def _carrying(entries: Any, resource: str) -> Iterator[str]:
    for entry in entries:
        if entry["ResourceName"] == resource:
            answer = ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
            if DRIVER_LIMIT in answer.envs:
                yield f"{entry['PodUID']}/{entry['ContainerName']}"
