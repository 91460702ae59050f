"""The doctor's checks of the condition of GPUs: whether they are slowed or damaged, now or in the last hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.features.history.contract import LAST_HOUR, GpuHistory, NodeHistory
from gpu_device_plugin.model.telemetry import BY_HEAT, GpuTelemetry, Throttle
from gpu_device_plugin.report.rules.finding import Finding, Severity, Unknown, note, ok, warning
from gpu_device_plugin.report.rules.printing import MOST_NAMED

LONG_S = 600.0
"""A GPU that is slowed for most of this time is not slowed by chance."""
_MOSTLY = 0.8
"""What counts as most of it: the driver's reasons come and go with the clocks."""
_MANY_LINK_ERRORS = 6000
"""A minute of 100 a second, the rate from which on NVIDIA's DCGM takes CRC errors of an NVLink for a fault."""
_LOADED_PERCENT = 20
"""With this load a GPU has no reason to save power on its link."""

_COOL = "check its cooling: fans, dust, the air or water that reaches it"
_SUPPLY = "check the machine's power supplies (its management controller reports their state)"
_PROTECTION = "see whether its power cables fit; for NVIDIA GPUs nvidia-smi -q -d PERFORMANCE,POWER says more"
_LINK_ERRORS = "{errors:error on a link to another GPU|errors on links to other GPUs}"
_LINK = (
    "for NVIDIA GPUs nvidia-smi nvlink -e names the link; if this goes on, have its GPU and bridge or baseboard checked"
)
# The first that applies is told. Hardware slowdown alone may be a change of clocks (nvml.h), unless it lasts.
_SLOWED = (
    (BY_HEAT, "slowed-by-heat", "by heat", _COOL),
    (Throttle.POWER_BRAKE, "slowed-by-power-brake", "by the machine's power supply", _SUPPLY),
    (Throttle.HARDWARE, "slowed-by-hardware", "by its own protection", _PROTECTION),
)
# By field of GpuHistory: code, words, from how many within the hour on it is a warning, and advice.
_GROWING = (
    ("ecc_errors", "ecc-growing", "{errors:memory error}", 1, "if this goes on, have the GPU replaced"),
    ("nvlink_errors", "nvlink-growing", _LINK_ERRORS, _MANY_LINK_ERRORS, _LINK),
)
_RESET = "drain the node and reset the GPU (docs/operations.md, A GPU is unhealthy)"


def condition_here(names: Mapping[str, str], telemetry: Sequence[GpuTelemetry] | Unknown) -> Iterator[Finding]:
    """Check the condition of a node's GPUs, as its driver tells it now; `names` are theirs for people, by UUID."""
    if isinstance(telemetry, Unknown):
        yield telemetry
        return
    named = [(names.get(gpu.uuid, gpu.uuid), gpu) for gpu in telemetry]
    findings = [finding for each, gpu in named for finding in (*_slowed_now(each, gpu), *_faults(each, gpu))]
    yield from findings
    if without := tuple(each for each, gpu in named if gpu.persistence is False):
        text = "persistence mode is off on {gpus:GPU}: while neither agent nor pod uses them, the driver unloads"
        yield note("persistence-off", text, "run nvidia-persistenced on the node (or nvidia-smi -pm 1)", gpus=without)
    if named and not findings:
        yield ok("condition", "{gpus:GPU}, none of them slowed or damaged", gpus=len(named))


def condition_seen(histories: Mapping[str, NodeHistory | str] | Unknown) -> Iterator[Finding]:
    """Check the condition of the GPUs of a cluster, as the agents saw it in the last hour."""
    if isinstance(histories, Unknown):
        yield histories
        return
    read = {node: history for node, history in histories.items() if not isinstance(history, str)}
    findings = [
        finding
        for node, history in read.items()
        for gpu in history.gpus
        for finding in _seen(f"GPU {gpu.gpu} of {node}", history.step_s, gpu)
    ]
    findings.sort(key=lambda finding: finding.severity is not Severity.WARNING)
    yield from findings[:MOST_NAMED]
    if (more := len(findings) - MOST_NAMED) > 0:
        text = "{findings:more finding|more findings} about the condition of GPUs"
        yield note("more-conditions", text, "begin with the first", findings=more)
    if silent := {node: why for node, why in histories.items() if isinstance(why, str)}:
        text = "the history of the GPUs of {nodes:node} cannot be read: {why}"
        yield Unknown("no-history", text, nodes=tuple(silent), why=next(iter(silent.values())))
    if read and not findings:
        yield ok("condition", "the GPUs of {nodes:node}, none of them slowed or damaged", nodes=len(read))


