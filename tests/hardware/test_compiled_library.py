"""A libnvidia-ml.so.1 of our own, in front of the real binding and the loader of this machine."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.hardware.gpu_health_tracker import State
from gpu_device_plugin.model.telemetry import GpuTelemetry, TelemetryGroup, Throttle
from gpu_device_plugin.programs.doctor.doctor_program import DoctorPlace, examined
from gpu_device_plugin.report.rules.finding import examine
from tests.hardware.conftest import Watching
from tests.reporting import NODE_CHECKS as CHECKS

NAME = "libnvidia-ml.so.1"
E_MACHINE = slice(18, 20)
ADVICE = "; the file is damaged, or is not for this image; reinstall the driver, or use the image for this node's"


def compiled(folder: Path, source: str, *libraries: Path) -> Path:
    """Make a library of some C; it has the functions of other libraries besides, which are in the same folder."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    made = folder / NAME
    linked = ["-Wl,--no-as-needed", *map(str, libraries), f"-Wl,-rpath,{folder}"] if libraries else []
    command = [compiler, "-shared", "-fPIC", "-o", str(made), "-x", "c", "-", "-x", "none", *linked]
    subprocess.run(command, input=source, text=True, check=True)
    return made


def text(folder: Path) -> str:
    (folder / NAME).write_text("no library\n" * 10)
    return f"loading {folder}/{NAME} failed: {folder}/{NAME}: invalid ELF header"


def without_a_function(folder: Path) -> str:
    compiled(folder, "int gone(void); int nvmlInit_v2(void) { return gone(); }")
    return f"loading {folder}/{NAME} failed: {folder}/{NAME}: undefined symbol: gone"


def of_another_machine(folder: Path) -> str:
    """The loader passes over such a file, and says that there is none."""
    made = compiled(folder, "int nvmlInit_v2(void) { return 9; }")
    content = bytearray(made.read_bytes())
    ours = int.from_bytes(content[E_MACHINE], "little")
    content[E_MACHINE] = (183 if ours == 62 else 62).to_bytes(2, "little")
    made.write_bytes(content)
    return f"loading {folder}/{NAME} failed: {NAME}: cannot open shared object file: No such file or directory"


def dangling(folder: Path) -> str:
    (folder / NAME).symlink_to("/nowhere/to/be/found")
    return f"loading {folder}/{NAME} failed: {NAME}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize("broken", [text, without_a_function, of_another_machine, dangling])
async def test_a_library_that_cannot_be_loaded_is_told_in_the_loaders_words_with_its_file(
    watching: Watching,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[Path], str],
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    told = broken(tmp_path)
    async with watching("nvml", library_dir=tmp_path) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
    assert view.state is State.UNUSABLE_LIBRARY
    assert view.sentence.startswith(told)
    assert ADVICE in view.sentence


async def test_the_doctor_says_the_same(tmp_path: Path) -> None:
    told = text(tmp_path)
    settings = NODE_SETTINGS(device_plugin_dir=tmp_path, pod_resources_socket=tmp_path / "none.sock", api="off")
    seen = await examined(settings, DoctorPlace(in_container=True, libraries=tmp_path, answer_s=2), 0)
    (finding,) = (each for each in examine(CHECKS, seen) if each.check == "driver")
    assert finding.code == "driver-unusable"
    assert str(finding).startswith(told)
    assert ADVICE in str(finding)


@pytest.mark.skipif(any(Path("/usr/lib").rglob(NAME)), reason="this machine has NVML")
async def test_a_library_that_is_not_there_is_no_broken_one(watching: Watching, tmp_path: Path) -> None:
    async with watching("nvml", library_dir=tmp_path) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
    assert view.state is State.NO_LIBRARY
    assert view.sentence.startswith(f"opening NVML ({NAME}) failed: {NAME}: cannot open shared object file: ")
    assert "runtime class nvidia" in view.sentence


