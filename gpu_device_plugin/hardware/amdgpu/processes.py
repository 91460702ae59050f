"""Read which processes use how much of the GPUs of the kernel's drivers: from KFD, and from the fdinfo of DRM."""

from __future__ import annotations

import time

from gpu_device_plugin.hardware.amdgpu import health
from gpu_device_plugin.hardware.amdgpu.kernel_files import number
from gpu_device_plugin.hardware.driver import MOST_MIB, MOST_PROCESSES, PERCENT

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from gpu_device_plugin.hardware.amdgpu.discovery import ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

    Counter: TypeAlias = tuple[int, int]
    """How long an engine worked for a client, and of how much time, in the same unit."""

NOT_SEEN = (
    "processes that use GPUs of the driver {driver} {but} are not seen, because this container lacks the capability "
    "SYS_PTRACE"
)
_KFD_PROCESSES = "/sys/class/kfd/kfd/proc"
_MIB = 1 << 20
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": _MIB, "GiB": 1 << 30}
# Kinds of amounts in the order in which they are believed; which there are depends on driver and kernel.
_AMOUNTS = "drm-resident-vram", "drm-memory-vram", "drm-total-vram"
_ENGINES = "drm-engine-gfx", "drm-engine-compute"
_CYCLES = "rcs", "ccs"
_DIGITS = "0123456789"
_SYS_PTRACE = 1 << 19
_INITIAL = "pid:[4026531836]"  # PROC_PID_INIT_INO in include/linux/proc_ns.h
_MOST_OWN = 1 << 30
"""The most bytes that a driver keeps for itself: more is a process that was not seen."""
_SURE_AFTER, _SELDOM = 2, 8
"""A process without a GPU in that many readings is looked at in every eighth only: most never open one."""
_MOST_FILES = 4096
"""The most open files of a process that are looked at, those with the lowest numbers."""
_MOST_S = 1.5
"""How long a reading looks at open files. Any pod of the node can open a million, and a later answer of the driver
process would count as that of a driver that hangs."""


