"""A folder whose path is short enough for a unix socket's; pytest's own are not."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder, and remove it at the end if it is still there."""
    with tempfile.TemporaryDirectory(prefix="gs", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
