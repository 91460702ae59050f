"""What takes long to make and is only looked at afterwards: the first worker of pytest makes it for all."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, here or in another worker of the same run."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, finished = base / name, base / f"{name}.finished"
    with (base / f"{name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a failure has left
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder
