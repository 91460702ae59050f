"""Call functions of NVML that a driver, a GPU or pynvml may lack, or answer in another version."""

from __future__ import annotations

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from typing import Any

NO_PERMISSION = 4
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
    """Return the memory in use on a GPU or MIG instance, in MiB.

    Args:
        nvml: the module pynvml.
        handle: the GPU, or instance.
        mig: it is one in MIG mode, or an instance. The driver tells its memory to callers with privileges only; None is
            returned to all others.

    Raises:
        nvml.NVMLError: it cannot be read.
    """
    try:
        found, _ = memory(nvml, handle)
    except nvml.NVMLError as error:
        if mig and error.value == NO_PERMISSION:
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
