"""The driver port over NVML, against a library that answers as real ones were seen to."""

# ruff: noqa: N802, N815 - the names are pynvml's

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpu_device_plugin.hardware.driver import ADVICE, HardwareError
from gpu_device_plugin.hardware.nvml.nvml_driver import Nvml
from gpu_device_plugin.model.gpus import Closeness

MIB = 1 << 20
NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, LOST, UNKNOWN, TIMEOUT = 3, 6, 13, 15, 999, 10
INVALID_ARGUMENT, NO_PERMISSION = 2, 4
NONE = 0xFFFFFFFF
XID, DOUBLE_BIT, RECOVERY = 0x8, 0x2, 0x8000
MEMORY = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
A, B, C = (f"GPU-{letter * 8}" for letter in "abc")


class OpaqueGpu(ctypes.Structure):
    pass


class Library:
    """What pynvml is to our adapter: the functions it calls, and errors of pynvml's own type.

    Three A100 of 40 GiB; A and B are connected by four NVLinks, C hangs on another socket. Whatever stands in `fails`
    fails: a function's name, or a function's name and the GPU.
    """

    NVMLError = pynvml.NVMLError
    NVML_NVLINK_MAX_LINKS = 6
    c_nvmlGetMemoryLimits_v1_t = pynvml.c_nvmlGetMemoryLimits_v1_t
    nvmlMemory_v2 = 2

    def __init__(self) -> None:
        self.fails: dict[str | tuple[str, str], int] = {"nvmlDeviceGetMemoryLimits_v1": FUNCTION_NOT_FOUND}
        self.limits_asked: list[Any] = []
        self.calls: list[str] = []
        self.uuids = [A, B, C]
        self.events: list[Any] = []
        self.supported_events = XID | DOUBLE_BIT | RECOVERY | 0x1 | 0x4
        self.registered: dict[str, int] = {}
        self.rows = (0, 0, 0, 0)
        self.architecture = pynvml.NVML_DEVICE_ARCH_AMPERE
        self.action = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))
        self.switched = False
        self._memory = {uuid: ctypes.create_string_buffer(1) for uuid in (*self.uuids, "GPU-strange")}

    def handle(self, uuid: str) -> Any:
        return ctypes.cast(self._memory[uuid], ctypes.POINTER(OpaqueGpu))  # a new pointer every time, as pynvml makes

    def _uuid(self, handle: Any) -> str:
        address = ctypes.cast(handle, ctypes.c_void_p).value
        return next(uuid for uuid, memory in self._memory.items() if ctypes.addressof(memory) == address)

    def _call(self, function: str, uuid: str = "") -> None:
        self.calls.append(function)
        code = self.fails.get((function, uuid), self.fails.get(function))
        if code is not None:
            raise pynvml.NVMLError(code)

    def __getattr__(self, function: str) -> Any:
        """Return a function of `ANSWERS`, or of `OF_GPU`, whose first argument is a GPU's handle."""
        if function in self.OF_GPU:

            def of_gpu(handle: Any, *arguments: Any) -> Any:
                if function == "nvmlDeviceGetMemoryLimits_v1":
                    self.limits_asked.append(arguments[0].nameSpace)
                self._call(function, uuid := self._uuid(handle))
                return self.OF_GPU[function](self, uuid, *arguments)

            return of_gpu
        if function not in self.ANSWERS:
            raise AttributeError(function)

        def call(*arguments: Any) -> Any:
            self._call(function, self.uuids[arguments[0]] if function == "nvmlDeviceGetHandleByIndex" else "")
            return self.ANSWERS[function](self, *arguments)

        return call

    ANSWERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
        {
            "nvmlInit": lambda _: None,
            "nvmlSystemGetDriverVersion": lambda _: "580.65.06",
            "nvmlDeviceGetCount": lambda self: len(self.uuids),
            "nvmlDeviceGetHandleByIndex": lambda self, index: self.handle(self.uuids[index]),
            "nvmlEventSetCreate": lambda self: self.registered.clear() or object(),
            "nvmlEventSetFree": lambda _, __: None,
            "nvmlEventSetWait_v2": lambda self, *_: self.events.pop(0) if self.events else fail(TIMEOUT),
        }
    )
    OF_GPU: Mapping[str, Callable[..., Any]] = MappingProxyType(
        {
            "nvmlDeviceGetUUID": lambda _, uuid: uuid,
            "nvmlDeviceGetName": lambda *_: "NVIDIA A100-SXM4-40GB",
            "nvmlDeviceGetMinorNumber": lambda self, uuid: 7 - self.uuids.index(uuid),
            "nvmlDeviceGetArchitecture": lambda self, _: self.architecture,
            "nvmlDeviceGetPciInfo": lambda self, uuid: pci(0x3B + self.uuids.index(uuid)),
            "nvmlDeviceGetMaxMigDeviceCount": lambda _, uuid: 7 if uuid == C else 0,
            "nvmlDeviceGetMigMode": lambda _, uuid: [int(uuid == C), 0],
            "nvmlDeviceGetMigDeviceHandleByIndex": lambda *_: fail(NOT_FOUND),  # C is in MIG mode without instances
            "nvmlDeviceGetRemappedRows": lambda self, _: self.rows,
            "nvmlDeviceGetRetiredPagesPendingStatus": lambda *_: 1,
            "nvmlDeviceGetTotalEccErrors": lambda *_: 2,
            "nvmlDeviceGetFieldValues": lambda self, *_: [self.action],
            "nvmlDeviceGetComputeRunningProcesses_v3": lambda *_: [1, 2, 3],
            "nvmlDeviceGetComputeRunningProcesses_v2": lambda *_: [1],
            "nvmlDeviceGetSupportedEventTypes": lambda self, _: self.supported_events,
            "nvmlDeviceRegisterEvents": lambda self, uuid, types, _: self.registered.update({uuid: types}),
            # As drivers before r615 answer, unless a test says otherwise.
            "nvmlDeviceGetMemoryLimits_v1": lambda *_: None,
            "nvmlDeviceGetNvLinkState": lambda _, uuid, link: fail(NOT_SUPPORTED) if uuid == C else int(link < 4),
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda self, uuid, link: pci(
                0xC0 + link if self.switched else 0x3C if uuid == A else 0x3B
            ),
            "nvmlDeviceGetP2PStatus": lambda self, one, other, _: 0 if {one, self._uuid(other)} == {A, B} else 2,
            "nvmlDeviceGetTopologyCommonAncestor": lambda self, *pair: (
                50 if C in {pair[0], self._uuid(pair[1])} else 10
            ),
        }
    )

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        uuid = self._uuid(handle)
        if version is None:
            self._call("nvmlDeviceGetMemoryInfo", uuid)
            return SimpleNamespace(total=40325 * MIB, used=700 * MIB)
        self._call("nvmlDeviceGetMemoryInfo_v2", uuid)
        return SimpleNamespace(total=40960 * MIB + 5, reserved=634 * MIB + 1, used=100 * MIB)

    def happens(self, uuid: str, kind: int, data: int = 0, gi: int = NONE, ci: int = NONE) -> None:
        event = {"eventType": kind, "eventData": data, "gpuInstanceId": gi, "computeInstanceId": ci}
        self.events.append(SimpleNamespace(device=self.handle(uuid), **event))


