"""Call functions of NVML that a driver, a GPU or pynvml may lack, and explain why the library cannot be loaded.

Among them those that tell who uses a GPU, by processes and by cgroups, and that limit cgroups.
"""

from __future__ import annotations

import os

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpu_device_plugin.hardware.driver import Record

NOT_SUPPORTED, NO_PERMISSION, _FUNCTION_NOT_FOUND = 3, 4, 13
LACKS = frozenset({NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
"""Errors of a driver or GPU that will not tell something later either."""
LOST = frozenset({6, 15, 28})
"""NVML_ERROR_NOT_FOUND, _GPU_IS_LOST, _GPU_NOT_FOUND."""
_FATAL = LOST | {16}  # NVML_ERROR_RESET_REQUIRED
MIB = 1 << 20


def optional(nvml: Any, function: str, *arguments: Any) -> Any:
    """Call a function that a driver, GPU or pynvml may lack; None if it does. A lost GPU still raises NVMLError."""
    call = getattr(nvml, function, None)
    if call is None:
        return None
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value in _FATAL:
            raise
        return None


def memory(nvml: Any, handle: Any) -> tuple[Any, int]:
    """Return NVML's memory record of a GPU or MIG instance, and the bytes that the driver reserves."""
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value in _FATAL:
            raise
        # Drivers that lack version 2 of this call have already subtracted the reserved part from the total: a T4
        # shows 15109 MiB there, and 15360 MiB with version 2.
        return nvml.nvmlDeviceGetMemoryInfo(handle), 0
    return found, found.reserved


def used_mib(nvml: Any, handle: Any, *, mig: bool | None = False) -> int | None:
    """Return the memory in use on a GPU or MIG instance, in MiB; raise NVMLError if it cannot be read.

    None: the GPU has the machine's memory, of which the driver tells nothing; or, with `mig`, it is one in MIG mode or
    an instance, whose memory the driver tells to callers with privileges only.
    """
    try:
        found, _ = memory(nvml, handle)
    except nvml.NVMLError as error:
        if error.value == NOT_SUPPORTED or (mig and error.value == NO_PERMISSION):
            return None
        raise
    used: int = found.used // MIB
    return used


def process_count(nvml: Any, handle: Any) -> int | None:
    """Return the number of compute processes on a GPU or MIG instance; None if the driver does not list them."""
    # By version: the function without one does not raise an NVMLError where the driver has only an older version.
    for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"):
        processes = optional(nvml, function, handle)
        if processes is not None:
            return len(processes)
    return None


def text(error: Any) -> str:
    """Return an error in NVML's words, with its code."""
    return f"{error} ({error.value})"


def lines(path: str) -> list[str]:
    """Return the lines of a small file of the kernel, the driver or the loader; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - pathlib costs 1 MB
            return [line.rstrip("\n") for line in file]
    except OSError:
        return []


NAME = "libnvidia-ml.so.1"
_NOT_FOUND = f"{NAME}: cannot open shared object file"
"""The loader also raises this for a file that it skips because it was built for another machine."""
_CONFIGURED = "/etc/ld.so.conf.d"


def failed(loader: OSError) -> HardwareError:
    """Translate the error that the loader raised for `NAME`."""
    words = str(loader)
    path = next((path for path in _candidates() if os.path.lexists(path)), None)
    if path is None and words.startswith(_NOT_FOUND):
        return HardwareError(driver.NO_LIBRARY, f"opening NVML ({NAME}) failed: {words}")
    return HardwareError(driver.UNUSABLE_LIBRARY, f"loading {path or NAME} failed: {words}")


def _candidates() -> Iterator[str]:
    """Yield the paths that the loader searches, in its order."""
    machine = os.uname().machine
    usual = (f"/lib/{machine}-linux-gnu", f"/usr/lib/{machine}-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    for folder in (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_configured(), *usual):
        if folder:
            yield f"{folder}/{NAME}"


def _configured() -> Iterator[str]:
    try:
        names = sorted(os.listdir(_CONFIGURED))  # noqa: PTH208 - as above
    except OSError:
        return
    yield from (line.strip() for name in names for line in lines(f"{_CONFIGURED}/{name}") if line.startswith("/"))


# Newest first. By version: the functions without one fail in an unusual way where the driver has an older version only.
_LISTS = tuple(
    tuple(f"nvmlDeviceGet{kind}RunningProcesses_{version}" for version in ("v3", "v2"))
    for kind in ("Compute", "Graphics", "MPSCompute")
)
_UNLIMITED = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX


def processes(
    nvml: Any, handle: Any, percents: dict[int, int | None], *, others: int | None = None
) -> list[Record] | None:
    """Return the processes on a GPU; None if the driver has no list of any kind, or one of its lists cannot be read.

    The other lists alone would tell of a GPU in use that nobody uses it.

    A process that is in several lists (a client of MPS is in that of compute processes, too) is one process. Where the
    lists differ about its memory, the larger amount counts: each is all memory of the process on this GPU (nvml.h).
    `percents` is the use of the multiprocessors by process, `others` that of all other processes; None: unknown.
    """
    found: dict[int, int | None] = {}
    known = False
    for functions in _LISTS:
        try:
            listed = _first(nvml, functions, handle)
        except nvml.NVMLError:
            return None
        if listed is None:
            continue
        known = True
        for process in listed:
            used = _used_mib(process.usedGpuMemory)
            before = found.get(process.pid)
            found[process.pid] = used if before is None else before if used is None else max(before, used)
    if not known:
        return None
    return [
        {"pid": pid, "used_mib": used, "sm_percent": percents.get(pid, others)}
        for pid, used in sorted(found.items())[: driver.MOST_PROCESSES]
    ]


def sm_percents(nvml: Any, handle: Any, since_us: int) -> tuple[dict[int, int | None], int]:
    """Return each process's use of the multiprocessors after `since_us`, and the time of the newest sample.

    Times are NVML's, in microseconds. The driver also returns empty and outdated samples, and percentages over 100: a
    process that has only those has an unknown use, None.
    """
    newest, found = since_us, dict[int, tuple[int, int | None]]()
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except (nvml.NVMLError, AttributeError):  # none yet, not supported, or unknown to this pynvml
        return {}, since_us
    for sample in samples:
        stamp = sample.timeStamp
        if not sample.pid or stamp <= since_us:
            continue
        if sample.smUtil > driver.PERCENT:
            found.setdefault(sample.pid, (0, None))
        else:
            newest = max(newest, stamp)
            if stamp >= found.get(sample.pid, (0, 0))[0]:
                found[sample.pid] = stamp, sample.smUtil
    return {pid: percent for pid, (_, percent) in found.items()}, newest


def percent_of_others(nvml: Any, handle: Any, percents: dict[int, int | None]) -> int | None:
    """Return the use of the multiprocessors by the processes without a sample: 0, or None if it is not known.

    The driver has samples only of processes that kept multiprocessors busy, and none at all of an idle GPU (nvml.h;
    NVML_ERROR_NOT_FOUND). So no sample is no use, if the driver samples this GPU: it has a sample of another process,
    or says that the GPU as a whole was not in use. Under MPS the server's samples may be those of its clients, so there
    only the latter tells it.
    """
    try:
        if nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0:
            return 0
        mps = _first(nvml, _LISTS[2], handle)
    except (nvml.NVMLError, AttributeError):
        return None
    sampled = any(percent is not None for percent in percents.values())
    return 0 if sampled and not mps else None


def limit(nvml: Any, handle: Any, uuid: str, path: str) -> Record:
    """Return the memory limits of a cgroup, given by the path of its directory as this process sees it, on a GPU."""
    of = {"uuid": uuid, "path": path}
    if not hasattr(nvml, "nvmlDeviceGetMemoryLimits_v1"):
        return {**of, "code": _FUNCTION_NOT_FOUND}
    query = nvml.c_nvmlGetMemoryLimits_v1_t()
    query.nameSpace = os.fsencode(path)
    try:
        nvml.nvmlDeviceGetMemoryLimits_v1(handle, query)
    except nvml.NVMLError as error:
        return {**of, "code": error.value}
    return {
        **of,
        "code": 0,
        "hard_mib": None if query.hardLimit == _UNLIMITED else query.hardLimit // MIB,
        "soft_mib": query.softLimit // MIB,
        "used_mib": _used_mib(query.currentUsed),
    }


def set_limit(nvml: Any, handle: Any, wanted: tuple[str, str, int | None, int]) -> Record:
    """Set the memory limits of a cgroup, unless they are so already, and return them as `limit` does."""
    uuid, path, hard_mib, soft_mib = wanted
    before = limit(nvml, handle, uuid, path)
    if before["code"] == 0 and (before["hard_mib"], before["soft_mib"]) == (hard_mib, soft_mib):
        return before
    if not hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1"):
        return {"uuid": uuid, "path": path, "code": _FUNCTION_NOT_FOUND}
    change = nvml.c_nvmlSetMemoryLimits_v1_t()
    change.nameSpace = os.fsencode(path)
    change.softLimit, change.hardLimit = soft_mib * MIB, _UNLIMITED if hard_mib is None else hard_mib * MIB
    try:
        nvml.nvmlDeviceSetMemoryLimits_v1(handle, change)
    except nvml.NVMLError as error:
        return {"uuid": uuid, "path": path, "code": error.value}
    return limit(nvml, handle, uuid, path)


def _used_mib(used: int | None) -> int | None:
    """Return an amount of memory in MiB; None if it is unknown, or more than any GPU has."""
    if used is None or used // MIB > driver.MOST_MIB:  # which would end the process that tells it
        return None
    return used // MIB


def _first(nvml: Any, functions: tuple[str, ...], handle: Any) -> Any:
    """Call the first of the functions that driver and pynvml have; None if they have none, or it is not supported."""
    for function in functions:
        call = getattr(nvml, function, None)
        if call is None:
            continue
        try:
            return call(handle)
        except nvml.NVMLError as error:
            if error.value not in LACKS:
                raise
    return None
