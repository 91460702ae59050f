"""Who uses a GPU, as NVML lists it: against a stand-in for pynvml, and against a library of our own."""

# ruff: noqa: N815 - the names are pynvml's

import ctypes
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpu_device_plugin.hardware.driver import MOST_PROCESSES
from gpu_device_plugin.hardware.messages import CgroupLimit
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.hardware.nvml import nvml_calls
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading
from tests.hardware.conftest import Watching
from tests.hardware.test_compiled_library import ONE_GPU, compiled

MIB = 1 << 20
NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, UNKNOWN = 3, 6, 13, 999
NO_HANDLE: Any = None


def process(pid: int, used_mib: int | None = 1) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if used_mib is None else used_mib * MIB + 5)


class Library:
    """pynvml with these answers, by function; a number is the code of an error."""

    NVMLError = pynvml.NVMLError
    c_nvmlGetMemoryLimits_v1_t = pynvml.c_nvmlGetMemoryLimits_v1_t

    def __init__(self, **answers: Any) -> None:
        for name, answer in answers.items():
            setattr(self, name, self._function(answer))

    def _function(self, answer: Any) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            if isinstance(answer, int):
                raise pynvml.NVMLError(answer)
            return answer

        return call


def pids(library: Library) -> Any:
    listed = nvml_calls.processes(library, NO_HANDLE, {})
    return None if listed is None else {each["pid"]: each["used_mib"] for each in listed}


def test_a_process_in_several_lists_is_one_with_the_largest_amount() -> None:
    library = Library(
        nvmlDeviceGetComputeRunningProcesses_v3=[process(1, 100), process(2, None), process(3, None)],
        nvmlDeviceGetGraphicsRunningProcesses_v3=[process(1, 300), process(2, 7)],
        nvmlDeviceGetMPSComputeRunningProcesses_v3=[process(1, 200), process(4, 0), process(2, None)],
    )
    assert pids(library) == {1: 300, 2: 7, 3: None, 4: 0}


def test_an_older_list_takes_the_place_of_one_that_the_driver_lacks() -> None:
    library = Library(
        nvmlDeviceGetComputeRunningProcesses_v3=FUNCTION_NOT_FOUND,
        nvmlDeviceGetComputeRunningProcesses_v2=[process(1)],
        nvmlDeviceGetGraphicsRunningProcesses_v3=NOT_SUPPORTED,
        nvmlDeviceGetGraphicsRunningProcesses_v2=NOT_SUPPORTED,
    )
    assert pids(library) == {1: 1}


def test_a_driver_that_lists_nothing_is_not_a_gpu_without_processes() -> None:
    assert pids(Library()) is None
    assert pids(Library(nvmlDeviceGetComputeRunningProcesses_v3=NOT_SUPPORTED)) is None
    assert pids(Library(nvmlDeviceGetComputeRunningProcesses_v3=[])) == {}


@pytest.mark.parametrize("kind", ["Compute", "Graphics", "MPSCompute"])
def test_a_list_that_cannot_be_read_now_leaves_the_processes_unknown(kind: str) -> None:
    """Those of the other lists are not all, and none of them would mean that nobody uses the GPU."""
    lists: dict[str, Any] = {
        f"nvmlDeviceGet{each}RunningProcesses_v3": [] for each in ("Compute", "Graphics", "MPSCompute")
    }
    assert pids(Library(**lists)) == {}
    assert pids(Library(**lists | {f"nvmlDeviceGet{kind}RunningProcesses_v3": UNKNOWN})) is None


def test_memory_that_no_gpu_has_is_unknown() -> None:
    library = Library(nvmlDeviceGetComputeRunningProcesses_v3=[process(1, 1 << 26), process(2, (1 << 44) - 2)])
    assert pids(library) == {1: 1 << 26, 2: None}


