"""The driver port over NVML. A GPU must have a UUID and a memory size; everything else may be unknown."""

from __future__ import annotations

import ctypes
import os
import time

import pynvml

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.nvml import nvml_calls
from gpu_device_plugin.hardware.nvml.nvml_calls import LOST, MIB, NO_PERMISSION, NOT_SUPPORTED, text
from gpu_device_plugin.hardware.nvml.nvml_telemetry import TelemetryReader, links

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from typing import Any

    from gpu_device_plugin.hardware.driver import Record
    from gpu_device_plugin.hardware.nvml.nvml_mig import Instances

_NO_LIBRARY = 12
# Kinds of failure of nvmlInit, by its return code; all other codes are OTHER.
_KINDS = {
    4: driver.NO_PERMISSION,
    9: driver.NO_DRIVER,
    _NO_LIBRARY: driver.NO_LIBRARY,
    18: driver.VERSION_MISMATCH,
    999: driver.CONTEXT_LOST,
}
_TIMEOUT = 10
# How a driver that supports memory limits answers a query for one: NVML_SUCCESS, NVML_ERROR_NO_PERMISSION, and
# _NOT_FOUND where none is set. Any other error, _FUNCTION_NOT_FOUND and _NOT_SUPPORTED among them, does not prove that
# the toolkit's hook could set a limit; and a container whose hook fails does not start.
_HAS_LIMITS = frozenset({0, 4, 6})
_UNKNOWN = 999

# nvmlDeviceArchitecture_t; the numbers in between are of other devices than GPUs.
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
# nvmlEventType...: XidCriticalError; and the events that justify an immediate reading: DoubleBitEccError,
# DramRetirementEvent, DramRetirementFailure, FatalPoisonError, GpuUnavailableError, GpuRecoveryAction, and
# MigConfigChange.
_XID = 0x8
_MIG_CHANGE = 0x100
_WORTH_A_READING = 0x2 | 0x400 | 0x800 | 0x2000 | 0x4000 | 0x8000 | _MIG_CHANGE
_NO_INSTANCE = 0xFFFFFFFF
"""The ID of a part of a GPU in an event that concerns all of it."""
_FIELD_RECOVERY_ACTION = 230
_LONGEST_PAUSE_S = 4.0
_PRIVILEGES = (
    "give this container the capability SYS_ADMIN and NVIDIA_MIG_MONITOR_DEVICES=all, both together, as runtimes "
    "refuse the second without the first"
)
"""Advice for a container to which the driver does not show MIG instances."""


