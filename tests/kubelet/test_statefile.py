"""What an agent leaves for the next one is believed if it was written to its end."""

import logging
import os
from pathlib import Path

import pytest

from gpu_device_plugin.kubelet.statefile import PROFILE, SHARE_SIZE, StateFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


@pytest.mark.parametrize("profile", ["", "big", "a.b_c-d"])
def test_the_next_agent_reads_what_was_written(folder: Path, profile: str) -> None:
    StateFile(folder, PROFILE).write("another")
    StateFile(folder, PROFILE).write(profile)
    assert StateFile(folder, PROFILE).read() == profile
    assert [path.name for path in (folder / "gpushare").iterdir()] == ["profile"]


def test_a_file_that_somebody_removed_or_damaged_before_we_wrote_is_written(folder: Path) -> None:
    file, path = StateFile(folder, PROFILE), folder / "gpushare" / "profile"
    assert file.write("big")
    path.unlink()
    assert file.write("big")
    assert path.read_text() == "big\n"
    path.write_bytes(b"\0")
    assert file.read() is None
    assert file.write("big")
    assert path.read_text() == "big\n"


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0\0", b"bi", b"big\nsmall\n", b"\xff\n", b"\x1b[2J\n"])
def test_a_damaged_file_is_not_taken_for_no_profile(folder: Path, damaged: bytes) -> None:
    """After a power cut it may be empty, while the API server, which lost its power too, cannot be asked."""
    (folder / "gpushare" / "profile").write_bytes(damaged)
    assert StateFile(folder, PROFILE).read() is None


@pytest.mark.parametrize("number", [b"9" * 5000, b"0", b"-1", "\u0661".encode(), b"1e3", b"9" * 13, b" 1"])
def test_a_share_size_that_is_no_number_is_nobodys(folder: Path, number: bytes) -> None:
    """Python refuses to read 5,000 digits as a number, with an exception of its own."""
    (folder / "gpushare" / "share-size").write_bytes(number + b"\n")
    assert StateFile(folder, SHARE_SIZE).number() is None


def test_what_stands_in_the_place_of_a_file_holds_no_agent_up_and_is_replaced(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe would hold up the start until somebody wrote into it; a link would have us write elsewhere."""
    caplog.set_level(logging.WARNING)
    precious = folder / "precious"
    precious.write_text("256\n")
    path = folder / "gpushare" / "share-size"
    os.mkfifo(path)
    assert StateFile(folder, SHARE_SIZE).number() is None
    path.unlink()
    path.symlink_to(precious)
    (folder / "gpushare" / ".share-size.new").symlink_to(precious)
    assert StateFile(folder, SHARE_SIZE).number() is None
    StateFile(folder, SHARE_SIZE).write("1024")
    assert StateFile(folder, SHARE_SIZE).number() == 1024
    assert precious.read_text() == "256\n"
    assert [str(vars(record)["why"]) for record in caplog.records][:2] == [
        "it is no regular file",
        "it is a symbolic link, which is not followed",
    ]


def test_a_word_that_cannot_be_kept_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where our folder leads elsewhere by a link, nothing is written there."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpushare").symlink_to("elsewhere")
    StateFile(tmp_path, PROFILE).write("big")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "the state for the next agent of this node cannot be written" in caplog.messages
