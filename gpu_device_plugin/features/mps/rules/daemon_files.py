"""The codecs of the files by which the agent and the MPS supervisor meet, in the directory `mps_dir`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import astuple

from gpu_device_plugin.features.mps.contract import STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.model.contract.helperfiles import VERSION, Count, Document, HelperFiles, parsed, text_of
from gpu_device_plugin.model.gpus import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Mapping


class _WantedDaemons(Document):
    gpus: dict[str, Count]

    def __post_init__(self) -> None:
        super().__post_init__()
        for uuid in sorted(self.gpus):
            if not is_uuid(uuid):
                raise ValueError(f"it names {uuid[:40]!r}, which is no UUID of a GPU")
        if len(self.gpus) > MOST_GPUS:
            raise ValueError(f"it names more than {MOST_GPUS} GPUs")


class _Gpu(msgspec.Struct, rename="camel"):
    """The fields of `MpsGpu`, in its order."""

    status: MpsStatus
    why: str
    pipe_directory: str
    clients: Count
    server_pids: tuple[Count, ...]
    limit_mib: Count = 0
    """An earlier supervisor does not tell it."""


class _DaemonsState(Document):
    beat: float
    gpus: dict[str, _Gpu]


def is_uuid(text: str) -> bool:
    """Return whether a text may be the UUID of a GPU, and hence a part of a path and of a command."""
    rest = text.removeprefix("GPU-")
    return rest != text and 0 < len(rest) <= 64 and rest.isascii() and rest.replace("-", "").isalnum()


def _write_wanted_daemons(wanted: Mapping[str, int]) -> str:
    return text_of({"version": VERSION, "gpus": wanted})


def _read_wanted_daemons(content: str | bytes) -> Mapping[str, int]:
    return parsed(_WantedDaemons, WANTED_FILE, content).gpus


def _write_daemons_state(gpus: Mapping[str, MpsGpu], beat_s: float) -> str:
    daemons = {uuid: _Gpu(*(getattr(gpu, name) for name in _Gpu.__struct_fields__)) for uuid, gpu in gpus.items()}
    return text_of(_DaemonsState(VERSION, beat_s, daemons))


def _read_daemons_state(content: str | bytes) -> tuple[Mapping[str, MpsGpu], float]:
    found = parsed(_DaemonsState, STATE_FILE, content)
    return {uuid: MpsGpu(*astuple(gpu)) for uuid, gpu in found.gpus.items()}, found.beat


MPS_FILES: HelperFiles[Mapping[str, int], Mapping[str, MpsGpu]] = HelperFiles(
    WANTED_FILE,
    STATE_FILE,
    1 << 20,  # a GPU takes 200
    {},
    _write_wanted_daemons,
    _read_wanted_daemons,
    _write_daemons_state,
    _read_daemons_state,
)
"""The agent wants a daemon for each of these GPUs (by UUID), and for no other, with the most MiB that a container on it
was granted, which becomes the daemon's limit for every client. The supervisor says of each GPU, by UUID, what runs."""