class Nvml:
    """NVML, opened; see `driver.Driver`.

    Raises:
        HardwareError: NVML cannot be used, on opening.
    """

    def __init__(self, nvml: Any = pynvml, root: str = "") -> None:
        """Load NVML through `nvml`, the module pynvml or a stand-in for it; below `root` are /sys and /proc."""
        self._nvml = nvml
        self._root = root
        self._cgroups = f"{root}/sys/fs/cgroup"
        self._gpus: dict[str, Any] = {}
        self._divided: dict[str, Instances] = {}
        """The instances of each GPU in MIG mode."""
        self._unseen: list[int] = []
        """Indexes of GPUs in MIG mode of which the driver tells this process only what every process may know."""
        # The driver cannot report the UUID of a GPU that it has lost, so an event's handle identifies its GPU.
        self._uuids: dict[int, str] = {}
        self._events: Any = None
        self.pause_s = 0.0
        """The pause after the next failed wait for events, in seconds; it doubles with each failure."""
        self._worked = False
        self._sampled_us: dict[str, int] = {}
        """When the newest known sample of each GPU's use was taken, by NVML's clock."""
        self._telemetry = TelemetryReader(nvml)
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise _opening_failed(error) from error

    def inventory(self) -> Record:
        """List the GPUs; see `Driver.inventory`."""
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise _opening_failed(error) from error
        gpus: list[Record] = []
        instances: dict[str, list[Record]] = {}
        failures, troubles = [], list[str]()
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = self._describe(index, handle)
            except nvml.NVMLError as error:  # one failing GPU must not hide the others
                failures.append((index, error))
                continue
            try:
                instances[gpu["uuid"]], unread = self._list_instances(gpu, handle) if gpu["mig"] else ([], [])
            except nvml.NVMLError as error:
                # Its instances would seem to be destroyed if it were listed without them.
                advice = f"; {_PRIVILEGES}" if error.value == NO_PERMISSION else ""
                why = f"its MIG instances cannot be listed: {text(error)}{advice}"
                troubles.append(f"{self._name(index)} is left out, {why}")
                continue
            troubles += unread
            gpus.append(gpu)
            self._gpus[gpu["uuid"]] = handle
            self._uuids[_address(handle)] = gpu["uuid"]
        if failures and not gpus and not troubles and failures[0][1].value in _KINDS:
            raise _opening_failed(failures[0][1])  # the error concerns this container, not every single GPU
        troubles += [f"{self._name(index)} is left out, it cannot be read: {text(error)}" for index, error in failures]
        left_out = len(troubles)
        if self._unseen:
            which = ", ".join(map(self._name, self._unseen))
            troubles.append(
                f"the driver may not show all MIG instances of {which} and not tell of their failures; {_PRIVILEGES}"
            )
        self._listen()
        if gpus and self._events is None:
            troubles.append("this driver reports no events, so failures are found only by reading every GPU in turn")
        return {
            "gpus": [each for gpu in gpus for each in (gpu, *instances[gpu["uuid"]])],
            "links": list(links(nvml, gpus, self._gpus)),
            "driver_version": self._optional("nvmlSystemGetDriverVersion"),
            "cgroup": driver.cgroup_version(self._root),
            "left_out": left_out,
            "troubles": troubles,
        }

    def probe(self) -> list[Record]:
        """Read every GPU; see `Driver.probe`."""
        readings = [self._read(uuid, handle) for uuid, handle in self._gpus.items()]
        codes = {code for _, code in readings}
        if self._worked and codes == {_UNKNOWN}:
            # One GPU may answer "Unknown Error"; all of them at once, after they worked, means a lost device cgroup.
            raise HardwareError(driver.CONTEXT_LOST, "NVML answers Unknown Error (999) for every GPU")
        self._worked = self._worked or None in codes
        return [each for record, _ in readings for each in (record, *self._read_instances(record))]

    def use(self, *, utilisation: bool) -> list[Record]:
        """Read the processes on every GPU; see `Driver.use`."""
        uses = []
        for uuid, handle in self._gpus.items():
            uses.append(self._use(uuid, handle, utilisation=utilisation))
            uses += self._divided[uuid].uses() if uuid in self._divided else ()
        return uses

    def condition(self, groups: list[str]) -> list[Record]:
        """Read the condition of every GPU; see `Driver.condition`."""
        found = (self._telemetry.read(uuid, handle, groups) for uuid, handle in self._gpus.items())
        return [condition for condition in found if condition is not None]

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        """Read the memory limits of cgroups; see `Driver.limits`."""
        return [
            nvml_calls.limit(self._nvml, self._gpus[uuid], uuid, path) for uuid, path in wanted if uuid in self._gpus
        ]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        """Set the memory limits of cgroups; see `Driver.set_limits`."""
        return [nvml_calls.set_limit(self._nvml, self._gpus[each[0]], each) for each in wanted if each[0] in self._gpus]

    def wait_events(self, timeout_s: float) -> list[Record]:
        """Wait for events; see `Driver.wait_events`."""
        if self._events is None:
            time.sleep(timeout_s)
            self._listen()  # it may work later
            return []
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except self._nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                return []
            return self._listen_anew(timeout_s)
        self.pause_s = 0.0
        uuid = self._uuids.get(_address(event.device))
        if uuid is None:  # the event names an unknown GPU: read all of them
            return [*self.probe()]
        records: list[Record] = [_xid(uuid, event)] if event.eventType & _XID else []
        reading, code = self._read(uuid, self._gpus[uuid])
        if event.eventType & _MIG_CHANGE:
            reading["mig_changed"] = True
        if code != _UNKNOWN:  # only a reading of all GPUs shows whether the GPU or the driver is at fault
            records.append(reading)
        return records

    def _list_instances(self, gpu: Record, handle: Any) -> tuple[list[Record], list[str]]:
        """Return the instances of a GPU in MIG mode, and a sentence on each that cannot be read; or raise NVMLError."""
        from gpu_device_plugin.hardware.nvml.nvml_mig import Instances  # noqa: PLC0415 - the child saves memory without it

        instances = Instances(self._nvml, gpu, handle)
        records, troubles = instances.inventory(f"{self._root}/proc/driver/nvidia-caps/mig-minors")
        self._divided[gpu["uuid"]] = instances
        return records, troubles

    def _read_instances(self, reading: Record) -> list[Record]:
        """Return a reading of each instance of a GPU, and add to the GPU's own reading which there are."""
        instances = self._divided.get(reading["uuid"])
        if instances is None or not reading.get("mig"):
            return []
        reading["instances"], records = instances.readings(reading["recovery_action"])
        return records

    def _describe(self, index: int, handle: Any) -> Record:
        mig = bool(self._mig(handle))
        total_mib, reserved_mib, unified = self._size(index, handle, mig=mig)
        info = self._optional("nvmlDeviceGetPciInfo", handle)
        # As Linux writes it: NVML's domain has eight digits.
        pci = info and f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
        minor = self._optional("nvmlDeviceGetMinorNumber", handle)
        return {
            "uuid": self._nvml.nvmlDeviceGetUUID(handle),
            "index": index,
            "product": self._optional("nvmlDeviceGetName", handle) or "unknown GPU",
            "total_mib": total_mib,
            "reserved_mib": reserved_mib,
            "device_paths": [] if minor is None else [f"/dev/nvidia{minor}"],
            "pci_bus_id": pci,
            "numa_node": None if pci is None else self._numa_node(pci),
            "mig": mig,
            "memory_limits": nvml_calls.limit(self._nvml, handle, "", self._cgroup_path())["code"] in _HAS_LIMITS,
            "architecture": _ARCHITECTURES.get(self._optional("nvmlDeviceGetArchitecture", handle)),
            "unified": unified,
            "instance": None,
        }

    def _name(self, index: int) -> str:
        """Return a GPU by what the driver tells of it: nobody but nvidia-smi counts one that the node does not list."""
        nvml = self._nvml
        try:
            uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            return f"the GPU that nvidia-smi counts as {index}"
        return f"the GPU {uuid} (nvidia-smi counts it as {index})"

    def _size(self, index: int, handle: Any, *, mig: bool) -> tuple[int, int, bool]:
        """Return the memory of a GPU and what the driver reserves of it, in MiB, and whether it is the machine's."""
        try:
            memory, reserved = nvml_calls.memory(self._nvml, handle)
        except self._nvml.NVMLError as error:
            # So do GB10 and Jetson answer. An instance of MIG has memory of its own.
            if error.value == NOT_SUPPORTED and not mig and (machine_mib := self._machine_mib()):
                return machine_mib, 0, True
            if not mig or error.value != NO_PERMISSION:
                raise
            # The memory of a GPU in MIG mode is told to callers with privileges only. Only people read it.
            from gpu_device_plugin.hardware.nvml.nvml_mig import whole_mib  # noqa: PLC0415 - as above

            self._unseen.append(index)
            return whole_mib(self._nvml, handle), 0, False
        if not memory.total and not mig and (machine_mib := self._machine_mib()):
            return machine_mib, 0, True
        return memory.total // MIB, -(-reserved // MIB), False

    def _machine_mib(self) -> int:
        """Return the memory of the machine in MiB; 0 if it is not known."""
        told = (line for line in nvml_calls.lines(f"{self._root}/proc/meminfo") if line.startswith("MemTotal:"))
        kib = "".join(next(told, "").split()[1:2])
        return int(kib) // 1024 if kib.isdecimal() else 0

    def _mig(self, handle: Any) -> bool | None:
        mode = self._optional("nvmlDeviceGetMigMode", handle)
        return mode and bool(mode[0])

    def _cgroup_path(self) -> str:
        """Return the folder of this process's cgroup: a root cgroup has no limit to query."""
        cgroups = nvml_calls.lines(f"{self._root}/proc/self/cgroup")
        own = next((line.removeprefix("0::") for line in cgroups if line.startswith("0::")), "/")
        path = f"{self._cgroups}{own}".rstrip("/")
        # The path of a cgroup outside of our namespace contains `..`; the mounted folder is our own cgroup then.
        return path if os.path.isdir(path) and ".." not in own else self._cgroups  # noqa: PTH112 - pathlib costs 1 MB

    def _numa_node(self, pci: str) -> int | None:
        # Not nvmlDeviceGetNumaNodeId: that is the node of the GPU's own memory (Grace), not that of the CPUs near it.
        node = "".join(nvml_calls.lines(f"{self._root}/sys/bus/pci/devices/{pci}/numa_node"))
        return int(node) if node.isdecimal() else None  # -1: of none

    def _read(self, uuid: str, handle: Any) -> tuple[Record, int | None]:
        """Return a reading, and NVML's code if it failed."""
        try:
            mig = self._mig(handle)
            used_mib = nvml_calls.used_mib(self._nvml, handle, mig=mig)
            pending, failed = self._remapping(handle)
            return {
                "uuid": uuid,
                "ecc_uncorrected": self._optional("nvmlDeviceGetTotalEccErrors", handle, 1, 0),  # uncorrected, volatile
                "remap_pending": pending,
                "remap_failed": failed,
                "recovery_action": self._recovery_action(handle),
                "processes": nvml_calls.process_count(self._nvml, handle),
                "used_mib": used_mib,
                "mig": mig,
            }, None
        except self._nvml.NVMLError as error:
            code = error.value
            return {"uuid": uuid, "error": f"the driver cannot read it: {text(error)}", "lost": code in LOST}, code

    def _use(self, uuid: str, handle: Any, *, utilisation: bool) -> Record:
        try:
            mig = self._mig(handle)
            used_mib = nvml_calls.used_mib(self._nvml, handle, mig=mig)
            if mig:  # the processes are on its instances
                return {"uuid": uuid, "processes": None, "used_mib": used_mib}
        except self._nvml.NVMLError:
            return {"uuid": uuid, "processes": None, "used_mib": None}
        percents, others = dict[int, int | None](), None
        if utilisation:
            since = self._sampled_us.get(uuid, 0)
            percents, self._sampled_us[uuid] = nvml_calls.sm_percents(self._nvml, handle, since)
            others = nvml_calls.percent_of_others(self._nvml, handle, percents)
        listed = nvml_calls.processes(self._nvml, handle, percents, others=others)
        return {"uuid": uuid, "processes": listed, "used_mib": used_mib}

    def _remapping(self, handle: Any) -> tuple[bool | None, bool | None]:
        """Return whether replacing damaged memory is pending, and whether it failed."""
        if rows := self._optional("nvmlDeviceGetRemappedRows", handle):
            _, _, pending, failed = rows
            return bool(pending), bool(failed)
        pages = self._optional("nvmlDeviceGetRetiredPagesPendingStatus", handle)  # before Ampere
        return None if pages is None else bool(pages), None

    def _recovery_action(self, handle: Any) -> int | None:
        values = self._optional("nvmlDeviceGetFieldValues", handle, [_FIELD_RECOVERY_ACTION])
        return values[0].value.uiVal if values and values[0].nvmlReturn == 0 else None

    def _optional(self, function: str, *arguments: Any) -> Any:
        return nvml_calls.optional(self._nvml, function, *arguments)

    def _listen(self) -> None:
        """Subscribe to the events of our GPUs, as far as each GPU supports them."""
        nvml = self._nvml
        if not self._gpus:
            return
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        listening = [self._register(handle, events) for handle in self._gpus.values()]
        if any(listening):
            self._events = events
        else:
            self._free(events)

    def _register(self, handle: Any, events: Any) -> bool:
        nvml = self._nvml
        try:
            supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & (_XID | _WORTH_A_READING)
            if supported:
                nvml.nvmlDeviceRegisterEvents(handle, supported, events)
        except nvml.NVMLError:
            return False
        return bool(supported)

    def _listen_anew(self, timeout_s: float) -> list[Record]:
        """Replace a failed event set, after a growing pause, and read every GPU: the old set may have lost events."""
        time.sleep(min(self.pause_s, timeout_s))  # no busy loop if it fails for ever
        self.pause_s = min(2 * self.pause_s or 0.5, _LONGEST_PAUSE_S)
        events, self._events = self._events, None
        self._free(events)
        self._listen()
        return [*self.probe()]

    def _free(self, events: Any) -> None:
        try:
            self._nvml.nvmlEventSetFree(events)
        except self._nvml.NVMLError:
            return  # only a little memory of the failed set is lost


def _address(handle: Any) -> int:
    """Return the address of a GPU's handle, its identity: pynvml makes a new pointer object for every event."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _opening_failed(error: Any) -> HardwareError:
    # pynvml reports a library that cannot be loaded as missing; the error's context is the loader's error.
    if error.value == _NO_LIBRARY and isinstance(error.__context__, OSError):
        return nvml_calls.failed(error.__context__)
    kind = _KINDS.get(error.value, driver.OTHER)
    return HardwareError(kind, f"opening NVML (libnvidia-ml.so.1) failed: {text(error)}")


def _xid(uuid: str, event: Any) -> Record:
    parts = {"gi": event.gpuInstanceId, "ci": event.computeInstanceId}
    named = {key: number for key, number in parts.items() if number != _NO_INSTANCE}
    return {"uuid": uuid, "code": event.eventData, **named}
