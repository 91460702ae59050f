"""The MPS daemons of a node, and the two files by which the agent and the MPS supervisor meet in `mps_dir`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from gpu_device_plugin.model.contract.helperfiles import VERSION, Count, Document, HelperFiles, parsed, text_of
from gpu_device_plugin.model.gpus import MOST_GPUS

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


class _WantedDaemons(Document):
    gpus: dict[str, Count]

    def __post_init__(self) -> None:
        super().__post_init__()
        for uuid in sorted(self.gpus):
            if not is_uuid(uuid):
                raise ValueError(f"it names {uuid[:40]!r}, which is no UUID of a GPU")
        if len(self.gpus) > MOST_GPUS:
            raise ValueError(f"it names more than {MOST_GPUS} GPUs")


class _DaemonsState(Document):
    beat: float
    gpus: dict[str, MpsGpu]


def is_uuid(text: str) -> bool:
    """Return whether a text may be the UUID of a GPU, and hence a part of a path and of a command."""
    rest = text.removeprefix("GPU-")
    return rest != text and 0 < len(rest) <= 64 and rest.isascii() and rest.replace("-", "").isalnum()


def _read_daemons_state(content: str | bytes) -> tuple[Mapping[str, MpsGpu], float]:
    found = parsed(_DaemonsState, STATE_FILE, content)
    return found.gpus, found.beat


MPS_FILES: HelperFiles[Mapping[str, int], Mapping[str, MpsGpu]] = HelperFiles(
    WANTED_FILE,
    STATE_FILE,
    1 << 20,  # a GPU takes 200
    {},
    lambda wanted: text_of({"version": VERSION, "gpus": wanted}),
    lambda content: parsed(_WantedDaemons, WANTED_FILE, content).gpus,
    lambda gpus, beat_s: text_of(_DaemonsState(VERSION, beat_s, dict(gpus))),
    _read_daemons_state,
)
"""The agent wants a daemon for each of these GPUs (by UUID), and for no other, with the most MiB that a container on it
was granted, which becomes the daemon's limit for every client. The supervisor says of each GPU, by UUID, what runs."""
