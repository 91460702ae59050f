"""The two files by which the node agent and the MPS supervisor of a node meet, in the directory `mps_dir`.

The agent writes `WANTED_FILE`, the supervisor writes `STATE_FILE`; each replaces its file atomically and reads the
other's. Either may run without the other, and be restarted at any time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WANTED_FILE = "wanted.json"
STATE_FILE = "state.json"
VERSION = 1

SHM_DIRECTORY = "shm"
"""Below `mps_dir`: the tmpfs that all clients and servers of the node have as /dev/shm, as NVIDIA's device plugin has
it: client and server of MPS share memory there."""


class MpsFileError(ValueError):
    """A file cannot be parsed; the message names the fault."""


class MpsStatus(StrEnum):
    """The state of the MPS control daemon of one GPU."""

    STOPPED = "stopped"
    """No daemon, and the GPU's compute mode is DEFAULT."""
    STARTING = "starting"
    READY = "ready"
    """It answers, the compute mode is EXCLUSIVE_PROCESS: clients can be started."""
    FAULT = "fault"
    """Its server is in the state FAULT until its clients have ended; new clients get an error."""
    FAILED = "failed"
    """It cannot be started, or has ended; `MpsGpu.why` says why. The supervisor tries again."""
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class MpsGpu:
    """The MPS control daemon of one GPU."""

    status: MpsStatus
    why: str = ""
    """For a person, as a sentence without a full stop; empty while all is well."""
    pipe_directory: str = ""
    """The path of the directory with the daemon's sockets on the host, and in containers (CUDA_MPS_PIPE_DIRECTORY)."""
    clients: int = 0
    server_pids: tuple[int, ...] = ()
    """In the host's PID namespace: processes on the GPU that are no container's."""
    limit_mib: int = 0
    """The limit that the daemon has for every client while it is READY, in MiB; 0: none."""


@dataclass(frozen=True, slots=True)
class MpsState:
    """What the supervisor runs."""

    gpus: Mapping[str, MpsGpu] = field(default_factory=dict)
    """By UUID."""
    beat_s: float = 0.0
    """Seconds since the machine started (CLOCK_BOOTTIME) at which the supervisor last wrote this: an old one means that
    it no longer runs."""


def write_state(state: MpsState) -> str:
    """Return the text of `STATE_FILE`."""
    gpus = {
        uuid: {
            "status": gpu.status,
            "why": gpu.why,
            "pipeDirectory": gpu.pipe_directory,
            "clients": gpu.clients,
            "serverPids": gpu.server_pids,
            "limitMib": gpu.limit_mib,
        }
        for uuid, gpu in state.gpus.items()
    }
    return json.dumps({"version": VERSION, "beat": state.beat_s, "gpus": gpus})


def read_state(text: str) -> MpsState:
    """Parse `STATE_FILE`.

    Raises:
        MpsFileError: it cannot be parsed.
    """
    try:
        fields = _versioned(text)
        gpus = {
            str(uuid): MpsGpu(
                MpsStatus(gpu["status"]),
                str(gpu["why"]),
                str(gpu["pipeDirectory"]),
                _number(gpu["clients"]),
                tuple(_number(pid) for pid in gpu["serverPids"]),
                _number(gpu.get("limitMib", 0)),
            )
            for uuid, gpu in fields["gpus"].items()
        }
        beat_s = float(fields["beat"])
        if not math.isfinite(beat_s):
            raise ValueError("a time without end")
        return MpsState(gpus, beat_s)
    except _FAULTS as error:
        raise MpsFileError(f"{STATE_FILE} cannot be parsed: {error!r}") from error


def write_wanted(wanted: Mapping[str, int]) -> str:
    """Return the text of `WANTED_FILE`: the agent wants a daemon for each of these GPUs (by UUID), and for no other.

    Each with the most MiB that a container on it was granted, which becomes the daemon's limit for every client.
    """
    return json.dumps({"version": VERSION, "gpus": dict(wanted)})


def read_wanted(text: str) -> Mapping[str, int]:
    """Parse `WANTED_FILE`.

    Raises:
        MpsFileError: it cannot be parsed.
    """
    try:
        return {str(uuid): _number(mib) for uuid, mib in _versioned(text)["gpus"].items()}
    except _FAULTS as error:
        raise MpsFileError(f"{WANTED_FILE} cannot be parsed: {error!r}") from error


_FAULTS = (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:  # a truth value is an int, too
        raise ValueError("not a count")
    return value


def _versioned(text: str) -> Any:
    fields = json.loads(text)
    if fields["version"] != VERSION:
        raise ValueError("another version")
    return fields
