"""What an agent saves of the kubelet's record counts in the same boot, if it was written to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.node.remembered import Remembered
from gpu_device_plugin.kubelet.checkpoint import Entry
from gpu_device_plugin.kubelet.saved_allocations import SavedAllocations

if TYPE_CHECKING:
    from pathlib import Path

A = Entry("a", "main", "aliyun.com/gpu-mem", frozenset({"GPU-0::0", "GPU-0::1"}), "driver")
B = Entry("b", "main", "aliyun.com/gpu-count", frozenset({"GPU-1"}))
SAVED = Remembered("7.1", frozenset({A}), frozenset({B}))
NOTHING: Remembered[Entry] = Remembered()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


def test_the_next_agent_of_the_same_boot_knows_it(folder: Path) -> None:
    SavedAllocations(folder, "boot").save(SAVED)
    assert SavedAllocations(folder, "boot").load() == SAVED
    assert (folder / "gpushare" / "allocations").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("boot_id", ["another", ""])
def test_in_another_boot_or_an_unknown_one_nothing_counts(folder: Path, boot_id: str) -> None:
    SavedAllocations(folder, "boot").save(SAVED)
    assert SavedAllocations(folder, boot_id).load() == NOTHING


def test_where_the_boot_is_unknown_nothing_is_saved(folder: Path) -> None:
    SavedAllocations(folder, "").save(SAVED)
    assert list((folder / "gpushare").iterdir()) == []


def test_what_has_not_changed_is_not_written_again(folder: Path) -> None:
    saved = SavedAllocations(folder, "boot")
    saved.save(SAVED)
    (folder / "gpushare" / "allocations").unlink()
    saved.save(Remembered("7.1", frozenset({A}), frozenset({B})))
    assert list((folder / "gpushare").iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[1]",
        "7",
        '"boot"',
        '{"boot": "boot"}',
        '{"boot": "boot", "kubelet": 1, "recorded": 5, "forgotten": []}',
        '{"boot": "boot", "kubelet": 1, "recorded": [["a", "b"]], "forgotten": []}',
        '{"boot": "boot", "kubelet": 1, "recorded": [["a", "b", "c", Infinity, ""]], "forgotten": []}',
        '{"boot": "boot", "kubelet": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_holds_no_agent_up(folder: Path, text: str) -> None:
    (folder / "gpushare" / "allocations").write_text(f"{text}\n")
    assert SavedAllocations(folder, "boot").load() == NOTHING


def test_a_means_of_limiting_that_this_version_does_not_know_is_left_out(folder: Path) -> None:
    SavedAllocations(folder, "boot").save(SAVED)
    file = folder / "gpushare" / "allocations"
    file.write_text(file.read_text().replace('"driver"', '["new"]'))
    (found,) = SavedAllocations(folder, "boot").load().recorded
    assert (found.device_ids, found.rung) == (A.device_ids, "")
