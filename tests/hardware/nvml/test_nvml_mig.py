"""MIG instances as NVML tells of them: against a stand-in for pynvml, and against a library of our own."""

# ruff: noqa: N802, N815 - the names are pynvml's

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpu_device_plugin.hardware.monitor import MonitorTimings
from gpu_device_plugin.hardware.nvml.nvml_driver import Nvml
from gpu_device_plugin.model.gpus import MigInstance
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from gpu_device_plugin.node.rules.gpu_health import Xid
from tests.hardware.conftest import Watching
from tests.hardware.nvml.test_nvml_driver import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOST,
    MIB,
    NO_PERMISSION,
    NONE,
    NOT_FOUND,
    NOT_SUPPORTED,
    UNKNOWN,
    XID,
    A,
    B,
    C,
    Library,
    fail,
)
from tests.hardware.test_compiled_library import compiled

MIG_CHANGE = 0x100
ONE, TWO, PART = "MIG-1", "MIG-2", "MIG-3"
NO_PRIVILEGES = (
    "give this container the capability SYS_ADMIN and NVIDIA_MIG_MONITOR_DEVICES=all, both together, as runtimes "
    "refuse the second without the first"
)


class Divided(Library):
    """Three A100 of 40 GiB, of which C is in MIG mode and has instances, at indexes with a gap.

    `size` is the memory of an instance; `names` what NVML calls it.
    """

    nvmlDeviceGetMigMode: Callable[..., Any]
    nvmlDeviceGetMaxMigDeviceCount: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.instances = {0: ONE, 1: TWO, 4: PART}
        self.ids = {ONE: (1, 0), TWO: (9, 0), PART: (5, 2)}
        self.size_mib = {ONE: 20096, TWO: 4864, PART: 9984}
        self.slices = {ONE: (3, 3), TWO: (1, 1), PART: (2, 1)}
        self.names = {ONE: "MIG 3g.20gb", TWO: "MIG 1g.5gb+me", PART: "MIG 1c.2g.10gb"}
        self.processes: dict[str, list[Any]] = {ONE: [SimpleNamespace(pid=7, usedGpuMemory=3 * MIB)]}
        self._memory |= {uuid: ctypes.create_string_buffer(1) for uuid in (*self.ids, "MIG-new")}

    def _index(self, _: str, index: int) -> Any:
        # Real drivers answer either.
        none = INVALID_ARGUMENT if index % 2 else NOT_FOUND
        return self.handle(self.instances[index]) if index in self.instances else fail(none)

    def _attributes(self, uuid: str) -> Any:
        gpu, compute = self.slices[uuid]
        return SimpleNamespace(
            memorySizeMB=self.size_mib[uuid], gpuInstanceSliceCount=gpu, computeInstanceSliceCount=compute
        )

    OF_GPU = MappingProxyType(
        {
            **Library.OF_GPU,
            "nvmlDeviceGetMigDeviceHandleByIndex": _index,
            "nvmlDeviceGetAttributes_v2": _attributes,
            "nvmlDeviceGetGpuInstanceId": lambda self, uuid: self.ids[uuid][0],
            "nvmlDeviceGetComputeInstanceId": lambda self, uuid: self.ids[uuid][1],
            "nvmlDeviceGetGpuInstanceProfileInfo": lambda _, __, profile: (
                SimpleNamespace(memorySizeMB=40320)
                if profile == pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE
                else fail(NOT_SUPPORTED)
            ),
            "nvmlDeviceGetName": lambda self, uuid: " ".join(
                filter(None, ("NVIDIA A100-SXM4-40GB", self.names.get(uuid)))
            ),
            "nvmlDeviceGetComputeRunningProcesses_v3": lambda self, uuid: self.processes.get(uuid, []),
        }
    )

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        uuid = self._uuid(handle)
        if uuid not in self.ids:
            return super().nvmlDeviceGetMemoryInfo(handle, version)
        self._call("nvmlDeviceGetMemoryInfo" if version is None else "nvmlDeviceGetMemoryInfo_v2", uuid)
        return SimpleNamespace(total=self.size_mib[uuid] * MIB, reserved=MIB, used=5 * MIB)


