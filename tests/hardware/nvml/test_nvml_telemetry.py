"""The condition of GPUs as NVML tells it: each call may be missing, and no failing GPU hides another."""

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from gpu_device_plugin.hardware.nvml import nvml_telemetry
from gpu_device_plugin.hardware.nvml.nvml_driver import Nvml
from gpu_device_plugin.model.telemetry import SLOWING, TelemetryGroup
from tests.hardware.nvml.test_nvml_driver import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    NOT_SUPPORTED,
    UNKNOWN,
    A,
    B,
    C,
    Library,
)

EVERY = [*TelemetryGroup]
UINT, ULONG_LONG, INT, DOUBLE = 1, 3, 5, 0  # nvmlValueType_t
PARTS = {UINT: "uiVal", ULONG_LONG: "ullVal", INT: "siVal", DOUBLE: "dVal"}
CLOCKS = {(1, "now"): 1410, (2, "now"): 1215, (1, "most"): 1980, (2, "most"): 1593}


class Telling(Library):
    """A library whose GPUs tell their condition, those of their fields that are in `fields`."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[tuple[int, int], tuple[int, float]] = {
            (82, 0): (UINT, 71),
            (197, 0): (ULONG_LONG, 1 << 40),
            (198, 0): (ULONG_LONG, 1 << 33),
            **{(field, link): (ULONG_LONG, 1) for field in (161, 162, 163) for link in range(4)},
            **{(field, 0): (ULONG_LONG, 7) for field in (38, 45, 52, 59)},
        }
        self.codes: dict[int, int] = {}
        """NVML's code for fields that are not in `fields`, else _INVALID_ARGUMENT."""
        self.asked: list[list[tuple[int, int]]] = []

    def field_values(self, places: Any) -> list[Any]:
        self.asked.append([*places])
        return [self._value(*place) for place in places]

    def _value(self, field: int, scope: int) -> Any:
        if (field, scope) not in self.fields:
            return SimpleNamespace(nvmlReturn=self.codes.get(field, INVALID_ARGUMENT))
        kind, value = self.fields[field, scope]
        return SimpleNamespace(nvmlReturn=0, valueType=kind, value=SimpleNamespace(**{PARTS[kind]: value}))

    OF_GPU: Mapping[str, Callable[..., Any]] = MappingProxyType(
        {
            **Library.OF_GPU,
            "nvmlDeviceGetTemperatureV": lambda *_: 64,
            "nvmlDeviceGetTemperature": lambda *_: 63,
            "nvmlDeviceGetTemperatureThreshold": lambda _, __, kind: {1: 87}[kind],
            "nvmlDeviceGetMarginTemperature": lambda *_: 20,
            "nvmlDeviceGetFanSpeed": lambda *_: 45,
            "nvmlDeviceGetPowerUsage": lambda *_: 251_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda *_: 400_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda *_: 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda *_: 1 << 45,
            "nvmlDeviceGetClockInfo": lambda _, __, kind: CLOCKS[kind, "now"],
            "nvmlDeviceGetMaxClockInfo": lambda _, __, kind: CLOCKS[kind, "most"],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda *_: 0x1 | 0x4 | 0x20 | 0x100,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda *_: 0x2 | 0x40,
            "nvmlDeviceGetPersistenceMode": lambda *_: 1,
            "nvmlDeviceGetUtilizationRates": lambda *_: SimpleNamespace(gpu=93, memory=40),
            "nvmlDeviceGetEncoderUtilization": lambda *_: [3, 167_000],
            "nvmlDeviceGetDecoderUtilization": lambda *_: [4, 167_000],
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda *_: 3,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda *_: 4,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda *_: 8,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda *_: 16,
            "nvmlDeviceGetPcieReplayCounter": lambda *_: 2,
            "nvmlDeviceGetTotalEccErrors": lambda _, __, kind, counter: {(0, 0): 12, (1, 0): 1}[kind, counter],
            "nvmlDeviceGetRemappedRows": lambda *_: (2, 3, 1, 0),
            "nvmlDeviceGetFieldValues": lambda self, _, places: self.field_values(places),
        }
    )


TOLD: dict[str, Any] = {
    "uuid": A,
    "temperature_c": 64,
    "memory_temperature_c": 71,
    "slowdown_c": 87,
    "fan_percent": 45,
    "power_mw": 251_500,
    "power_limit_mw": 400_000,
    "power_limit_default_mw": 700_000,
    "energy_mj": 1 << 45,
    "sm_clock_mhz": 1410,
    "sm_clock_max_mhz": 1980,
    "memory_clock_mhz": 1215,
    "memory_clock_max_mhz": 1593,
    "throttle": 0x24,
    "persistence": True,
    "sm_percent": 93,
    "memory_percent": 40,
    "encoder_percent": 3,
    "decoder_percent": 4,
    "pcie_generation": 3,
    "pcie_generation_max": 4,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "pcie_replays": 2,
    "pcie_sent_bytes": 1 << 40,
    "pcie_received_bytes": 1 << 33,
    "nvlink_errors": 12,
    "ecc_corrected": 12,
    "ecc_uncorrected": 1,
    "remapped_rows": 5,
    "repair_pending": True,
    "repair_failed": False,
}