def _seen(gpu_name: str, step_s: float, gpu: GpuHistory) -> Iterator[Finding]:
    steps = max(1, round(LONG_S / max(step_s, 1.0)))
    bits = [value or 0 for value in gpu.throttle[-steps:]]
    for reasons, code, why, advice in _SLOWED:
        if sum(bool(value & reasons) for value in bits) >= _MOSTLY * steps:
            text = f"{{gpu}} was slowed {why} for most of the last {{minutes}} minutes"
            yield warning(code, text, advice, gpu=gpu_name, minutes=round(LONG_S / 60))
            break
    for field, code, words, many, advice in _GROWING:
        counts = [value for value in getattr(gpu, field) if value is not None]
        if counts and (grown := counts[-1] - counts[0]) > 0:
            severity, text = warning if grown >= many else note, f"{{gpu}} had {words} within {LAST_HOUR}"
            yield severity(code, text, advice, gpu=gpu_name, errors=grown)
    if (now := gpu.condition) is not None:
        # Old errors of links are harmless, unless they are of an agent that does not tell whether they grow.
        yield from _faults(gpu_name, replace(now, nvlink_errors=None) if gpu.nvlink_errors else now)


def _slowed_now(gpu_name: str, gpu: GpuTelemetry) -> Iterator[Finding]:
    temperature, limit = gpu.temperature_c, gpu.slowdown_c
    for reasons, code, why, advice in _SLOWED:
        if (gpu.throttle or 0) & reasons:
            severity = note if reasons is Throttle.HARDWARE else warning
            at = "" if temperature is None else " ({temperature} °C)"
            yield severity(code, f"{{gpu}} is slowed {why}{at}", advice, gpu=gpu_name, temperature=temperature or 0)
            return
    if temperature is not None and limit is not None and temperature >= limit:
        text = "{gpu} is at {temperature} °C, and its hardware slows it at {limit} °C"
        yield warning("too-hot", text, _COOL, gpu=gpu_name, temperature=temperature, limit=limit)


def _faults(gpu_name: str, gpu: GpuTelemetry) -> Iterator[Finding]:
    """Yield what is wrong with a GPU for longer than a moment."""
    if _less(gpu.pcie_width, gpu.pcie_width_max):
        text = "{gpu} has {lanes} of the {most} PCIe lanes that it and its slot support"
        advice = "reseat it and its riser, and check the slot's firmware settings; copies to it are slower"
        yield warning(
            "pcie-narrow", text, advice, gpu=gpu_name, lanes=gpu.pcie_width or 0, most=gpu.pcie_width_max or 0
        )
    if (gpu.sm_percent or 0) >= _LOADED_PERCENT and _less(gpu.pcie_generation, gpu.pcie_generation_max):
        text = "{gpu} is busy, and its PCIe link is of generation {now}, where {most} is possible"
        advice = "check the slot's firmware settings, and lspci -vv for link errors"
        now, most = gpu.pcie_generation or 0, gpu.pcie_generation_max or 0
        yield warning("pcie-slow", text, advice, gpu=gpu_name, now=now, most=most)
    if gpu.ecc_uncorrected:
        text = "{gpu} has had {errors:uncorrected memory error} since the driver was loaded"
        advice = f"{_RESET}; if there are more afterwards, have it replaced"
        yield warning("ecc-uncorrected", text, advice, gpu=gpu_name, errors=gpu.ecc_uncorrected)
    if gpu.repair_failed:
        text = "{gpu} has no spare rows for damaged memory"
        yield warning("memory-not-repaired", text, "have it replaced", gpu=gpu_name)
    elif gpu.repair_pending:
        yield warning("memory-repair-pending", "{gpu} needs a reset to replace damaged memory", _RESET, gpu=gpu_name)
    if gpu.nvlink_errors:
        text = f"{{gpu}} has counted {_LINK_ERRORS} since the driver was loaded"
        advice = (
            "a few are harmless; if they grow (gpushare_gpu_nvlink_errors_total), see nvidia-smi nvlink -e (NVIDIA)"
        )
        yield note("nvlink-errors", text, advice, gpu=gpu_name, errors=gpu.nvlink_errors)


def _less(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most