@pytest.fixture
def library() -> Divided:
    return Divided()


def opened(library: Library) -> Nvml:
    driver = Nvml(library, "/nowhere")
    driver.inventory()
    return driver


def instances(driver: Nvml) -> list[dict[str, Any]]:
    return [{**gpu["instance"], "uuid": gpu["uuid"]} for gpu in driver.inventory()["gpus"] if gpu["instance"]]


def write_minors(root: Path, text: str) -> None:
    """Have the driver name its device nodes like this, below `root`."""
    (root / "proc/driver/nvidia-caps").mkdir(parents=True)
    (root / "proc/driver/nvidia-caps/mig-minors").write_text(text)


def without_memory(library: Divided, uuid: str, code: int = NO_PERMISSION) -> None:
    """Have neither call tell the memory; a container without privileges is not told that of a GPU in MIG mode."""
    library.fails |= {(function, uuid): code for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")}


def test_the_instances_of_a_gpu_follow_it(library: Divided, tmp_path: Path) -> None:
    """C has the minor number 5, and NVML's index 2."""
    write_minors(
        tmp_path,
        "config 1\nmonitor 2\ngpu2/gi1/access 8\ngpu5/gi1/access 12\ngpu5/gi1/ci0/access 13\ngpu5/gi9/access 20\nx\n",
    )
    inventory = Nvml(library, str(tmp_path)).inventory()
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [A, B, C, ONE, TWO, PART]
    assert (inventory["left_out"], inventory["troubles"]) == (0, [])
    assert {end for link in inventory["links"] for end in (link["a"], link["b"])} == {A, B, C}
    parent, one = inventory["gpus"][2:4]
    assert parent["mig"]
    assert one == {
        "uuid": ONE,
        "index": 2,
        "product": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "total_mib": 20096,
        "reserved_mib": 1,
        "device_paths": ["/dev/nvidia5"],
        "pci_bus_id": "0000:3d:00.0",
        "numa_node": None,
        "mig": False,
        "memory_limits": False,
        "architecture": "Ampere",
        "unified": False,
        "instance": {
            "parent": C,
            "number": 0,
            "profile": "3g.20gb",
            "gi": 1,
            "ci": 0,
            "alone": True,
            "caps": [12, 13],
        },
    }
    found = [
        (own["number"], own["profile"], own["gi"], own["ci"], own["alone"], own["caps"])
        for gpu in inventory["gpus"][4:]
        if (own := gpu["instance"]) is not None
    ]
    assert found == [(1, "1g.5gb+me", 9, 0, True, []), (4, "1c.2g.10gb", 5, 2, False, [])]


def test_a_gpu_without_a_device_node_has_instances_without(library: Divided, tmp_path: Path) -> None:
    write_minors(tmp_path, "gpuNone/gi1/access 1\ngpu5/gi1/access 12\ngpu5/gi1/ci0/access 13\n")
    library.fails["nvmlDeviceGetMinorNumber"] = NOT_SUPPORTED
    driver = Nvml(library, str(tmp_path))
    assert [own["caps"] for own in instances(driver)] == [[], [], []]


@pytest.mark.parametrize("name", ["", "MIG", "MIG Device 0"])
def test_a_name_without_a_profile_leaves_slices_and_memory_to_tell_it(library: Divided, name: str) -> None:
    library.names = dict.fromkeys(library.names, name)
    assert [own["profile"] for own in instances(Nvml(library))] == ["3g.20gb", "1g.5gb", "1c.2g.10gb"]


def test_instances_of_one_gpu_instance_are_not_alone_whatever_they_are_called(library: Divided) -> None:
    library.ids[TWO] = (1, 1)
    assert [own["alone"] for own in instances(Nvml(library))] == [False, False, False]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND])
