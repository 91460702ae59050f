"""A folder whose path is short enough for a unix socket's; pytest's own are not."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder, and remove it at the end if it is still there."""
    with tempfile.TemporaryDirectory(prefix="gs", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
