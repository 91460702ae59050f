"""The two files by which the node agent and the limit helper of a node meet, in the directory `memory_dir`.

The agent writes `WANTED_FILE`, the helper writes `STATE_FILE`; each replaces its file atomically and reads the other's.
Either may run without the other, and be restarted at any time. Containers see only directories below `memory_dir`, and
those read-only; the helper, which is privileged, checks every value all the same.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

WANTED_FILE = "limits-wanted.json"
STATE_FILE = "limits-state.json"
VERSION = 1

MOST_LIMITS = 4_096
"""Limits in a file. A node has at most 4,000 devices, and each limit is of a container with one."""
LARGEST = 4 << 20
"""Bytes of a file: a limit takes some 200, and up to `LONGEST_WHY` more if it could not be set."""
MOST_MIB = 1 << 26
"""No GPU has more memory."""
LONGEST_WHY = 512
"""Characters of a reason; of a longer one the beginning stands there."""

_POD = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}", re.ASCII)
_CONTAINER = re.compile(r"[0-9a-f]{64}", re.ASCII)
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,60}", re.ASCII)


class LimitFileError(ValueError):
    """A file cannot be parsed; the message names the fault."""


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
        return all(pattern.fullmatch(value) for pattern, value in zip((_POD, _CONTAINER, _GPU), self, strict=True))


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
    """What the helper has set."""

    outcomes: Mapping[LimitKey, LimitOutcome] = field(default_factory=dict)
    beat_s: float = 0.0
    """Seconds since the machine started (CLOCK_BOOTTIME) at which the helper last wrote this: an old one means that it
    no longer runs."""


def write_wanted(wanted: Mapping[LimitKey, MemoryLimit]) -> str:
    """Return the text of `WANTED_FILE`: the helper sets these limits and leaves all others alone."""
    limits = [{**key._asdict(), **limit._asdict()} for key, limit in sorted(wanted.items())[:MOST_LIMITS]]
    return json.dumps({"version": VERSION, "limits": limits})


def read_wanted(text: str) -> Mapping[LimitKey, MemoryLimit]:
    """Parse `WANTED_FILE`.

    Raises:
        LimitFileError: it cannot be parsed, or names what can be no container, GPU or limit.
    """
    try:
        return {_key(each): _limit(each) for each in _versioned(text)["limits"]}
    except _FAULTS as error:
        raise _unreadable(WANTED_FILE, error) from error


def write_state(state: LimitsState) -> str:
    """Return the text of `STATE_FILE`."""
    limits = [
        {**key._asdict(), **outcome.limit._asdict(), "why": outcome.why[:LONGEST_WHY]}
        for key, outcome in sorted(state.outcomes.items())
    ]
    return json.dumps({"version": VERSION, "beat": state.beat_s, "limits": limits})


def read_state(text: str) -> LimitsState:
    """Parse `STATE_FILE`.

    Raises:
        LimitFileError: as of `read_wanted`.
    """
    try:
        document = _versioned(text)
        beat_s = float(document["beat"])
        if not math.isfinite(beat_s):
            raise ValueError("a time without end")
        outcomes = {_key(each): LimitOutcome(_limit(each), _text(each["why"])) for each in document["limits"]}
        return LimitsState(outcomes, beat_s)
    except _FAULTS as error:
        raise _unreadable(STATE_FILE, error) from error


_FAULTS = (ValueError, OverflowError, RecursionError, KeyError, TypeError, AttributeError)


def _unreadable(name: str, error: Exception) -> LimitFileError:
    return LimitFileError(f"{name} cannot be parsed: {repr(error)[:200]}")


def _versioned(text: str) -> Any:
    document = json.loads(text)
    if document["version"] != VERSION:
        raise ValueError("another version")
    if not isinstance(document["limits"], list) or len(document["limits"]) > MOST_LIMITS:
        raise ValueError(f"no list of at most {MOST_LIMITS} limits")
    return document


def _key(fields: Any) -> LimitKey:
    key = LimitKey(*(fields[name] for name in LimitKey._fields))
    if not key.plausible:
        raise ValueError("no ID of a pod, a container or a GPU")
    return key


def _limit(fields: Any) -> MemoryLimit:
    limit = MemoryLimit(*(fields[name] for name in MemoryLimit._fields))
    # A limit of 0 would be none to the driver; a truth value is an int, too.
    counts = all(type(mib) is int for mib in limit)
    if not (counts and 1 <= limit.hard_mib <= MOST_MIB and 0 <= limit.soft_mib <= limit.hard_mib):
        raise ValueError("no limit")
    return limit


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WHY:
        raise ValueError("no text, or a long one")
    return value