def test_a_driver_that_knows_no_instances_lists_none(library: Divided, code: int) -> None:
    library.fails["nvmlDeviceGetMaxMigDeviceCount"] = code
    driver = Nvml(library)
    assert [gpu["uuid"] for gpu in driver.inventory()["gpus"]] == [A, B, C]
    assert driver.probe()[2]["instances"] == []


def test_no_more_instances_are_listed_than_a_line_may_have(library: Divided) -> None:
    library.nvmlDeviceGetMaxMigDeviceCount = lambda _: 1 << 31
    opened(library)
    assert Counter(library.calls)["nvmlDeviceGetMigDeviceHandleByIndex"] == 16


# --- Without privileges -----------------------------------------------------------------------------------------------


def test_a_gpu_whose_memory_may_not_be_told_is_listed_all_the_same(library: Divided) -> None:
    """Its own size is that of the largest instance that it can have. Nothing is shared by it."""
    without_memory(library, C)
    driver = Nvml(library)
    inventory = driver.inventory()
    assert [(gpu["uuid"], gpu["total_mib"], gpu["reserved_mib"]) for gpu in inventory["gpus"][2:4]] == [
        (C, 40320, 0),
        (ONE, 20096, 1),
    ]
    assert inventory["left_out"] == 0
    name = f"the GPU {C} (nvidia-smi counts it as 2)"
    assert inventory["troubles"] == [
        f"the driver may not show all MIG instances of {name} and not tell of their failures; {NO_PRIVILEGES}"
    ]
    reading = driver.probe()[2]
    assert ("error" in reading, reading["used_mib"], reading["instances"]) == (False, None, [ONE, TWO, PART])
    assert driver.use(utilisation=True)[2] == {"uuid": C, "processes": None, "used_mib": None}


def test_several_gpus_whose_memory_may_not_be_told_are_one_trouble(library: Divided) -> None:
    without_memory(library, C)
    library.nvmlDeviceGetMigMode = lambda _: [1, 1]
    without_memory(library, A)
    (trouble,) = Nvml(library).inventory()["troubles"]
    names = ", ".join(f"the GPU {uuid} (nvidia-smi counts it as {index})" for index, uuid in ((0, A), (2, C)))
    assert f"all MIG instances of {names} and not" in trouble


def test_a_size_that_nothing_tells_is_none(library: Divided) -> None:
    without_memory(library, C)
    library.fails["nvmlDeviceGetGpuInstanceProfileInfo"] = NOT_SUPPORTED
    assert Nvml(library).inventory()["gpus"][2]["total_mib"] == 0


def test_memory_that_may_not_be_told_of_a_gpu_outside_of_mig_mode_is_a_reason_to_leave_it_out(
    library: Divided,
) -> None:
    without_memory(library, A)
    inventory = Nvml(library).inventory()
    assert [gpu["uuid"] for gpu in inventory["gpus"]][:2] == [B, C]
    assert inventory["left_out"] == 1


def test_the_memory_of_an_instance_is_also_among_its_attributes(library: Divided) -> None:
    without_memory(library, ONE)
    driver = Nvml(library)
    gpu = driver.inventory()["gpus"][3]
    assert (gpu["uuid"], gpu["total_mib"], gpu["reserved_mib"]) == (ONE, 20096, 0)
    assert driver.probe()[3] == {"uuid": ONE, "used_mib": None, "processes": 1, "recovery_action": 0}


# --- Failures of a listing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("nvmlDeviceGetMigDeviceHandleByIndex", UNKNOWN, "Unknown Error (999)"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", LOST, "GPU is lost (15)"),
        ("nvmlDeviceGetMaxMigDeviceCount", UNKNOWN, "Unknown Error (999)"),
        (
            "nvmlDeviceGetMigDeviceHandleByIndex",
            NO_PERMISSION,
            f"Insufficient Permissions (4); {NO_PRIVILEGES}",
        ),
    ],
)
def test_a_gpu_whose_instances_cannot_be_listed_is_left_out(
    library: Divided, function: str, code: int, words: str
) -> None:
    """Without them it would seem that they were destroyed."""
    library.fails[function, C] = code
    inventory = Nvml(library).inventory()
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [A, B]
    assert inventory["left_out"] == 1
    name = f"the GPU {C} (nvidia-smi counts it as 2)"
    assert inventory["troubles"] == [f"{name} is left out, its MIG instances cannot be listed: {words}"]


