"""The directories of the kubelet: whose they are, what lies in them, and who listens there."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_device_plugin.kubelet.sockets import (
    DirectoryError,
    DirectoryGoneError,
    NodeLock,
    advice,
    check_directory,
    identity,
    is_listened_to,
    is_there,
    listened_to,
    new_socket,
    remove_stale_sockets,
)
from tests.kubelet.locks import held
from tests.kubelet.short_paths import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def left_socket(path: Path) -> Path:
    """Leave the file of a socket behind, as a process that was killed does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    return path


def as_nobody(code: str, *arguments: object) -> str:
    """Run code in a process without root's rights; what it imports is imported before. Returns what it printed."""
    imports = "import os, pathlib, sys; from gpu_device_plugin.kubelet.sockets import *; import pwd\n"
    drop = "if os.geteuid() == 0: os.setuid(65534)\n"
    command = [sys.executable, "-c", imports + drop + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- May we use it? ---------------------------------------------------------------------------------------------------


def test_a6_a_missing_directory_is_named_with_where_the_right_one_is(folder: Path) -> None:
    with pytest.raises(
        DirectoryError, match=r"missing is not a directory.*--device-plugin-dir.*regardless of its --root"
    ):
        check_directory(folder / "missing")


def test_a_directory_behind_a_locked_one_says_so(folder: Path) -> None:
    (folder / "locked").mkdir(mode=0)
    said = as_nobody(
        "try: check_directory(pathlib.Path(sys.argv[1]))\nexcept DirectoryError as error: print(error)",
        folder / "locked" / "plugins",
    )
    assert "locked/plugins: Permission denied; the agent has to run as root (uid 0)" in said


def test_a_directory_that_cannot_be_written_names_the_user(folder: Path) -> None:
    folder.chmod(0o555)
    said = as_nobody(
        "try: check_directory(pathlib.Path(sys.argv[1]))\nexcept DirectoryError as error: print(error)", folder
    )
    folder.chmod(0o755)
    assert "is not writable for uid" in said
    assert "root (uid 0)" in said


def test_a_directory_on_a_read_only_file_system_is_called_that() -> None:
    """As whom the agent runs has nothing to do with it."""
    mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    there = next((Path(at) for at, _, how in mounts if "ro" in how.split(",") and Path(at).is_dir()), None)
    if there is None:
        pytest.skip("nothing is mounted read-only here")
    with pytest.raises(DirectoryError, match="is on a file system that is mounted read-only"):
        check_directory(there)


def test_only_a_lack_of_rights_is_mended_by_running_as_root() -> None:
    assert advice(PermissionError(errno.EACCES, "")) == "; the agent has to run as root (uid 0)"
    assert advice(PermissionError(errno.EPERM, "")) == "; the agent has to run as root (uid 0)"
    assert advice(OSError(errno.ENOSPC, "")) == ""


def test_a_path_too_long_for_a_socket_is_found_before_grpc_finds_it(folder: Path) -> None:
    """107 bytes are the most; `gpushare-memory-<pid>-<6 digits>.sock` and its slash come behind the directory."""
    name = len(os.fsencode(new_socket(folder, "memory").name)) + 1
    fits = folder / ("x" * (107 - name - len(os.fsencode(folder)) - 1))
    fits.mkdir()
    check_directory(fits)
    (too_long := fits.with_name(fits.name + "x")).mkdir()
    with pytest.raises(DirectoryError, match=r"too long a path: a socket in it would have 108 bytes, and 107"):
        check_directory(too_long)


# --- Our sockets in it ------------------------------------------------------------------------------------------------


def test_a8_every_socket_has_a_name_of_its_own(folder: Path) -> None:
    """With one fixed name an old instance that ends late would remove the new one's socket."""
    names = {new_socket(folder, "memory") for _ in range(100)}
    assert len(names) == 100
    assert {name.name.rsplit("-", 1)[0] for name in names} == {f"gpushare-memory-{os.getpid()}"}


def test_a7_sockets_of_dead_instances_are_removed_and_nothing_else(folder: Path) -> None:
    ours, others = left_socket(folder / "gpushare-memory-1-abcdef.sock"), left_socket(folder / "nvidia-gpu.sock")
    regular = folder / "gpushare-notes.sock"
    regular.write_text("mine")
    remove_stale_sockets(folder)
    assert not ours.exists()
    assert others.exists()
    assert regular.read_text() == "mine"


def test_a_file_made_anew_is_another_one(folder: Path) -> None:
    path = folder / "kubelet.sock"
    assert identity(path) is None
    path.touch()
    first = identity(path)
    assert first == identity(path)
    path.unlink()
    (folder / "keeps the inode from being used again").touch()
    path.touch()
    assert identity(path) not in {first, None}


def test_a_directory_that_was_deleted_under_a_mount_is_neither_there_nor_missing(folder: Path) -> None:
    """A container keeps seeing it, as through an open descriptor; it has no name left."""
    assert is_there(folder)
    assert not is_there(folder / "missing")
    (folder / "deleted").mkdir()
    descriptor = os.open(folder / "deleted", os.O_RDONLY)
    (folder / "deleted").rmdir()
    with pytest.raises(DirectoryGoneError, match="sees only the old one"):
        is_there(Path(f"/proc/self/fd/{descriptor}"))
    os.close(descriptor)


# --- One instance -----------------------------------------------------------------------------------------------------


def test_a8_a_second_instance_is_refused_and_told_who_the_first_is(folder: Path) -> None:
    with held(folder):
        lines = "try: NodeLock(pathlib.Path(sys.argv[1])).take()\nexcept DirectoryError as error: print(error)"
        command = f"import pathlib, sys\nfrom gpu_device_plugin.kubelet.sockets import *\n{lines}"
        done = subprocess.run([sys.executable, "-c", command, folder], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"process {os.getpid()} on {socket.gethostname()} serves this node already")
    assert "maxSurge: 0" in done.stdout


def test_the_lock_is_free_once_its_process_is_gone(folder: Path) -> None:
    command = "import os, pathlib, sys\nfrom gpu_device_plugin.kubelet.sockets import *\n"
    command += "NodeLock(pathlib.Path(sys.argv[1])).take(); os._exit(9)"
    subprocess.run([sys.executable, "-c", command, folder], check=False)
    with held(folder) as lock:
        lock.take()  # held already: nothing happens


def test_a_lock_whose_holder_wrote_no_name_is_held_all_the_same(folder: Path) -> None:
    with held(folder):
        (folder / "gpushare" / "lock").write_text("")
        with pytest.raises(DirectoryError, match=r"^another process serves"):
            NodeLock(folder).take()


def test_a4_in_a_directory_made_anew_the_lock_is_taken_anew(folder: Path) -> None:
    directory = folder / "plugins"
    directory.mkdir()
    with held(directory) as lock:
        shutil.rmtree(directory)
        directory.mkdir()
        lock.take()
        with pytest.raises(DirectoryError):
            NodeLock(directory).take()


def precious(folder: Path) -> Path:
    """Return a file that has nothing to do with us, beside the empty folder that is ours."""
    (folder / "gpushare").mkdir()
    path = folder / "precious"
    path.write_text("mine")
    return path


def test_a_lock_that_leads_elsewhere_is_refused_and_nothing_is_written_there(folder: Path) -> None:
    elsewhere, lock = precious(folder), folder / "gpushare" / "lock"
    lock.symlink_to(elsewhere)
    with pytest.raises(DirectoryError, match=r"gpushare/lock: it is a symbolic link, which is not followed; remove it"):
        NodeLock(folder).take()
    lock.unlink()
    lock.hardlink_to(elsewhere)
    with pytest.raises(DirectoryError, match=r"gpushare/lock: it has another name, a hard link; remove it"):
        NodeLock(folder).take()
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(DirectoryError, match=r"gpushare/lock: it is no regular file; remove it"):
        NodeLock(folder).take()
    assert elsewhere.read_text() == "mine"


def test_a_folder_of_ours_that_leads_elsewhere_is_refused(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "gpushare").symlink_to("elsewhere")
    with pytest.raises(DirectoryError, match="a part of its path is a symbolic link"):
        NodeLock(folder).take()
    assert list((folder / "elsewhere").iterdir()) == []


def test_a_lock_that_cannot_be_made_says_why(folder: Path) -> None:
    (folder / "gpushare").touch()
    with pytest.raises(DirectoryError, match=r"creating the lock .*gpushare/lock: File exists"):
        NodeLock(folder).take()


def test_the_lock_lies_where_an_old_kubelet_does_not_remove_it(folder: Path) -> None:
    """Kubelets up to 1.20 remove every file beside their sockets, and no directory."""
    with held(folder):
        assert [path.name for path in folder.iterdir() if path.is_dir()] == ["gpushare"]


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
