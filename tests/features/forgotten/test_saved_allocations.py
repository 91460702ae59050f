"""What an agent saves of the kubelet's record counts for the next agent of the same boot."""

from pathlib import Path

import pytest

from gpu_device_plugin.features.forgotten.node import SavedAllocations
from gpu_device_plugin.features.forgotten.rules import Remembered
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from tests.names import OURS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


A = Allocation(
    "a",
    "main",
    Kind.MEMORY,
    frozenset({"GPU-0::0", "GPU-0::1"}),
    through="aliyun.com/gpu-mem",
    enforcement=Enforcement.DRIVER,
)
B = Allocation("b", "main", Kind.COUNT, frozenset({"GPU-1"}), AllocationSource.REMEMBERED, "aliyun.com/gpu-count")
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