def test_gpus_whose_instances_cannot_be_listed_are_no_failure_of_the_driver(library: Divided) -> None:
    """Otherwise the agent would be told to look for its device nodes."""
    library.uuids = [A, C]
    library.fails |= {
        ("nvmlDeviceGetHandleByIndex", A): NO_PERMISSION,
        ("nvmlDeviceGetMigDeviceHandleByIndex", C): NO_PERMISSION,
    }
    inventory = Nvml(library).inventory()
    assert (inventory["gpus"], inventory["left_out"], len(inventory["troubles"])) == ([], 2, 2)


@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetMemoryInfo_v2"])
def test_an_instance_that_cannot_be_read_is_left_out_alone(library: Divided, function: str) -> None:
    library.fails[function, TWO] = 16  # a reset is required
    driver = Nvml(library)
    inventory = driver.inventory()
    assert [gpu["uuid"] for gpu in inventory["gpus"]][3:] == [ONE, PART]
    assert inventory["left_out"] == 1
    assert inventory["troubles"] == ["MIG instance 2:1 is left out, it cannot be read: GPU requires restart (16)"]
    # It is no new one either: a listing at the usual time finds it when it can be read.
    assert driver.probe()[2]["instances"] in ([ONE, PART], None)


# --- Readings ---------------------------------------------------------------------------------------------------------


def test_a_gpu_tells_which_instances_it_has_and_each_is_read(library: Divided) -> None:
    library.action.value.uiVal = 1
    library.fails |= {
        ("nvmlDeviceGetRemappedRows", C): NOT_SUPPORTED,
        ("nvmlDeviceGetTotalEccErrors", C): NOT_SUPPORTED,
    }
    library.fails["nvmlDeviceGetRetiredPagesPendingStatus", C] = NOT_SUPPORTED
    *others, parent, one, two, part = opened(library).probe()
    assert [("instances" in reading, reading["mig"]) for reading in others] == [(False, False)] * 2
    assert parent == {
        "uuid": C,
        "ecc_uncorrected": None,
        "remap_pending": None,
        "remap_failed": None,
        "recovery_action": 1,
        "processes": 0,
        "used_mib": 100,
        "mig": True,
        "instances": [ONE, TWO, PART],
    }
    assert one == {"uuid": ONE, "used_mib": 5, "processes": 1, "recovery_action": 1}
    assert [reading["uuid"] for reading in (two, part)] == [TWO, PART]


def test_a_destroyed_instance_is_in_no_reading_and_a_new_one_is_named(library: Divided) -> None:
    driver = opened(library)
    library.instances = {0: TWO, 2: "MIG-new", 4: PART}  # an index may be another instance's
    parent, *rest = driver.probe()[2:]
    assert parent["instances"] == [TWO, "MIG-new", PART]
    assert [reading["uuid"] for reading in rest] == [TWO, PART]


