"""Whoever waits is woken when something in a directory changes, and goes without where the kernel does not say."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from watchdog.events import FileCreatedEvent, FileModifiedEvent

from gpu_device_plugin.aio.directory_watch import CONTENTS, _Waker, watching
from tests.patience import patience


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


async def changed_by(directory: Path, act: object) -> None:
    changed = asyncio.Event()
    with watching(directory, changed) as watched:
        assert watched
        assert callable(act)
        act()
        async with patience(changed):
            await changed.wait()


async def test_what_appears_is_noticed(folder: Path) -> None:
    await changed_by(folder, (folder / "kubelet.sock").touch)


async def test_what_leaves_is_noticed(folder: Path) -> None:
    (folder / "kubelet.sock").touch()
    await changed_by(folder, (folder / "kubelet.sock").unlink)


async def test_a6_a_linked_directory_is_watched_where_it_really_is(folder: Path) -> None:
    """Some distributions link the directory into their own."""
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    await changed_by(folder / "link", (folder / "real" / "kubelet.sock").touch)


async def test_a_directory_that_cannot_be_watched_is_no_error_and_leaves_no_thread(folder: Path) -> None:
    threads = threading.active_count()
    with watching(folder / "missing", asyncio.Event()) as watched:
        assert not watched
    assert threading.active_count() == threads


def test_a3_without_inotify_nobody_is_woken_and_nothing_fails(folder: Path) -> None:
    """A node whose inotify instances are used up; here a user namespace that has none."""
    without = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if subprocess.run([*without, "true"], check=False, capture_output=True).returncode:
        pytest.skip("user namespaces are not allowed here")
    code = (
        "import asyncio, pathlib, sys\nfrom gpu_device_plugin.aio.directory_watch import watching\n"
        "async def main():\n    with watching(pathlib.Path(sys.argv[1]), asyncio.Event()) as watched: print(watched)\n"
        "asyncio.run(main())"
    )
    command = [*without, sys.executable, "-c", code, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_an_event_after_the_end_of_the_loop_is_dropped() -> None:
    """watchdog's thread outlives the loop by a moment, and an exception in it would be lost."""
    loop = asyncio.new_event_loop()
    loop.close()
    changed = asyncio.Event()
    _Waker(loop, changed).on_any_event(FileCreatedEvent("kubelet.sock"))
    assert not changed.is_set()


async def test_what_is_only_read_or_written_wakes_nobody() -> None:
    changed = asyncio.Event()
    waker = _Waker(asyncio.get_running_loop(), changed)
    waker.on_any_event(FileModifiedEvent("kubelet_internal_checkpoint"))
    await asyncio.sleep(0)
    assert not changed.is_set()
    waker.on_any_event(FileCreatedEvent("kubelet.sock"))
    await asyncio.sleep(0)
    assert changed.is_set()


async def test_whoever_reads_the_files_is_woken_by_writing_too(folder: Path) -> None:
    """Reading is not: whoever looks would wake himself for ever."""
    file = folder / "default.yaml"
    file.touch()
    changed = asyncio.Event()
    with watching(folder, changed, CONTENTS):
        file.write_text("policy: spread")
        async with patience(changed):
            await changed.wait()
    assert CONTENTS.isdisjoint({"opened", "closed", "closed_no_write"})
