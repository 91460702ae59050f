"""The process in which the driver is called, so that a call that hangs or crashes takes nothing else with it.

`hardware/monitor.py` starts it as ``python -m gpu_device_plugin.hardware.child SOURCE ORIGIN SINCE``. What it writes to
its standard output is one JSON object a line, with one of these keys:

    answer   to the start the inventory with a first reading of every GPU, to each line read afterwards a new reading
    events   what the driver reported by itself
    error    why the driver cannot be used; there is nothing more to be had from this process

It reads one line for each answer wanted, and ends when its standard input does. It lists the hardware once: to look
again, start another one.
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


def open_driver(source: str, origin_s: float = 0.0, since_s: float = -1.0) -> Driver:
    """Open what `source` names: ``nvml``, or a description, with its times.

    Raises:
        HardwareError: it cannot be used.
    """
    if source != "nvml":
        from gpu_device_plugin.hardware.fake import Fake  # noqa: PLC0415 - only one of the two is worth its memory

        return Fake(source, origin_s, since_s)
    try:
        from gpu_device_plugin.hardware.nvml import Nvml  # noqa: PLC0415 - as above
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

    def complaining(work: Callable[[], None]) -> None:
        try:
            work()
        except HardwareError as error:
            write({"error": {"kind": error.kind, "what": error.what}})

    def report(gpus: Driver) -> None:
        while True:
            if records := gpus.wait_events(_WAIT_EVENTS_S):
                write({"events": records})

    def answer() -> None:
        gpus = opening()
        write({"answer": {"inventory": gpus.inventory(), "probes": gpus.probe()}})
        threading.Thread(target=complaining, args=(lambda: report(gpus),), name="events", daemon=True).start()
        while requests.readline():
            write({"answer": {"probes": gpus.probe()}})

    complaining(answer)


def main(source: str, origin_s: str, since_s: str) -> None:
    """Serve standard input and output."""
    if source == "nvml":
        _die_with_parent()
    threading.excepthook = _die_of
    # What a driver's library prints goes where a crash's trace goes, and not between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(lambda: open_driver(source, float(origin_s), float(since_s)), sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more
    os._exit(0)  # the other thread may be in a call that does not return


def _die_of(failure: threading.ExceptHookArgs) -> None:
    """End the process with its second thread: without it nobody would hear of events, and nobody would notice."""
    if failure.exc_type is not BrokenPipeError:
        sys.excepthook(failure.exc_type, failure.exc_value or failure.exc_type(), failure.exc_traceback)
    os._exit(1)


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent: in a call that hangs it does not see that its input ended."""
    import ctypes  # noqa: PLC0415 - pynvml needs it anyway; the fake does without

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
