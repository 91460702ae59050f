"""Read from NVML the MIG instances of a GPU and their state."""

from __future__ import annotations

from gpu_device_plugin.hardware.driver import MOST_INSTANCES
from gpu_device_plugin.hardware.nvml import nvml_calls
from gpu_device_plugin.hardware.nvml.nvml_calls import MIB, NO_PERMISSION

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpu_device_plugin.hardware.driver import Record

_INVALID_ARGUMENT = 2
_NOT_FOUND = 6
# What a driver answers for an instance that is destroyed while it is read. The GPU itself is read before its instances.
_GONE = nvml_calls.LOST | {_INVALID_ARGUMENT}
# nvmlGpuInstanceProfile: NVML_GPU_INSTANCE_PROFILE_7_SLICE, and _4_SLICE, which is all of GPUs that have four.
_WHOLE_PROFILES = (4, 3)
_MIG = " MIG "


class Instances:
    """The MIG instances of one GPU. No handle of an instance is kept: it can go stale, or become another instance's."""

    def __init__(self, nvml: Any, gpu: Record, handle: Any) -> None:
        """Prepare to read the instances of `gpu`, whose `handle` this is, through the module `nvml`.

        Raises:
            nvml.NVMLError: the GPU does not tell how many it can have.
        """
        self._nvml = nvml
        self._gpu = gpu
        self._handle = handle
        self._most = 0
        try:
            self._most = min(nvml.nvmlDeviceGetMaxMigDeviceCount(handle), MOST_INSTANCES)
        except nvml.NVMLError as error:
            if error.value not in nvml_calls.LACKS:
                raise
        self._listed: set[str] = set()
        self._left_out: set[str] = set()
        """Those that could not be listed."""

    def inventory(self, minors: str) -> tuple[list[Record], list[str]]:
        """List the instances, and say which cannot be read; raise NVMLError if they as a whole cannot be listed.

        In the file `minors` the driver names the device node of each part of a GPU.
        """
        records, troubles = [], []
        for number, handle in self._handles():
            uuid = ""
            try:
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                records.append(self._describe(uuid, number, handle))
            except self._nvml.NVMLError as error:
                self._left_out.add(uuid)
                label = f"{self._gpu['index']}:{number}"
                troubles.append(f"MIG instance {label} is left out, it cannot be read: {nvml_calls.text(error)}")
        caps = _caps(minors, "".join(self._gpu["device_paths"]).removeprefix("/dev/nvidia"))
        ids = [record["instance"]["gi"] for record in records if record["instance"] is not None]
        for record in records:
            if (own := record["instance"]) is not None:
                own["alone"] = own["alone"] and ids.count(own["gi"]) == 1
                nodes = [caps.get(f"gi{own['gi']}/access"), caps.get(f"gi{own['gi']}/ci{own['ci']}/access")]
                own["caps"] = [] if None in nodes else [node for node in nodes if node is not None]
        self._listed = {record["uuid"] for record in records}
        return records, troubles

    def readings(self, recovery_action: int | None) -> tuple[list[str] | None, list[Record]]:
        """Return the UUIDs of the present instances, None if unknown, and a reading of each that is listed.

        Those that were left out of the inventory are not among them, and destroyed ones have neither UUID nor reading.
        `recovery_action` is what the driver asks for the GPU.
        """
        records: list[Record] = []
        uuids, unknown = [], None
        try:
            for _, handle in self._handles():
                uuid = ""
                try:
                    uuid = self._nvml.nvmlDeviceGetUUID(handle)
                    if uuid in self._listed:
                        records.append(self._read(uuid, handle, recovery_action))
                except self._nvml.NVMLError as error:
                    if error.value in _GONE:
                        continue
                    if uuid:
                        records.append(_failed(uuid, error))
                    else:
                        unknown = error
                uuids.append(uuid)
        except self._nvml.NVMLError as error:
            unknown = error
        if unknown is None:
            return [uuid for uuid in uuids if uuid not in self._left_out], records
        return None, records + [_failed(uuid, unknown) for uuid in sorted(self._listed.difference(uuids))]

    def uses(self) -> Iterator[Record]:
        """Yield the processes on each listed instance that still exists; NVML does not tell their utilisation."""
        try:
            present = [(self._nvml.nvmlDeviceGetUUID(handle), handle) for _, handle in self._handles()]
        except self._nvml.NVMLError:
            present = []
        for uuid, handle in present:
            if uuid not in self._listed:
                continue
            try:
                used = nvml_calls.used_mib(self._nvml, handle, mig=True)
            except self._nvml.NVMLError:
                yield {"uuid": uuid, "processes": None, "used_mib": None}
                continue
            yield {"uuid": uuid, "processes": nvml_calls.processes(self._nvml, handle, {}), "used_mib": used}

    def _handles(self) -> Iterator[tuple[int, Any]]:
        """Yield NVML's index and a new handle of each instance; indexes may have gaps."""
        for number in range(self._most):
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, number)
            except self._nvml.NVMLError as error:
                if error.value not in {_NOT_FOUND, _INVALID_ARGUMENT}:
                    raise
                continue
            yield number, handle

    def _read(self, uuid: str, handle: Any, recovery_action: int | None) -> Record:
        return {
            "uuid": uuid,
            "used_mib": nvml_calls.used_mib(self._nvml, handle, mig=True),
            "processes": nvml_calls.process_count(self._nvml, handle),
            "recovery_action": recovery_action,
        }

    def _describe(self, uuid: str, number: int, handle: Any) -> Record:
        nvml = self._nvml
        try:
            memory, reserved = nvml_calls.memory(nvml, handle)
            total_mib, reserved_mib = memory.total // MIB, -(-reserved // MIB)
        except nvml.NVMLError as error:
            if error.value != NO_PERMISSION:
                raise
            total_mib, reserved_mib = nvml.nvmlDeviceGetAttributes_v2(handle).memorySizeMB, 0
        profile = self._profile(handle)
        return {
            **self._gpu,
            "uuid": uuid,
            "product": f"{self._gpu['product']}{_MIG}{profile}",
            "total_mib": total_mib,
            "reserved_mib": reserved_mib,
            "mig": False,
            "memory_limits": False,
            "instance": {
                "parent": self._gpu["uuid"],
                "number": number,
                "profile": profile,
                "gi": nvml.nvmlDeviceGetGpuInstanceId(handle),
                "ci": nvml.nvmlDeviceGetComputeInstanceId(handle),
                "alone": "c." not in profile,
                "caps": [],
            },
        }

    def _profile(self, handle: Any) -> str:
        """Return the name of an instance's profile: the driver's own, or that of its slices and memory.

        Only the driver's tells whether the instance has the engines for media (``+me``).
        """
        from gpu_device_plugin.model.mig import is_profile, profile_name  # noqa: PLC0415 - only MIG needs it

        profile: str = (nvml_calls.optional(self._nvml, "nvmlDeviceGetName", handle) or "").rpartition(_MIG)[2]
        if is_profile(profile):
            return profile
        attributes = self._nvml.nvmlDeviceGetAttributes_v2(handle)
        return profile_name(
            attributes.gpuInstanceSliceCount,
            attributes.memorySizeMB,
            self._gpu["total_mib"],
            attributes.computeInstanceSliceCount,
        )


def _failed(uuid: str, error: Any) -> Record:
    return {"uuid": uuid, "error": f"the driver cannot read it: {nvml_calls.text(error)}", "lost": False}


def whole_mib(nvml: Any, handle: Any) -> int:
    """Return the memory of a GPU in MIG mode, in MiB, as far as a caller without privileges can know it.

    That is the memory of an instance that has all of the GPU, which is up to 1 % less; 0 if it is unknown.
    """
    for profile in _WHOLE_PROFILES:
        if found := nvml_calls.optional(nvml, "nvmlDeviceGetGpuInstanceProfileInfo", handle, profile):
            size: int = found.memorySizeMB
            return size
    return 0


def _caps(path: str, minor: str) -> dict[str, int]:
    """Return the numbers of the device nodes that give access to the parts of a GPU, by the driver's names of these."""
    prefix = f"gpu{minor}/"
    found = (line.strip().rpartition(" ") for line in nvml_calls.lines(path) if line.startswith(prefix))
    return {name.removeprefix(prefix): int(number) for name, _, number in found if number.isdigit()}