class Processes:
    """Reads the processes on GPUs. A process that KFD and fdinfo tell of counts once, with the larger amount.

    KFD tells the memory that ROCm's processes allocated, by partition and to everybody, but always with the PIDs of the
    initial namespace: in another one they would name others. The fdinfo of DRM tells of all processes, to readers with
    CAP_SYS_PTRACE.
    """

    def __init__(self, files: KernelFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        status = dict(line.split(":\t", 1) for line in files.text("/proc/self/status").splitlines() if ":\t" in line)
        self.sees_all = bool(int(status.get("CapEff", f"{_SYS_PTRACE:x}"), 16) & _SYS_PTRACE)
        """Whether the fdinfo of other processes may be read."""
        self._initial = files.target("/proc/self/ns/pid") == _INITIAL
        self._without: dict[str, int] = {}
        """In how many readings in a row each process, by PID, had no GPU open."""
        self._round = 0
        self._slow: set[int] = set()
        """The PIDs of those with more open files than there was time for; they come last in the next reading."""
        self._counters: dict[tuple[str, str], Counter] = {}
        """The engines of each client, by PCI address and its ID, when they were last read."""
        self._own: dict[str, int] = {}
        """The bytes in use on each board, by PCI address, while no process used it: the driver's own."""

    def troubles(self, gpus: Sequence[ListedGpu]) -> list[str]:
        """Return a sentence on the processes that cannot be seen, for each driver."""
        if self.sees_all:
            return []
        kfd = {gpu.board.driver for gpu in gpus if gpu.gpu_id is not None}
        return [
            NOT_SEEN.format(driver=driver, but="without ROCm" if driver in kfd else "at all")
            for driver in sorted({gpu.board.driver for gpu in gpus})
        ]

    def count(self, gpus: Sequence[ListedGpu]) -> Mapping[str, int]:
        """Return how many processes have memory on each GPU that KFD tells of, by UUID."""
        return {uuid: len(used) for uuid, used in self._of_kfd(gpus).items()}

    def used_mib(self, gpu: ListedGpu) -> int | None:
        """Return the memory in use on a GPU, without the driver's own as far as it is known; None: not told."""
        used = health.used_bytes(self._files, gpu)
        return None if used is None else min(max(0, used - self._own.get(gpu.board.pci, 0)) // _MIB, MOST_MIB)

    def read(self, gpus: Sequence[ListedGpu], *, utilisation: bool) -> list[Record]:
        """Return the use of each GPU, see `Driver.use`."""
        of_kfd = self._of_kfd(gpus) if self._initial else {}
        of_drm, percents = self._of_drm(gpus) if self.sees_all else ({}, {})
        records = []
        for gpu in gpus:
            known, drawn = of_kfd.get(gpu.uuid), of_drm.get(gpu.uuid, {})
            if self.sees_all and self._initial and not known and not drawn:
                self._learn_own(gpu)
            told = None
            if known is not None or self.sees_all:
                told = []
                for pid in _largest(known or {}, drawn):
                    percent = percents.get((gpu.uuid, pid))
                    if known and pid in known:  # its queues bypass what fdinfo counts
                        occupied = self._occupied(gpu, pid) if utilisation else None
                        percent = None if occupied is None else max(occupied, percent or 0)
                    amount = max((known or {}).get(pid, 0), drawn.get(pid, 0)) // _MIB
                    percent = percent if utilisation else None
                    told.append({"pid": pid, "used_mib": min(amount, MOST_MIB), "sm_percent": percent})
            records.append({"uuid": gpu.uuid, "processes": told, "used_mib": self.used_mib(gpu)})
        return records

    def _learn_own(self, gpu: ListedGpu) -> None:
        """Take what is in use on a GPU without processes for the driver's own."""
        used, pci = health.used_bytes(self._files, gpu), gpu.board.pci
        if used is not None and used <= _MOST_OWN:
            self._own[pci] = min(used, self._own.get(pci, used))

    def _of_kfd(self, gpus: Iterable[ListedGpu]) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes of each process on each GPU that KFD knows, by the GPU's UUID and by PID."""
        if "proc" not in self._files.names("/sys/class/kfd/kfd"):
            return {}
        uuids = {f"vram_{gpu.gpu_id}": gpu.uuid for gpu in gpus if gpu.gpu_id is not None}
        found: dict[str, dict[int, int]] = {uuid: {} for uuid in uuids.values()}
        for pid in filter(str.isdecimal, self._files.names(_KFD_PROCESSES)):
            # A process has a file for each GPU that it may open: most have one, of up to 64.
            for name in self._files.names(f"{_KFD_PROCESSES}/{pid}"):
                uuid = uuids.get(name)
                if uuid and (used := self._files.number(f"{_KFD_PROCESSES}/{pid}/{name}") or 0) > 0:
                    found[uuid][int(pid)] = used
        return found

    def _occupied(self, gpu: ListedGpu, pid: int) -> int | None:
        """Return how much of a GPU's compute units a process occupies now, in percent; None: not told."""
        of_gpu = f"{_KFD_PROCESSES}/{pid}/stats_{gpu.gpu_id}"
        occupied, units = self._files.number(f"{of_gpu}/cu_occupancy"), gpu.record["compute_units"]
        return None if occupied is None or not units else min(PERCENT, max(0, occupied) * PERCENT // units)

    def _of_drm(
        self, gpus: Sequence[ListedGpu]
    ) -> tuple[Mapping[str, Mapping[int, int]], Mapping[tuple[str, int], int]]:
        """Return the bytes of each process by UUID and PID, and the percent that its engines were busy by both.

        Forks and copies of a client's file repeat its figures: it counts for the process with the lowest PID.
        """
        nodes = {path.rpartition("/")[2]: gpu for gpu in gpus for path in gpu.record["device_paths"]}
        nodes |= {gpu.render: gpu for gpu in gpus}
        whole = {gpu.board.pci: gpu for gpu in gpus if not gpu.partition}
        used: dict[str, dict[int, int]] = {}
        percents: dict[tuple[str, int], int] = {}
        counters: dict[tuple[str, str], Counter] = {}
        for pid, node, told in self._clients():
            # A partition's files name its board; only their node tells it.
            gpu = whole.get(told.get("drm-pdev", "")) or nodes.get(node)
            client = told.get("drm-pdev", ""), told.get("drm-client-id", "")
            if gpu is None or gpu.board.pci != client[0] or client in counters:
                continue
            counters[client] = now = _busy(told)
            if (before := self._counters.get(client)) is not None and now[1] > before[1]:
                percent = max(0, now[0] - before[0]) * PERCENT // (now[1] - before[1])
                percents[gpu.uuid, pid] = min(PERCENT, percents.get((gpu.uuid, pid), 0) + percent)
            if amount := vram(told):
                of_gpu = used.setdefault(gpu.uuid, {})
                of_gpu[pid] = of_gpu.get(pid, 0) + amount
        self._counters = counters
        return used, percents

    def _clients(self) -> Iterator[tuple[int, str, Mapping[str, str]]]:
        """Yield process, name of the device node and fdinfo of each open file of a GPU."""
        files, before, self._without = self._files, self._without, {}
        self._round += 1
        slow, self._slow = self._slow, set()
        known = (int(name) for name in files.names("/proc") if name.isdecimal())
        pids = sorted(known, key=lambda pid: (pid in slow, pid))
        end_s = self._clock() + _MOST_S
        for position, pid in enumerate(pids):
            process = str(pid)
            readings = before.get(process, 0)
            left_s = end_s - (now_s := self._clock())
            if left_s <= 0 or (readings >= _SURE_AFTER and (pid + self._round) % _SELDOM):
                self._without[process] = readings
                continue
            until_s = now_s + left_s / (len(pids) - position)
            folder = f"/proc/{process}"
            found = False
            for fd in sorted(files.names(f"{folder}/fd", _MOST_FILES), key=lambda fd: (len(fd), fd)):
                # Root in a container may make a device node of any name. Sockets and pipes have no path.
                if (path := files.link(f"{folder}/fd/{fd}")).startswith("/"):
                    told = fields(files.text(f"{folder}/fdinfo/{fd}"))
                    if "drm-pdev" in told:
                        found = True
                        yield pid, path.rpartition("/")[2], told
                if self._clock() > until_s:
                    self._slow.add(pid)
                    break
            if not found:
                self._without[process] = readings + 1


def _largest(known: Mapping[int, int], drawn: Mapping[int, int]) -> list[int]:
    """Return the processes of a GPU by PID, of too many those that use most: nobody hides behind small ones."""
    pids = sorted({*known, *drawn}, key=lambda pid: (-max(known.get(pid, 0), drawn.get(pid, 0)), pid))
    return sorted(pids[:MOST_PROCESSES])


def fields(text: str) -> Mapping[str, str]:
    """Return the values in an fdinfo, by key."""
    lines = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, separator, value in lines if separator}


def vram(told: Mapping[str, str]) -> int:
    """Return the bytes of the GPU's own memory that a client uses, in all regions of it (``vram0``, ``vram1``)."""
    for kind in _AMOUNTS:
        regions = [value for key, value in told.items() if key.rstrip(_DIGITS) == kind]
        if regions:
            return sum(map(_amount, regions))
    return 0


def _amount(value: str) -> int:
    amount, _, unit = value.partition(" ")
    return max(0, number(amount) or 0) * _UNITS.get(unit.strip(), 0)


def _busy(told: Mapping[str, str]) -> Counter:
    """Return how long the engines for shaders worked for a client: in nanoseconds, or in xe's cycles."""
    cycles = [key for key in _CYCLES if f"drm-total-cycles-{key}" in told]
    if cycles:
        total = max(_first(told, f"drm-total-cycles-{key}") for key in cycles)
        return sum(_first(told, f"drm-cycles-{key}") for key in cycles), total
    return sum(_first(told, key) for key in _ENGINES), time.monotonic_ns()


def _first(told: Mapping[str, str], key: str) -> int:
    return number(told.get(key, "").partition(" ")[0]) or 0
