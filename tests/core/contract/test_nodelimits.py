"""The annotation with the means of limiting memory on a node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.keys import MalformedAnnotationError
from gpu_device_plugin.core.contract.nodelimits import NO_LIMITS, NodeLimits, read_node_limits, write_node_limits
from gpu_device_plugin.core.model.limits import GpuRung, Rung

MIXED = NodeLimits({1: GpuRung(Rung.ADVISORY, "no daemon", "none is there"), 0: GpuRung(Rung.DRIVER, "r615")})


def test_it_is_written_by_position_and_compactly() -> None:
    assert write_node_limits(MIXED) == (
        '{"version":1,"gpus":[{"index":0,"rung":"driver","why":"r615"},'
        '{"index":1,"rung":"advisory","why":"no daemon","refusal":"none is there"}]}'
    )


def test_of_a_node_the_weakest_counts_with_its_reason() -> None:
    assert (MIXED.rung, MIXED.why) == (Rung.ADVISORY, "no daemon")
    assert (NO_LIMITS.rung, NO_LIMITS.why) == (Rung.ADVISORY, "there is no GPU")


PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "Zs"]).filter(str.isprintable), max_size=20)
RUNGS = st.builds(GpuRung, st.sampled_from(Rung), PRINTABLE, PRINTABLE)


@given(st.dictionaries(st.integers(0, 63), RUNGS))
def test_what_is_written_is_read(gpus: dict[int, GpuRung]) -> None:
    assert read_node_limits(write_node_limits(NodeLimits(gpus))) == NodeLimits(gpus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        "[" * 100_000,
        '{"gpus": 1}',
        '{"gpus": [1]}',
        '{"gpus": {"a": 1}}',
        '{"gpus": [{"index": 0}]}',
        '{"gpus": [{"rung": "mps"}]}',
        '{"gpus": [{"index": 0, "rung": "iron", "why": ""}]}',
    ],
)
def test_another_text_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(
        MalformedAnnotationError, match="gpu-device-plugin/limits is not of version 1; upgrade the older"
    ):
        read_node_limits(text)


@pytest.mark.parametrize("why", [None, 5, "a\nb", "\u202e"])
def test_a_reason_that_cannot_be_printed_is_left_out(why: Any) -> None:
    text = json.dumps({"version": 1, "more": 1, "gpus": [{"index": 0, "rung": "mps", "why": why, "new": True}]})
    assert read_node_limits(text) == NodeLimits({0: GpuRung(Rung.MPS, "")})


@pytest.mark.parametrize("index", [True, "0", 0.0, None])
def test_a_gpu_without_a_number_is_left_out(index: Any) -> None:
    text = json.dumps({"version": 1, "gpus": [{"index": index, "rung": "mps", "why": ""}]})
    assert read_node_limits(text) == NO_LIMITS
