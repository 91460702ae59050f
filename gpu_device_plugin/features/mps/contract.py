"""The MPS daemons of a node, and the directory `mps_dir` where the agent and the MPS supervisor meet by two files.

See `rules.daemon_files` for these. The kubectl plugin, which is one file, needs the names, and reads no such file.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpu_device_plugin.model.contract.helperfiles import Count  # noqa: TC001 - msgspec reads it

WANTED_FILE = "wanted.json"
STATE_FILE = "state.json"

SHM_DIRECTORY = "shm"
"""Below `mps_dir`: the tmpfs that all clients and servers of the node have as /dev/shm, as NVIDIA's device plugin has
it: client and server of MPS share memory there."""


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


class MpsGpu(msgspec.Struct, frozen=True, rename="camel"):
    """The MPS control daemon of one GPU, as its supervisor tells it."""

    status: MpsStatus
    why: str = ""
    """For a person, as a sentence without a full stop; empty while all is well."""
    pipe_directory: str = ""
    """The path of the directory with the daemon's sockets on the host, and in containers (CUDA_MPS_PIPE_DIRECTORY)."""
    clients: Count = 0
    server_pids: tuple[Count, ...] = ()
    """In the host's PID namespace: processes on the GPU that are no container's."""
    limit_mib: Count = 0
    """The limit that the daemon has for every client while it is READY, in MiB; 0: none, or an earlier supervisor."""