def test_no_more_processes_are_reported_than_a_line_holds() -> None:
    library = Library(nvmlDeviceGetComputeRunningProcesses_v3=[process(pid) for pid in range(5000)])
    assert len(pids(library)) == MOST_PROCESSES


def sample(pid: int, percent: int, stamp: int) -> Any:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=stamp)


def test_the_newest_plausible_sample_of_each_process_counts() -> None:
    samples = [sample(1, 10, 105), sample(1, 20, 110), sample(1, 30, 107)]
    samples += [sample(0, 5, 120), sample(2, 101, 130), sample(3, 9, 100)]
    library = Library(nvmlDeviceGetProcessUtilization=samples)
    assert nvml_calls.sm_percents(library, NO_HANDLE, 100) == ({1: 20, 2: None}, 110)


@pytest.mark.parametrize("library", [Library(), Library(nvmlDeviceGetProcessUtilization=NOT_FOUND)])
def test_no_sample_is_an_unknown_use(library: Library) -> None:
    assert nvml_calls.sm_percents(library, NO_HANDLE, 100) == ({}, 100)


def test_an_implausible_sample_does_not_hide_a_plausible_one() -> None:
    library = Library(nvmlDeviceGetProcessUtilization=[sample(1, 101, 130), sample(1, 7, 120), sample(1, 102, 140)])
    assert nvml_calls.sm_percents(library, NO_HANDLE, 100) == ({1: 7}, 120)


@pytest.mark.parametrize(
    ("rate", "mps", "percents", "expected"),
    [
        (0, [], {}, 0),
        (0, [process(1)], {}, 0),
        (30, [], {}, None),
        (30, [], {1: 30}, 0),
        (30, [], {1: None}, None),
        (30, [process(1)], {2: 30}, None),
        (30, UNKNOWN, {1: 30}, None),
        (30, NOT_SUPPORTED, {1: 30}, 0),
        (NOT_SUPPORTED, [], {1: 30}, None),
    ],
)
def test_a_process_without_a_sample_is_idle_only_if_the_driver_samples_its_gpu(
    rate: int, mps: Any, percents: dict[int, int | None], expected: int | None
) -> None:
    rates = rate if rate == NOT_SUPPORTED else SimpleNamespace(gpu=rate)
    library = Library(nvmlDeviceGetUtilizationRates=rates, nvmlDeviceGetMPSComputeRunningProcesses_v3=mps)
    assert nvml_calls.percent_of_others(library, NO_HANDLE, percents) == expected


def test_a_pynvml_without_rates_tells_nothing_of_processes_without_a_sample() -> None:
    assert nvml_calls.percent_of_others(Library(), NO_HANDLE, {1: 30}) is None


def test_the_use_is_beside_the_memory_of_its_process() -> None:
    library = Library(nvmlDeviceGetComputeRunningProcesses_v3=[process(1), process(2)])
    listed = nvml_calls.processes(library, NO_HANDLE, {2: 40})
    assert [(each["pid"], each["sm_percent"]) for each in listed or ()] == [(1, None), (2, 40)]
    listed = nvml_calls.processes(library, NO_HANDLE, {2: None}, others=0)
    assert [(each["pid"], each["sm_percent"]) for each in listed or ()] == [(1, 0), (2, None)]


def test_a_pynvml_without_the_function_has_no_limits() -> None:
    assert nvml_calls.limit(Library(), NO_HANDLE, "GPU-a", "/c")["code"] == FUNCTION_NOT_FOUND


# --- A library of our own, behind the real pynvml, the pipe and the agent's side of it --------------------------------

