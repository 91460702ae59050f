"""Where every program begins, also ``python -m gpu_device_plugin``: it ends when told to from the first moment."""

from __future__ import annotations

import os
import signal
import sys

TERMINATED = 143
"""What a shell makes of a process that SIGTERM ended."""


def main() -> int:
    """Run what the command line asks for, and return the exit code.

    The kernel keeps signals that nobody handles from PID 1, which we are in a container. So SIGTERM is handled before
    anything else is loaded; later the programs end in their own ways.
    """
    signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(TERMINATED))
    from gpu_device_plugin import cli  # noqa: PLC0415 - after the line above

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