@pytest.fixture
def library() -> Telling:
    return Telling()


def opened(library: Telling) -> Nvml:
    driver = Nvml(library, "/nowhere")
    driver.inventory()
    library.calls.clear()
    return driver


def first(library: Telling, *groups: str) -> dict[str, Any]:
    """Return the condition of GPU A."""
    return opened(library).condition([*groups] or EVERY)[0]


def test_everything_that_a_gpu_tells_is_taken(library: Telling) -> None:
    conditions = opened(library).condition(EVERY)
    assert conditions == [TOLD, {**TOLD, "uuid": B}, {**TOLD, "uuid": C}]


def test_only_what_belongs_to_the_wanted_groups_is_asked(library: Telling) -> None:
    driver = opened(library)
    assert driver.condition(["power"])[0].keys() == {
        *("uuid", "power_mw", "power_limit_mw", "power_limit_default_mw", "energy_mj")
    }
    assert set(library.calls) == {
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetTotalEnergyConsumption",
    }
    by_group = [driver.condition([group])[0] for group in EVERY]
    assert {name: value for told in by_group for name, value in told.items()} == TOLD
    assert driver.condition([]) == [{"uuid": A}, {"uuid": B}, {"uuid": C}]


def test_the_reasons_that_slow_a_gpu_are_those_of_the_core() -> None:
    assert nvml_telemetry._SLOWING == SLOWING


FUNCTIONS: dict[str, dict[str, Any]] = {
    "nvmlDeviceGetTemperatureV": {"temperature_c": 63},
    "nvmlDeviceGetTemperatureThreshold": {"slowdown_c": None},
    "nvmlDeviceGetFanSpeed": {"fan_percent": None},
    "nvmlDeviceGetPowerUsage": {"power_mw": None},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_mw": None},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"power_limit_default_mw": None},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_mj": None},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz": None, "memory_clock_mhz": None},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz": None, "memory_clock_max_mhz": None},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle": 0x40},
    "nvmlDeviceGetPersistenceMode": {"persistence": None},
    "nvmlDeviceGetUtilizationRates": {"sm_percent": None, "memory_percent": None},
    "nvmlDeviceGetEncoderUtilization": {"encoder_percent": None},
    "nvmlDeviceGetDecoderUtilization": {"decoder_percent": None},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation": None},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max": None},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width": None},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max": None},
    "nvmlDeviceGetPcieReplayCounter": {"pcie_replays": None},
    "nvmlDeviceGetTotalEccErrors": {"ecc_corrected": None, "ecc_uncorrected": None},
    "nvmlDeviceGetRemappedRows": {"repair_failed": None, "remapped_rows": None},
    "nvmlDeviceGetFieldValues": dict.fromkeys(
        ("memory_temperature_c", "pcie_sent_bytes", "pcie_received_bytes", "nvlink_errors")
    ),
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_call_does_not_tell_is_told_by_an_older_one_or_left_out(
    library: Telling, function: str, code: int
) -> None:
    library.fails[function] = code
    expected = {**TOLD, **FUNCTIONS[function]}
    assert first(library) == {name: value for name, value in expected.items() if value is not None}


def test_a_binding_that_lacks_a_function_is_a_driver_that_lacks_it(library: Telling) -> None:
    class Older:
        def __getattr__(self, name: str) -> Any:
            if name == "nvmlDeviceGetTemperatureV":
                raise AttributeError(name)
            return getattr(library, name)

    driver = Nvml(Older(), "/nowhere")
    driver.inventory()
    assert driver.condition(["thermal"])[0]["temperature_c"] == 63


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_what_a_gpu_does_not_support_is_asked_once(library: Telling, code: int) -> None:
    library.fails = dict.fromkeys(FUNCTIONS, code)
    driver = opened(library)
    driver.condition(EVERY)
    assert set(FUNCTIONS) <= set(library.calls)
    library.calls.clear()
    driver.condition(EVERY)
    assert set(FUNCTIONS).isdisjoint(library.calls)


def test_what_fails_for_once_is_asked_again(library: Telling) -> None:
    driver = opened(library)
    library.fails = dict.fromkeys(FUNCTIONS, UNKNOWN)
    driver.condition(EVERY)
    library.fails = {}
    assert driver.condition(EVERY)[0] == TOLD