def fail(code: int) -> Any:
    raise pynvml.NVMLError(code)


def pci(bus: int) -> Any:
    return SimpleNamespace(domain=0, bus=bus, device=0)


@pytest.fixture
def library() -> Library:
    return Library()


def opened(library: Library) -> Nvml:
    driver = Nvml(library, "/nowhere")
    driver.inventory()
    return driver


def test_everything_the_driver_tells_is_taken(library: Library, tmp_path: Path) -> None:
    for address, node in {"0000:3b:00.0": "0", "0000:3c:00.0": "1", "0000:3d:00.0": "-1"}.items():
        device = tmp_path / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    inventory = Nvml(library, str(tmp_path)).inventory()
    first, second, third = inventory["gpus"]
    assert first == {
        "uuid": A,
        "index": 0,
        "product": "NVIDIA A100-SXM4-40GB",
        "total_mib": 40960,  # rounded down
        "reserved_mib": 635,  # rounded up
        "device_paths": ["/dev/nvidia7"],
        "pci_bus_id": "0000:3b:00.0",
        "numa_node": 0,
        "mig": False,
        "memory_limits": False,
        "architecture": "Ampere",
        "unified": False,
        "instance": None,
    }
    assert (second["numa_node"], third["numa_node"]) == (1, None)  # -1: the kernel does not know
    assert third["mig"]
    assert inventory["driver_version"] == "580.65.06"
    assert (inventory["left_out"], inventory["troubles"]) == (0, [])


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (pynvml.NVML_DEVICE_ARCH_PASCAL, "Pascal"),
        (pynvml.NVML_DEVICE_ARCH_VOLTA, "Volta"),
        (pynvml.NVML_DEVICE_ARCH_TURING, "Turing"),
        (pynvml.NVML_DEVICE_ARCH_AMPERE, "Ampere"),
        (pynvml.NVML_DEVICE_ARCH_ADA, "Ada Lovelace"),
        (pynvml.NVML_DEVICE_ARCH_HOPPER, "Hopper"),
        (pynvml.NVML_DEVICE_ARCH_BLACKWELL, "Blackwell"),
        (pynvml.NVML_DEVICE_ARCH_RUBIN, "Rubin"),
        (pynvml.NVML_DEVICE_ARCH_UNKNOWN, None),
        (14, None),  # of a driver that is newer than this table
    ],
)
def test_an_architecture_has_the_name_that_nvidia_gives_it(library: Library, number: int, name: str | None) -> None:
    library.architecture = number
    assert {gpu["architecture"] for gpu in Nvml(library, "/nowhere").inventory()["gpus"]} == {name}


