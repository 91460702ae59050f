"""The driver port over sysfs, procfs and cgroupfs, for the GPUs of the drivers amdgpu and xe."""

from __future__ import annotations

import time

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.amdgpu import discovery, dmem, health, pci_devices, topology
from gpu_device_plugin.hardware.amdgpu.gpu_links import links
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles
from gpu_device_plugin.hardware.amdgpu.processes import Processes, traces
from gpu_device_plugin.hardware.amdgpu.telemetry import TelemetryReader

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.hardware.driver import Record

_LONGEST_VERSION = 64


class Drm:
    """The GPUs of kernel drivers; see `driver.Driver`. It needs no library and opens no device node."""

    def __init__(self, drivers: list[str], root: str = "") -> None:
        """Read the GPUs of `drivers`; below `root` are /sys, /proc and /dev."""
        self._files = KernelFiles(root)
        self._drivers = drivers
        self._gpus: list[discovery.ListedGpu] = []
        self._dmem = dmem.Dmem(f"{root}{dmem.ROOT}")
        self._health = health.Health(self._files)
        self._telemetry = TelemetryReader(self._files)
        self._processes = Processes(self._files)
        self._events: health.Uevents | None = None
        self._listen = None if root else health.listening
        """None: the devices are not this machine's, and have no events."""

    def inventory(self) -> Record:
        """List the GPUs; see `Driver.inventory`."""
        found = discovery.find(self._files, self._drivers)
        self._gpus = found.gpus
        self._events = self._listen and self._listen()
        lacks = self._processes.troubles(found.gpus)
        if self._events is None and self._listen is not None:
            lacks.append(health.NO_EVENTS)
        return {
            "gpus": [gpu.record for gpu in found.gpus],
            "links": [*links(self._files, found.gpus)],
            "driver_version": self._version(),
            "cgroup": driver.cgroup_version(self._files.root),
            "left_out": len(found.unread),
            "troubles": [*found.unread, *found.troubles, *(lacks if found.gpus else [])],
        }

    def probe(self) -> list[Record]:
        """Read every GPU; see `Driver.probe`."""
        return self._readings(self._gpus)

    def use(self, *, utilisation: bool) -> list[Record]:
        """Read the processes on every GPU; see `Driver.use`."""
        return self._processes.read(self._gpus, utilisation=utilisation)

    def condition(self, groups: list[str]) -> list[Record]:
        """Read the condition of every GPU; see `Driver.condition`."""
        return self._telemetry.read(self._gpus, groups)

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        """Read the memory limits of cgroups; see `Driver.limits`."""
        regions = self._regions()
        return [self._dmem.limit(regions[uuid], uuid, path) for uuid, path in wanted if uuid in regions]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        """Set the memory limits of cgroups; see `Driver.set_limits`."""
        regions = self._regions()
        return [self._dmem.set_limit(regions[each[0]], each) for each in wanted if each[0] in regions]

    def _regions(self) -> Mapping[str, Mapping[str, int]]:
        """Return the regions of each GPU: none of a partition, as the controller counts boards."""
        return {gpu.uuid: {} if gpu.partition else gpu.board.regions for gpu in self._gpus}

    def wait_events(self, timeout_s: float) -> list[Record]:
        """Wait for events; see `Driver.wait_events`."""
        if self._events is None:
            time.sleep(timeout_s)
            self._events = self._listen and self._listen()  # it may work later
            return []
        try:
            heard = self._events.wait(timeout_s, {gpu.board.pci: gpu.board for gpu in self._gpus})
        except OSError:  # some were lost
            time.sleep(min(health.PAUSE_S, timeout_s))
            self._events = self._listen and self._listen()
            return self.probe()
        if heard is None:
            return []
        board, event = heard
        gpus = [gpu for gpu in self._gpus if gpu.board is board]
        losses = self._health.take(board, event)
        return [{"uuid": gpu.uuid, **loss} for loss in losses for gpu in gpus] + self._readings(gpus)

    def _readings(self, gpus: list[discovery.ListedGpu]) -> list[Record]:
        counts = self._processes.count(gpus)
        readings = self._health.read(gpus)
        for gpu, reading in zip(gpus, readings, strict=True):
            if "error" not in reading:
                reading |= {"processes": counts.get(gpu.uuid), "used_mib": self._processes.used_mib(gpu)}
        return readings

    def _version(self) -> str | None:
        """Return the version of a driver that was installed by itself; else the kernel's, of which it is a part."""
        own = self._files.text(f"/sys/module/{self._drivers[0]}/version")
        version = own or self._files.text("/proc/sys/kernel/osrelease")
        return version[:_LONGEST_VERSION] or None


def node_facts(root: str = "") -> tuple[str, bool, bool, bool]:
    """Return the fields of the doctor's `KernelSeen`, in their order, by the kernel's files below `root`."""
    files = KernelFiles(root)
    _, forbidden = topology.read(files)
    alone = bool(pci_devices.drivers_in_use(files)) and pci_devices.NVIDIA not in pci_devices.makers(files)
    return files.text("/proc/sys/kernel/osrelease")[:_LONGEST_VERSION], forbidden > 0, traces(files), alone
