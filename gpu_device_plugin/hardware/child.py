"""The driver process: it makes all calls to the driver, so that a hang or crash there does not affect the agent.

`hardware/monitor.py` starts it as ``python -m gpu_device_plugin.hardware.child SOURCE ORIGIN SINCE``. It writes one
JSON object per line to its standard output, with one of these keys:

    answer   at the start, the inventory and a first reading of every GPU; for each empty line read afterwards, a new
             reading
    use      for a line ``{"use": UTILISATION}``, the processes on every GPU, with their use of the multiprocessors if
             UTILISATION is true
    condition  for a line ``{"condition": [GROUP, ...]}``, the condition of every GPU
    limits   for a line ``{"limits": [[UUID, PATH], ...]}``, the memory limits of these cgroups
    limits   for a line ``{"set": [[UUID, PATH, HARD, SOFT], ...]}``, the same after setting them to these MiB
    events   events that the driver reported
    error    why the driver cannot be used; no further answer follows

It answers the lines in their order, and exits at the end of its standard input. It lists the hardware once: a
new listing needs a new process.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError

TYPE_CHECKING = False  # see hardware/driver.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    from gpu_device_plugin.hardware.driver import Driver

_WAIT_EVENTS_S = 5.0
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9


def open_driver(source: str, origin_s: float = 0.0, since_s: float = -1.0, root: str = "") -> Driver:
    """Open the driver that `source` names: one of `DRIVERS`, or a description of fake hardware, with its times.

    Below `root` are the kernel's files.

    Raises:
        HardwareError: the driver cannot be used.
    """
    # Imported where they are needed: the process for one driver does without all others.
    if source not in driver.DRIVERS:
        from gpu_device_plugin.hardware.fake.fake_driver import Fake  # noqa: PLC0415

        return Fake(source, origin_s, since_s)
    if source == driver.NVML:
        return _open_nvml()
    from gpu_device_plugin.hardware.amdgpu import pci_devices  # noqa: PLC0415 - small, unlike the driver itself
    from gpu_device_plugin.hardware.amdgpu.kernel_files import KernelFiles  # noqa: PLC0415 - the same

    files = KernelFiles(root)
    makers = pci_devices.makers(files)
    found = pci_devices.drivers_in_use(files) if source == driver.AUTO else [source]
    if not found and pci_devices.AMD in makers and pci_devices.NVIDIA not in makers:
        found = [pci_devices.AMDGPU]  # it is not loaded, and its error says so
    if not found:
        return _open_nvml()
    from gpu_device_plugin.hardware.amdgpu.drm_driver import Drm  # noqa: PLC0415

    drm = Drm(found, root)
    if source != driver.AUTO or pci_devices.NVIDIA not in makers:
        return drm
    from gpu_device_plugin.hardware.several_drivers import SeveralDrivers  # noqa: PLC0415

    return SeveralDrivers(_open_nvml, drm)


def _open_nvml() -> Driver:
    try:
        from gpu_device_plugin.hardware.nvml.nvml_driver import Nvml  # noqa: PLC0415 - as above
    except ImportError as error:
        raise HardwareError(driver.OTHER, f"the Python package nvidia-ml-py cannot be loaded: {error}") from error
    return Nvml()


def serve(opening: Callable[[], Driver], requests: BinaryIO, answers: BinaryIO) -> None:
    """Open a driver and answer until `requests` ends or the driver fails; see the top of this module."""
    writing = threading.Lock()

    def write(message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with writing:  # two threads, whole lines
            answers.write(line)
            answers.flush()

    def reporting_errors(work: Callable[[], None]) -> None:
        try:
            work()
        except HardwareError as error:
            write({"error": {"kind": error.kind, "what": error.what, "advice": error.advice}})

    def report(gpus: Driver) -> None:
        while True:
            if records := gpus.wait_events(_WAIT_EVENTS_S):
                write({"events": records})

    def answer() -> None:
        gpus = opening()
        write({"answer": {"inventory": gpus.inventory(), "probes": gpus.probe()}})
        threading.Thread(target=reporting_errors, args=(lambda: report(gpus),), name="events", daemon=True).start()
        while line := requests.readline():
            write(_answer(gpus, json.loads(line) if line.strip() else {}))

    reporting_errors(answer)


def _answer(gpus: Driver, request: dict[str, Any]) -> dict[str, Any]:
    if "use" in request:
        return {"use": gpus.use(utilisation=request["use"])}
    if "condition" in request:
        return {"condition": gpus.condition(request["condition"])}
    if "limits" in request:
        return {"limits": gpus.limits([(uuid, path) for uuid, path in request["limits"]])}
    if "set" in request:
        return {"limits": gpus.set_limits([(uuid, path, hard, soft) for uuid, path, hard, soft in request["set"]])}
    return {"answer": {"probes": gpus.probe()}}


def main(source: str, origin_s: str, since_s: str) -> None:
    """Serve standard input and output."""
    if source in driver.DRIVERS:
        _die_with_parent()
    threading.excepthook = _die_of
    # Output of the driver's library goes to standard error, beside a crash's trace, not between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(lambda: open_driver(source, float(origin_s), float(since_s)), sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # the agent has closed the pipe
    os._exit(0)  # the other thread may be in a call that does not return


def _die_of(failure: threading.ExceptHookArgs) -> None:
    """End the process when its second thread fails: otherwise events would be lost unnoticed."""
    if failure.exc_type is not BrokenPipeError:
        sys.excepthook(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    os._exit(1)


def _die_with_parent() -> None:
    """Have the kernel kill this process with its parent: in a hanging call it does not see the end of its input."""
    import ctypes  # noqa: PLC0415 - the fake does without

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