ONE_GPU = """
#include <string.h>
#include <sys/stat.h>
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { const char *nameSpace; unsigned long long softLimit, hardLimit, currentUsed; } Limits;
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &nvmlInitWithFlags; return 0; }
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) { strcpy(uuid, "GPU-a"); return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory *memory) {
  memory->total = 16106127360ull; memory->reserved = memory->used = 0; return 0;
}
"""
LIMITS = """
int nvmlDeviceGetMemoryLimits_v1(void *handle, Limits *limits) {
  struct stat found;
  return stat(limits->nameSpace, &found) ? 2 : limits->softLimit == 0 ? ANSWER : 3;
}
"""


@pytest.mark.parametrize(
    ("answer", "limited"),
    [("", False), ("0", True), ("6 /* no limit is set */", True), ("3 /* not supported */", False)],
)
async def test_a_library_is_asked_for_limits_as_nvml_of_r615_wants_it(
    watching: Watching,
    tmp_path: Path,
    answer: str,
    limited: bool,  # noqa: FBT001 (a parameter)
) -> None:
    """It is given the folder of a cgroup; before r615 the function is not there."""
    compiled(tmp_path, ONE_GPU + (LIMITS.replace("ANSWER", answer) if answer else ""))
    async with watching("nvml", library_dir=tmp_path) as hardware:
        view = await hardware.until(lambda view: view.state is not State.STARTING)
    assert [(gpu.uuid, gpu.total_mib, gpu.memory_limits) for gpu in view.inventory.gpus] == [("GPU-a", 15360, limited)]


CONDITION = """
typedef struct { unsigned version; int sensor, temperature; } Temperature;
typedef union { unsigned u; unsigned long long ull; } Part;
typedef struct { unsigned field, scope; long long at, took; int kind, code; Part value; } Value;
int nvmlDeviceGetTemperatureV(void *handle, Temperature *told) { told->temperature = 91; return 0; }
int nvmlDeviceGetTemperatureThreshold(void *handle, int kind, unsigned *told) { *told = 90; return kind == 1 ? 0 : 2; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *told) { *told = 4000000000u; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *told) { *told = 70000; return 0; }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *told) { *told = 300 + kind; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *told) { *told = 0x121; return 0; }
int nvmlDeviceGetPersistenceMode(void *handle, int *told) { *told = 0; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *told) { *told = 8; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *told) { *told = 16; return 0; }
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *told) {
  *told = kind == 1 ? 2 : 5000000000ull; return counter ? 2 : 0;
}
int nvmlDeviceGetFieldValues(void *handle, int count, Value *values) {
  for (Value *each = values; each < values + count; each++) {
    each->code = 3;
    if (each->field == 82) { each->code = 0; each->kind = 1; each->value.u = 77; }
    if (each->field == 197) { each->code = 0; each->kind = 3; each->value.ull = 1ull << 40; }
    if (each->field == 162 && each->scope < 4) { each->code = 0; each->kind = 3; each->value.ull = each->scope; }
  }
  return 0;
}
"""


async def test_a_library_tells_the_condition_as_nvmls_header_lays_it_out(watching: Watching, tmp_path: Path) -> None:
    """Every function that is missing leaves its values out, as does a power that no board draws."""
    compiled(tmp_path, ONE_GPU + CONDITION)
    async with watching("nvml", library_dir=tmp_path) as hardware:
        await hardware.until(lambda view: view.inventory.gpus)
        first, second = [await hardware.condition([*TelemetryGroup]) for _ in range(2)]
    assert first == second
    assert first == (
        GpuTelemetry(
            "GPU-a",
            temperature_c=91,
            memory_temperature_c=77,
            slowdown_c=90,
            power_limit_mw=70_000,
            sm_clock_mhz=301,
            memory_clock_mhz=302,
            throttle=Throttle.HEAT,
            persistence=False,
            pcie_width=8,
            pcie_width_max=16,
            pcie_sent_bytes=1 << 40,
            nvlink_errors=6,
            ecc_corrected=5_000_000_000,
            ecc_uncorrected=2,
        ),
    )