PROCESSES = """
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;
typedef struct { unsigned pid; unsigned long long stamp; unsigned sm, mem, enc, dec; } Sample;
_Static_assert(sizeof(Process) == 24 && sizeof(Sample) == 32, "as in nvml.h");
static int listed(unsigned *count, Process *into, unsigned pid, unsigned long long used) {
  if (*count < 2) { *count = 2; return 7; }
  memset(into, 0, 2 * sizeof *into);
  into[0].pid = pid; into[0].used = used; into[1].pid = 4712; into[1].used = ~0ull; *count = 2; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) { return listed(n, p, 4711, 3ull << 30); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *n, Process *p) {
  return listed(n, p, 4713, 1ull << 30);
}
int nvmlDeviceGetProcessUtilization(void *h, Sample *into, unsigned *count, unsigned long long since) {
  if (!into) { *count = 1; return 7; }
  memset(into, 0, sizeof *into);
  into[0].pid = 4711; into[0].sm = 37; into[0].stamp = 1000; *count = 1; return 0;
}
"""
LIMITS = """
_Static_assert(sizeof(Limits) == 32, "as in nvml.h");
int nvmlDeviceGetMemoryLimits_v1(void *handle, Limits *limits) {
  if (strstr(limits->nameSpace, "none")) return 6;
  if (strstr(limits->nameSpace, "root")) return 3;
  limits->hardLimit = strstr(limits->nameSpace, "open") ? ~0ull : 4096ull << 20;
  limits->currentUsed = 1500ull << 20;
  return 0;
}
"""


@pytest.fixture
async def with_library(watched: Watching, tmp_path: Path) -> Any:
    async def read(source: str, ask: Callable[[Hardware], Awaitable[Any]]) -> Any:
        compiled(tmp_path, ONE_GPU + source)
        async with watched("nvml", library_dir=tmp_path) as hardware:
            return await ask(hardware)

    return read


async def test_the_processes_of_a_gpu_come_from_all_lists(with_library: Any) -> None:
    (reading,) = await with_library(PROCESSES, lambda hardware: hardware.use(utilisation=True))
    processes = (GpuProcess(4711, 3072, 37), GpuProcess(4712, None), GpuProcess(4713, 1024))
    assert reading == GpuReading("GPU-a", processes, used_mib=0)


def test_structures_have_the_size_that_nvml_has() -> None:
    """The library of these tests, which checks its own when it is compiled, is called through these."""
    process, sample = pynvml.c_nvmlProcessInfo_v3_t, pynvml.c_nvmlProcessUtilizationSample_t
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t
    assert [ctypes.sizeof(each) for each in (process, sample, limits)] == [24, 32, 32]
    assert (limits.softLimit.offset, limits.hardLimit.offset, limits.currentUsed.offset) == (8, 16, 24)


RATES = """
typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) { rates->gpu = rates->memory = 0; return 0; }
"""


async def test_on_an_idle_gpu_processes_without_samples_use_nothing(with_library: Any) -> None:
    (reading,) = await with_library(PROCESSES + RATES, lambda hardware: hardware.use(utilisation=True))
    assert [each.sm_percent for each in reading.processes] == [37, 0, 0]


async def test_a_sample_of_the_use_counts_once(with_library: Any) -> None:
    """The driver also returns samples that are no newer than the time it is asked for."""

    async def twice(hardware: Hardware) -> list[int | None]:
        readings = [(await hardware.use(utilisation=True) or ())[0] for _ in range(2)]
        return [(reading.processes or ())[0].sm_percent for reading in readings]

    assert await with_library(PROCESSES, twice) == [37, None]


async def test_the_limits_of_cgroups_are_read_back(with_library: Any) -> None:
    wanted = [("GPU-a", f"/{name}") for name in ("limited", "open", "none", "root")] + [("GPU-gone", "/limited")]
    assert await with_library(LIMITS, lambda hardware: hardware.limits(wanted)) == (
        CgroupLimit("GPU-a", "/limited", 0, hard_mib=4096, soft_mib=0, used_mib=1500),
        CgroupLimit("GPU-a", "/open", 0, hard_mib=None, soft_mib=0, used_mib=1500),
        CgroupLimit("GPU-a", "/none", NOT_FOUND),
        CgroupLimit("GPU-a", "/root", NOT_SUPPORTED),
    )
