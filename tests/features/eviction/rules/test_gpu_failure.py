"""Pods leave a GPU that has failed by itself for the grace, and the condition GPUHealthy names it."""

from collections.abc import Mapping

import pytest

from gpu_device_plugin.features.eviction.rules import Candidate, Failed, failures, lasting, on_failed
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.node.rules.gpu_health import (
    MOST_MESSAGE,
    OWN_CAUSES,
    Cause,
    GpuHealth,
    NodeCondition,
    Problem,
    failure,
    gpu_condition,
)


def belief(*causes: Cause) -> GpuHealth:
    return GpuHealth(tuple(Problem(cause, f"it is {cause}") for cause in causes))


@pytest.mark.parametrize("cause", Cause)
def test_only_causes_in_the_gpu_itself_are_failures(cause: Cause) -> None:
    assert failure(belief(cause)) == ("" if cause in {Cause.UNWATCHED, Cause.RESET} else f"it is {cause}")
    assert (cause in OWN_CAUSES) is (cause not in {Cause.UNWATCHED, Cause.RESET})


def test_what_an_unwatched_gpu_had_is_not_known_to_last() -> None:
    assert failure(belief(Cause.FATAL_XID, Cause.UNWATCHED)) == ""
    assert failure(belief(Cause.FATAL_XID, Cause.RESET, Cause.LOST)) == "it is fatal XID; it is lost"
    assert failure(GpuHealth()) == ""


def after(*looks: tuple[float, dict[str, GpuHealth], bool]) -> Mapping[str, Failed]:
    failing: Mapping[str, Failed] = {}
    for now, health_by_uuid, watched in looks:
        failing = failures(failing, health_by_uuid, watched=watched, now=now)
    return failing


XID = {"a": belief(Cause.FATAL_XID), "b": GpuHealth()}


def test_a_gpu_has_failed_once_the_grace_is_over() -> None:
    failing = after((10, XID, True), (50, XID, True))
    assert failing == {"a": Failed(10, "it is fatal XID")}
    assert lasting(failing, 60, 69) == {}
    assert list(lasting(failing, 60, 70)) == ["a"]


@pytest.mark.parametrize(
    "between",
    [
        (20, XID, False),  # the driver hangs, or the agent is paused
        (20, {"a": GpuHealth()}, True),
        (20, {"a": belief(Cause.FATAL_XID, Cause.UNWATCHED)}, True),
        (20, {"a": belief(Cause.RESET)}, True),
        (20, {}, True),  # it is not listed any more
    ],
)
def test_whatever_interrupts_a_failure_begins_the_grace_anew(between: tuple[float, dict[str, GpuHealth], bool]) -> None:
    assert after((10, XID, True), between, (30, XID, True))["a"].since == 30


def test_a_clock_that_goes_back_shortens_no_grace() -> None:
    assert lasting(after((10, XID, True), (5, XID, True)), 60, 64) == {}


def test_the_newest_reason_is_told() -> None:
    assert after((1, XID, True), (2, {"a": belief(Cause.LOST)}, True))["a"] == Failed(1, "it is lost")


def test_the_pods_on_it_go_whether_they_have_parts_or_all_of_it() -> None:
    one, two = Pod("u", "default", "one"), Pod("v", "default", "two")
    holders = [
        ContainerGpus("u", "main", {"a": 4096, "b": 4096}, pod=one),
        ContainerGpus("v", "main", {"a": 16384}, whole=True, pod=two),
        ContainerGpus("w", "main", {"a": 1024}),
        ContainerGpus("x", "main", {"b": 1024}, pod=two),
    ]
    assert on_failed({"a": Failed(0, "")}, holders) == (Candidate(one, "a", 4096), Candidate(two, "a", 16384))


# --- The node condition -----------------------------------------------------------------------------------------------

FAILED = GpuHealth((Problem(Cause.FATAL_XID, "XID 79 (it fell off the bus)"), Problem(Cause.LOST, "it is gone")))
UNWATCHED = GpuHealth((Problem(Cause.UNWATCHED, "the driver does not answer"),))


@pytest.mark.parametrize(
    ("gpus", "watched", "expected"),
    [
        ([(0, GpuHealth()), (1, GpuHealth())], True, ("True", "GPUsHealthy", "2 of 2 GPUs are healthy")),
        (
            [(0, GpuHealth()), (1, FAILED), (2, UNWATCHED)],
            True,
            ("False", "GPUUnhealthy", "GPU 1: XID 79 (it fell off the bus); it is gone"),
        ),
        (
            [(0, GpuHealth()), (2, UNWATCHED)],
            True,
            (
                "Unknown",
                "NotWatched",
                "GPU 2: the driver does not answer; it returns to service once it can be read",
            ),
        ),
        ([(0, FAILED)], False, ("Unknown", "NotWatched", "the agent is paused")),
        ([], True, ("Unknown", "NoGPU", "the agent is paused")),
    ],
)
def test_the_condition_names_the_gpus(
    gpus: list[tuple[int, GpuHealth]], expected: tuple[str, str, str], *, watched: bool
) -> None:
    assert gpu_condition(gpus, watched=watched, sentence="the agent is paused") == NodeCondition(*expected)


def test_a_long_message_is_cut() -> None:
    found = gpu_condition([(n, FAILED) for n in range(64)], watched=True, sentence="")
    assert len(found.message) == MOST_MESSAGE
    assert found.message.endswith("...")
