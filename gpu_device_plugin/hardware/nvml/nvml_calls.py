"""Call functions of NVML that a driver, a GPU or pynvml may lack, and explain why the library cannot be loaded."""

from __future__ import annotations

import os

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

NOT_SUPPORTED, NO_PERMISSION = 3, 4
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
