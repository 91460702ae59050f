"""Read from NVML the telemetry of GPUs and their links; values that a driver or GPU does not have are left out."""

from __future__ import annotations

from gpu_device_plugin.hardware.driver import MOST_OF_CONDITION
from gpu_device_plugin.hardware.nvml import nvml_calls
from gpu_device_plugin.hardware.nvml.nvml_calls import LACKS, LOST

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypeAlias

    from gpu_device_plugin.hardware.driver import Record

    Call: TypeAlias = tuple[tuple[str, ...], str, tuple[int, ...], Callable[[Any], tuple[Any, ...]]]
    """Fields of `model.telemetry.GpuTelemetry`, the function that tells them, its arguments after the handle of
    the GPU, and the values of these fields by its result."""
    Place: TypeAlias = tuple[int, int]
    """A field of NVML (NVML_FI_DEV_...), and its scope: the number of a link, or 0."""

# A driver answers NVML_ERROR_INVALID_ARGUMENT for a field that it is too old to know.
_FIELD_LACKS = LACKS | {2}
# model.condition.SLOWING, which needs enum (see hardware/driver.py). The other bits say that the GPU is idle, or
# that somebody set its clocks.
_SLOWING = 0xFC
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t


def _one(value: Any) -> tuple[Any, ...]:
    return (value,)


def _switch(value: Any) -> tuple[Any, ...]:
    return (bool(value),)


def _slowing(bits: Any) -> tuple[Any, ...]:
    return (bits & _SLOWING,)


def _rows(rows: Any) -> tuple[Any, ...]:
    corrected, uncorrected, pending, failed = rows
    return bool(pending), bool(failed), corrected + uncorrected


