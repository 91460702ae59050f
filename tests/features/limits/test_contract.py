"""The files between agent and limit helper: what is written is read, and whatever else is there is an error."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.limits.contract import (
    LIMIT_FILES,
    LONGEST_WHY,
    MOST_LIMITS,
    MOST_MIB,
    LimitKey,
    LimitOutcome,
    LimitsState,
    MemoryLimit,
)
from gpu_device_plugin.model.contract.helperfiles import HelperFileError

HEX = "0123456789abcdef"
POD, STATIC, CONTAINER = "0f0e0d0c-1111-2222-3333-0123456789ab", "0123456789abcdef" * 2, "c" * 64
KEYS = st.builds(
    LimitKey,
    st.sampled_from([POD, STATIC]),
    st.text(HEX, min_size=64, max_size=64) | st.just(""),
    st.sampled_from(["GPU-a", f"GPU-{POD}", "GPU-5B1E6A0C2F3D4E00", "PCI-0000:c1:00.0"]),
)
LIMITS = st.integers(1, MOST_MIB).flatmap(lambda hard: st.builds(MemoryLimit, st.just(hard), st.integers(0, hard)))
OUTCOMES = st.builds(LimitOutcome, LIMITS, st.text(max_size=LONGEST_WHY))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(KEYS, LIMITS, max_size=4))
def test_what_is_wanted_is_read_as_it_was_written(wanted: dict[LimitKey, MemoryLimit]) -> None:
    assert LIMIT_FILES.read_wanted(LIMIT_FILES.write_wanted(wanted)) == wanted


@given(
    st.builds(LimitsState, st.dictionaries(KEYS, OUTCOMES, max_size=4), st.text(max_size=LONGEST_WHY)),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_state_is_read_as_it_was_written(state: LimitsState, beat_s: float) -> None:
    assert LIMIT_FILES.read_state(LIMIT_FILES.write_state(state, beat_s)) == (state, beat_s)


def test_a_long_reason_is_cut() -> None:
    key, limit = LimitKey(POD, CONTAINER, "GPU-a"), MemoryLimit(1)
    said = LimitsState({key: LimitOutcome(limit, "x" * 1000)}, "y" * 1000)
    state, _ = LIMIT_FILES.read_state(LIMIT_FILES.write_state(said, 0.0))
    assert state == LimitsState({key: LimitOutcome(limit, "x" * LONGEST_WHY)}, "y" * LONGEST_WHY)


def test_the_most_limits_fit_into_the_largest_file() -> None:
    keys = [LimitKey(POD, f"{number:064x}", f"GPU-{POD}") for number in range(MOST_LIMITS + 1)]
    limits = dict.fromkeys(keys, MemoryLimit(MOST_MIB, MOST_MIB))
    text = LIMIT_FILES.write_wanted(limits)
    assert len(text) < LIMIT_FILES.largest
    assert len(LIMIT_FILES.read_wanted(text)) == MOST_LIMITS
    whole = {key: LimitOutcome(limit, "x" * LONGEST_WHY) for key, limit in LIMIT_FILES.read_wanted(text).items()}
    assert len(LIMIT_FILES.write_state(LimitsState(whole, "x" * LONGEST_WHY), 0.0)) < LIMIT_FILES.largest


def entry(**changed: Any) -> dict[str, Any]:
    known = {"pod_uid": POD, "container_id": CONTAINER, "uuid": "GPU-a", "hard_mib": 4, "soft_mib": 0, "why": ""}
    return {name: value for name, value in {**known, **changed}.items() if value is not ...}


def file(*entries: Any, beat: Any = 1.5, version: Any = 1) -> str:
    return json.dumps({"version": version, "beat": beat, "limits": list(entries)})


WRONG = [
    "",
    "null",
    "[]",
    "{",
    "[" * 100_000,
    '{"version": 1}',
    '{"version": 1, "beat": 0, "limits": {}}',
    file(version=2),
    file(None),
    file(entry(pod_uid="../../etc")),
    file(entry(pod_uid=f"{POD}/x")),
    file(entry(pod_uid=7)),
    file(entry(pod_uid=...)),
    file(entry(container_id="c")),
    file(entry(container_id="/sys/fs/cgroup")),
    file(entry(container_id=CONTAINER + "\n")),
    file(entry(container_id=["c"] * 64)),
    file(entry(uuid="MIG-a")),
    file(entry(uuid="GPU-" + "a" * 61)),
    file(entry(uuid="PCI-0000:c1:00.0/../x")),
    file(entry(uuid="PCI-")),
    file(entry(hard_mib=0)),
    file(entry(hard_mib=-1)),
    file(entry(hard_mib=True)),
    file(entry(hard_mib=4.0)),
    file(entry(hard_mib="4")),
    file(entry(hard_mib=MOST_MIB + 1)),
    file(entry(soft_mib=5)),
    file(entry(soft_mib=...)),
    file(*[entry()] * (MOST_LIMITS + 1)),
]


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:60])
def test_another_file_is_an_error(text: str) -> None:
    with pytest.raises(HelperFileError, match=r"^limits-wanted\.json cannot be parsed: "):
        LIMIT_FILES.read_wanted(text)
    with pytest.raises(HelperFileError, match=r"^limits-state\.json cannot be parsed: "):
        LIMIT_FILES.read_state(text)


@pytest.mark.parametrize(
    "text",
    [
        file(beat="soon"),
        '{"version": 1, "beat": NaN, "limits": []}',
        '{"version": 1, "beat": 1e999, "limits": []}',
        '{"version": 1, "beat": ' + "9" * 400 + ', "limits": []}',
        file(entry(why=7)),
        file(entry(why="x" * (LONGEST_WHY + 1))),
        file(entry(why=...)),
    ],
    ids=lambda text: text[:60],
)
def test_another_state_is_an_error(text: str) -> None:
    with pytest.raises(HelperFileError):
        LIMIT_FILES.read_state(text)


@given(JSON.map(json.dumps) | st.text())
def test_whatever_is_there_is_read_or_an_error(text: str) -> None:
    for read in (LIMIT_FILES.read_state, LIMIT_FILES.read_wanted):
        with contextlib.suppress(HelperFileError):
            read(text)
