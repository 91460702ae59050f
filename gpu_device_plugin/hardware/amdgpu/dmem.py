"""Memory limits of control groups by the kernel's controller dmem, and what they use."""

from __future__ import annotations

import errno
import os

from gpu_device_plugin.hardware.amdgpu.kernel_files import MIB, KernelFiles, number
from gpu_device_plugin.hardware.driver import MOST_MIB

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_device_plugin.hardware.driver import Record

ROOT = "/sys/fs/cgroup"
# The return codes of NVML, which `hardware.messages.CgroupLimit` has.
_NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _UNKNOWN = 3, 4, 6, 999
_CODES = {errno.EACCES: _NO_PERMISSION, errno.EPERM: _NO_PERMISSION, errno.EROFS: _NO_PERMISSION}
_NOT_ENABLED = {errno.ENOENT, errno.EBUSY, errno.EOPNOTSUPP}
"""Why a level of the tree cannot have the controller: those above lack it, or processes are in the level itself."""


class Dmem:
    """The limits of the cgroups below a mount."""

    def __init__(self, mount: str = ROOT, controller: str = "dmem") -> None:
        """Read and write below `mount`; the files are called by the name of the controller."""
        self._mount = mount
        self._controller = controller

    def lack(self) -> str:
        """Return why no limit can be read below the mount, as a clause; empty: the kernel has the controller."""
        if os.path.exists(f"{self._mount}/{self._controller}.capacity"):  # noqa: PTH110 - pathlib costs 1 MB
            return ""
        if not os.path.exists(f"{self._mount}/cgroup.controllers"):  # noqa: PTH110
            return f"no cgroup file system of version 2 is mounted at {self._mount}"
        if os.path.exists(f"{self._mount}/cgroup.type"):  # noqa: PTH110 - only the root has none
            return f"{self._mount} is that of the pod: mount the node's into it"
        return "the kernel has no controller dmem, which comes with Linux 6.14 and CONFIG_CGROUP_DMEM"

    def lack_of_writing(self) -> str:
        """Return why no limit can be set below the mount, and have the controller enabled on the first level."""
        if why := self.lack():
            return why
        try:
            if "drm/" not in _content(f"{self._mount}/{self._controller}.capacity"):
                return f"{self._controller}.capacity names no memory of a GPU"
            self._enable(self._mount)
        except OSError as error:
            return (
                f"{self._mount} cannot be written ({os.strerror(error.errno or 0)}): mount it writable, and run as root"
            )
        return ""

    def limit(self, regions: Collection[str], uuid: str, path: str) -> Record:
        """Return the memory limits of a cgroup on a GPU with these regions; see `driver.Driver.limits`.

        The limits of several regions count together.
        """
        of = {"uuid": uuid, "path": path}
        try:
            hard, soft, used = (self._amounts(path, name, regions) for name in ("max", "min", "current"))
        except FileNotFoundError:
            gone = not os.path.isdir(path)  # noqa: PTH112
            return {**of, "code": _UNKNOWN if gone else _NOT_SUPPORTED}
        except OSError as error:
            return {**of, "code": _CODES.get(error.errno or 0, _UNKNOWN)}
        if not regions or any(region not in hard for region in regions):
            return {**of, "code": _NOT_SUPPORTED}
        most = [amount for region in regions if (amount := hard[region]) is not None]
        kept, in_use = (_mib(sum(each.get(region) or 0 for region in regions)) for each in (soft, used))
        if len(most) < len(regions):
            return {**of, "code": _NOT_FOUND, "soft_mib": kept, "used_mib": in_use}
        return {**of, "code": 0, "hard_mib": _mib(sum(most)), "soft_mib": kept, "used_mib": in_use}

    def set_limit(self, regions: Collection[str], wanted: tuple[str, str, int | None, int]) -> Record:
        """Set the memory limits of a cgroup, unless they are so already, and return them as `limit` does.

        Of several regions each gets an equal part: what all of them hold is never more than the limit.
        """
        uuid, path, hard_mib, soft_mib = wanted
        of = {"uuid": uuid, "path": path}
        if not path.startswith(f"{self._mount}/") or ".." in path.split("/"):
            return {**of, "code": _UNKNOWN}
        try:
            self._enable_above(path)
        except OSError as error:
            code = _NOT_SUPPORTED if error.errno in _NOT_ENABLED else _UNKNOWN
            return {**of, "code": _CODES.get(error.errno or 0, code)}
        before = self.limit(regions, uuid, path)
        if before["code"] not in {0, _NOT_FOUND}:
            return before
        try:
            if (before.get("hard_mib"), before["code"]) != (hard_mib, _NOT_FOUND if hard_mib is None else 0):
                self._write(path, "max", regions, hard_mib)
            if before["soft_mib"] != soft_mib:
                self._write(path, "min", regions, soft_mib)
        except OSError as error:
            return {**of, "code": _CODES.get(error.errno or 0, _UNKNOWN)}
        return self.limit(regions, uuid, path)

    def _enable_above(self, path: str) -> None:
        """Have the controller in a cgroup, and in those that begin in it: a pod has its containers below it."""
        if not os.path.exists(f"{path}/{self._controller}.max"):  # noqa: PTH110
            *levels, _ = path.removeprefix(self._mount).split("/")
            above = self._mount
            for level in levels:
                above = f"{above}/{level}" if level else above
                self._enable(above)
        try:
            # Of a container that begins, whose processes are yet to come, nothing may be enabled: none could come then.
            with os.scandir(path) as entries:
                has_cgroups = any(entry.is_dir() for entry in entries)
            if has_cgroups:
                self._enable(path)
        except OSError:
            return  # it has processes itself, or has just ended

    def _enable(self, directory: str) -> None:
        """Have the controller in the cgroups of a directory."""
        file = f"{directory}/cgroup.subtree_control"
        if self._controller not in _content(file).split():
            _write(file, f"+{self._controller}")

    def _amounts(self, path: str, name: str, regions: Collection[str]) -> dict[str, int | None]:
        """Return the bytes of each of these regions that a file names; None: no limit."""
        found: dict[str, int | None] = {}
        for line in _content(f"{path}/{self._controller}.{name}").splitlines():
            region, _, amount = line.partition(" ")
            limit = None if amount == "max" else number(amount)
            if region in regions and region not in found and (amount == "max" or (limit is not None and limit >= 0)):
                found[region] = limit
        return found

    def _write(self, path: str, name: str, regions: Collection[str], mib: int | None) -> None:
        """Write the amount of each region, one at a time: the kernel takes no more with one write."""
        for position, region in enumerate(regions):
            amount = "max" if mib is None else str((mib * MIB + position) // len(regions))
            _write(f"{path}/{self._controller}.{name}", f"{region} {amount}")


def _mib(amount: int) -> int:
    return min(amount // MIB, MOST_MIB)


def _content(path: str) -> str:
    return KernelFiles().content(path).decode("utf-8", "replace")


def _write(path: str, text: str) -> None:
    # Not O_NONBLOCK: from Linux 7.3 on it would keep the kernel from evicting what is above a new limit.
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, text.encode())
    finally:
        os.close(opened)
