"""The two files by which the node agent and a helper program of the node meet: the MPS supervisor, the limit helper.

The agent writes what is wanted, the helper writes its state; each replaces its file atomically and reads the other's.
Either may run without the other, and be restarted at any time. The helpers are privileged: every value that they read
has its bounds in its type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from gpu_device_plugin.model.contract import mpsfiles
from gpu_device_plugin.model.contract.mpsfiles import MpsGpu, MpsState, MpsStatus
from gpu_device_plugin.model.gpus import MOST_GPUS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
Wanted = TypeVar("Wanted")
State = TypeVar("State", "LimitsState", MpsState)


@dataclass(frozen=True, slots=True)
class HelperFiles(Generic[Wanted, State]):
    """The names and the codecs of both files. Reading raises `HelperFileError`."""

    wanted_file: str
    state_file: str
    largest: int
    """Bytes of a file."""
    nothing: Wanted
    """What is wanted where no file says it."""
    write_wanted: Callable[[Wanted], str]
    read_wanted: Callable[[str | bytes], Wanted]
    write_state: Callable[[State], str]
    read_state: Callable[[str | bytes], State]


class HelperFileError(ValueError):
    """A file cannot be parsed; the message names the fault."""


_VERSION = 1
_Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class _Document(msgspec.Struct):
    version: int

    def __post_init__(self) -> None:
        if self.version != _VERSION:
            raise ValueError("another version")


def _parsed(decoder: msgspec.json.Decoder[T], name: str, content: str | bytes) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise HelperFileError(f"{name} cannot be parsed: {str(error)[:200]}") from error


def _text(document: object) -> str:
    return msgspec.json.encode(document).decode()


# --- Limits, in the directory `memory_dir` ----------------------------------------------------------------------------
#
# Containers see only directories below it, and those read-only.

MOST_LIMITS = 4_096
"""Limits in a file. A node has at most 4,000 devices, and each limit is of a container with one."""
MOST_MIB = 1 << 26
"""No GPU has more memory."""
LONGEST_WHY = 512
"""Characters of a reason; of a longer one the beginning stands there."""

_POD = r"\A(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})\Z"
_CONTAINER = r"\A[0-9a-f]{64}\Z"
_GPU = r"\AGPU-[0-9A-Za-z-]{1,60}\Z"


class LimitKey(NamedTuple):
    """One start of one container on one GPU. Its next start has another ID, and a cgroup of its own."""

    pod_uid: str
    """As the kubelet knows the pod, and as cgroups name it."""
    container_id: str
    """64 hexadecimal digits."""
    uuid: str
    """Of the GPU. A MIG instance has no such limit."""

    @property
    def plausible(self) -> bool:
        """Whether these can be the IDs of a pod, a container and a GPU."""
        return all(map(re.match, (_POD, _CONTAINER, _GPU), self))


class MemoryLimit(NamedTuple):
    """What the driver is to hold the processes of a container to."""

    hard_mib: int
    soft_mib: int = 0
    """What nobody else is to take from the container. The driver adds it to all cgroups above, and never takes it off
    again there."""


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """What came of one wanted limit."""

    limit: MemoryLimit
    """The wanted limit that this is about, which may be an earlier one."""
    why: str = ""
    """Why it is not set, as a sentence without a full stop; empty: it is."""


@dataclass(frozen=True, slots=True)
class LimitsState:
    """What the limit helper has set."""

    outcomes: Mapping[LimitKey, LimitOutcome] = field(default_factory=dict)
    beat_s: float = 0.0
    """When it was written, in seconds since the machine started (CLOCK_BOOTTIME): an old state is of no use."""


class _Limit(msgspec.Struct):
    """The fields of a `LimitKey` and of a `MemoryLimit`."""

    pod_uid: Annotated[str, Meta(pattern=_POD)]
    container_id: Annotated[str, Meta(pattern=_CONTAINER)]
    uuid: Annotated[str, Meta(pattern=_GPU)]
    hard_mib: Annotated[int, Meta(ge=1, le=MOST_MIB)]  # a limit of 0 would be none to the driver
    soft_mib: Annotated[int, Meta(ge=0)]

    def __post_init__(self) -> None:
        if self.soft_mib > self.hard_mib:
            raise ValueError("the soft limit is more than the hard one")


class _Outcome(_Limit):
    why: Annotated[str, Meta(max_length=LONGEST_WHY)]


class _WantedLimits(_Document):
    limits: Annotated[list[_Limit], Meta(max_length=MOST_LIMITS)]


class _LimitsState(_Document):
    beat: float
    limits: Annotated[list[_Outcome], Meta(max_length=MOST_LIMITS)]


_WANTED_LIMITS, _LIMITS_STATE = msgspec.json.Decoder(_WantedLimits), msgspec.json.Decoder(_LimitsState)
_LIMITS_WANTED_FILE, _LIMITS_STATE_FILE = "limits-wanted.json", "limits-state.json"


def _split(limit: _Limit) -> tuple[LimitKey, MemoryLimit]:
    pod_uid, container_id, uuid, hard_mib, soft_mib, *_ = astuple(limit)
    return LimitKey(pod_uid, container_id, uuid), MemoryLimit(hard_mib, soft_mib)


def _write_wanted_limits(wanted: Mapping[LimitKey, MemoryLimit]) -> str:
    limits = [_Limit(*key, *limit) for key, limit in sorted(wanted.items())[:MOST_LIMITS]]
    return _text(_WantedLimits(_VERSION, limits))


def _read_wanted_limits(content: str | bytes) -> Mapping[LimitKey, MemoryLimit]:
    return dict(map(_split, _parsed(_WANTED_LIMITS, _LIMITS_WANTED_FILE, content).limits))


def _write_limits_state(state: LimitsState) -> str:
    outcomes = sorted(state.outcomes.items())
    limits = [_Outcome(*key, *outcome.limit, outcome.why[:LONGEST_WHY]) for key, outcome in outcomes]
    return _text(_LimitsState(_VERSION, state.beat_s, limits))


def _read_limits_state(content: str | bytes) -> LimitsState:
    found = _parsed(_LIMITS_STATE, _LIMITS_STATE_FILE, content)
    limits = [(*_split(each), each.why) for each in found.limits]
    return LimitsState({key: LimitOutcome(limit, why) for key, limit, why in limits}, found.beat)


LIMIT_FILES: HelperFiles[Mapping[LimitKey, MemoryLimit], LimitsState] = HelperFiles(
    _LIMITS_WANTED_FILE,
    _LIMITS_STATE_FILE,
    4 << 20,  # a limit takes some 200, and up to `LONGEST_WHY` more if it could not be set
    {},
    _write_wanted_limits,
    _read_wanted_limits,
    _write_limits_state,
    _read_limits_state,
)
"""The helper sets the limits that are wanted, and leaves all others alone."""


# --- Daemons of MPS, in the directory `mps_dir` -----------------------------------------------------------------------


class _WantedDaemons(_Document):
    gpus: dict[str, _Count]

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
    clients: _Count
    server_pids: tuple[_Count, ...]
    limit_mib: _Count = 0
    """An earlier supervisor does not tell it."""


class _DaemonsState(_Document):
    beat: float
    gpus: dict[str, _Gpu]


_WANTED_DAEMONS, _DAEMONS_STATE = msgspec.json.Decoder(_WantedDaemons), msgspec.json.Decoder(_DaemonsState)


def is_uuid(text: str) -> bool:
    """Return whether a text may be the UUID of a GPU, and hence a part of a path and of a command."""
    rest = text.removeprefix("GPU-")
    return rest != text and 0 < len(rest) <= 64 and rest.isascii() and rest.replace("-", "").isalnum()


def _write_wanted_daemons(wanted: Mapping[str, int]) -> str:
    return _text({"version": _VERSION, "gpus": wanted})


def _read_wanted_daemons(content: str | bytes) -> Mapping[str, int]:
    return _parsed(_WANTED_DAEMONS, mpsfiles.WANTED_FILE, content).gpus


def _write_daemons_state(state: MpsState) -> str:
    gpus = {uuid: _Gpu(*(getattr(gpu, name) for name in _Gpu.__struct_fields__)) for uuid, gpu in state.gpus.items()}
    return _text(_DaemonsState(_VERSION, state.beat_s, gpus))


def _read_daemons_state(content: str | bytes) -> MpsState:
    found = _parsed(_DAEMONS_STATE, mpsfiles.STATE_FILE, content)
    return MpsState({uuid: MpsGpu(*astuple(gpu)) for uuid, gpu in found.gpus.items()}, found.beat)


MPS_FILES: HelperFiles[Mapping[str, int], MpsState] = HelperFiles(
    mpsfiles.WANTED_FILE,
    mpsfiles.STATE_FILE,
    1 << 20,  # a GPU takes 200
    {},
    _write_wanted_daemons,
    _read_wanted_daemons,
    _write_daemons_state,
    _read_daemons_state,
)
"""The agent wants a daemon for each of these GPUs (by UUID), and for no other, with the most MiB that a container on it
was granted, which becomes the daemon's limit for every client."""
