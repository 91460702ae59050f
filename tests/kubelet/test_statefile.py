"""What an agent leaves for the next one is believed if it was written to its end."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.kubelet.statefile import PROFILE, SHARE_SIZE, SavedAllocations, SavedGuarantees, StateFile
from gpu_device_plugin.model.holds import DeviceHold, HoldSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.ended_pods import Remembered
from gpu_device_plugin.node.rules.ledger import Reservation
from tests.names import OURS

if TYPE_CHECKING:
    from pathlib import Path


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


# --- Allocations -----------------------------------------------------------------------------------------------------

A = DeviceHold(
    "a",
    "main",
    Kind.MEMORY,
    frozenset({"GPU-0::0", "GPU-0::1"}),
    through="aliyun.com/gpu-mem",
    enforcement=Enforcement.DRIVER,
)
B = DeviceHold("b", "main", Kind.COUNT, frozenset({"GPU-1"}), HoldSource.REMEMBERED, "aliyun.com/gpu-count")
SAVED = Remembered("7.1", frozenset({A}), frozenset({B}))
NOTHING = Remembered()


def saved(folder: Path, boot_id: str = "boot") -> SavedAllocations:
    return SavedAllocations(folder, boot_id, OURS)


def test_the_next_agent_of_the_same_boot_knows_the_allocations(folder: Path) -> None:
    saved(folder).save(SAVED)
    assert saved(folder).load() == SAVED
    assert (folder / "gpushare" / "allocations").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("boot_id", ["another", ""])
def test_in_another_boot_or_an_unknown_one_no_allocation_counts(folder: Path, boot_id: str) -> None:
    saved(folder).save(SAVED)
    assert saved(folder, boot_id).load() == NOTHING


def test_allocations_that_an_earlier_version_saved_are_known(folder: Path) -> None:
    """With spaces and in any order, and by a later version with more keys."""
    row = '["a", "main", "aliyun.com/gpu-mem", ["GPU-0::1", "GPU-0::0"], "driver"]'
    text = f'{{"new": 1, "boot": "boot", "kubelet": "7.1", "recorded": [{row}], "forgotten": []}}\n'
    (folder / "gpushare" / "allocations").write_text(text)
    assert saved(folder).load() == Remembered("7.1", frozenset({A}))


def test_where_the_boot_is_unknown_nothing_is_saved(folder: Path) -> None:
    saved(folder, "").save(SAVED)
    assert list((folder / "gpushare").iterdir()) == []


def test_allocations_that_have_not_changed_are_not_written_again(folder: Path) -> None:
    allocations = saved(folder)
    allocations.save(SAVED)
    written = (folder / "gpushare" / "allocations").stat()
    allocations.save(Remembered("7.1", frozenset({A}), frozenset({B})))
    assert (folder / "gpushare" / "allocations").stat() == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"boot": "boot"}',
        '{"boot": "boot", "kubelet": 1, "recorded": [["a", "b"]], "forgotten": []}',
        '{"boot": "boot", "kubelet": 1, "recorded": [["a", "b", "c", Infinity, ""]], "forgotten": []}',
        '{"boot": "boot", "kubelet": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_of_allocations_holds_no_agent_up(folder: Path, text: str) -> None:
    (folder / "gpushare" / "allocations").write_text(f"{text}\n")
    assert saved(folder).load() == NOTHING


def test_a_means_of_limiting_that_this_version_does_not_know_is_left_out(folder: Path) -> None:
    saved(folder).save(SAVED)
    file = folder / "gpushare" / "allocations"
    file.write_text(file.read_text().replace('"driver"', '["new"]'))
    (found,) = saved(folder).load().recorded
    assert (found.device_ids, found.enforcement) == (A.device_ids, None)


GROWN = {
    ("uid-a", "main"): Reservation("GPU-a", 3, frozenset({"GPU-a::0", "GPU-a::1"})),
    ("uid-a", "side"): Reservation("GPU-a", 1, frozenset({"GPU-a::2"})),
}


def test_the_next_agent_knows_what_is_guaranteed_beyond_requests(folder: Path) -> None:
    assert SavedGuarantees(folder).save(GROWN)
    assert SavedGuarantees(folder).load() == GROWN
    assert SavedGuarantees(folder).save({})
    assert SavedGuarantees(folder).load() == {}


def test_a_node_on_which_nothing_ever_grew_has_no_such_file(folder: Path) -> None:
    assert SavedGuarantees(folder).load() == {}
    assert SavedGuarantees(folder).save({})
    assert not (folder / "gpushare" / "guarantees").exists()


@pytest.mark.parametrize("text", ["[", "[1]", '[["a","b","c","d",[]]]', "{}x", "[[" * 5000])
def test_a_damaged_file_guarantees_nothing(folder: Path, text: str) -> None:
    (folder / "gpushare" / "guarantees").write_text(f"{text}\n")
    saved = SavedGuarantees(folder)
    assert saved.load() == {}
    assert saved.save(GROWN)
    assert SavedGuarantees(folder).load() == GROWN


def test_what_cannot_be_saved_is_said(folder: Path) -> None:
    saved = SavedGuarantees(folder)
    (folder / "gpushare").rmdir()
    assert not saved.save(GROWN)
    (folder / "gpushare").mkdir()
    assert saved.save(GROWN)
    assert saved.save(GROWN)
