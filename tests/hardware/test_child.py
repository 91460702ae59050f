"""The process in which the driver is called."""

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.child import open_driver, serve
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.settings import forms
from tests.hardware.amdgpu import trees
from tests.patience import stretched

Record = dict[str, Any]

CHILD = (sys.executable, "-m", "gpu_device_plugin.hardware.child")


class OneGpu:
    """A driver whose second reading fails, and which reports one XID and nothing more."""

    def __init__(self) -> None:
        self.events: list[list[Record]] = [[], [{"uuid": "GPU-a", "code": 31}]]
        self.reported = threading.Event()
        self.readings = 0

    def inventory(self) -> Record:
        return {"gpus": [], "links": [], "driver_version": "1.2", "cgroup": 2, "left_out": 0, "troubles": []}

    def probe(self) -> list[Record]:
        self.readings += 1
        if self.readings == 3:
            self.reported.wait(10)
            raise HardwareError(driver.CONTEXT_LOST, "nothing answers")
        return [{"uuid": "GPU-a"}]

    def use(self, *, utilisation: bool) -> list[Record]:
        return [{"uuid": "GPU-a", "processes": None, "used_mib": 1 + utilisation}]

    def condition(self, groups: list[str]) -> list[Record]:
        return [{"uuid": "GPU-a", "temperature_c": 40 + len(groups)}]

    def limits(self, wanted: list[tuple[str, str]]) -> list[Record]:
        return [
            {"uuid": uuid, "path": path, "code": 6, "hard_mib": None, "soft_mib": None, "used_mib": None}
            for uuid, path in wanted
        ]

    def set_limits(self, wanted: list[tuple[str, str, int | None, int]]) -> list[Record]:
        return [
            {"uuid": uuid, "path": path, "code": 0, "hard_mib": hard, "soft_mib": soft, "used_mib": None}
            for uuid, path, hard, soft in wanted
        ]

    def wait_events(self, timeout_s: float) -> list[Record]:
        if self.events:
            return self.events.pop(0)
        self.reported.set()
        threading.Event().wait(timeout_s * 10)
        return []


