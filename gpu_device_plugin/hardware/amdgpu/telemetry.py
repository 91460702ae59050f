"""Read the condition of the GPUs of the kernel's drivers; what a driver or GPU does not tell is left out."""

from __future__ import annotations

import struct
from collections import defaultdict

from gpu_device_plugin.hardware.amdgpu import health
from gpu_device_plugin.hardware.amdgpu.kernel_files import number
from gpu_device_plugin.hardware.amdgpu.pci_devices import AMDGPU
from gpu_device_plugin.hardware.driver import MOST_OF_CONDITION

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from gpu_device_plugin.hardware.amdgpu.discovery import Board, ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

    File: TypeAlias = tuple[str, str, float]
    """A field of `model.telemetry.GpuTelemetry`, the file that tells it, and how many of the file's units are one."""

# By values of TelemetryGroup. Of several files for one field the first that is there counts. Braces name a sensor of
# hwmon by its kind and label (amdgpu: junction, edge, mem; xe: pkg, vram, card), or the folder of all of them.
_FILES: Mapping[str, tuple[File, ...]] = {
    "thermal": (
        *(
            (field, f"{{{sensor}}}_{file}", 1000)
            for sensor in ("temp junction", "temp edge", "temp pkg", "temp ")
            for field, file in (("temperature_c", "input"), ("slowdown_c", "crit"))
        ),
        ("memory_temperature_c", "{temp mem}_input", 1000),
        ("memory_temperature_c", "{temp vram}_input", 1000),
        ("fan_percent", "{fans}/pwm1", 2.55),
    ),
    "power": (
        ("power_mw", "{hwmon}/power1_average", 1000),
        ("power_mw", "{hwmon}/power1_input", 1000),
        ("power_limit_mw", "{hwmon}/power1_cap", 1000),
        ("power_limit_default_mw", "{hwmon}/power1_cap_default", 1000),
        ("energy_mj", "{energy card}_input", 1000),
        ("energy_mj", "{energy pkg}_input", 1000),
    ),
    "clocks": (
        ("sm_clock_mhz", "{hwmon}/freq1_input", 1_000_000),
        ("sm_clock_mhz", "tile0/gt0/freq0/act_freq", 1),
        ("sm_clock_max_mhz", "tile0/gt0/freq0/rp0_freq", 1),
        ("memory_clock_mhz", "{hwmon}/freq2_input", 1_000_000),
    ),
    "load": (("sm_percent", "gpu_busy_percent", 1), ("memory_percent", "mem_busy_percent", 1)),
    "pcie": (("pcie_replays", "pcie_replay_count", 1),),
}
# Of PCIe, by GT/s.
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
_OF_CHIP = "current_link", "max_link"
# Bits of model.telemetry.Throttle, which needs enum (see hardware/driver.py).
_POWER, _CURRENT, _HEAT, _HOT_SIGNAL = 0x04, 0x08, 0x20, 0x40
# indep_throttle_status of gpu_metrics: the bits of power, current, temperatures, and of the signals VRHOT and PROCHOT.
_THROTTLERS = ((0xFF, _POWER), (0xFF << 16, _CURRENT), (0xFFF << 32, _HEAT), (0xF << 44, _HOT_SIGNAL))
_STATUS_AT, _NOT_TOLD = 112, (1 << 64) - 1
# From 1.6 on, in their order: how long PROCHOT, power, and the heat of socket, regulators and memory have throttled.
_RESIDENCIES = _HOT_SIGNAL, _POWER, _HEAT, _HEAT, _HEAT
_RESIDENCIES_AT = {b"\1\6": 36, b"\1\7": 44, b"\1\x08": 44}
"""By version: five numbers of 32 bits."""
_ONCE = "power_mw", "power_limit_mw", "power_limit_default_mw", "energy_mj"
_LOAD = "sm_percent", "memory_percent"


