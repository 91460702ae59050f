"""The condition of fake GPUs: as described, and otherwise plausible for the load of their processes."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.hardware.driver import MOST_OF_CONDITION
from gpu_device_plugin.hardware.fake.description import read
from gpu_device_plugin.hardware.fake.fake_telemetry import THROTTLE
from gpu_device_plugin.hardware.fake.value_forms import DescriptionError
from gpu_device_plugin.model.telemetry import GpuTelemetry, TelemetryGroup, Throttle
from tests.hardware.fake.test_fake_driver import Clock, opened, written

EVERY = [*TelemetryGroup]
UNTOLD = {"memory_temperature_c", "fan_percent", "retired_pages", "nvlink_errors"}
"""What a fake T4 does not tell unless it is described."""


def conditions(source: str, clock: Clock | None = None) -> list[GpuTelemetry]:
    return msgspec.convert(opened(source, clock).condition(EVERY), list[GpuTelemetry])


def described(tmp_path: Path, *events: dict[str, Any], **gpu: Any) -> GpuTelemetry:
    """Return the condition of a GPU that is described so."""
    document = {"gpus": [{"model": "T4", **gpu}], "events": [{"at": 0, "gpu": 0, **event} for event in events]}
    (telemetry,) = conditions(written(tmp_path, document))
    return telemetry


def told(telemetry: GpuTelemetry) -> dict[str, Any]:
    return {field.name: value for field in fields(telemetry) if (value := getattr(telemetry, field.name)) is not None}


def test_a_gpu_that_is_not_described_is_well_and_tells_all_that_it_usually_does() -> None:
    t4, h200 = conditions("fake:1xT4,1xH200")
    assert {field.name for field in fields(GpuTelemetry)} - told(t4).keys() == UNTOLD
    assert h200.nvlink_errors == 0
    assert (t4.throttle, t4.ecc_corrected, t4.ecc_uncorrected, t4.repair_pending) == (0, 0, 0, False)
    assert (t4.pcie_width, t4.pcie_generation) == (t4.pcie_width_max, t4.pcie_generation_max)
    assert (t4.power_limit_mw, h200.power_limit_mw) == (70_000, 700_000)
    assert (t4.power_limit_default_mw, h200.power_limit_default_mw) == (70_000, 700_000)


def test_a_gpu_whose_processes_compute_is_warmer_faster_and_draws_more(tmp_path: Path) -> None:
    idle, busy = (described(tmp_path, processes=[{"pid": 7, "sm": sm}, {"pid": 8}]) for sm in (0, 90))
    assert (idle.sm_percent, busy.sm_percent) == (0, 90)
    for name in ("temperature_c", "power_mw", "sm_clock_mhz", "memory_percent"):
        assert getattr(idle, name) < getattr(busy, name)
    assert (busy.temperature_c or 0) < (busy.slowdown_c or 0)
    assert (busy.power_mw or 0) <= (busy.power_limit_mw or 0)


STATED: dict[str, tuple[Any, str, Any]] = {
    "temperature": (91, "temperature_c", 91),
    "memory_temperature": (95, "memory_temperature_c", 95),
    "slowdown": (89, "slowdown_c", 89),
    "fan": (110, "fan_percent", 110),
    "power": (250, "power_mw", 250_000),
    "power_limit": (300, "power_limit_mw", 300_000),
    "power_limit_default": (75, "power_limit_default_mw", 75_000),
    "sm_clock": (600, "sm_clock_mhz", 600),
    "sm_clock_max": (1590, "sm_clock_max_mhz", 1590),
    "memory_clock": (405, "memory_clock_mhz", 405),
    "memory_clock_max": (5001, "memory_clock_max_mhz", 5001),
    "throttle": (["heat", "power-cap", "heat"], "throttle", 0x24),
    "persistence": (False, "persistence", False),
    "sm": (77, "sm_percent", 77),
    "memory_busy": (50, "memory_percent", 50),
    "encoder": (5, "encoder_percent", 5),
    "decoder": (6, "decoder_percent", 6),
    "pcie_generation": (1, "pcie_generation", 1),
    "pcie_generation_max": (5, "pcie_generation_max", 5),
    "pcie_width": (8, "pcie_width", 8),
    "pcie_width_max": (32, "pcie_width_max", 32),
    "pcie_replays": (9, "pcie_replays", 9),
    "nvlink_errors": (3, "nvlink_errors", 3),
    "ecc_corrected": (40, "ecc_corrected", 40),
    "ecc": (2, "ecc_uncorrected", 2),
    "retired_pages": (4, "retired_pages", 4),
    "remapped_rows": (5, "remapped_rows", 5),
    "remap": ("failed", "repair_failed", True),
}


@pytest.mark.parametrize("key", STATED)
def test_what_is_described_is_told_from_the_beginning_or_after_an_event(tmp_path: Path, key: str) -> None:
    value, field, expected = STATED[key]
    assert getattr(described(tmp_path, **{key: value}), field) == expected
    assert getattr(described(tmp_path, {key: value}), field) == expected
    if key != "remap":
        assert getattr(described(tmp_path, **{key: None}), field) is None  # the driver does not tell


def test_every_field_can_be_described() -> None:
    counters = {"energy_mj", "pcie_sent_bytes", "pcie_received_bytes"}  # by their rates
    stated = {field for _, field, _ in STATED.values()} | {"repair_pending"} | counters
    assert stated == {field.name for field in fields(GpuTelemetry)} - {"uuid"}


def test_the_largest_number_of_each_field_is_known() -> None:
    numbers = {field.name for field in fields(GpuTelemetry) if field.type == "int | None"}
    assert MOST_OF_CONDITION.keys() == numbers


def test_the_reasons_to_slow_a_gpu_are_called_as_in_the_core() -> None:
    names = ("power-cap", "hardware", "sync", "heat", "hardware-heat", "power-brake")
    assert dict(zip(names, Throttle, strict=True)) == THROTTLE


def test_counters_grow_with_the_rates(tmp_path: Path) -> None:
    clock = Clock()
    gpu = {"model": "T4", "power": 100, "pcie_sent": "2MiB"}
    events = [{"at": "15s", "gpu": 0, "power": 200, "pcie_received": "1MiB"}]
    driver = opened(written(tmp_path, {"gpus": [gpu], "events": events}), clock)
    before = driver.condition(EVERY)[0]
    assert [before[name] for name in ("energy_mj", "pcie_sent_bytes", "pcie_received_bytes")] == [0, 0, 0]
    clock.now_s = 1010.0
    first = driver.condition(EVERY)[0]
    assert first["energy_mj"] == pytest.approx(100 * 1000 * 10, rel=0.01)
    assert first["pcie_sent_bytes"] == pytest.approx(2 * (1 << 20) * 10, rel=0.01)
    assert first["pcie_received_bytes"] == 0
    clock.now_s = 1020.0
    second = driver.condition(EVERY)[0]
    assert second["energy_mj"] - first["energy_mj"] == pytest.approx(200 * 1000 * 10, rel=0.01)
    assert second["pcie_received_bytes"] == pytest.approx((1 << 20) * 10, rel=0.01)


def test_a_counter_wraps_before_it_is_too_large(tmp_path: Path) -> None:
    clock = Clock()
    driver = opened(written(tmp_path, {"gpus": [{"model": "T4", "pcie_sent": "9000000GiB"}]}), clock)
    for _ in range(3):
        clock.now_s += 3600
        (record,) = driver.condition(["pcie"])
        assert 0 <= record["pcie_sent_bytes"] <= MOST_OF_CONDITION["pcie_sent_bytes"]


def test_only_the_wanted_groups_are_told(tmp_path: Path) -> None:
    driver = opened(written(tmp_path, {"gpus": "1xT4"}))
    assert driver.condition([]) == [{"uuid": driver.inventory()["gpus"][0]["uuid"]}]
    (record,) = driver.condition(["thermal"])
    assert record.keys() == {"uuid", "temperature_c", "slowdown_c"}
    by_group = {name for group in EVERY for name in driver.condition([group])[0]}
    assert by_group == {field.name for field in fields(GpuTelemetry)} - UNTOLD


def test_a_gpu_in_mig_mode_tells_less_and_its_instances_nothing() -> None:
    one, empty = conditions("fake:1xH200:mig=1g.18gb*7,1xT4")
    assert one.sm_percent is None
    assert one.ecc_corrected is None
    assert one.repair_pending is None
    assert one.temperature_c is not None
    assert empty.sm_percent == 0


def test_a_lost_gpu_is_left_out_and_one_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    events = [{"at": "5s", "gpu": 0, "lost": True}, {"at": "6s", "gpu": 1, "error": "Unknown Error (999)"}]
    events.append({"at": "20s", "gpu": 0, "lost": False})
    driver = opened(written(tmp_path, {"gpus": "3xT4", "events": events}), clock := Clock())
    uuids = [record["uuid"] for record in driver.condition([])]
    clock.now_s += 10
    records = driver.condition(["thermal"])
    assert [record["uuid"] for record in records] == uuids[1:]
    assert [len(record) for record in records] == [1, 3]
    clock.now_s += 10
    assert [record["uuid"] for record in driver.condition([])] == uuids[1:]  # found again by a new driver only


def test_a_reset_ends_the_counts_of_errors(tmp_path: Path) -> None:
    telemetry = described(tmp_path, {"reset": True}, ecc=3, ecc_corrected=40, remap="pending", remapped_rows=2)
    assert (telemetry.ecc_corrected, telemetry.ecc_uncorrected, telemetry.repair_pending) == (0, 0, False)
    assert telemetry.remapped_rows == 2


@pytest.mark.parametrize(
    ("gpu", "complaint"),
    [
        ({"temperature": 301}, "temperature: 301 is more than 300"),
        ({"temperature": "hot"}, "temperature: 'hot' is not a whole number"),
        ({"power": 100_001}, "power: 100001 is more than 100000"),
        ({"sm": 101}, "sm: 101 is more than 100"),
        ({"throttle": "heat"}, "throttle: 'heat' is not a list of power-cap, hardware, sync, heat,"),
        ({"throttle": ["cold"]}, "throttle: 'cold' is not one of power-cap,"),
        ({"persistence": 1}, "persistence: 1 is neither true nor false"),
        ({"pcie_sent": 7}, "pcie_sent: 7 is not a non-empty string"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(tmp_path: Path, gpu: dict[str, Any], complaint: str) -> None:
    path = written(tmp_path, {"gpus": [{"model": "T4", **gpu}]})
    with pytest.raises(DescriptionError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}: gpus[0].{complaint}")
