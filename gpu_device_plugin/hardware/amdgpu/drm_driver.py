"""The driver port over sysfs, procfs and cgroupfs, for the GPUs of the drivers amdgpu and xe."""

from __future__ import annotations

import time

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.amdgpu import discovery, dmem
from gpu_device_plugin.hardware.amdgpu.gpu_links import links
from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles

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

    def inventory(self) -> Record:
        """List the GPUs; see `Driver.inventory`."""
        found = discovery.find(self._files, self._drivers)
        self._gpus = found.gpus
        return {
            "gpus": [gpu.record for gpu in found.gpus],
            "links": [*links(self._files, found.gpus)],
            "driver_version": self._version(),
            "cgroup": driver.cgroup_version(self._files.root),
            "left_out": len(found.unread),
            "troubles": [*found.unread, *found.troubles],
        }

    def probe(self) -> list[Record]:
        """Read every GPU; see `Driver.probe`."""
        return []

    def use(self, *, utilisation: bool) -> list[Record]:  # noqa: ARG002
        """Read the processes on every GPU; see `Driver.use`."""
        return []

    def condition(self, groups: list[str]) -> list[Record]:  # noqa: ARG002
        """Read the condition of every GPU; see `Driver.condition`."""
        return []

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        """Read the memory limits of cgroups; see `Driver.limits`."""
        found = self._regions()
        return [self._dmem.limit(found[uuid], uuid, path) for uuid, path in wanted if uuid in found]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        """Set the memory limits of cgroups; see `Driver.set_limits`."""
        found = self._regions()
        return [self._dmem.set_limit(found[each[0]], each) for each in wanted if each[0] in found]

    def _regions(self) -> Mapping[str, Mapping[str, int]]:
        """Return the regions of each GPU: none of a partition, as the controller counts boards."""
        return {gpu.uuid: {} if gpu.partition else gpu.board.regions for gpu in self._gpus}

    def wait_events(self, timeout_s: float) -> list[Record]:
        """Wait for events; see `Driver.wait_events`."""
        time.sleep(timeout_s)
        return []

    def _version(self) -> str | None:
        """Return the version of a driver that was installed by itself; else the kernel's, of which it is a part."""
        own = self._files.text(f"/sys/module/{self._drivers[0]}/version")
        version = own or self._files.text("/proc/sys/kernel/osrelease")
        return version[:_LONGEST_VERSION] or None
