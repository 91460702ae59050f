"""Which position a GPU has when the program starts anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.annotations import node_gpus
from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.model.shares import Shares
from gpu_device_plugin.core.node.positions import in_order, last_said


def gpu(name: str, slot: int | None = None, index: int = 0) -> Gpu:
    """A GPU in a PCI slot, or of a platform that does not tell."""
    return Gpu(
        f"GPU-{name}", index, "Tesla T4", 15_360, 450, pci_bus_id=None if slot is None else f"0000:{slot:02}:00.0"
    )


A, B, C = gpu("a", 1), gpu("b", 2), gpu("c", 3)


def names(before: list[Gpu], found: list[Gpu]) -> str:
    """The GPUs by position, in short."""
    return "".join(one.uuid.removeprefix("GPU-") for one in in_order(before, found))


def test_a_node_of_which_nothing_is_known_has_the_order_of_the_driver() -> None:
    assert names([], [B, A]) == "ba"


def test_every_gpu_keeps_its_position() -> None:
    """It was the second to be found then, and comes first in PCI order."""
    assert names([B, A], [A, B]) == "ba"


def test_a_gpu_that_is_not_found_keeps_its_position() -> None:
    assert names([A, B, C], [A, C]) == "abc"
    assert names([A, B, C], [C]) == "abc"


def test_what_is_found_is_told_as_it_is_now() -> None:
    grown = replace(B, total_mib=99, index=7)
    assert in_order([A, B], [A, grown]) == (A, grown)


def test_a_new_gpu_comes_last() -> None:
    assert names([A, B], [gpu("0", 0), A, B]) == "ab0"


def test_a_new_gpu_in_the_slot_of_another_has_taken_its_place() -> None:
    assert names([A, B, C], [A, gpu("n", 2), C]) == "anc"


def test_a_gpu_that_was_moved_into_another_slot_keeps_its_position() -> None:
    """Nothing says what became of the one that was there."""
    assert names([A, B, C], [A, replace(C, pci_bus_id=B.pci_bus_id)]) == "abc"


def test_a_new_gpu_takes_one_place_though_two_others_were_in_its_slot() -> None:
    """B was moved to where A had been, and then taken out as well. Nobody else may change places for that."""
    moved = replace(B, pci_bus_id=A.pci_bus_id)
    assert names([A, moved, C], [gpu("n", 1), C]) == "nbc"


def test_gpus_without_a_slot_take_nobodys_place() -> None:
    assert names([gpu("a"), gpu("b")], [gpu("a"), gpu("n")]) == "abn"


def test_where_no_gpu_is_left_the_machine_is_another() -> None:
    assert names([A, B], [gpu("x", 1)]) == "x"
    assert names([A, B], [gpu("y", 7), gpu("x", 1)]) == "yx"


GPUS = st.lists(st.builds(gpu, st.sampled_from("abcdef"), st.none() | st.integers(0, 3)), unique_by=lambda g: g.uuid)


@given(GPUS, GPUS.filter(bool))
def test_nothing_that_is_found_is_missing_or_twice(before: list[Gpu], found: list[Gpu]) -> None:
    ordered = in_order(before, found)
    assert set(found) <= set(ordered)
    assert len({one.uuid for one in ordered}) == len(ordered)


@given(GPUS, GPUS.filter(bool))
def test_whoever_stays_has_the_position_that_he_had(before: list[Gpu], found: list[Gpu]) -> None:
    here = {one.uuid for one in found}
    if here & {one.uuid for one in before}:
        now = [one.uuid for one in in_order(before, found)]
        assert [one.uuid for one in before if one.uuid in here] == [
            uuid for n, uuid in enumerate(now) if n < len(before) and uuid == before[n].uuid and uuid in here
        ]


# --- what the node said


def test_what_a_node_says_of_its_gpus_is_read_back() -> None:
    there = Inventory((replace(A, numa_node=1), replace(gpu("b"), product="NVIDIA A10")))
    text = node_gpus(Shares(1024).with_inventory(there), there, {"GPU-b": "too hot"}, "binpack")
    assert last_said(text) == tuple(replace(one, index=-1) for one in there.gpus)


def test_gpus_are_read_by_their_positions() -> None:
    there = Inventory((A, B))
    text = node_gpus(Shares(1024).with_inventory(there), there, {}, "binpack")
    swapped = text.replace('"index":0', '"index":2')
    assert [one.uuid for one in last_said(swapped)] == ["GPU-b", "GPU-a"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"gpus":null}',
        '{"gpus":[1]}',
        '{"gpus":[{"index":"x"}]}',
        '{"gpus":[{"index":0}]}',
        '{"gpus":[{"uuid":1,"index":0,"model":"T4","memoryMiB":1,"reservedMiB":0}]}',
        '{"gpus":[{"uuid":"a","index":0,"model":"T4","memoryMiB":"1","reservedMiB":0}]}',
        '{"gpus":[{"uuid":"a","index":0,"model":"T4","memoryMiB":1,"reservedMiB":0,"pci":1}]}',
        '{"gpus":[{"uuid":"a","index":0,"model":"T4","memoryMiB":1,"reservedMiB":0,"numa":true}]}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_says_nothing(text: str) -> None:
    assert last_said(text) == ()
