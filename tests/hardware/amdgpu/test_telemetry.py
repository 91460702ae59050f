"""The condition of AMD's and Intel's GPUs, by the files that tell it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm
from gpu_device_plugin.hardware.amdgpu.telemetry import highest, link, residencies, throttle
from gpu_device_plugin.model.telemetry import TelemetryGroup
from tests.hardware.amdgpu.trees import b580, mi300x, rx7900xtx, write

GROUPS = [*TelemetryGroup]


def opened(root: Path, pci: str, files: Mapping[str, str | int | bytes], driver: str = "amdgpu") -> Drm:
    folder = f"/sys/bus/pci/devices/{pci}"
    texts = {f"{folder}/{name}": content for name, content in files.items() if not isinstance(content, bytes)}
    write(root, texts)
    for name, content in files.items():
        if isinstance(content, bytes):
            (root / folder.lstrip("/") / name).write_bytes(content)
    drm = Drm([driver], str(root))
    drm.inventory()
    return drm


def condition(root: Path, pci: str, files: Mapping[str, str | int | bytes], driver: str = "amdgpu") -> dict[str, Any]:
    (told,) = opened(root, pci, files, driver).condition([*GROUPS])
    return {name: value for name, value in told.items() if name != "uuid"}


SENSORS: Mapping[str, str | int] = {
    "hwmon/hwmon8/name": "amdgpu",
    "hwmon/hwmon8/temp1_input": 53000,
    "hwmon/hwmon8/temp1_label": "edge",
    "hwmon/hwmon8/temp1_crit": 100000,
    "hwmon/hwmon8/temp2_input": 61000,
    "hwmon/hwmon8/temp2_label": "junction",
    "hwmon/hwmon8/temp2_crit": 110000,
    "hwmon/hwmon8/temp3_input": 68000,
    "hwmon/hwmon8/temp3_label": "mem",
    "hwmon/hwmon8/pwm1": 102,
    "hwmon/hwmon8/power1_average": 68000000,
    "hwmon/hwmon8/power1_cap": 290000000,
    "hwmon/hwmon8/power1_cap_default": 300000000,
    "hwmon/hwmon8/freq1_input": 31000000,
    "hwmon/hwmon8/freq2_input": 1249000000,
}


def metrics(content: int, *, status: int = 0, throttled: tuple[int, ...] = (0,) * 5) -> bytes:
    """Return gpu_metrics of version 1.`content`, as far as it is read."""
    if content == 3:
        body = bytes(108) + struct.pack("<Q", status)
    else:
        before = bytes(12 if content == 6 else 20)
        body = before + struct.pack("<QQI5I", 0, 0, 1, *throttled) + bytes(64)
    return struct.pack("<HBB", 4 + len(body), 1, content) + body


def test_a_consumer_gpu_tells_all_of_this(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    files: Mapping[str, str | int | bytes] = {
        **SENSORS,
        "pp_dpm_sclk": "0: 500Mhz \n1: 31Mhz *\n2: 2219Mhz ",
        "pp_dpm_mclk": "0: 96Mhz \n1: 1249Mhz *",
        "pp_dpm_pcie": "0: 2.5GT/s, x1 81Mhz \n1: 8.0GT/s, x8 619Mhz *\n2: 16.0GT/s, x16 619Mhz *",
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": 16,
        "gpu_busy_percent": 3,
        "mem_busy_percent": 1,
        "pcie_replay_count": 2,
        "gpu_metrics": metrics(3, status=1 | 1 << 36),
    }
    assert condition(tmp_path, pci, files) == {
        "temperature_c": 61,
        "slowdown_c": 110,
        "memory_temperature_c": 68,
        "fan_percent": 40,
        "power_mw": 68000,
        "power_limit_mw": 290000,
        "power_limit_default_mw": 300000,
        "sm_clock_mhz": 31,
        "sm_clock_max_mhz": 2219,
        "memory_clock_mhz": 1249,
        "memory_clock_max_mhz": 1249,
        "throttle": 0x24,
        "sm_percent": 3,
        "memory_percent": 1,
        "pcie_generation": 3,
        "pcie_width": 8,
        "pcie_generation_max": 4,
        "pcie_width_max": 16,
        "pcie_replays": 2,
    }


def test_only_the_groups_that_are_asked_for_are_told(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    (told,) = opened(tmp_path, pci, {**SENSORS, "gpu_busy_percent": 3}).condition(["load"])
    assert told == {"uuid": "GPU-8D10AC5E00000000", "sm_percent": 3}


@pytest.mark.parametrize(
    ("sensors", "told"),
    [
        ({"temp1_input": 27000, "temp1_crit": 120000}, {"temperature_c": 27, "slowdown_c": 120}),  # without labels
        ({"temp1_input": 27000, "temp1_label": "edge"}, {"temperature_c": 27}),
        ({"temp1_input": 400000, "temp1_label": "edge"}, {}),  # more than can be
        ({"temp1_input": "none", "temp1_label": "edge"}, {}),
        ({"power1_input": 3218000}, {"power_mw": 3218}),
        ({"power1_average": 1000, "power1_input": 3218000}, {"power_mw": 1}),
        ({"energy1_input": 0, "energy1_label": "card"}, {}),
    ],
)
def test_older_sensors_tell_less(tmp_path: Path, sensors: Mapping[str, str | int], told: Mapping[str, int]) -> None:
    (pci,) = rx7900xtx(tmp_path)
    assert condition(tmp_path, pci, {f"hwmon/hwmon0/{name}": text for name, text in sensors.items()}) == told


def test_the_pci_core_tells_the_link_where_the_driver_does_not(tmp_path: Path) -> None:
    (pci,) = rx7900xtx(tmp_path)
    core: Mapping[str, str | int] = {
        "current_link_speed": "2.5 GT/s PCIe",
        "current_link_width": 1,
        "max_link_speed": "16.0 GT/s PCIe",
        "max_link_width": 8,
    }
    told = condition(tmp_path, pci, core)
    assert told == {"pcie_generation": 1, "pcie_width": 1, "pcie_generation_max": 4, "pcie_width_max": 8}


def test_xe_tells_its_own_sensors_and_energy(tmp_path: Path) -> None:
    (pci,) = b580(tmp_path)
    files: Mapping[str, str | int] = {
        "hwmon/hwmon2/temp2_input": 54000,
        "hwmon/hwmon2/temp2_label": "pkg",
        "hwmon/hwmon2/temp2_crit": 100000,
        "hwmon/hwmon2/temp3_input": 56000,
        "hwmon/hwmon2/temp3_label": "vram",
        "hwmon/hwmon2/pwm1": 0,
        "hwmon/hwmon2/energy1_input": 0,
        "hwmon/hwmon2/energy1_label": "card",
        "hwmon/hwmon2/energy2_input": 19014248107,
        "hwmon/hwmon2/energy2_label": "pkg",
        "tile0/gt0/freq0/act_freq": 400,
        "tile0/gt0/freq0/rp0_freq": 2850,
    }
    assert condition(tmp_path, pci, files, "xe") == {
        "temperature_c": 54,
        "slowdown_c": 100,
        "memory_temperature_c": 56,
        "energy_mj": 19014248,
        "sm_clock_mhz": 400,
        "sm_clock_max_mhz": 2850,
    }


def test_memory_errors_leave_out_those_of_the_links(tmp_path: Path) -> None:
    (pci,) = mi300x(tmp_path)
    files = {
        "ras/umc_err_count": "ue: 2\nce: 40\nde: 3",
        "ras/sdma_err_count": "ue: 0\nce: 1",
        "ras/xgmi_wafl_err_count": "ue: 1\nce: 5",
        "ras/gpu_vram_bad_pages": "0x1 : 0x1000 : R\n0x2 : 0x1000 : R\n0x3 : 0x1000 : P",
    }
    assert condition(tmp_path, pci, files) == {
        "nvlink_errors": 6,
        "ecc_corrected": 41,
        "ecc_uncorrected": 2,
        "retired_pages": 2,
        "repair_pending": True,
        "repair_failed": False,
    }


@pytest.mark.parametrize(
    ("group", "fields"), [("nvlink", {"nvlink_errors"}), ("memory-errors", {"ecc_corrected", "ecc_uncorrected"})]
)
def test_errors_are_told_by_the_group_that_is_asked_for(group: str, fields: set[str], tmp_path: Path) -> None:
    (pci,) = mi300x(tmp_path)
    files = {"ras/umc_err_count": "ue: 2\nce: 40", "ras/xgmi_wafl_err_count": "ue: 1\nce: 5"}
    (told,) = opened(tmp_path, pci, files).condition([group])
    assert told.keys() == {"uuid", *fields}


def test_partitions_share_what_is_their_boards_and_only_the_first_tells_its_power(tmp_path: Path) -> None:
    (pci,) = mi300x(tmp_path, partitions=4)
    told = opened(tmp_path, pci, {**SENSORS, "gpu_busy_percent": 90}).condition(["thermal", "power", "load"])
    assert [each["temperature_c"] for each in told] == [61] * 4
    assert [each.get("power_mw") for each in told] == [68000, None, None, None]
    assert [each.get("sm_percent") for each in told] == [None] * 4


def test_a_lost_gpu_is_left_out(tmp_path: Path) -> None:
    (pci, _) = rx7900xtx(tmp_path, gpus=2)
    drm = opened(tmp_path, pci, SENSORS)
    (tmp_path / "sys/bus/pci/drivers/amdgpu" / pci).unlink()
    assert drm.condition(["thermal"]) == [{"uuid": "GPU-8D10AC5E00000001"}]


@pytest.mark.parametrize(
    ("bit", "told"),
    [(None, 0), (0, 4), (7, 4), (16, 8), (23, 8), (32, 0x20), (43, 0x20), (44, 0x40), (47, 0x40), (56, 0), (57, 0)],
)
def test_each_throttler_has_a_reason(bit: int | None, told: int) -> None:
    assert throttle(metrics(3, status=0 if bit is None else 1 << bit)) == told


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"\x78\x00\x01",
        metrics(3)[:100],
        metrics(3, status=(1 << 64) - 1),  # not told
        struct.pack("<HBB", 120, 2, 3) + bytes(116),  # an APU's
        struct.pack("<HBB", 120, 1, 9) + bytes(200),
        metrics(6),
    ],
)
def test_what_is_not_told_is_unknown(other: bytes) -> None:
    assert throttle(other) is None


@pytest.mark.parametrize("content", [6, 7, 8])
def test_newer_metrics_count_how_long_each_cause_throttled(tmp_path: Path, content: int) -> None:
    (pci,) = mi300x(tmp_path)
    drm = opened(tmp_path, pci, {"gpu_metrics": metrics(content, throttled=(5, 6, 7, 8, 9))})
    place = tmp_path / f"sys/bus/pci/devices/{pci}/gpu_metrics"

    def told(*throttled: int) -> object:
        place.write_bytes(metrics(content, throttled=throttled))
        return drm.condition(["clocks"])[0].get("throttle")

    assert told(5, 6, 7, 8, 9) is None  # since when?
    assert told(5, 6, 7, 8, 9) == 0
    assert told(5, 16, 7, 8, 9) == 0x04
    assert told(6, 16, 8, 9, 9) == 0x60
    assert told(*(0xFFFFFFFF,) * 5) is None
    assert told(6, 16, 8, 9, 10) == 0x20


@given(st.binary(max_size=160))
def test_no_metrics_fail(anything: bytes) -> None:
    throttle(anything)
    residencies(anything)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("1: 16.0GT/s, x16 619Mhz *", (4, 16)),
        ("1: 8.0GT/s, x16 *", (3, 16)),
        ("0: 2.5GT/s, x8 81Mhz", (1, 8)),
        ("2.5 GT/s PCIe, x1", (1, 1)),
        ("8 GT/s, x4", (3, 4)),
        ("32.0 GT/s PCIe, x16", (5, 16)),
        ("Unknown, x0", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_a_link_has_a_generation_and_a_width(told: str, expected: tuple[int, int]) -> None:
    assert link(told) == expected


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ("0: 500Mhz *\n1: 2660Mhz ", 2660),
        ("S: 19Mhz *\n0: 615Mhz \n1: 1000Mhz ", 1000),
        ("0: 0Mhz *", None),
        ("", None),
    ],
)
def test_the_highest_clock_is_the_most(levels: str, expected: int | None) -> None:
    assert highest(levels) == expected
