"""The condition of GPUs has its series, and what a driver does not tell has none."""

from dataclasses import fields, replace
from typing import Any

from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.node.rules.node import Node
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from tests.mig_gpus import MIDDLE, SMALL, in_mig_mode
from tests.node.rules.test_node_gauges import parted
from tests.nodes import node, uuid
from tests.reports import AgentMetrics, idle_metrics, lines

TOLD: dict[str, tuple[Any, str]] = {
    "temperature_c": (64, "temperature_celsius{} 64.0"),
    "memory_temperature_c": (71, "memory_temperature_celsius{} 71.0"),
    "slowdown_c": (87, "slowdown_temperature_celsius{} 87.0"),
    "fan_percent": (110, "fan_speed_ratio{} 1.1"),
    "power_mw": (251_500, "power_watts{} 251.5"),
    "power_limit_mw": (400_000, "power_limit_watts{} 400.0"),
    "power_limit_default_mw": (700_000, "power_limit_default_watts{} 700.0"),
    "energy_mj": (7_500, "energy_joules_total{} 7.5"),
    "sm_clock_mhz": (1410, "sm_clock_hertz{} 1.41e+09"),
    "sm_clock_max_mhz": (1980, "sm_clock_max_hertz{} 1.98e+09"),
    "memory_clock_mhz": (1215, "memory_clock_hertz{} 1.215e+09"),
    "memory_clock_max_mhz": (1593, "memory_clock_max_hertz{} 1.593e+09"),
    "persistence": (False, "persistence_mode{} 0.0"),
    "sm_percent": (50, "utilization_ratio{} 0.5"),
    "memory_percent": (25, "memory_busy_ratio{} 0.25"),
    "encoder_percent": (0, "encoder_utilization_ratio{} 0.0"),
    "decoder_percent": (100, "decoder_utilization_ratio{} 1.0"),
    "pcie_generation": (1, "pcie_generation{} 1.0"),
    "pcie_generation_max": (5, "pcie_generation_max{} 5.0"),
    "pcie_width": (8, "pcie_lanes{} 8.0"),
    "pcie_width_max": (16, "pcie_lanes_max{} 16.0"),
    "pcie_replays": (2, "pcie_replays_total{} 2.0"),
    "pcie_sent_bytes": (1 << 30, "pcie_sent_bytes_total{} 1.073741824e+09"),
    "pcie_received_bytes": (3, "pcie_received_bytes_total{} 3.0"),
    "nvlink_errors": (4, "nvlink_errors_total{} 4.0"),
    "ecc_corrected": (5, "ecc_corrected_errors_total{} 5.0"),
    "ecc_uncorrected": (6, "ecc_uncorrected_errors_total{} 6.0"),
    "retired_pages": (7, "retired_pages{} 7.0"),
    "remapped_rows": (8, "remapped_rows{} 8.0"),
    "repair_pending": (True, "memory_repair_pending{} 1.0"),
    "repair_failed": (False, "memory_repair_failed{} 0.0"),
}


def conditions(*told: GpuTelemetry, seen: Node = node(16)) -> list[str]:  # noqa: B008 - frozen
    """Return what the conditions of GPUs add to the lines of a node, without the label of its first GPU."""
    before = {*lines(idle_metrics(seen), "gpu_")}
    telemetry = {each.uuid: each for each in told}
    added = lines(AgentMetrics(NodeMetrics(seen), telemetry=telemetry), "gpu_")
    return [line.replace(f'gpu="{uuid(0)}"', "").removeprefix("gpu_") for line in added if line not in before]


def test_each_figure_of_a_gpus_condition_has_its_series_in_base_units() -> None:
    assert TOLD.keys() | {"uuid", "throttle"} == {field.name for field in fields(GpuTelemetry)}
    telemetry = replace(GpuTelemetry(uuid(0)), **{name: value for name, (value, _) in TOLD.items()})
    assert conditions(telemetry) == [line for _, line in TOLD.values()]


def test_every_reason_to_slow_a_gpu_has_a_series_once_reasons_are_told() -> None:
    bits = Throttle.HEAT | Throttle.POWER_CAP
    assert conditions(GpuTelemetry(uuid(0), throttle=bits)) == [
        f'throttled{{,reason="{reason}"}} {held}'
        for reason, held in (
            *(("power_cap", 1.0), ("hardware", 0.0), ("sync", 0.0)),
            *(("heat", 1.0), ("hardware_heat", 0.0), ("power_brake", 0.0)),
        )
    ]


def test_what_a_driver_does_not_tell_has_no_series_and_neither_have_gpus_of_others() -> None:
    assert conditions(GpuTelemetry(uuid(0)), GpuTelemetry("GPU-of-another-plugin", temperature_c=40)) == []


def test_the_condition_of_a_gpu_in_mig_mode_has_the_uuid_of_the_gpu_once() -> None:
    gpus = in_mig_mode(0, SMALL, MIDDLE)
    told = GpuTelemetry(gpus[0].uuid, temperature_c=40)
    (line,) = conditions(told, seen=parted(MigMode.SHARE, gpus))
    assert line == f'temperature_celsius{{gpu="{gpus[0].uuid}"}} 40.0'
