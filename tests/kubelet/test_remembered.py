"""What an agent leaves for the next one is believed if it was written to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.kubelet.remembered import PROFILE, Remembered

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("profile", ["", "big", "a.b_c-d"])
def test_the_next_agent_reads_what_was_written(tmp_path: Path, profile: str) -> None:
    (tmp_path / "gpushare").mkdir()
    Remembered(tmp_path, PROFILE).write("another")
    Remembered(tmp_path, PROFILE).write(profile)
    assert Remembered(tmp_path, PROFILE).read() == profile
    assert [path.name for path in (tmp_path / "gpushare").iterdir()] == ["profile"]


@pytest.mark.parametrize("damaged", [b"", b"\0\0\0\0", b"bi", b"big\nsmall\n", b"\xff\n"])
def test_a_damaged_file_is_not_taken_for_no_profile(tmp_path: Path, damaged: bytes) -> None:
    """After a power cut it may be empty, while the API server, which lost its power too, cannot be asked."""
    (tmp_path / "gpushare").mkdir()
    (tmp_path / "gpushare" / "profile").write_bytes(damaged)
    assert Remembered(tmp_path, PROFILE).read() is None
