"""NVIDIA's mock of libnvidia-ml.so.1, whose GPUs a test makes be as it wants.

It is in the directory NVML_LIB_DIR (built from NVIDIA/k8s-test-infra, pkg/gpu/mocknvml), and MOCK_NVML_CONFIG names its
configuration. Tests that need it are skipped without it. What a test changes stands in the overrides.yaml that the mock
reads beside a copy of its configuration.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.test_compiled_library import NAME, compiled

LIBRARY = os.environ.get("NVML_LIB_DIR")
MOCK_CONFIG = os.environ.get("MOCK_NVML_CONFIG")

_MIB = 1 << 20
_REASONS = {
    "power-cap": "sw_power_cap",
    "hardware": "hw_slowdown",
    "sync": "sync_boost",
    "heat": "sw_thermal_slowdown",
    "hardware-heat": "hw_thermal_slowdown",
    "power-brake": "hw_power_brake_slowdown",
}
_PLACES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "temperature": (("thermal", "temperature_gpu_c"), 1),
    "slowdown": (("thermal", "slowdown_threshold_c"), 1),
    "power": (("power", "current_draw_mw"), 1000),
    "power_limit": (("power", "enforced_limit_mw"), 1000),
    "power_limit_default": (("power", "default_limit_mw"), 1000),
    "sm_clock": (("clocks", "sm_current"), 1),
    "sm_clock_max": (("clocks", "sm_max"), 1),
    "sm": (("utilization", "gpu"), 1),
    "pcie_generation": (("pcie", "current_link_gen"), 1),
    "pcie_generation_max": (("pcie", "max_link_gen"), 1),
    "pcie_width": (("pcie", "current_link_width"), 1),
    "pcie_width_max": (("pcie", "max_link_width"), 1),
    "ecc_corrected": (("ecc", "errors", "volatile", "single_bit", "total"), 1),
    "ecc": (("ecc", "errors", "volatile", "double_bit", "total"), 1),
}
"""Where a number of a fake GPU's description stands in the configuration, and how many of its units are one of ours."""


_COUNTED = """
#define _GNU_SOURCE
#include <dlfcn.h>

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, void *found) {
  int (*asked)(void *, unsigned *, void *) = dlsym(RTLD_NEXT, "nvmlDeviceGetComputeRunningProcesses_v3");
  int code = asked(gpu, count, found);
  return code == 0 && !found && *count ? 7 : code;
}
"""


def need_library() -> Path:
    """Return the directory of NVIDIA's library or its mock, or skip the test."""
    if LIBRARY is None:
        pytest.skip("set NVML_LIB_DIR to the directory of a libnvidia-ml.so.1, real or NVIDIA's mock, to run this")
    return Path(LIBRARY)


class Mock:
    """The mock, with a configuration of our own to change, for the processes that are started from now on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the configuration in a folder; skips the test if there is no mock."""
        self.library = need_library()
        if MOCK_CONFIG is None:
            pytest.skip("set MOCK_NVML_CONFIG to the configuration of NVIDIA's mock to have its GPUs fail")
        config = folder / "config.yaml"
        shutil.copy(MOCK_CONFIG, config)
        self.overrides = config.with_name("overrides.yaml")
        monkeypatch.setenv("MOCK_NVML_CONFIG", str(config))
        monkeypatch.setenv("MOCK_NVML_OVERRIDES", str(self.overrides))
        monkeypatch.setenv("MOCK_NVML_OVERRIDES_TTL", "1ns")  # each call sees what was said last

    def lists_processes(self, folder: Path) -> None:
        """Use a copy, made in an empty folder, that has lists of processes.

        Asked how many there are the mock answers NVML_SUCCESS, from which pynvml concludes that there are none; NVML
        itself answers NVML_ERROR_INSUFFICIENT_SIZE (nvml.h), as the copy does.
        """
        other = folder / NAME.replace("ml", "mk")
        other.write_bytes(
            (self.library / NAME).read_bytes().replace(f"\0{NAME}\0".encode(), f"\0{other.name}\0".encode())
        )
        self.library = compiled(folder, _COUNTED, other).parent

    def say(self, text: str) -> None:
        """Change the GPUs as these lines of overrides.yaml say, from their configuration."""
        fresh = self.overrides.with_suffix(".new")
        fresh.write_text(f"version: 1\n{text}")
        fresh.rename(self.overrides)

    def fails(self, gpu: int, mode: str, xid: int | None = None) -> None:
        """Have a GPU fail in one of the mock's ways."""
        event = "" if xid is None else f", xid: {{code: {xid}}}"
        self.say(f'devices: {{"{gpu}": {{failure: {{mode: {mode}{event}}}}}}}\n')

    def heals(self) -> None:
        """Have all GPUs be as they are configured."""
        self.say("")

    def hangs(self) -> None:
        """Have every call wait: whoever opens this file waits for somebody who writes into it."""
        self.overrides.unlink(missing_ok=True)
        os.mkfifo(self.overrides)

    def describe(self, described: Mapping[str, Any]) -> None:
        """Have GPU 0 be as a fake GPU is described, see `hardware.fake.description`, with memory of 15 GiB.

        The mock has no counters of bytes over PCIe (NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES), so those are left
        out. KeyError: another key that it cannot say.
        """
        left = {key: value for key, value in described.items() if key not in {"pcie_sent", "pcie_received"}}
        processes, remap = left.pop("processes"), left.pop("remap")
        used = [int(each["used"].removesuffix("MiB")) for each in processes]
        throttle, xid = left.pop("throttle"), left.pop("xid")
        gpu: dict[str, Any] = {
            "memory": {
                "total_bytes": 15_360 * _MIB,
                "reserved_bytes": 0,
                "used_bytes": sum(used) * _MIB,
                "free_bytes": (15_360 - sum(used)) * _MIB,
            },
            "processes": [
                {"pid": each["pid"], "type": "C", "used_memory_mib": mib, "sm_util": each["sm"]}
                for each, mib in zip(processes, used, strict=True)
            ],
            "clocks_throttle_reasons": {name: key in throttle for key, name in _REASONS.items()},
            "remapped_rows": {"pending": remap == "pending", "failure_occurred": remap == "failed"},
            "failure": {"mode": "ecc_uncorrectable", "xid": {"code": xid}} if xid else {"mode": "healthy"},
        }
        for key, value in left.items():
            *sections, name = _PLACES[key][0]
            section = gpu
            for each in sections:
                section = section.setdefault(each, {})
            section[name] = value * _PLACES[key][1]
        self.say(f'devices: {{"0": {json.dumps(gpu)}}}\n')
