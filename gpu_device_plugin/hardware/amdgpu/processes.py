"""Read which processes use how much of the GPUs of the kernel's drivers: from KFD, and from the fdinfo of DRM."""

from __future__ import annotations

import time

from gpu_device_plugin.hardware.amdgpu import health
from gpu_device_plugin.hardware.amdgpu.kernel_files import MIB, number
from gpu_device_plugin.hardware.driver import MOST_MIB, MOST_PROCESSES, PERCENT

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.hardware.amdgpu.discovery import ListedGpu
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
    from gpu_device_plugin.hardware.driver import Record

NOT_SEEN = (
    "processes that use GPUs of the driver {driver} {but} are not seen, because this container lacks the "
    "capabilities SYS_PTRACE and DAC_READ_SEARCH"
)
_KFD_PROCESSES = "/sys/class/kfd/kfd/proc"
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
# Kinds of amounts in the order in which they are believed; which there are depends on driver and kernel.
_AMOUNTS = "drm-resident-vram", "drm-memory-vram", "drm-total-vram"
_DIGITS = "0123456789"
_SYS_PTRACE, _DAC = 1 << 19, 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, of which either does
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
    CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
    """

    def __init__(self, files: KernelFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self.sees_all = traces(files)
        """Whether the fdinfo of other processes may be read."""
        self._initial = files.link("/proc/self/ns/pid") == _INITIAL
        self._without: dict[str, int] = {}
        """In how many readings in a row each process, by PID, had no GPU open."""
        self._round = 0
        self._slow: set[int] = set()
        """The PIDs of those with more open files than there was time for; they come last in the next reading."""
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
        return None if used is None else min(max(0, used - self._own.get(gpu.board.pci, 0)) // MIB, MOST_MIB)

    def read(self, gpus: Sequence[ListedGpu], *, utilisation: bool) -> list[Record]:
        """Return the use of each GPU, see `Driver.use`."""
        of_kfd = self._of_kfd(gpus) if self._initial else {}
        of_drm = self._of_drm(gpus) if self.sees_all else {}
        records = []
        for gpu in gpus:
            by_kfd, by_drm = of_kfd.get(gpu.uuid), of_drm.get(gpu.uuid, {})
            processes = None
            if by_kfd is not None or self.sees_all:
                by_kfd = by_kfd or {}
                amounts = {pid: max(used, by_drm.get(pid, 0)) for pid, used in {**by_drm, **by_kfd}.items()}
                if self.sees_all and self._initial and not amounts:
                    self._learn_own(gpu)
                processes = [
                    {
                        "pid": pid,
                        "used_mib": min(amounts[pid] // MIB, MOST_MIB),
                        "sm_percent": self._occupied(gpu, pid) if utilisation and pid in by_kfd else None,
                    }
                    for pid in _largest(amounts)
                ]
            records.append({"uuid": gpu.uuid, "processes": processes, "used_mib": self.used_mib(gpu)})
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
        used: dict[str, dict[int, int]] = {uuid: {} for uuid in uuids.values()}
        for pid in filter(str.isdecimal, self._files.names(_KFD_PROCESSES)):
            # A process has a file for each GPU that it may open: most have one, of up to 64.
            for name in self._files.names(f"{_KFD_PROCESSES}/{pid}"):
                uuid = uuids.get(name)
                if uuid and (size := self._files.number(f"{_KFD_PROCESSES}/{pid}/{name}") or 0) > 0:
                    used[uuid][int(pid)] = size
        return used

    def _occupied(self, gpu: ListedGpu, pid: int) -> int | None:
        """Return how much of a GPU's compute units a process of ROCm occupies now, in percent; None: not told.

        Engines in fdinfo do not tell it: ROCm's queues bypass what they count, so that a busy process seems idle.
        """
        of_gpu = f"{_KFD_PROCESSES}/{pid}/stats_{gpu.gpu_id}"
        occupied, units = self._files.number(f"{of_gpu}/cu_occupancy"), gpu.record["compute_units"]
        return None if occupied is None or not units else min(PERCENT, max(0, occupied) * PERCENT // units)

    def _of_drm(self, gpus: Sequence[ListedGpu]) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes of each process by UUID and PID.

        Forks and copies of a client's file repeat its figures: it counts for the process with the lowest PID.
        """
        nodes = {path.rpartition("/")[2]: gpu for gpu in gpus for path in gpu.record["device_paths"]}
        whole = {gpu.board.pci: gpu for gpu in gpus if not gpu.partition}
        used: dict[str, dict[int, int]] = {}
        seen = set()
        for pid, node, fdinfo in self._clients():
            # A partition's files name its board; only their node tells it.
            gpu = whole.get(fdinfo.get("drm-pdev", "")) or nodes.get(node)
            client = fdinfo.get("drm-pdev", ""), fdinfo.get("drm-client-id", "")
            if gpu is None or gpu.board.pci != client[0] or client in seen:
                continue
            seen.add(client)
            if amount := vram(fdinfo):
                of_gpu = used.setdefault(gpu.uuid, {})
                of_gpu[pid] = of_gpu.get(pid, 0) + amount
        return used

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
            has_gpu = False
            for fd in sorted(files.names(f"{folder}/fd", _MOST_FILES), key=lambda fd: (len(fd), fd)):
                # Root in a container may make a device node of any name. Sockets and pipes have no path.
                if (path := files.link(f"{folder}/fd/{fd}")).startswith("/"):
                    told = fields(files.text(f"{folder}/fdinfo/{fd}"))
                    if "drm-pdev" in told:
                        has_gpu = True
                        yield pid, path.rpartition("/")[2], told
                if self._clock() > until_s:
                    self._slow.add(pid)
                    break
            if not has_gpu:
                self._without[process] = readings + 1


def _largest(amounts: Mapping[int, int]) -> list[int]:
    """Return the processes of a GPU by PID, of too many those that use most: nobody hides behind small ones."""
    pids = sorted(amounts, key=lambda pid: (-amounts[pid], pid))
    return sorted(pids[:MOST_PROCESSES])


def fields(text: str) -> Mapping[str, str]:
    """Return the values in an fdinfo, by key."""
    lines = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, separator, value in lines if separator}


def vram(fdinfo: Mapping[str, str]) -> int:
    """Return the bytes of the GPU's own memory that a client uses, in all regions of it (``vram0``, ``vram1``)."""
    for kind in _AMOUNTS:
        regions = [value for key, value in fdinfo.items() if key.rstrip(_DIGITS) == kind]
        if regions:
            return sum(map(_amount, regions))
    return 0


def _amount(value: str) -> int:
    amount, _, unit = value.partition(" ")
    return max(0, number(amount) or 0) * _UNITS.get(unit.strip(), 0)


def traces(files: KernelFiles) -> bool:
    """Return whether this process has the capabilities to read the fdinfo of others; where nothing tells, it has.

    SYS_PTRACE opens the files, and DAC_READ_SEARCH the directory of a process that is not root.
    """
    lines = (line.partition(":") for line in files.text("/proc/self/status").splitlines())
    mask = next((number(f"0x{value.strip()}") for key, _, value in lines if key == "CapEff"), None)
    return mask is None or bool(mask & _SYS_PTRACE and mask & _DAC)
