"""Which GPUs an agent puts aside by itself, by readings of their condition."""

from typing import Any

import pytest

from gpu_device_plugin.features.cordon.node import KEPT_FOR_S, Faults
from gpu_device_plugin.model.telemetry import FAULTS, GpuTelemetry, Throttle

HOT = Throttle.HARDWARE_HEAT | Throttle.HARDWARE


def after(faults: Faults, now: float, *codes: str, **fields: Any) -> Faults:
    return faults.after({"GPU-a": GpuTelemetry("GPU-a", **fields)}, codes or tuple(FAULTS), now)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ecc_uncorrected": 1}, "ecc-uncorrected: uncorrected memory errors"),
        ({"repair_pending": True}, "memory-repair-pending: a repair of its memory waits for a reset"),
        ({"repair_failed": True}, "memory-not-repaired: a repair of its memory failed"),
        ({"throttle": int(HOT)}, "slowed-by-heat: its clocks are lowered by heat"),
        ({"throttle": int(Throttle.POWER_CAP)}, ""),
        ({"ecc_uncorrected": 0, "repair_pending": False, "repair_failed": False, "throttle": 0}, ""),
        ({}, ""),
    ],
)
def test_a_fault_counts_once_it_has_lasted(fields: dict[str, Any], why: str) -> None:
    faults = after(after(Faults(), 0.0, **fields), KEPT_FOR_S - 1, **fields)
    assert faults.due(KEPT_FOR_S - 1) == {}
    faults = after(faults, KEPT_FOR_S, **fields)
    assert faults.due(KEPT_FOR_S) == ({"GPU-a": why} if why else {})


def test_only_chosen_faults_count() -> None:
    faults = after(Faults(), 0.0, "memory-not-repaired", ecc_uncorrected=3)
    assert after(faults, 2 * KEPT_FOR_S, "memory-not-repaired", ecc_uncorrected=3).due(2 * KEPT_FOR_S) == {}


def test_several_faults_are_told_together() -> None:
    faults = after(Faults(), 0.0, ecc_uncorrected=3, throttle=int(Throttle.HEAT))
    assert faults.due(KEPT_FOR_S)["GPU-a"] == (
        "ecc-uncorrected: uncorrected memory errors; slowed-by-heat: its clocks are lowered by heat"
    )


def test_a_reading_without_the_fault_or_without_the_gpu_begins_anew() -> None:
    faults = after(after(Faults(), 0.0, repair_failed=True), 300.0)
    faults = after(after(faults, 301.0, repair_failed=True), 600.0, repair_failed=True)
    assert faults.due(600.0) == {}
    assert after(faults.after({}, tuple(FAULTS), 900.0), 901.0, repair_failed=True).due(901.0) == {}


def test_a_person_who_takes_the_gpu_back_is_obeyed_until_the_fault_comes_again() -> None:
    faults = after(Faults(), 0.0, repair_failed=True).answer("GPU-a", KEPT_FOR_S)
    faults = after(faults, 700.0, repair_failed=True)
    assert faults.due(700.0) == {}
    faults = after(after(faults, 800.0), 900.0, repair_failed=True)
    assert after(faults, 1500.0, repair_failed=True).due(1500.0).keys() == {"GPU-a"}


def test_another_fault_of_the_same_gpu_counts_by_itself() -> None:
    faults = after(Faults(), 0.0, repair_failed=True).answer("GPU-a", KEPT_FOR_S)
    faults = after(faults, 700.0, repair_failed=True, ecc_uncorrected=1)
    assert faults.due(1300.0) == {"GPU-a": "ecc-uncorrected: uncorrected memory errors"}


def test_a_reading_that_fails_ends_no_fault_and_does_not_tell_how_long_it_lasts() -> None:
    """A driver that once answers too late is not to put aside again what a person has taken back into use."""
    answered = after(Faults(), 0.0, repair_failed=True).answer("GPU-a", KEPT_FOR_S)
    missed = answered.after({}, tuple(FAULTS), 610.0)
    again = after(after(missed, 620.0, repair_failed=True), 1300.0, repair_failed=True)
    assert again.due(1300.0) == {}
    seen = after(Faults(), 0.0, repair_failed=True).after({}, tuple(FAULTS), 300.0)
    seen = after(seen, 700.0, repair_failed=True)
    assert seen.due(700.0) == {}
    assert seen.due(1300.0).keys() == {"GPU-a"}
