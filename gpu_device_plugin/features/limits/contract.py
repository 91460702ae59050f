"""The files of the limit helper, in the directory `memory_dir`: which limits are wanted, and which it has set.

Containers see only directories below it, and those read-only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from gpu_device_plugin.model.contract.helperfiles import VERSION, Document, HelperFiles, parsed, text_of

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


class _WantedLimits(Document):
    limits: Annotated[list[_Limit], Meta(max_length=MOST_LIMITS)]


class _LimitsState(Document):
    beat: float
    limits: Annotated[list[_Outcome], Meta(max_length=MOST_LIMITS)]


_LIMITS_WANTED_FILE, _LIMITS_STATE_FILE = "limits-wanted.json", "limits-state.json"


def _split(limit: _Limit) -> tuple[LimitKey, MemoryLimit]:
    pod_uid, container_id, uuid, hard_mib, soft_mib, *_ = astuple(limit)
    return LimitKey(pod_uid, container_id, uuid), MemoryLimit(hard_mib, soft_mib)


def _wanted(limits: Mapping[LimitKey, MemoryLimit]) -> _WantedLimits:
    return _WantedLimits(VERSION, [_Limit(*key, *limit) for key, limit in sorted(limits.items())[:MOST_LIMITS]])


def _state(outcomes: Mapping[LimitKey, LimitOutcome], beat_s: float) -> _LimitsState:
    limits = [_Outcome(*key, *each.limit, each.why[:LONGEST_WHY]) for key, each in sorted(outcomes.items())]
    return _LimitsState(VERSION, beat_s, limits)


def _read_limits_state(content: str | bytes) -> tuple[Mapping[LimitKey, LimitOutcome], float]:
    found = parsed(_LimitsState, _LIMITS_STATE_FILE, content)
    limits = [(*_split(each), each.why) for each in found.limits]
    return {key: LimitOutcome(limit, why) for key, limit, why in limits}, found.beat


LIMIT_FILES: HelperFiles[Mapping[LimitKey, MemoryLimit], Mapping[LimitKey, LimitOutcome]] = HelperFiles(
    _LIMITS_WANTED_FILE,
    _LIMITS_STATE_FILE,
    4 << 20,  # a limit takes some 200, and up to `LONGEST_WHY` more if it could not be set
    {},
    lambda wanted: text_of(_wanted(wanted)),
    lambda content: dict(map(_split, parsed(_WantedLimits, _LIMITS_WANTED_FILE, content).limits)),
    lambda outcomes, beat_s: text_of(_state(outcomes, beat_s)),
    _read_limits_state,
)
"""The helper sets the limits that are wanted, leaves all others alone, and says what came of each."""
