"""The telemetry of a fake GPU: as described, or else typical of such a GPU under its load."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpu_device_plugin.hardware.driver import MOST_OF_CONDITION
from gpu_device_plugin.hardware.fake import value_forms as forms
from gpu_device_plugin.hardware.fake.value_forms import Fields, Readers
from gpu_device_plugin.model.telemetry import Throttle

if TYPE_CHECKING:
    from gpu_device_plugin.hardware.driver import Record

THROTTLE = {forms.name_of(bit): bit for bit in Throttle}
_CLOCKS = ("sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz", "memory_clock_max_mhz")
# By TelemetryGroup, the fields of GpuTelemetry that a description can state. Their keys have no units.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "thermal": ("temperature_c", "memory_temperature_c", "slowdown_c", "fan_percent"),
    "power": ("power_mw", "power_limit_mw", "power_limit_default_mw"),
    "clocks": (*_CLOCKS, "throttle", "persistence"),
    "load": ("sm_percent", "memory_percent", "encoder_percent", "decoder_percent"),
    "pcie": ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max", "pcie_replays"),
    "nvlink": ("nvlink_errors",),
    "memory-errors": ("ecc_corrected", "retired_pages", "remapped_rows"),
}
_KEYS = {field: re.sub(r"_(c|percent|mw|mhz)$", "", field) for fields in _GROUPS.values() for field in fields}
_KEYS["memory_percent"] = "memory_busy"  # `memory` is the size
_PER_UNIT = dict.fromkeys(("power", "power_limit", "power_limit_default"), 1000)
"""Units of the field in one of the key, if not one: people write watts."""
_RATES = {
    "power": ("power", "energy_mj", 1000),
    "pcie_sent": ("pcie", "pcie_sent_bytes", 1 << 20),
    "pcie_received": ("pcie", "pcie_received_bytes", 1 << 20),
}
"""Keys that say how fast a counter grows: its group and field, and by how much in a second for one unit of the key."""
_WRAPS = (1 << 63) - 1
_NOT_TOLD: Mapping[str, Fields] = {
    "amdgpu": dict.fromkeys(("persistence", "encoder", "decoder", "remapped_rows")),
    "xe": dict.fromkeys(
        (
            *("persistence", "slowdown", "throttle", "memory_clock", "memory_clock_max", "remapped_rows"),
            *("sm", "memory_busy", "encoder", "decoder", "power_limit_default"),
        )
    ),
}
"""By driver, what it does not tell of any GPU."""


def _throttle(value: object) -> int:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list of {', '.join(THROTTLE)}")  # noqa: TRY004 - as in forms.switch
    read = forms.one_of(THROTTLE)
    return sum({THROTTLE[read(each)] for each in value})


CONDITION: Readers = {
    **{
        key: forms.or_null(forms.at_most(MOST_OF_CONDITION.get(field, 0) // _PER_UNIT.get(key, 1)))
        for field, key in _KEYS.items()
    },
    **dict.fromkeys(("pcie_sent", "pcie_received"), forms.or_null(forms.size)),
    "throttle": forms.or_null(_throttle),
    "persistence": forms.or_null(forms.switch),
}
"""What a description can say of the condition of a GPU, besides `ecc` and `remap`."""


def _usual(gpu: Fields) -> Fields:
    """Return the usual condition of a GPU under the load of its processes, by the keys of a description."""
    processes = gpu["processes"] if isinstance(gpu["processes"], list) else ()
    sm = min(100, sum(process["sm"] or 0 for process in processes))
    default = gpu["watts"] or (70 if gpu["memory"] < 20 << 10 else 300 if gpu["memory"] < 60 << 10 else 700)
    limit = gpu.get("power_limit") or default
    load = {"sm": sm, "memory_busy": sm // 2, "encoder": 0, "decoder": 0}
    return {
        "temperature": 35 + sm * 35 // 100,
        "slowdown": 90,
        "power": limit * (15 + sm * 80 // 100) // 100,
        "power_limit": limit,
        "power_limit_default": default,
        "sm_clock": 1980 if sm else 345,
        "sm_clock_max": 1980,
        "persistence": True,
        **dict.fromkeys(("memory_clock", "memory_clock_max"), 2619),
        **dict.fromkeys(("pcie_generation", "pcie_generation_max"), 4),
        **dict.fromkeys(("pcie_width", "pcie_width_max"), 16),
        **dict.fromkeys(("pcie_sent", "pcie_received"), sm),
        **dict.fromkeys(("throttle", "pcie_replays", "remapped_rows"), 0),
        **({} if gpu["mig"] else load),  # of a GPU in MIG mode the driver does not tell it
        **({"nvlink_errors": 0} if gpu["nvlinks"] else {}),
        **_NOT_TOLD.get(gpu["driver"], {}),
    }


class FakeCondition:
    """Tells the condition of fake GPUs. Their counters begin when the driver is opened, as if it had been loaded."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[float, dict[str, int]]] = {}
        """By UUID, when a GPU was last read, and its counters then."""

    def read(self, gpu: Fields, groups: Iterable[str], now_s: float) -> Record:
        """Return the condition of a GPU that is not lost; see `Driver.condition`."""
        state, groups = {**_usual(gpu), **gpu}, frozenset(groups)
        if gpu["instances"]:  # a driver then tells neither errors of the memory nor rows
            groups -= {"memory-errors"}
        condition: Record = {
            field: state[key] * _PER_UNIT[key] if key in _PER_UNIT else state[key]
            for group, fields in _GROUPS.items()
            for field in fields
            if group in groups and state.get(key := _KEYS[field]) is not None
        }
        counters = self._counters(gpu["uuid"], state, now_s)
        condition |= {field: counters[field] for group, field, _ in _RATES.values() if group in groups}
        if "memory-errors" in groups:
            condition |= {"repair_pending": gpu["remap"] == "pending", "repair_failed": gpu["remap"] == "failed"}
            condition["ecc_uncorrected"] = gpu["ecc"]
            if gpu["ecc"] is None:
                del condition["ecc_corrected"]
        return {"uuid": gpu["uuid"], **condition}

    def _counters(self, uuid: str, state: Fields, now_s: float) -> dict[str, int]:
        """Return what a GPU has counted, as if all had been as it is now since its last reading."""
        since_s, counters = self._counted.get(uuid, (now_s, {}))
        for key, (_, field, unit) in _RATES.items():
            grown = int((state[key] or 0) * unit * max(0.0, now_s - since_s))
            counters[field] = counters.get(field, 0) + grown & _WRAPS
        self._counted[uuid] = now_s, counters
        return counters