class TelemetryReader:
    """Reads the condition of GPUs, see `Driver.condition`.

    A partition has the temperatures, clocks, links and errors of its board. The power of a board is told by the first
    of its partitions only, so that a sum is right, and its load by none. A GPU that sleeps is not woken.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._throttled: dict[str, Sequence[int]] = {}
        """How long each cause has throttled a board, by PCI address, when it was last read."""

    def read(self, gpus: Sequence[ListedGpu], groups: Iterable[str]) -> list[Record]:
        """Return the condition of each GPU that is there."""
        wanted = frozenset(groups)
        boards = {gpu.board.pci: gpu.board for gpu in gpus}
        values = {
            pci: self._board(board, wanted) for pci, board in boards.items() if health.is_bound(self._files, board)
        }
        records, begun = [], set()
        for gpu in gpus:
            pci = gpu.board.pci
            if pci in values:
                hidden = () if not gpu.partition else (*_LOAD, *_ONCE) if pci in begun else _LOAD
                records.append({"uuid": gpu.uuid, **{n: value for n, value in values[pci].items() if n not in hidden}})
                begun.add(pci)
        return records

    def _board(self, board: Board, groups: frozenset[str]) -> Record:
        if health.suspended(self._files, board):
            return {}
        values: Record = {}
        sensors = self._sensors(board)
        for group in _FILES.keys() & groups:
            for field, path, units in _FILES[group]:
                value = self._files.number(f"{board.folder}/{path.format_map(sensors)}")
                if values.get(field) is None and value is not None:
                    # In one recorded tree the energy of a card stands still at 0.
                    values[field] = None if field == "energy_mj" and not value else round(value / units)
        if "clocks" in groups:
            for name, file in (("sm_clock_max_mhz", "pp_dpm_sclk"), ("memory_clock_max_mhz", "pp_dpm_mclk")):
                values[name] = highest(self._files.text(f"{board.folder}/{file}")) or values.get(name)
            values["throttle"] = self._throttle(board)
        if "pcie" in groups:
            values |= self._link(board)
        if groups & {"nvlink", "memory-errors"}:
            values |= self._errors(board, groups)
        known = {name: value for name, value in values.items() if value is not None}
        return {name: value for name, value in known.items() if 0 <= value <= MOST_OF_CONDITION.get(name, 1)}

    def _sensors(self, board: Board) -> Mapping[str, str]:
        """Return the paths for the braces of `_FILES` in a board's folder; empty where it has no such sensor."""
        folder = f"hwmon/{next(iter(self._files.names(f'{board.folder}/hwmon')), '')}"
        sensors = defaultdict(str, hwmon=folder, fans=folder if board.driver == AMDGPU else "")
        for name in self._files.names(f"{board.folder}/{folder}"):
            sensor = name.removesuffix("_input")
            if sensor != name and (kind := sensor.rstrip("0123456789")) in {"temp", "energy"}:
                label = self._files.text(f"{board.folder}/{folder}/{sensor}_label")
                sensors[f"{kind} {label}"] = f"{folder}/{sensor}"
        return sensors

    def _link(self, board: Board) -> Record:
        read, folder = self._files.text, board.folder
        # These are the levels of the card in its slot. The PCI core tells the link of the chip to a switch on the card.
        levels = [line.strip() for line in read(f"{folder}/pp_dpm_pcie").splitlines()]
        chip, most = (link(f"{read(f'{folder}/{of}_speed')}, x{read(f'{folder}/{of}_width')}") for of in _OF_CHIP)
        now = next((link(line) for line in levels if line.endswith("*")), chip)
        links = [link(line) for line in levels] or [most]
        return {
            "pcie_generation": now[0] or None,
            "pcie_width": now[1] or None,
            "pcie_generation_max": max(generation for generation, _ in links) or None,
            "pcie_width_max": max(lanes for _, lanes in links) or None,
        }

    def _errors(self, board: Board, groups: frozenset[str]) -> Record:
        errors = health.errors(self._files, board)
        links = {"nvlink_errors": errors.pop("nvlink_errors")}
        record: Record = links if "nvlink" in groups else {}
        if "memory-errors" in groups:
            record |= errors
            if pages := health.bad_pages(self._files, board):
                failed = pages["F"] > 0
                record |= {"retired_pages": pages["R"], "repair_pending": pages["P"] > 0, "repair_failed": failed}
        return record

    def _throttle(self, board: Board) -> int | None:
        try:
            metrics = self._files.content(f"{board.folder}/gpu_metrics")
        except OSError:
            return None
        if (now := residencies(metrics)) is None:
            return throttle(metrics)
        before = self._throttled.get(board.pci)
        self._throttled[board.pci] = now
        if before is None:
            return None
        return sum({bit for bit, was, is_ in zip(_RESIDENCIES, before, now, strict=True) if was != is_})


def highest(levels: str) -> int | None:
    """Return the highest clock in lines such as ``0: 500Mhz`` and ``1: 2660Mhz *``; None: it is not told."""
    clocks = (word[:-3] for word in levels.split() if word.endswith("Mhz"))
    return max((number(clock) or 0 for clock in clocks), default=0) or None


def link(level: str) -> tuple[int, int]:
    """Return generation and width of a link: ``1: 16.0GT/s, x16 619Mhz *``, ``2.5 GT/s PCIe, x1``; 0: not told."""
    speed, _, rest = level.rpartition(": ")[2].partition(",")
    lanes = number(rest.strip().partition(" ")[0].removeprefix("x"))
    return _GENERATIONS.get(speed.partition("GT/s")[0].strip().removesuffix(".0"), 0), lanes or 0


def throttle(metrics: bytes) -> int | None:
    """Return the bits of `Throttle` in version 1.3 of gpu_metrics; None: not told."""
    if metrics[2:4] != b"\1\3" or len(metrics) < _STATUS_AT + 8:
        return None
    status: int = struct.unpack_from("<Q", metrics, _STATUS_AT)[0]
    return None if status == _NOT_TOLD else sum({bit for mask, bit in _THROTTLERS if status & mask})


def residencies(metrics: bytes) -> Sequence[int] | None:
    """Return how long each of `_RESIDENCIES` has throttled, in versions 1.6 to 1.8 of gpu_metrics; None: not told."""
    at = _RESIDENCIES_AT.get(metrics[2:4])
    times = () if at is None or len(metrics) < at + 20 else struct.unpack_from("<5I", metrics, at)
    return times if times and times != (0xFFFFFFFF,) * 5 else None