OPTIONAL = {
    "nvmlDeviceGetName": "product",
    "nvmlDeviceGetMinorNumber": "device_paths",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetPciInfo": "pci_bus_id",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetMemoryInfo_v2": "reserved_mib",
    "nvmlSystemGetDriverVersion": None,
    "nvmlDeviceGetNvLinkState": None,
    "nvmlDeviceGetNvLinkRemotePciInfo": None,
    "nvmlDeviceGetP2PStatus": None,
    "nvmlDeviceGetTopologyCommonAncestor": None,
    "nvmlDeviceGetSupportedEventTypes": None,
    "nvmlDeviceRegisterEvents": None,
    "nvmlEventSetCreate": None,
    "nvmlEventSetFree": None,
    "nvmlDeviceGetRemappedRows": "remap_failed",
    "nvmlDeviceGetTotalEccErrors": "ecc_uncorrected",
    "nvmlDeviceGetFieldValues": "recovery_action",
    "nvmlDeviceGetComputeRunningProcesses_v3": None,
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN])
@pytest.mark.parametrize("function", OPTIONAL)
def test_b4_nothing_but_uuid_and_memory_is_taken_for_granted(library: Library, function: str, code: int) -> None:
    library.fails[function] = code
    driver = Nvml(library, "/nowhere")
    inventory = driver.inventory()
    readings = driver.probe()
    assert function in library.calls or function == "nvmlEventSetFree"
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [A, B, C]
    assert [reading.get("error") for reading in readings] == [None, None, None]
    if field := OPTIONAL[function]:
        value = {**inventory["gpus"][0], **readings[0]}[field]
        assert value in (None, "unknown GPU", False, [])


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryLimits_v1",
    ],
)
def test_b4_a_binding_that_lacks_a_function_is_a_driver_that_lacks_it(library: Library, function: str) -> None:
    class Older:
        def __getattr__(self, name: str) -> Any:
            if name == function:
                raise AttributeError(name)
            return getattr(library, name)

    driver = Nvml(Older(), "/nowhere")
    assert len(driver.inventory()["gpus"]) == 3
    assert "error" not in driver.probe()[0]


