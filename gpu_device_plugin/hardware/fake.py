"""The driver port over fake hardware, defined by a description; see `hardware/description.py`."""

from __future__ import annotations

import os
import time
from fnmatch import fnmatchcase

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.description import DescriptionError, read
from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpu_device_plugin.hardware.description import Description, Fields
    from gpu_device_plugin.hardware.driver import (
        EventRecord,
        GpuRecord,
        InventoryRecord,
        LimitRecord,
        ProbeRecord,
        UseRecord,
    )

_LOOK_EVERY_S = 0.02
_NOT_FOUND, _FUNCTION_NOT_FOUND = 6, 13  # NVML's codes
_LOUD = {"xid", "ecc", "remap", "recovery_action"}  # a driver reports events for these


class Fake:
    """Fake hardware, defined by a description; see `driver.Driver`."""

    def __init__(
        self,
        source: str,
        origin_s: float = 0.0,
        since_s: float = -1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the hardware described by `source`.

        Args:
            source: see `read`.
            origin_s: when the description's timeline began, by `clock`.
            since_s: a time on the description's timeline; XIDs and crashes up to it are not reported.
            clock: in seconds. The default is the same in every process of a machine.

        Raises:
            HardwareError: the description is invalid.
        """
        self._source = source
        self._origin_s = origin_s
        self._clock = clock
        self._parent = os.getppid()
        self._stamp = _stamp(source)
        self._description = _read_or_fail(source)
        self._reported = [event for event in self._description.events if event["at"] <= since_s]
        # A real driver that has lost a GPU does not find it again until it is reopened.
        self._lost: set[str] = set()
        self._listed: tuple[str, ...] = ()

    def inventory(self) -> InventoryRecord:
        """List the GPUs; see `Driver.inventory`."""
        gpus, node = self._hardware()
        listed = [gpu for gpu in gpus if not gpu["lost"]]
        self._listed = tuple(gpu["uuid"] for gpu in listed)
        return {
            "gpus": [_gpu_record(gpu) for gpu in listed],
            "links": [
                link for link in self._description.links if link["a"] in self._listed and link["b"] in self._listed
            ],
            "driver_version": node["driver"],
            "cgroup": node["cgroup"],
            "left_out": len(gpus) - len(listed),
            "troubles": [
                f"GPU {gpu['index']} is left out, it cannot be read: GPU is lost (15)" for gpu in gpus if gpu["lost"]
            ],
        }

    def probe(self) -> list[ProbeRecord]:
        """Read every GPU; see `Driver.probe`."""
        gpus, _ = self._hardware()
        return list(self._readings(gpus, self._listed))

    def use(self, *, utilisation: bool) -> list[UseRecord]:
        """Read the processes on every GPU; see `Driver.use`."""
        gpus, _ = self._hardware()
        by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
        return [_use(uuid, by_uuid.get(uuid), utilisation=utilisation) for uuid in self._listed]

    def limits(self, wanted: list[tuple[str, str]]) -> list[LimitRecord]:
        """Read the memory limits of cgroups; see `Driver.limits`."""
        gpus, _ = self._hardware()
        by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
        return [_limit(uuid, path, by_uuid[uuid]) for uuid, path in wanted if uuid in self._listed and uuid in by_uuid]

    def wait_events(self, timeout_s: float) -> list[EventRecord]:
        """Wait for events; see `Driver.wait_events`."""
        until = self._clock() + timeout_s
        while True:
            if records := list(self._news()):
                return records
            now = self._clock()
            if now >= until:
                return []
            # Wake at the exact time of the next event, and soon enough to see a change of the file.
            due = (self._origin_s + event["at"] for event in self._description.events)
            time.sleep(min(until, now + _LOOK_EVERY_S, *(at for at in due if at > now)) - now)

    def _now(self) -> float:
        return self._clock() - self._origin_s

    def _hardware(self) -> tuple[list[Fields], Fields]:
        """Return the current GPUs and node, once the driver does not hang."""
        while True:
            self._reread()
            gpus, node = self._description.at(self._now())
            if self._now() >= node["hang"]:
                break
            if os.getppid() != self._parent:
                os._exit(1)  # unlike a driver's hang, this one does not outlive the agent
            time.sleep(_LOOK_EVERY_S)
        if node["failure"] is not None:
            raise HardwareError(node["failure"], f"{self._source} describes a driver failure")
        return gpus, node

    def _reread(self) -> None:
        stamp = _stamp(self._source)
        if stamp != self._stamp:
            self._description = _read_or_fail(self._source)
            self._stamp = stamp

    def _news(self) -> Iterator[EventRecord]:
        try:
            self._reread()
        except HardwareError:
            return  # the next probe reports it
        gpus, _ = self._description.at(self._now())
        reported = list(self._reported)
        for event in self._description.events:
            if event["at"] > self._now():
                break
            if event in reported:
                reported.remove(event)
                continue
            self._reported.append(event)
            if event.get("crash"):
                os.abort()
            if event["gpu"] is None:
                continue
            uuid = gpus[event["gpu"]]["uuid"]
            if uuid not in self._listed:
                continue
            reading = list(self._readings(gpus, (uuid,)))  # always: it notices a GPU that is lost for a moment
            if "xid" in event:
                yield {"uuid": uuid, "code": event["xid"]}
            if _LOUD & event.keys():
                yield from reading

    def _readings(self, gpus: Sequence[Fields], wanted: Iterable[str]) -> Iterator[ProbeRecord]:
        by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
        for uuid in wanted:
            gpu = by_uuid.get(uuid)
            if gpu is None or gpu["lost"]:
                self._lost.add(uuid)
            if gpu is None or uuid in self._lost:
                yield {"uuid": uuid, "error": "the driver cannot read it: GPU is lost (15)", "lost": True}
            elif gpu["error"] is not None:
                yield {"uuid": uuid, "error": f"the driver cannot read it: {gpu['error']}", "lost": False}
            else:
                yield {
                    "uuid": uuid,
                    "ecc_uncorrected": gpu["ecc"],
                    "remap_pending": gpu["remap"] == "pending",
                    "remap_failed": gpu["remap"] == "failed",
                    "recovery_action": gpu["recovery_action"],
                    "processes": len(gpu["processes"]) if isinstance(gpu["processes"], list) else gpu["processes"],
                    "used_mib": _used_mib(gpu),
                    "mig": gpu["mig"],
                }


def _read_or_fail(source: str) -> Description:
    try:
        return read(source)
    except DescriptionError as error:
        raise HardwareError(driver.OTHER, str(error)) from error


def _stamp(source: str) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file changes; None without a file."""
    try:
        status = os.stat(source)  # noqa: PTH116 - pathlib costs the child 1 MB
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _gpu_record(gpu: Fields) -> GpuRecord:
    return {
        "uuid": gpu["uuid"],
        "index": gpu["index"],
        "product": gpu["product"],
        "total_mib": gpu["memory"],
        "reserved_mib": gpu["reserved"],
        "minor": gpu["minor"],
        "pci_bus_id": gpu["pci"],
        "numa_node": gpu["numa"],
        "mig": gpu["mig"],
        "memory_limits": gpu["memory_limits"],
        "architecture": gpu["architecture"],
    }


def _used_mib(gpu: Fields) -> int:
    """Return the memory in use: that of the described processes, unless the description says more."""
    processes = gpu["processes"] if isinstance(gpu["processes"], list) else []
    used: int = gpu["used"]
    return max(used, sum(process["used"] or 0 for process in processes))


def _use(uuid: str, gpu: Fields | None, *, utilisation: bool) -> UseRecord:
    if gpu is None or gpu["lost"] or gpu["error"] is not None:
        return {"uuid": uuid, "processes": None, "used_mib": None}
    listed = gpu["processes"]
    if gpu["mig"] or listed is None:
        return {"uuid": uuid, "processes": None, "used_mib": _used_mib(gpu)}
    return {
        "uuid": uuid,
        # A number of processes without their IDs is what a reader in another PID namespace knows: none of them.
        "processes": [
            {"pid": each["pid"], "used_mib": each["used"], "sm_percent": each["sm"] if utilisation else None}
            for each in (listed if isinstance(listed, list) else ())
        ],
        "used_mib": _used_mib(gpu),
    }


def _limit(uuid: str, path: str, gpu: Fields) -> LimitRecord:
    limit = next((limit for pattern, limit in gpu["limits"].items() if fnmatchcase(path, pattern)), None)
    code = _FUNCTION_NOT_FOUND if not gpu["memory_limits"] else _NOT_FOUND if limit is None else limit["code"]
    read = limit if limit is not None and code == 0 else {}
    return {
        "uuid": uuid,
        "path": path,
        "code": code,
        "hard_mib": read.get("hard"),
        "soft_mib": read.get("soft"),
        "used_mib": read.get("used"),
    }