def test_fields_that_a_gpu_does_not_support_are_asked_once(library: Telling) -> None:
    """Errors of links are looked for in each way that there is; afterwards those that counted are asked."""
    driver = opened(library)
    driver.condition(EVERY)
    driver.condition(EVERY)
    links = [(field, link) for link in range(4) for field in (161, 162, 163)]
    assert library.asked[-1] == [(82, 0), (197, 0), (198, 0), *links]
    assert len(library.asked[0]) == 6 + 18 * 5 + 4


def test_a_gpu_without_any_of_the_fields_is_not_asked_for_fields_again(library: Telling) -> None:
    library.fields, library.codes = {}, dict.fromkeys((82, 194, 197, 198), NOT_SUPPORTED)
    driver = opened(library)
    assert "nvlink_errors" not in driver.condition(EVERY)[0]
    library.asked.clear()
    driver.condition(EVERY)
    assert library.asked == []


def test_a_field_that_fails_for_once_is_asked_again(library: Telling) -> None:
    del library.fields[82, 0]
    library.codes[82] = UNKNOWN
    driver = opened(library)
    assert "memory_temperature_c" not in driver.condition(["thermal"])[0]
    library.fields[82, 0] = UINT, 71
    assert driver.condition(["thermal"])[0]["memory_temperature_c"] == 71


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({(161, 0): 1, (163, 17): 2, (215, 0): 50, (38, 0): 90}, 3),
        ({(208, 3): 4, (215, 3): 1, (52, 0): 90}, 5),  # Blackwell
        ({(38, 0): 1, (45, 0): 2, (52, 0): 3, (59, 0): 4}, 10),
    ],
)
def test_errors_of_links_are_counted_once_in_whichever_way_the_gpu_counts_them(
    library: Telling, fields: dict[tuple[int, int], int], errors: int
) -> None:
    library.fields = {place: (ULONG_LONG, count) for place, count in fields.items()}
    driver = opened(library)
    assert [driver.condition(["nvlink"])[0] for _ in range(2)] == [{"uuid": A, "nvlink_errors": errors}] * 2


def test_retired_pages_are_those_for_either_cause_and_pending_ones_count_before_ampere(library: Telling) -> None:
    library.fields |= {(29, 0): (UINT, 3), (30, 0): (UINT, 1)}
    library.fails["nvmlDeviceGetRemappedRows"] = NOT_SUPPORTED
    told = first(library, "memory-errors")
    assert (told["retired_pages"], told["repair_pending"]) == (4, True)
    assert told.keys().isdisjoint({"repair_failed", "remapped_rows"})


def test_from_ada_on_the_threshold_follows_from_how_far_the_gpu_is_from_its_limit(library: Telling) -> None:
    """64 degrees, 20 below the limit, and the slowdown begins 2 above it."""
    library.fields[194, 0] = INT, -2
    assert first(library)["slowdown_c"] == 87  # told as such
    library.fails["nvmlDeviceGetTemperatureThreshold"] = NOT_SUPPORTED
    assert first(library)["slowdown_c"] == 86
    library.fails["nvmlDeviceGetMarginTemperature"] = NOT_SUPPORTED
    assert "slowdown_c" not in first(library)


@pytest.mark.parametrize(
    ("place", "value"), [((82, 0), (UINT, 4_000_000_000)), ((197, 0), (INT, -1)), ((198, 0), (DOUBLE, float("nan")))]
)
def test_what_cannot_be_is_left_out(library: Telling, place: tuple[int, int], value: tuple[int, float]) -> None:
    library.fields[place] = value
    name = {82: "memory_temperature_c", 197: "pcie_sent_bytes", 198: "pcie_received_bytes"}[place[0]]
    assert first(library) == {key: known for key, known in TOLD.items() if key != name}


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetFieldValues"])
def test_a_lost_gpu_is_left_out_and_the_others_are_read(library: Telling, function: str) -> None:
    driver = opened(library)
    library.fails[function, B] = LOST
    assert [told["uuid"] for told in driver.condition(EVERY)] == [A, C]


def test_a_gpu_of_which_nothing_can_be_read_does_not_hide_the_others(library: Telling) -> None:
    driver = opened(library)
    library.fails = {(function, B): UNKNOWN for function in {*FUNCTIONS, "nvmlDeviceGetRetiredPagesPendingStatus"}}
    library.fails |= {("nvmlDeviceGetTemperature", B): 16, ("nvmlDeviceGetCurrentClocksThrottleReasons", B): 16}
    assert driver.condition(EVERY) == [TOLD, {"uuid": B}, {**TOLD, "uuid": C}]