@pytest.mark.parametrize(
    ("code", "limits"),
    [
        (None, True),
        (NOT_FOUND, True),  # no limit is set
        (NO_PERMISSION, True),
        (FUNCTION_NOT_FOUND, False),
        (NOT_SUPPORTED, False),
        (INVALID_ARGUMENT, False),
        (UNKNOWN, False),
    ],
)
def test_a_driver_that_answers_for_the_memory_limits_of_a_cgroup_can_set_them(
    library: Library, code: int | None, *, limits: bool
) -> None:
    """Of the GPUs B alone is of another driver model here, and lacks them in any case."""
    library.fails = {("nvmlDeviceGetMemoryLimits_v1", B): FUNCTION_NOT_FOUND}
    library.fails |= {} if code is None else {"nvmlDeviceGetMemoryLimits_v1": code}
    assert [gpu["memory_limits"] for gpu in Nvml(library).inventory()["gpus"]] == [limits, False, limits]


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ("0::/\n", "{root}"),  # a container with a cgroup namespace of its own
        ("12:memory:/x\n0::/system.slice/a.service\n", "{root}/system.slice/a.service"),
        ("0::/not/mounted/here\n", "{root}"),
        ("0::/../../elsewhere\n", "{root}"),
        ("3:cpu:/docker/x\n", "{root}"),
        (None, "{root}"),
    ],
)
def test_the_limit_is_asked_of_the_cgroup_that_we_are_in(
    library: Library, tmp_path: Path, own: str | None, asked: str
) -> None:
    """A driver answers Not Supported for the root of the hierarchy."""
    root = tmp_path / "sys/fs/cgroup"
    (root / "system.slice/a.service").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    if own is not None:
        (tmp_path / "proc/self/cgroup").write_text(own)
    Nvml(library, str(tmp_path)).inventory()
    assert set(library.limits_asked) == {asked.format(root=root)}


def test_the_version_of_control_groups_is_that_of_what_is_mounted(library: Library, tmp_path: Path) -> None:
    def version() -> object:
        return Nvml(library, str(tmp_path)).inventory()["cgroup"]

    assert version() is None
    (tmp_path / "sys/fs/cgroup/unified").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/unified/cgroup.controllers").touch()
    assert version() == 1  # both in use
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").touch()
    assert version() == 2


def test_b21_without_the_second_memory_call_nothing_is_reserved_because_it_is_not_in_the_total(
    library: Library,
) -> None:
    library.fails["nvmlDeviceGetMemoryInfo_v2"] = FUNCTION_NOT_FOUND
    (gpu, *_) = Nvml(library, "/nowhere").inventory()["gpus"]
    assert (gpu["total_mib"], gpu["reserved_mib"]) == (40325, 0)


def test_b3_an_older_driver_counts_its_processes_by_an_older_function_or_not_at_all(library: Library) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetComputeRunningProcesses_v3"] = FUNCTION_NOT_FOUND
    assert driver.probe()[0].get("processes") == 1
    library.fails["nvmlDeviceGetComputeRunningProcesses_v2"] = FUNCTION_NOT_FOUND
    assert driver.probe()[0].get("processes") is None


def test_pages_waiting_to_be_retired_count_on_gpus_that_have_no_rows_to_remap(library: Library) -> None:
    library.fails["nvmlDeviceGetRemappedRows"] = NOT_SUPPORTED
    (reading, *_) = opened(library).probe()
    assert (reading["remap_pending"], reading["remap_failed"]) == (True, None)


