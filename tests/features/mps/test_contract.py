"""The files between agent and MPS supervisor: what is written is read, and whatever else is there is an error."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.mps.contract import MPS_FILES, MpsGpu, MpsStatus
from gpu_device_plugin.model.contract.helperfiles import HelperFileError
from gpu_device_plugin.model.gpus import MOST_GPUS

COUNTS = st.integers(0, 2**40)
UUIDS = st.from_regex(r"\AGPU-[0-9A-Za-z]{1,64}\Z")
GPUS = st.builds(
    MpsGpu,
    st.sampled_from(MpsStatus),
    st.text(),
    st.text(),
    COUNTS,
    st.lists(COUNTS, max_size=4).map(tuple),
    COUNTS,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), GPUS, max_size=4), st.floats(allow_nan=False, allow_infinity=False))
def test_a_state_is_read_as_it_was_written(gpus: dict[str, MpsGpu], beat_s: float) -> None:
    assert MPS_FILES.read_state(MPS_FILES.write_state(gpus, beat_s)) == (gpus, beat_s)


@given(st.dictionaries(UUIDS, COUNTS, max_size=8))
def test_what_is_wanted_is_read_as_it_was_written(wanted: dict[str, int]) -> None:
    assert MPS_FILES.read_wanted(MPS_FILES.write_wanted(wanted)) == wanted


def gpu(**changed: Any) -> dict[str, Any]:
    known = {"status": "ready", "why": "", "pipeDirectory": "/p", "clients": 1, "serverPids": [7]}
    return {name: value for name, value in {**known, **changed}.items() if value is not ...}


def state(**changed: Any) -> str:
    return json.dumps({"version": 1, "beat": 1.5, "gpus": {"GPU-1": gpu(**changed)}})


def test_a_supervisor_that_does_not_tell_the_limit_is_understood() -> None:
    assert MPS_FILES.read_state(state()) == ({"GPU-1": MpsGpu(MpsStatus.READY, "", "/p", 1, (7,), 0)}, 1.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 100_000,
        '{"version": 2, "gpus": {}, "beat": 0}',
        '{"gpus": {}, "beat": 0}',
        '{"version": 1}',
        '{"version": 1, "gpus": [], "beat": 0}',
        '{"version": 1, "gpus": {"GPU-1": null}, "beat": 0}',
        '{"version": 1, "gpus": {"GPU-1": 1e999}, "beat": 0}',
        '{"version": 1, "gpus": {}, "beat": NaN}',
        '{"version": 1, "gpus": {}, "beat": 1e999}',
        '{"version": 1, "gpus": {}, "beat": ' + "9" * 400 + "}",
        state(status="fine"),
        state(status=...),
        state(clients=-1),
        state(clients=1.5),
        state(clients=True),
        state(clients="9" * 5000),
        state(serverPids=7),
        state(serverPids=["7"]),
        state(limitMib=float("inf")),
    ],
    ids=lambda text: text[:60],
)
def test_another_state_is_an_error(text: str) -> None:
    with pytest.raises(HelperFileError, match=r"^state\.json cannot be parsed: "):
        MPS_FILES.read_state(text)


@pytest.mark.parametrize("mib", ["-1", "1.5", "true", "null", '"4"', "1e999", "NaN", "[]", "9" * 5000])
def test_a_limit_that_is_no_count_is_an_error(mib: str) -> None:
    with pytest.raises(HelperFileError, match=r"^wanted\.json cannot be parsed: "):
        MPS_FILES.read_wanted(f'{{"version": 1, "gpus": {{"GPU-1": {mib}}}}}')


def test_what_can_be_no_gpus_of_a_node_is_an_error() -> None:
    """UUIDs become paths and commands."""
    with pytest.raises(HelperFileError, match=r"it names 'GPU-../../etc', which is no UUID of a GPU"):
        MPS_FILES.read_wanted('{"version": 1, "gpus": {"GPU-../../etc": 1}}')
    most = {f"GPU-{number}": 1 for number in range(MOST_GPUS)}
    assert MPS_FILES.read_wanted(MPS_FILES.write_wanted(most)) == most
    with pytest.raises(HelperFileError, match=f"it names more than {MOST_GPUS} GPUs"):
        MPS_FILES.read_wanted(MPS_FILES.write_wanted({**most, "GPU-a": 1}))


@given(JSON.map(json.dumps) | st.text())
def test_whatever_is_there_is_read_or_an_error(text: str) -> None:
    for read in (MPS_FILES.read_state, MPS_FILES.read_wanted):
        with contextlib.suppress(HelperFileError):
            read(text)
