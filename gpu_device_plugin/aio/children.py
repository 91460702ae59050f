"""Send a signal to one of asyncio's child processes, and leave its exit status to asyncio."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def signal_child(pid: int, returncode: int | None, number: signal.Signals) -> None:
    """Send a signal to a child, unless asyncio knows that it has ended.

    asyncio's own methods (`kill`, `terminate`, and `close` of a running child) poll subprocess.Popen first, which reaps
    an ended child before asyncio's child watcher does: asyncio then warns about an unknown child process and reports
    exit code 255. A child that ended just now stays a zombie until asyncio reaps it, so `pid` cannot belong to another
    process yet.
    `returncode` is the exit code that asyncio reports; None if it has not seen the child end.
    """
    if returncode is None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