@pytest.mark.parametrize("code", [INVALID_ARGUMENT, NOT_FOUND, LOST])
@pytest.mark.parametrize("function", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2"])
def test_b20_a_handle_that_has_gone_stale_is_an_instance_that_is_gone(
    library: Divided, function: str, code: int
) -> None:
    """Drivers have handed out handles of destroyed instances; what these still answer differs."""
    driver = opened(library)
    library.fails |= {(function, TWO): code, ("nvmlDeviceGetMemoryInfo", TWO): code}
    parent, *rest = driver.probe()[2:]
    assert parent["instances"] == [ONE, PART]
    assert [(reading["uuid"], "error" in reading) for reading in rest] == [(ONE, False), (PART, False)]


def test_an_instance_that_cannot_be_read_now_is_still_there(library: Divided) -> None:
    driver = opened(library)
    without_memory(library, TWO, UNKNOWN)
    parent, _, two, _ = driver.probe()[2:]
    assert parent["instances"] == [ONE, TWO, PART]
    assert two == {"uuid": TWO, "error": "the driver cannot read it: Unknown Error (999)", "lost": False}


def test_an_instance_without_a_name_makes_it_unknown_which_there_are(library: Divided) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetUUID", TWO] = UNKNOWN
    parent, *rest = driver.probe()[2:]
    assert parent["instances"] is None
    assert [(reading["uuid"], "error" in reading) for reading in rest] == [(ONE, False), (PART, False), (TWO, True)]


def test_instances_that_cannot_be_asked_for_are_not_destroyed_but_unreadable(library: Divided) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetMigDeviceHandleByIndex"] = UNKNOWN
    parent, *rest = driver.probe()[2:]
    assert ("error" in parent, parent["instances"]) == (False, None)
    assert [(reading["uuid"], "error" in reading) for reading in rest] == [(ONE, True), (TWO, True), (PART, True)]
    assert [each["uuid"] for each in driver.use(utilisation=False)] == [A, B, C]


def test_of_a_lost_gpu_no_instance_is_asked_for(library: Divided) -> None:
    driver = opened(library)
    library.fails |= {("nvmlDeviceGetMemoryInfo_v2", C): LOST}
    library.calls.clear()
    readings = driver.probe()
    assert [(reading["uuid"], reading.get("lost")) for reading in readings] == [(A, None), (B, None), (C, True)]
    assert "nvmlDeviceGetMigDeviceHandleByIndex" not in library.calls


def test_a_gpu_that_has_left_mig_mode_has_no_instances(library: Divided) -> None:
    driver = opened(library)
    library.nvmlDeviceGetMigMode = lambda _: [0, 0]
    assert [(reading["uuid"], reading["mig"]) for reading in driver.probe()] == [(A, False), (B, False), (C, False)]


def test_a_reading_of_a_full_node_takes_few_calls(library: Divided) -> None:
    """Eight GPUs with seven instances each: for an instance its handle, UUID, memory and processes."""
    library.uuids = [f"GPU-{number}" for number in range(8)]
    library._memory |= {uuid: ctypes.create_string_buffer(1) for uuid in library.uuids}
    library.instances = {}
    for number in range(7):
        uuid = library.instances[number] = f"MIG-{number}"
        library._memory[uuid] = ctypes.create_string_buffer(1)
        library.ids[uuid], library.size_mib[uuid] = (7 + number, 0), 4864
        library.names[uuid], library.slices[uuid] = "MIG 1g.5gb", (1, 1)
    library.nvmlDeviceGetMigMode = lambda _: [1, 1]
    library.nvmlDeviceGetMaxMigDeviceCount = lambda _: 7
    driver = opened(library)
    library.calls.clear()
    readings = driver.probe()
    assert len(readings) == 64
    counts = Counter(library.calls)
    assert counts["nvmlDeviceGetMigDeviceHandleByIndex"] == counts["nvmlDeviceGetUUID"] == 56
    assert counts["nvmlDeviceGetMemoryInfo_v2"] == counts["nvmlDeviceGetComputeRunningProcesses_v3"] == 64
    assert sum(counts.values()) == 56 * 4 + 8 * 5


def test_each_instance_has_its_own_processes_and_no_utilisation(library: Divided) -> None:
    """Those of the GPU itself are left to its instances."""
    driver = opened(library)
    del library.instances[4]
    library.instances[6] = "MIG-new"
    assert driver.use(utilisation=True)[2:] == [
        {"uuid": C, "processes": None, "used_mib": 100},
        {"uuid": ONE, "processes": [{"pid": 7, "used_mib": 3, "sm_percent": None}], "used_mib": 5},
        {"uuid": TWO, "processes": [], "used_mib": 5},
    ]
    without_memory(library, TWO, UNKNOWN)
    assert driver.use(utilisation=True)[-1] == {"uuid": TWO, "processes": None, "used_mib": None}


# --- Events -----------------------------------------------------------------------------------------------------------


def test_only_gpus_are_asked_to_report_events_and_changes_of_instances_are_among_them(library: Divided) -> None:
    """A driver takes no handle of an instance for that."""
    library.supported_events = XID | MIG_CHANGE
    opened(library)
    assert library.registered == dict.fromkeys((A, B, C), XID | MIG_CHANGE)


@pytest.mark.parametrize(
    ("gi", "ci", "told"),
    [(9, 0, {"gi": 9, "ci": 0}), (9, NONE, {"gi": 9}), (NONE, NONE, {})],
)
def test_an_xid_is_told_with_the_instance_that_the_driver_names(
    library: Divided, gi: int, ci: int, told: dict[str, int]
) -> None:
    driver = opened(library)
    library.happens(C, XID, 43, gi, ci)
    xid, reading = driver.wait_events(1)
    assert xid == {"uuid": C, "code": 43, **told}
    assert (reading["uuid"], "instances" in reading) == (C, False)


def test_a_change_of_instances_is_told_with_a_reading(library: Divided) -> None:
    driver = opened(library)
    library.happens(C, MIG_CHANGE)
    (reading,) = driver.wait_events(1)
    assert (reading["uuid"], reading.get("mig_changed"), reading.get("used_mib")) == (C, True, 100)


# --- A library of our own, behind the real pynvml, the pipe and the agent's side of it --------------------------------

LIBRARY = """
#include <string.h>
#include <stdio.h>
#include <unistd.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;
typedef struct { unsigned sms, ce, dec, enc, jpeg, ofa, gpuSlices, computeSlices; unsigned long long mib; } Attributes;
typedef struct { void *gpu; unsigned long long type, data; unsigned gi, ci; } Event;
_Static_assert(sizeof(Attributes) == 40 && sizeof(Event) == 32, "as in nvml.h");
static char gpu, instances[3];
static int is_gpu(void *handle) { return handle == &gpu; }
static int number(void *handle) { return (int)((char *)handle - instances); }
static int divided_anew(void) { return access("FOLDER/anew", F_OK) == 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &gpu; return 0; }
int nvmlDeviceGetUUID(void *h, char *uuid, unsigned length) {
  return is_gpu(h) ? (strcpy(uuid, "GPU-a"), 0) : (sprintf(uuid, "MIG-%d", number(h)), 0);
}
int nvmlDeviceGetName(void *h, char *name, unsigned length) {
  strcpy(name, is_gpu(h) ? "NVIDIA H100" : number(h) == 1 ? "NVIDIA H100 MIG 3g.40gb" : "NVIDIA H100"); return 0;
}
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *later) { *now = *later = 1; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **handle) {
  if (index > 2) return 2;
  if (index == (divided_anew() ? 2 : 0)) return 6;
  *handle = &instances[index]; return 0;
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *id) { *id = is_gpu(h) ? 0 : 6 + number(h); return is_gpu(h) ? 3 : 0; }
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *id) { *id = 0; return is_gpu(h) ? 3 : 0; }
int nvmlDeviceGetAttributes_v2(void *h, Attributes *a) {
  if (is_gpu(h)) return 3;
  memset(a, 0, sizeof *a); a->gpuSlices = a->computeSlices = 1; a->mib = 9984; return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory *memory) {
  if (is_gpu(h)) return 4;
  memory->total = (number(h) == 1 ? 40448ull : 9984ull) << 20; memory->reserved = 0; memory->used = 13ull << 20;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *h, void *memory) { return 4; }
int nvmlDeviceGetGpuInstanceProfileInfoV(void *h, unsigned profile, unsigned *info) {
  if (profile != 4) return 3;
  *(unsigned long long *)(info + 12) = 81152; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, Process *into) {
  if (is_gpu(h)) return 4;
  if (*count < 1) { *count = 1; return 7; }
  memset(into, 0, sizeof *into);
  into->pid = 4711 + number(h); into->used = 3ull << 30; *count = 1; return 0;
}
int nvmlEventSetCreate(void **set) { *set = &gpu; return 0; }
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *types) { *types = 0x108; return is_gpu(h) ? 0 : 2; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) {
  return is_gpu(h) && types == 0x108 ? 0 : 2;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout) {
  static int told;
  event->gpu = &gpu;
  if (!told++) { event->type = 8; event->data = 43; event->gi = 7; event->ci = 0; return 0; }
  for (; timeout > 0; timeout -= timeout < 10 ? timeout : 10) {
    if (divided_anew() && access("FOLDER/heard", F_OK) && !fclose(fopen("FOLDER/heard", "w"))) {
      event->type = 0x100; event->gi = event->ci = ~0u; return 0;
    }
    usleep(10000);
  }
  return 10;
}
"""


def test_structures_have_the_size_that_nvml_has() -> None:
    """The library of these tests, which checks its own when it is compiled, is called through these."""
    attributes, event = pynvml.c_nvmlDeviceAttributes, pynvml.c_nvmlEventData_t
    assert (ctypes.sizeof(attributes), ctypes.sizeof(event)) == (40, 32)
    assert (attributes.gpuInstanceSliceCount.offset, attributes.memorySizeMB.offset) == (24, 32)
    assert (event.gpuInstanceId.offset, event.computeInstanceId.offset) == (24, 28)
    assert pynvml.c_nvmlGpuInstanceProfileInfo_v2_t.memorySizeMB.offset == 48
    assert pynvml.nvmlEventMigConfigChange == MIG_CHANGE


async def test_instances_come_through_the_real_binding_and_follow_when_the_gpu_is_divided_anew(
    watched: Watching, tmp_path: Path, quick: MonitorTimings
) -> None:
    """The driver reports the change; no reading is due for an hour. Of two instances one stays."""
    compiled(tmp_path, LIBRARY.replace("FOLDER", str(tmp_path)))
    xids: list[Xid] = []
    timings = replace(quick, probe_every_s=3600, rescan_every_s=3600, rescan_missing_every_s=3600)
    async with watched("nvml", library_dir=tmp_path, timings=timings, on_xid=xids.append) as hardware:
        view = hardware.view.value
        assert view.sentence.startswith(
            "1 GPU with 2 MIG instances, driver of unknown version; the driver may not show"
        )
        assert [(gpu.uuid, gpu.product, gpu.total_mib, gpu.instance) for gpu in view.inventory.gpus] == [
            ("GPU-a", "NVIDIA H100", 81152, None),
            ("MIG-1", "NVIDIA H100 MIG 3g.40gb", 40448, MigInstance("GPU-a", 1, "3g.40gb", gi=7, ci=0)),
            ("MIG-2", "NVIDIA H100 MIG 1g.10gb", 9984, MigInstance("GPU-a", 2, "1g.10gb", gi=8, ci=0)),
        ]
        assert await hardware.use() == (
            GpuReading("GPU-a", None),
            GpuReading("MIG-1", (GpuProcess(4712, 3072),), used_mib=13),
            GpuReading("MIG-2", (GpuProcess(4713, 3072),), used_mib=13),
        )
        (tmp_path / "anew").touch()
        view = await hardware.until(lambda view: len(view.inventory.gpus) == 3 and "MIG-0" in view.health_by_uuid)
    assert [gpu.uuid for gpu in view.inventory.gpus] == ["GPU-a", "MIG-1", "MIG-0"]
    assert all(health.healthy for health in view.health_by_uuid.values())
    assert (xids[0].uuid, xids[0].code) == ("MIG-1", 43)
