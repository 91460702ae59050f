"""The limits of a node are written, and read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.nodelabels import NO_LIMITS, NodeLimits, read_node_limits, write_node_limits
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement

MIXED = NodeLimits(
    {
        1: GpuEnforcement(Enforcement.ADVISORY, "no daemon", "none is there"),
        0: GpuEnforcement(Enforcement.DRIVER, "r615"),
    }
)


def test_limits_are_written_by_position_and_compactly() -> None:
    assert write_node_limits(MIXED) == (
        '{"version":1,"gpus":[{"index":0,"enforcement":"driver","why":"r615"},'
        '{"index":1,"enforcement":"advisory","why":"no daemon","refusal":"none is there"}]}'
    )


def test_of_a_node_the_weakest_counts_with_its_reason() -> None:
    assert (MIXED.enforcement, MIXED.why) == (Enforcement.ADVISORY, "no daemon")
    assert (NO_LIMITS.enforcement, NO_LIMITS.why) == (Enforcement.ADVISORY, "there is no GPU")


PRINTABLE = st.text(st.characters(categories=["L", "N", "P", "Zs"]).filter(str.isprintable), max_size=20)
ENFORCEMENTS = st.builds(GpuEnforcement, st.sampled_from(Enforcement), PRINTABLE, PRINTABLE)


@given(st.dictionaries(st.integers(0, 63), ENFORCEMENTS))
def test_limits_that_are_written_are_read(gpus: dict[int, GpuEnforcement]) -> None:
    assert read_node_limits(write_node_limits(NodeLimits(gpus))) == NodeLimits(gpus)


@pytest.mark.parametrize("why", [None, 5, "a\nb", "\u202e"])
def test_a_reason_that_cannot_be_printed_is_left_out(why: Any) -> None:
    text = json.dumps({"version": 1, "more": 1, "gpus": [{"index": 0, "enforcement": "mps", "why": why, "new": True}]})
    assert read_node_limits(text) == NodeLimits({0: GpuEnforcement(Enforcement.MPS, "")})


@pytest.mark.parametrize("index", [True, "0", 0.0, None])
def test_a_gpu_without_a_number_is_left_out(index: Any) -> None:
    text = json.dumps({"version": 1, "gpus": [{"index": index, "enforcement": "mps", "why": ""}]})
    assert read_node_limits(text) == NO_LIMITS
