"""Send a signal to a child process of asyncio's, and leave its exit status to asyncio."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


def signal_child(pid: int, returncode: int | None, number: signal.Signals) -> None:
    """Send a signal to a child, unless it is known to have ended.

    asyncio's own way (`kill`, `terminate`, and `close` of a child that runs) asks subprocess.Popen first whether the
    child has ended, which takes the exit status away from what asyncio waits with: it then warns that it does not know
    the process, and takes 255 for its exit code. A child that has ended in this moment is a zombie until asyncio has
    looked, so that `pid` is no other process yet.

    Args:
        pid: of the child.
        returncode: what asyncio says of it; None: it has not seen the child end.
        number: which signal.
    """
    if returncode is None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
