"""Small files, whatever somebody put in their place."""

import ast
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpu_device_plugin
from gpu_device_plugin import files
from tests.kubelet.short_paths import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def test_a_file_is_read_to_its_end_and_no_further_than_allowed(folder: Path) -> None:
    content = os.urandom((1 << 20) + 7)
    (folder / "a").write_bytes(content)
    assert files.read(folder / "a", len(content))[0] == content
    assert files.read_below(folder, "a", len(content))[1].st_ino == (folder / "a").stat().st_ino
    with pytest.raises(OSError, match=f"more than {len(content) - 1} bytes"):
        files.read(folder / "a", len(content) - 1)


def test_links_are_followed_on_the_way_to_a_directory_and_not_below_it(folder: Path) -> None:
    """As kubelets' directories are links on some distributions, and a ConfigMap is mounted as links."""
    (folder / "real" / "inner").mkdir(parents=True)
    (folder / "real" / "inner" / "a").write_text("x")
    (folder / "root").symlink_to("real")
    (folder / "real" / "link").symlink_to("inner")
    (folder / "real" / "b").symlink_to("inner/a")
    assert files.read(folder / "root" / "b", 9)[0] == b"x"
    assert files.read_below(folder / "root", "inner/a", 9)[0] == b"x"
    for name in ("b", "link/a"):
        with pytest.raises(files.IrregularFileError, match="symbolic link, which is not followed") as caught:
            files.read_below(folder / "root", name, 9)
        assert caught.value.filename == str(folder / "root" / name)
    with pytest.raises(files.IrregularFileError):
        files.replace_below(folder / "root", "link/c", b"y")


def test_nothing_that_is_no_regular_file_is_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
    for name in ("pipe", "folder", "socket"):
        with pytest.raises(OSError, match=f"{folder / name}"):
            files.read(folder / name, 9)
        with pytest.raises(files.IrregularFileError, match="it is no regular file"):
            files.read_below(folder, name, 9)
    with pytest.raises(files.IrregularFileError, match="it is no regular file"):
        os.close(files.open_below(folder, "pipe", os.O_RDWR))


def test_beside_the_kubelets_sockets_nothing_is_opened_in_another_way() -> None:
    """Of files as of settings; a plain open would follow links, and wait for the other end of a pipe."""
    package = Path(gpu_device_plugin.__file__).parent
    sources = [package / "settings" / "knobs.py", *(path for path in (package / "kubelet").glob("*.py"))]
    sources += (package / "features").glob("*/*.py")
    sources.remove(package / "kubelet" / "procfs.py")  # the kernel's files: nobody puts a link or a pipe there
    ways = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}
    found = [
        f"{path.name}:{call.lineno}"
        for path in sources
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in ways
    ]
    assert len(sources) > 10
    assert found == []


def test_a_missing_file_is_named_with_its_whole_path(folder: Path) -> None:
    for name in ("a", "b/c"):
        with pytest.raises(FileNotFoundError) as caught:
            files.read_below(folder, name, 9)
        assert caught.value.filename == str(folder / name)


def test_a_file_is_replaced_whatever_stands_in_its_place(folder: Path) -> None:
    """A link is replaced, and not what it leads to."""
    (folder / "precious").write_text("mine")
    (folder / "a").symlink_to("precious")
    (folder / ".a.new").hardlink_to(folder / "precious")
    files.replace_below(folder, "a", b"ours")
    assert (folder / "precious").read_text() == "mine"
    assert files.read_below(folder, "a", 9)[0] == b"ours"
    assert (folder / "a").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["a", "precious"]


def test_a_file_that_is_made_is_ours_alone(folder: Path) -> None:
    os.close(files.open_below(folder, "a", os.O_RDWR | os.O_CREAT))
    assert (folder / "a").stat().st_mode & 0o777 == 0o600


def test_a_folder_is_made_listed_and_emptied_without_following_links(folder: Path) -> None:
    files.make_folder_below(folder, "a")
    files.make_folder_below(folder, "a")
    assert (folder / "a").stat().st_mode & 0o777 == 0o700
    (folder / "a" / "link").symlink_to(folder / "precious")
    (folder / "precious").write_text("mine")
    (folder / "b").symlink_to("a")
    assert files.names_below(folder, "a") == ["link"]
    for act in (
        lambda: files.names_below(folder, "b"),
        lambda: files.make_folder_below(folder, "b/c"),
        lambda: files.remove_below(folder, "b/link"),
    ):
        with pytest.raises(files.IrregularFileError):
            act()
    for _ in range(2):
        files.remove_below(folder, "a/link")
    assert (files.names_below(folder, "a"), (folder / "precious").read_text()) == ([], "mine")


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_a_file_that_cannot_be_written_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (folder / "b").write_text("old")
    for name in ("a", "b"):
        with pytest.raises(OSError, match="No space left"):
            files.replace_below(folder, name, b"new")
    assert [each.name for each in folder.iterdir()] == ["b"]
    assert (folder / "b").read_text() == "old"


def test_no_descriptor_is_left_open(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    before = descriptors()
    for name in ("a", "pipe", "folder", "missing", "missing/a", "a/b"):
        for act in (
            lambda name: files.read_below(folder, name, 9),
            lambda name: files.read(folder / name, 9),
            lambda name: files.replace_below(folder, name, b""),
            lambda name: files.make_folder_below(folder, f"{name}/a"),
            lambda name: files.names_below(folder, name),
            lambda name: files.remove_below(folder, name),
        ):
            with contextlib.suppress(OSError):
                act(name)
    assert descriptors() == before
