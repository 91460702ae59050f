"""The condition GPUHealthy of a node, by what is believed of its GPUs."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.node.gpu_condition import MOST_MESSAGE, GpuCondition, gpu_condition
from gpu_device_plugin.core.node.health import Belief, Cause, Problem

FAILED = Belief((Problem(Cause.FATAL_XID, "XID 79 (it fell off the bus)"), Problem(Cause.LOST, "it is gone")))
UNWATCHED = Belief((Problem(Cause.UNWATCHED, "the driver does not answer"),))


@pytest.mark.parametrize(
    ("gpus", "watched", "expected"),
    [
        ([(0, Belief()), (1, Belief())], True, ("True", "GPUsHealthy", "2 of 2 GPUs are healthy")),
        (
            [(0, Belief()), (1, FAILED), (2, UNWATCHED)],
            True,
            ("False", "GPUUnhealthy", "GPU 1: XID 79 (it fell off the bus); it is gone"),
        ),
        (
            [(0, Belief()), (2, UNWATCHED)],
            True,
            (
                "Unknown",
                "NotWatched",
                "GPU 2: the driver does not answer; it is offered again as soon as it can be read",
            ),
        ),
        ([(0, FAILED)], False, ("Unknown", "NotWatched", "the agent is paused")),
        ([], True, ("Unknown", "NoGPU", "the agent is paused")),
    ],
)
def test_the_condition_names_the_gpus(
    gpus: list[tuple[int, Belief]], expected: tuple[str, str, str], *, watched: bool
) -> None:
    assert gpu_condition(gpus, watched=watched, sentence="the agent is paused") == GpuCondition(*expected)


def test_a_long_message_is_cut() -> None:
    found = gpu_condition([(n, FAILED) for n in range(64)], watched=True, sentence="")
    assert len(found.message) == MOST_MESSAGE
    assert found.message.endswith("...")