def test_b15_row_remapping_and_errors_are_read(library: Library) -> None:
    library.rows = (1, 1, 1, 1)
    library.action.value.uiVal = 4
    (reading, *_) = opened(library).probe()
    assert reading == {
        "uuid": A,
        "ecc_uncorrected": 2,
        "remap_pending": True,
        "remap_failed": True,
        "recovery_action": 4,
        "processes": 3,
        "used_mib": 100,
        "mig": False,
    }


def test_a_field_that_the_driver_refuses_is_unknown(library: Library) -> None:
    library.action.nvmlReturn = NOT_SUPPORTED
    (reading, *_) = opened(library).probe()
    assert reading["recovery_action"] is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4, "no-permission"),
        (9, "no-driver"),
        (12, "no-library"),
        (17, "other"),
        (18, "version-mismatch"),
        (999, "context-lost"),
    ],
)
@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_b1_a_driver_that_cannot_be_opened_says_why_and_what_to_do(
    library: Library, function: str, code: int, kind: str
) -> None:
    library.fails[function] = code
    with pytest.raises(HardwareError) as failed:
        opened(library)
    assert failed.value.kind == kind
    assert f"({code})" in str(failed.value)
    assert ADVICE[kind] in str(failed.value)


def test_b7_a_gpu_that_cannot_be_listed_does_not_hide_the_others(library: Library) -> None:
    library.fails["nvmlDeviceGetHandleByIndex", B] = LOST
    inventory = Nvml(library, "/nowhere").inventory()
    assert [(gpu["uuid"], gpu["index"]) for gpu in inventory["gpus"]] == [(A, 0), (C, 2)]
    assert inventory["left_out"] == 1
    name = "the GPU that nvidia-smi counts as 1"
    assert inventory["troubles"] == [f"{name} is left out, it cannot be read: GPU is lost (15)"]
    assert [(link["a"], link["b"]) for link in inventory["links"]] == [(A, C)]


def test_a_gpu_that_cannot_be_read_is_named_by_its_uuid_where_the_driver_tells_it(library: Library) -> None:
    """Without its number for people: no GPU of the node's list has it."""
    library.fails |= {(name, B): UNKNOWN for name in MEMORY}
    assert Nvml(library, "/nowhere").inventory()["troubles"] == [
        f"the GPU {B} (nvidia-smi counts it as 1) is left out, it cannot be read: Unknown Error (999)"
    ]