# By values of TelemetryGroup. Where two calls tell the same field, the first is that of newer drivers.
_CALLS: Mapping[str, tuple[Call, ...]] = {
    "thermal": (
        (("temperature_c",), "nvmlDeviceGetTemperatureV", (0,), _one),
        (("temperature_c",), "nvmlDeviceGetTemperature", (0,), _one),
        (("slowdown_c",), "nvmlDeviceGetTemperatureThreshold", (1,), _one),
        (("fan_percent",), "nvmlDeviceGetFanSpeed", (), _one),
    ),
    "power": (
        (("power_mw",), "nvmlDeviceGetPowerUsage", (), _one),
        (("power_limit_mw",), "nvmlDeviceGetEnforcedPowerLimit", (), _one),
        (("power_limit_default_mw",), "nvmlDeviceGetPowerManagementDefaultLimit", (), _one),
        (("energy_mj",), "nvmlDeviceGetTotalEnergyConsumption", (), _one),
    ),
    "clocks": (
        (("sm_clock_mhz",), "nvmlDeviceGetClockInfo", (_SM,), _one),
        (("sm_clock_max_mhz",), "nvmlDeviceGetMaxClockInfo", (_SM,), _one),
        (("memory_clock_mhz",), "nvmlDeviceGetClockInfo", (_MEMORY,), _one),
        (("memory_clock_max_mhz",), "nvmlDeviceGetMaxClockInfo", (_MEMORY,), _one),
        (("throttle",), "nvmlDeviceGetCurrentClocksEventReasons", (), _slowing),
        (("throttle",), "nvmlDeviceGetCurrentClocksThrottleReasons", (), _slowing),
        (("persistence",), "nvmlDeviceGetPersistenceMode", (), _switch),
    ),
    "load": (
        (("sm_percent", "memory_percent"), "nvmlDeviceGetUtilizationRates", (), lambda used: (used.gpu, used.memory)),
        (("encoder_percent",), "nvmlDeviceGetEncoderUtilization", (), lambda sampled: (sampled[0],)),
        (("decoder_percent",), "nvmlDeviceGetDecoderUtilization", (), lambda sampled: (sampled[0],)),
    ),
    "pcie": (
        (("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration", (), _one),
        (("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration", (), _one),
        (("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth", (), _one),
        (("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth", (), _one),
        (("pcie_replays",), "nvmlDeviceGetPcieReplayCounter", (), _one),
    ),
    "memory-errors": (
        (("ecc_corrected",), "nvmlDeviceGetTotalEccErrors", (_CORRECTED, _VOLATILE), _one),
        (("ecc_uncorrected",), "nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE), _one),
        (("repair_pending", "repair_failed", "remapped_rows"), "nvmlDeviceGetRemappedRows", (), _rows),
        (("repair_pending",), "nvmlDeviceGetRetiredPagesPendingStatus", (), _switch),  # before Ampere
    ),
}
_SLOWDOWN = 194
_RETIRED = 29, 30  # for single and for double bit errors
# Bytes by field: nvmlDeviceGetPcieThroughput would measure for 20 ms, and again for the other direction.
_NAMES: Mapping[int, str] = {82: "memory_temperature_c", 197: "pcie_sent_bytes", 198: "pcie_received_bytes"}
_FIELDS: Mapping[str, tuple[int, ...]] = {"thermal": (82, _SLOWDOWN), "pcie": (197, 198), "memory-errors": _RETIRED}
_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
# Each family counts the same: replays, recoveries and CRC errors of each link up to Hopper; packets with errors and
# recoveries of each from Blackwell on, which counts no others (nvml.h); and the totals of GPUs before both.
_LINK_ERRORS: tuple[tuple[Place, ...], ...] = (
    tuple((field, link) for link in range(_MOST_LINKS) for field in (161, 162, 163)),
    tuple((field, link) for link in range(_MOST_LINKS) for field in (208, 215)),
    tuple((field, 0) for field in (38, 45, 52, 59)),
)
_EVERY_LINK_ERROR = tuple(place for family in _LINK_ERRORS for place in family)
_WHOLE = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""The parts of nvmlValue_t that are whole numbers, by nvmlValueType_t."""


class TelemetryReader:
    """Reads the condition of GPUs, and does not ask again for what a GPU does not support."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._lacking: set[tuple[str, object]] = set()
        """Functions with their arguments, and fields, that a GPU, by its UUID, does not support."""
        self._links: dict[str, tuple[Place, ...]] = {}
        """The errors of NVLinks that a GPU, by its UUID, counts; known once it was asked for all of them."""

    def read(self, uuid: str, handle: Any, groups: Iterable[str]) -> Record | None:
        """Return the condition of a GPU, see `Driver.condition`; None if the GPU is lost."""
        wanted = frozenset(groups)
        told: Record = {}
        try:
            for group, calls in _CALLS.items():
                for names, function, arguments, values in calls if group in wanted else ():
                    if names[0] not in told:
                        answer = self._ask(uuid, handle, function, *arguments)
                        told |= {} if answer is None else zip(names, values(answer), strict=True)
            told |= self._told_by_fields(uuid, handle, wanted, told)
        except self._nvml.NVMLError:
            return None
        # What cannot be is no reason for the agent to replace this process, which it does for such a message.
        possible = {name: value for name, value in told.items() if 0 <= value <= MOST_OF_CONDITION.get(name, 1)}
        return {"uuid": uuid, **possible}

    def _ask(self, uuid: str, handle: Any, function: str, *arguments: Any) -> Any:
        """Call a function about a GPU; None if it fails. Raises NVMLError if the GPU is lost."""
        key = uuid, (function, arguments)
        call = getattr(self._nvml, function, None)
        if call is None or key in self._lacking:
            return None
        try:
            return call(handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value in LOST:
                raise
            if error.value in LACKS:
                self._lacking.add(key)
            return None

    def _told_by_fields(self, uuid: str, handle: Any, groups: frozenset[str], told: Record) -> Record:
        """Return the values that NVML keeps in its fields, besides those that are `told` already."""
        links = self._links.get(uuid, _EVERY_LINK_ERROR) if "nvlink" in groups else ()
        fields = [field for group, fields in _FIELDS.items() if group in groups for field in fields]
        asked = (*((field, 0) for field in fields if (uuid, field) not in self._lacking), *links)
        values = self._fields(uuid, handle, asked) if asked else {}
        if values is None:
            return {}
        if links and uuid not in self._links:
            family = next((family for family in _LINK_ERRORS if not values.keys().isdisjoint(family)), ())
            self._links[uuid] = links = tuple(place for place in family if place in values)
        record: Record = {name: values[field, 0] for field, name in _NAMES.items() if (field, 0) in values}
        if retired := [values[field, 0] for field in _RETIRED if (field, 0) in values]:
            record["retired_pages"] = sum(retired)
        if errors := [values[place] for place in links if place in values]:
            record["nvlink_errors"] = sum(errors)
        if (_SLOWDOWN, 0) in values and "slowdown_c" not in told and "temperature_c" in told:
            # From Ada on the driver tells no threshold, but how far the GPU is from its limit, and how far from the
            # limit the threshold is: some degrees above, as a negative number.
            margin = self._ask(uuid, handle, "nvmlDeviceGetMarginTemperature")
            if margin is not None:
                record["slowdown_c"] = told["temperature_c"] + margin - values[_SLOWDOWN, 0]
        return record

    def _fields(self, uuid: str, handle: Any, places: tuple[Place, ...]) -> dict[Place, int] | None:
        """Return the values of fields that the driver tells, in one call; None if that fails."""
        answer = self._ask(uuid, handle, "nvmlDeviceGetFieldValues", places)
        if answer is None:
            return None
        values = {}
        for (field, scope), value in zip(places, answer, strict=True):
            if value.nvmlReturn == 0 and value.valueType in _WHOLE:
                values[field, scope] = getattr(value.value, _WHOLE[value.valueType])
            elif value.nvmlReturn in _FIELD_LACKS and not scope:
                self._lacking.add((uuid, field))
        return values


# nvmlGpuTopologyLevel_t -> model.gpus.Closeness
_CLOSENESS = {0: 6, 10: 5, 20: 4, 30: 3, 40: 2, 50: 1}
_NVLINK = 7
# Written as a number: pynvml's NVML_P2P_CAPS_INDEX_READ, its neighbour, is a tuple by mistake (13.615.71).
_P2P_NVLINK = 2
_P2P_OK = 0


def links(nvml: Any, gpus: list[Record], handles: dict[str, Any]) -> Iterator[Record]:
    """Yield the connection of each pair of GPUs, whose `handles` are by UUID."""
    ends = {gpu["uuid"]: _nvlink_ends(nvml, handles[gpu["uuid"]]) for gpu in gpus}
    for position, one in enumerate(gpus):
        for other in gpus[position + 1 :]:
            a, b = sorted((one, other), key=lambda gpu: gpu["uuid"])
            pair = handles[a["uuid"]], handles[b["uuid"]]
            direct = ends[a["uuid"]].count(b["pci_bus_id"] or "")
            # They may reach each other over NVLink, but not directly: all their links end in NVSwitches.
            switched = min(len(ends[a["uuid"]]), len(ends[b["uuid"]]))
            reached = direct or _safely(nvml, "nvmlDeviceGetP2PStatus", *pair, _P2P_NVLINK) == _P2P_OK
            nvlinks = direct or (switched if reached else 0)
            level = -1 if nvlinks else _safely(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair)
            closeness = _NVLINK if nvlinks else _CLOSENESS.get(level, 0)
            yield {"a": a["uuid"], "b": b["uuid"], "closeness": closeness, "nvlinks": nvlinks}


def _nvlink_ends(nvml: Any, handle: Any) -> list[str]:
    """Return the PCI address at the other end of each active NVLink, as NVML writes it."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = _safely(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break  # no such link, or no NVLink at all
        if active and (pci := _safely(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)):
            ends.append(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0")
    return ends


def _safely(nvml: Any, function: str, *arguments: Any) -> Any:
    """Like `nvml_calls.optional`; None also for a lost GPU, as its own reading reports it."""
    try:
        return nvml_calls.optional(nvml, function, *arguments)
    except nvml.NVMLError:
        return None
