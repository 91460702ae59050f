"""A socket counts when somebody listens on it; a file that a dead program left does not."""

from __future__ import annotations

import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.kubelet.listening import is_listened_to, listened_to

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gs") as name:  # pytest's own are too long for the path of a socket
        yield Path(name)


@contextmanager
def listener(path: Path, *, backlog: int = 8) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield


def test_only_those_that_match_and_have_a_listener_are_named(folder: Path) -> None:
    with listener(folder / "stale.sock"):
        pass
    (folder / "file.sock").write_text("")
    with listener(folder / "b.sock"), listener(folder / "a.sock"), listener(folder / "a.other"):
        assert listened_to(folder, ["*.sock"]) == ("a.sock", "b.sock")
        assert listened_to(folder, ["a.*"]) == ("a.other", "a.sock")
        assert listened_to(folder, []) == ()


def test_a_directory_that_is_missing_has_none(folder: Path) -> None:
    assert listened_to(folder / "none", ["*"]) == ()
    assert not is_listened_to(folder / "none" / "a.sock")


def test_a_listener_that_does_not_accept_is_one_all_the_same(folder: Path) -> None:
    """It is never waited for, whatever it does with the call."""
    with listener(folder / "busy.sock", backlog=0):
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(folder / "busy.sock"))
        assert is_listened_to(folder / "busy.sock")
        for one in waiting:
            one.close()
