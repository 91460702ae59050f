"""Follow how much GPU memory this container may use now: copy this file into your image. Python 3.8 or newer."""

from __future__ import annotations

import json
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/run/gpushare/memory.json"
"""Keys: guaranteed_mib, limit_mib (now), most_mib, and return: null, or the mib asked for, by when, needed by whom."""


def read(path: str = PATH) -> dict[str, Any] | None:
    """Return the content of the file; None: there is none, or it is of another version."""
    try:
        memory = json.loads(Path(path).read_text(encoding="utf-8"))
        return memory if memory["version"] == 1 and memory["limit_mib"] > 0 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def follow(changed: Callable[[dict[str, Any]], object], path: str = PATH, every_s: float = 1.0) -> threading.Event:
    """Call `changed` with the content, now and after every change, in a thread; it ends when the result is set."""
    ended = threading.Event()

    def watch() -> None:
        seen: tuple[int, int] | None = None
        while not ended.is_set():
            try:
                status = Path(path).stat()
                found = status.st_mtime_ns, status.st_ino
                memory = read(path) if found != seen else None
                if memory is not None:
                    seen = found
                    changed(memory)
            except FileNotFoundError:
                pass  # the container has no limit that changes
            except Exception:  # an error of `changed` must not end the thread
                traceback.print_exc()
            ended.wait(every_s)

    threading.Thread(target=watch, name="gpushare-memory", daemon=True).start()
    return ended
