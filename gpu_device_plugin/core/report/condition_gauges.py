"""The gauges of the condition of GPUs, each in base units; a value that the driver does not tell has no series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.condition import Throttle
from gpu_device_plugin.core.report.exposition import Gauge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.model.condition import GpuCondition
    from gpu_device_plugin.core.report.exposition import Gauges

_PERCENT, _MILLI, _MEGA = 0.01, 0.001, 1e6
# The field of GpuCondition, the rest of the gauge's name on the page, what it means, and the base units in one of the
# field's.
_GAUGES: tuple[tuple[str, str, str, float], ...] = (
    ("temperature_c", "temperature_celsius", "Temperature of the GPU.", 1),
    ("memory_temperature_c", "memory_temperature_celsius", "Temperature of the GPU's memory.", 1),
    ("slowdown_c", "slowdown_temperature_celsius", "Temperature at which the hardware slows the GPU.", 1),
    ("fan_percent", "fan_speed_ratio", "Intended speed of the fan, of its maximum.", _PERCENT),
    ("power_mw", "power_watts", "Power that the board draws.", _MILLI),
    ("power_limit_mw", "power_limit_watts", "Power limit in force.", _MILLI),
    ("power_limit_default_mw", "power_limit_default_watts", "Power limit unless somebody sets another.", _MILLI),
    ("energy_mj", "energy_joules_total", "Energy since the driver was loaded.", _MILLI),
    ("sm_clock_mhz", "sm_clock_hertz", "Clock of the multiprocessors.", _MEGA),
    ("sm_clock_max_mhz", "sm_clock_max_hertz", "Highest clock of the multiprocessors.", _MEGA),
    ("memory_clock_mhz", "memory_clock_hertz", "Clock of the memory.", _MEGA),
    ("memory_clock_max_mhz", "memory_clock_max_hertz", "Highest clock of the memory.", _MEGA),
    ("persistence", "persistence_mode", "1 if the driver stays loaded without clients.", 1),
    ("sm_percent", "utilization_ratio", "Part of the time in which a kernel ran, 0 to 1.", _PERCENT),
    ("memory_percent", "memory_busy_ratio", "Part of the time in which memory was read or written.", _PERCENT),
    ("encoder_percent", "encoder_utilization_ratio", "Use of the video encoder, 0 to 1.", _PERCENT),
    ("decoder_percent", "decoder_utilization_ratio", "Use of the video decoder, 0 to 1.", _PERCENT),
    ("pcie_generation", "pcie_generation", "Generation of the PCIe link; an idle GPU may lower it.", 1),
    ("pcie_generation_max", "pcie_generation_max", "Highest generation that GPU and slot can.", 1),
    ("pcie_width", "pcie_lanes", "Lanes of the PCIe link.", 1),
    ("pcie_width_max", "pcie_lanes_max", "Most lanes that GPU and slot can.", 1),
    ("pcie_replays", "pcie_replays_total", "Packets sent again over PCIe.", 1),
    ("pcie_sent_bytes", "pcie_sent_bytes_total", "Bytes from the GPU to the host.", 1),
    ("pcie_received_bytes", "pcie_received_bytes_total", "Bytes from the host to the GPU.", 1),
    ("nvlink_errors", "nvlink_errors_total", "Replays, recoveries and CRC errors of all NVLinks.", 1),
    ("ecc_corrected", "ecc_corrected_errors_total", "Corrected memory errors since the driver was loaded.", 1),
    ("ecc_uncorrected", "ecc_uncorrected_errors_total", "Uncorrected memory errors since the driver was loaded.", 1),
    ("retired_pages", "retired_pages", "Pages of memory out of use for good.", 1),
    ("remapped_rows", "remapped_rows", "Rows of memory replaced for good.", 1),
    ("repair_pending", "memory_repair_pending", "1 if pages or rows wait for a reset to be replaced.", 1),
    ("repair_failed", "memory_repair_failed", "1 if a row could not be replaced.", 1),
)
_THROTTLED = Gauge(
    "gpushare_gpu_throttled", "1 while the clocks of the GPU are lowered for this reason.", ("gpu", "reason")
)


def condition_gauges(conditions: Sequence[GpuCondition]) -> Gauges:
    """Return the gauges with their values."""
    for field, name, meaning, unit in _GAUGES:
        values = [((gpu.uuid,), getattr(gpu, field)) for gpu in conditions]
        whole = f"gpushare_gpu_{name.removesuffix('_total')}"
        gauge = Gauge(whole, meaning, ("gpu",), grows=name.endswith("_total"))
        yield gauge, [(labels, value * unit) for labels, value in values if value is not None]
    known = [(gpu.uuid, gpu.throttle) for gpu in conditions if gpu.throttle is not None]
    reasons = Throttle.__members__.items()
    yield _THROTTLED, [((uuid, name.lower()), bool(bits & bit)) for uuid, bits in known for name, bit in reasons]