@pytest.mark.parametrize("answer", [NOT_SUPPORTED, None], ids=["not supported", "nothing"])
def test_a_gpu_with_the_memory_of_the_machine_is_listed(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """GB10 and Jetson tell of no memory, and a driver was seen to tell that there is none."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       127600748 kB\nMemFree:        7976902 kB\n")
    if answer is None:
        nothing = SimpleNamespace(total=0, reserved=0, used=0, free=0)
        monkeypatch.setattr(library, "nvmlDeviceGetMemoryInfo", lambda *_arguments, **_version: nothing)
    else:
        library.fails |= dict.fromkeys(MEMORY, answer)
    driver = Nvml(library, str(tmp_path))
    gpus = [gpu for gpu in driver.inventory()["gpus"] if not gpu["mig"]]
    assert [(gpu["total_mib"], gpu["reserved_mib"], gpu["unified"]) for gpu in gpus] == [(124610, 0, True)] * 2
    reading = driver.probe()[0]
    assert "error" not in reading
    assert reading["used_mib"] == (0 if answer is None else None)


def test_without_the_machines_memory_a_gpu_that_tells_none_is_left_out(library: Library) -> None:
    library.fails |= dict.fromkeys(MEMORY, NOT_SUPPORTED)
    assert Nvml(library, "/nowhere").inventory()["left_out"] == 3


def test_gpus_that_no_one_may_open_are_a_matter_of_this_container(library: Library) -> None:
    library.fails["nvmlDeviceGetHandleByIndex"] = 4
    with pytest.raises(HardwareError, match="NVIDIA_VISIBLE_DEVICES=all"):
        opened(library)


def test_a_node_whose_only_gpus_are_lost_has_none(library: Library) -> None:
    library.fails["nvmlDeviceGetUUID"] = LOST
    inventory = Nvml(library, "/nowhere").inventory()
    assert (inventory["gpus"], inventory["left_out"]) == ([], 3)


@pytest.mark.parametrize("code", [NOT_FOUND, LOST, 28])
def test_b7_a_gpu_lost_while_we_watch_is_lost_and_the_others_are_read(library: Library, code: int) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetMemoryInfo_v2", B] = code
    assert [reading.get("lost") for reading in driver.probe()] == [None, True, None]


def test_a_gpu_that_gets_lost_in_the_middle_of_a_reading_is_lost(library: Library) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetTotalEccErrors", A] = LOST
    reading = driver.probe()[0]
    assert reading == {"uuid": A, "error": "the driver cannot read it: GPU is lost (15)", "lost": True}


def test_a_gpu_that_needs_a_reset_or_answers_nonsense_is_unreadable(library: Library) -> None:
    driver = opened(library)
    library.fails["nvmlDeviceGetMemoryInfo_v2", A] = 16
    library.fails["nvmlDeviceGetMemoryInfo_v2", B] = UNKNOWN
    library.fails |= {(name, B): UNKNOWN for name in MEMORY}
    assert [reading.get("lost") for reading in driver.probe()] == [False, False, None]


def test_f6_unknown_error_from_every_gpu_that_worked_before_is_lost_device_access(library: Library) -> None:
    driver = opened(library)
    driver.probe()
    library.fails |= dict.fromkeys(("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), UNKNOWN)
    with pytest.raises(HardwareError, match="Unknown Error") as failed:
        driver.probe()
    assert failed.value.kind == "context-lost"


def test_f6_unknown_error_from_every_gpu_in_a_fresh_process_is_the_gpus_own(library: Library) -> None:
    driver = opened(library)
    library.fails |= dict.fromkeys(("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), UNKNOWN)
    assert [reading["lost"] for reading in driver.probe()] == [False, False, False]


def test_f6_the_wait_for_events_blames_no_gpu_for_lost_device_access_either(library: Library) -> None:
    driver = opened(library)
    driver.probe()
    library.fails |= dict.fromkeys(
        ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlEventSetWait_v2"), UNKNOWN
    )
    with pytest.raises(HardwareError, match="Unknown Error"):
        driver.wait_events(0)
    del library.fails["nvmlEventSetWait_v2"]
    library.happens(A, XID, 31)
    assert driver.wait_events(0) == [{"uuid": A, "code": 31}]


def links(library: Library) -> dict[tuple[str, str], tuple[Closeness, int]]:
    inventory = Nvml(library, "/nowhere").inventory()
    return {(link["a"], link["b"]): (Closeness(link["closeness"]), link["nvlinks"]) for link in inventory["links"]}


@pytest.mark.parametrize("switched", [False, True])
def test_nvlinks_are_counted_directly_and_through_a_switch(library: Library, *, switched: bool) -> None:
    library.switched = switched
    assert links(library) == {
        (A, B): (Closeness.NVLINK, 4),
        (A, C): (Closeness.SYSTEM, 0),
        (B, C): (Closeness.SYSTEM, 0),
    }


def test_without_nvlink_the_way_over_pcie_counts(library: Library) -> None:
    library.fails["nvmlDeviceGetNvLinkState"] = NOT_SUPPORTED
    assert links(library)[A, B] == (Closeness.SWITCH, 0)


def test_a_gpu_lost_while_its_links_are_counted_is_left_to_its_reading(library: Library) -> None:
    library.fails["nvmlDeviceGetNvLinkState", B] = LOST
    assert links(library)[A, B] == (Closeness.NVLINK, 4)  # what A tells is enough


def test_each_gpu_is_asked_to_report_what_it_can(library: Library) -> None:
    opened(library)
    assert library.registered == dict.fromkeys((A, B, C), XID | DOUBLE_BIT | RECOVERY)


def test_an_xid_is_told_with_a_reading_of_its_gpu(library: Library) -> None:
    driver = opened(library)
    library.happens(B, XID, 79)
    xid, reading = driver.wait_events(1)
    assert xid == {"uuid": B, "code": 79}
    assert (reading["uuid"], "code" in reading) == (B, False)
    assert driver.wait_events(1) == []


def test_another_event_is_a_reason_for_a_reading(library: Library) -> None:
    driver = opened(library)
    library.happens(C, RECOVERY)
    (reading,) = driver.wait_events(1)
    assert (reading["uuid"], reading.get("ecc_uncorrected")) == (C, 2)


def test_b13_the_gpu_of_an_xid_is_known_even_if_it_cannot_be_asked_any_more(library: Library) -> None:
    driver = opened(library)
    library.fails |= dict.fromkeys(
        [("nvmlDeviceGetUUID", B), ("nvmlDeviceGetMemoryInfo_v2", B), ("nvmlDeviceGetMemoryInfo", B)], LOST
    )
    library.happens(B, XID, 79)
    xid, reading = driver.wait_events(1)
    assert xid == {"uuid": B, "code": 79}
    assert (reading["uuid"], reading.get("lost")) == (B, True)


def test_b13_an_event_that_names_no_gpu_is_a_reason_to_read_all_of_them(library: Library) -> None:
    driver = opened(library)
    library.happens("GPU-strange", XID, 79)
    assert [record["uuid"] for record in driver.wait_events(1)] == [A, B, C]


@pytest.mark.parametrize("old_set_freed", [True, False])
def test_b12_a_failing_wait_is_set_up_anew_and_every_gpu_is_read(library: Library, *, old_set_freed: bool) -> None:
    driver = opened(library)
    library.fails["nvmlEventSetWait_v2"] = UNKNOWN
    if not old_set_freed:
        library.fails["nvmlEventSetFree"] = UNKNOWN
    readings = driver.wait_events(0)
    assert [(reading["uuid"], "error" in reading) for reading in readings] == [(A, False), (B, False), (C, False)]
    del library.fails["nvmlEventSetWait_v2"]
    library.happens(A, XID, 31)
    assert driver.wait_events(0)[0] == {"uuid": A, "code": 31}


def test_b12_a_wait_that_fails_for_ever_makes_no_busy_loop(library: Library) -> None:
    """Half a second, then doubling, up to four seconds: HAMi once burned a core on this."""
    driver = opened(library)
    library.fails["nvmlEventSetWait_v2"] = UNKNOWN
    pauses = []
    for _ in range(6):
        driver.wait_events(0)
        pauses.append(driver.pause_s)
    assert pauses == [0.5, 1, 2, 4, 4, 4]


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_b11_b4_without_events_the_gpus_are_watched_by_asking_and_that_is_told(library: Library, function: str) -> None:
    library.fails[function] = NOT_SUPPORTED
    driver = Nvml(library, "/nowhere")
    assert driver.inventory()["troubles"] == [
        "this driver reports no events, so failures are found only by reading every GPU in turn"
    ]
    assert driver.wait_events(0) == []
    del library.fails[function]
    assert driver.wait_events(0) == []  # it works now, from the next time on
    library.happens(A, XID, 31)
    assert driver.wait_events(0)[0] == {"uuid": A, "code": 31}


def test_no_gpus_is_a_state_and_nothing_to_wait_for(library: Library) -> None:
    library.uuids = []
    driver = Nvml(library, "/nowhere")
    assert driver.inventory()["gpus"] == []
    assert driver.probe() == []
    assert driver.wait_events(0) == []