def served(requests: bytes) -> list[dict[str, Any]]:
    answers = io.BytesIO()
    serve(OneGpu, io.BytesIO(requests), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_it_answers_the_start_and_every_line_reports_events_and_says_why_it_ends() -> None:
    messages = served(b"\n\n\n")
    answers = [message["answer"] for message in messages if "answer" in message]
    assert answers == [
        {"inventory": OneGpu().inventory(), "probes": [{"uuid": "GPU-a"}]},
        {"probes": [{"uuid": "GPU-a"}]},
    ]
    assert {"events": [{"uuid": "GPU-a", "code": 31}]} in messages
    assert messages[-1] == {"error": {"kind": "context-lost", "what": "nothing answers", "advice": ""}}


def test_it_answers_each_kind_of_request_in_their_order() -> None:
    messages = served(b'{"use":false}\n{"limits":[["GPU-a","/c"]]}\n{"set":[["GPU-a","/c",4,0]]}\n\n{"use":true}\n')
    answers = [message for message in messages if "events" not in message]
    assert answers[1:] == [
        {"use": [{"uuid": "GPU-a", "processes": None, "used_mib": 1}]},
        {"limits": [{"uuid": "GPU-a", "path": "/c", "code": 6, "hard_mib": None, "soft_mib": None, "used_mib": None}]},
        {"limits": [{"uuid": "GPU-a", "path": "/c", "code": 0, "hard_mib": 4, "soft_mib": 0, "used_mib": None}]},
        {"answer": {"probes": [{"uuid": "GPU-a"}]}},
        {"use": [{"uuid": "GPU-a", "processes": None, "used_mib": 2}]},
    ]


def test_the_setting_names_the_drivers_that_there_are() -> None:
    """Settings and hardware do not import each other."""
    assert forms.DRIVERS == driver.DRIVERS


def test_it_ends_with_its_input() -> None:
    child = subprocess.Popen([*CHILD, "fake:2xT4", "0", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = child.communicate(b"\n", timeout=stretched())
    first, second = map(json.loads, out.splitlines())
    assert len(first["answer"]["inventory"]["gpus"]) == 2
    assert second["answer"]["probes"] == first["answer"]["probes"]
    assert child.returncode == 0


def test_it_ends_quietly_when_nobody_listens_any_more() -> None:
    child = subprocess.Popen(
        [*CHILD, "fake:2xT4", "0", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    child.stdout = None
    _, complaints = child.communicate(b"\n", timeout=stretched())
    assert (child.returncode, complaints) == (0, b"")


def test_a_driver_that_breaks_while_it_waits_for_events_ends_the_process() -> None:
    """Otherwise the GPUs would seem to be watched, and no event would ever be heard of."""
    program = """
import sys
from gpu_device_plugin.hardware import child
from gpu_device_plugin.hardware.fake import fake_driver
def broken(self, timeout_s):
    raise RuntimeError("a defect of ours")
fake_driver.Fake.wait_events = broken
child.main("fake:1xT4", "0", "-1")
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.wait(60) == 1
    _, complaints = started.communicate()
    assert b"RuntimeError: a defect of ours" in complaints


def test_a_driver_that_cannot_be_opened_is_an_error_message_and_no_traceback() -> None:
    child = subprocess.run(
        [*CHILD, "fake:1xT5", "0", "-1"], input=b"", capture_output=True, timeout=stretched(), check=False
    )
    error = json.loads(child.stdout)["error"]
    assert error["kind"] == "other"
    assert "'T5' is not a known model" in error["what"]
    assert child.stderr == b""


def test_a_missing_binding_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "gpu_device_plugin.hardware.nvml.nvml_driver", None
    )  # what a failed import leaves behind
    with pytest.raises(HardwareError, match="nvidia-ml-py cannot be loaded"):
        open_driver("nvml")


def test_it_loads_nothing_that_it_does_not_need() -> None:
    """It counts in the agent's memory: dataclasses and asyncio alone would add a third to it."""
    program = (
        "import sys, gpu_device_plugin.hardware.child, gpu_device_plugin.hardware.nvml.nvml_driver;"
        "print(*{'asyncio', 'dataclasses', 'typing', 'pathlib', 'grpc', 'yaml'} & set(sys.modules),"
        "*[name for name in sys.modules if 'mig' in name])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=stretched(), check=True)
    assert loaded.stdout == b"\n"


# --- Which driver is opened -------------------------------------------------------------------------------------------

NVIDIA_CARD = {
    "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
    "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
}
BOUND = {"/sys/bus/pci/drivers/amdgpu/0000:03:00.0/vendor": "0x1002", "/sys/bus/pci/drivers/amdgpu/bind": ""}
AMD_CARD = {
    "/sys/bus/pci/devices/0000:03:00.0/vendor": "0x1002",
    "/sys/bus/pci/devices/0000:03:00.0/class": "0x120000",
}
BMC = {
    "/sys/bus/pci/devices/0000:02:00.0/vendor": "0x1a03",
    "/sys/bus/pci/devices/0000:02:00.0/class": "0x030000",
}
HOST_BRIDGE = {
    "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086",
    "/sys/bus/pci/devices/0000:00:00.0/class": "0x060000",
}


@pytest.mark.parametrize(
    ("source", "files", "opened"),
    [
        ("auto", {}, "nvml"),
        ("auto", {"/sys/bus/pci/drivers/amdgpu/bind": "", **NVIDIA_CARD}, "nvml"),
        ("auto", {**BOUND, **HOST_BRIDGE}, "Drm"),
        ("auto", {"/sys/bus/pci/drivers/xe/0000:03:00.0/vendor": "0x8086"}, "Drm"),
        ("auto", {**BOUND, **NVIDIA_CARD}, "SeveralDrivers"),
        ("amdgpu", {**BOUND, **NVIDIA_CARD}, "Drm"),
        ("xe", {}, "Drm"),
        ("auto", {**AMD_CARD, **NVIDIA_CARD}, "nvml"),
        ("auto", {**AMD_CARD, **BMC}, "Drm"),
        ("auto", BMC, "nvml"),
        ("nvml", {**BOUND, **NVIDIA_CARD}, "nvml"),
    ],
)
def test_auto_opens_each_driver_that_the_node_has_and_nvml_alone_where_it_has_no_other(
    source: str, files: dict[str, str], opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpu_device_plugin.hardware.nvml.nvml_driver", None)
    trees.write(tmp_path, files)
    if opened == "nvml":
        with pytest.raises(HardwareError, match="nvidia-ml-py cannot be loaded"):
            open_driver(source, root=str(tmp_path))
    else:
        assert type(open_driver(source, root=str(tmp_path))).__name__ == opened


def test_a_machine_with_amds_gpus_alone_is_told_to_load_their_driver(tmp_path: Path) -> None:
    trees.write(tmp_path, {**AMD_CARD, **BMC})
    with pytest.raises(HardwareError, match=r"amdgpu is not loaded .* with modprobe amdgpu"):
        open_driver("auto", root=str(tmp_path)).inventory()


def test_where_nvml_is_alone_only_the_look_at_the_pci_bus_is_loaded_for_the_others(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from gpu_device_plugin.hardware import child\n"
        "sys.modules['gpu_device_plugin.hardware.nvml.nvml_driver'] = None\n"
        "try: child.open_driver(*sys.argv[1:2], root=sys.argv[2])\n"
        "except child.HardwareError: pass\n"
        "print(*sorted(name.rpartition('.')[2] for name in sys.modules if '.amdgpu.' in name or 'several' in name),"
        "*{'asyncio', 'dataclasses', 'typing', 'pathlib', 'queue', 'ctypes'} & set(sys.modules))"
    )

    def loaded(source: str) -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", program, source, str(tmp_path)], capture_output=True, timeout=stretched(), check=True
        )
        return run.stdout.decode().split()

    assert loaded("auto") == ["kernel_files", "pci_devices"]
    assert loaded("nvml") == []
