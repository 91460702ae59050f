"""Entry points of every program, also as ``python -m gpu_device_plugin``; signals end them from the first moment."""

from __future__ import annotations

import os
import signal
import sys

TERMINATED, INTERRUPTED = 143, 130
"""The exit codes that a shell reports for processes that SIGTERM and SIGINT (Ctrl-C) ended."""


def main() -> int:
    """Run the command of the command line, and return the exit code.

    The kernel delivers no unhandled signal to PID 1, which we are in a container. So SIGTERM is handled before any
    other module is loaded; later each program installs its own handler.
    """
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(TERMINATED))
    _leave_without_traceback()
    from gpu_device_plugin import cli  # noqa: PLC0415 - after the lines above

    _raise_again()
    return cli.main()


def kubectl_plugin() -> int:
    """Run ``kubectl inspect gpushare``, and return the exit code."""
    _leave_without_traceback()
    from gpu_device_plugin import cli  # noqa: PLC0415 - after the line above

    _raise_again()
    return cli.inspect_plugin()


def _leave_without_traceback() -> None:
    """Let Ctrl-C end the process at once: a KeyboardInterrupt amid an import would print the modules' traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_signal: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _raise_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, as Python does: the command line makes an exit code of it."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
