"""Entry point of every program, also as ``python -m gpu_device_plugin``; SIGTERM ends it from the first moment."""

from __future__ import annotations

import os
import signal
import sys

TERMINATED = 143
"""The exit code that a shell reports for a process that SIGTERM ended."""


def main() -> int:
    """Run the command of the command line, and return the exit code.

    The kernel delivers no unhandled signal to PID 1, which we are in a container. So SIGTERM is handled before any
    other module is loaded; later each program installs its own handler.
    """
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(TERMINATED))
    from gpu_device_plugin import cli  # noqa: PLC0415 - after the line above

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
