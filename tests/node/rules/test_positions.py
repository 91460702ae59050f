"""The position of each GPU after a restart of the program."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.nodegpus import node_gpus, write_node_gpus
from gpu_device_plugin.model.gpus import Gpu, Inventory, MigInstance
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.positions import in_order, listed_before
from tests.mig import gpus, instance, inventory


def gpu(name: str, slot: int | None = None, index: int = 0) -> Gpu:
    """A GPU in a PCI slot, or of a platform that does not tell."""
    return Gpu(
        f"GPU-{name}", index, "Tesla T4", 15_360, 450, pci_bus_id=None if slot is None else f"0000:{slot:02}:00.0"
    )


A, B, C = gpu("a", 1), gpu("b", 2), gpu("c", 3)


def names(before: list[Gpu], found: list[Gpu]) -> str:
    """The GPUs by position, in short."""
    return "".join(one.uuid.removeprefix("GPU-") for one in in_order(before, found))


def test_without_known_gpus_the_order_is_the_drivers() -> None:
    assert names([], [B, A]) == "ba"


def test_every_gpu_keeps_its_position() -> None:
    """The GPU that was found second then comes first in PCI order now."""
    assert names([B, A], [A, B]) == "ba"


def test_a_gpu_that_is_not_found_keeps_its_position() -> None:
    assert names([A, B, C], [A, C]) == "abc"
    assert names([A, B, C], [C]) == "abc"


def test_a_found_gpu_has_its_present_facts() -> None:
    grown = replace(B, total_mib=99, index=7)
    assert in_order([A, B], [A, grown]) == (A, grown)


def test_a_new_gpu_comes_last() -> None:
    assert names([A, B], [gpu("0", 0), A, B]) == "ab0"


def test_a_new_gpu_in_the_slot_of_another_has_taken_its_place() -> None:
    assert names([A, B, C], [A, gpu("n", 2), C]) == "anc"


def test_a_gpu_that_was_moved_into_another_slot_keeps_its_position() -> None:
    """The state of the GPU that was there is unknown."""
    assert names([A, B, C], [A, replace(C, pci_bus_id=B.pci_bus_id)]) == "abc"


def test_a_new_gpu_takes_one_place_though_two_others_were_in_its_slot() -> None:
    """B was moved to A's slot, and then removed as well. No other GPU may change its position for that."""
    moved = replace(B, pci_bus_id=A.pci_bus_id)
    assert names([A, moved, C], [gpu("n", 1), C]) == "nbc"


def test_gpus_without_a_slot_take_no_other_place() -> None:
    assert names([gpu("a"), gpu("b")], [gpu("a"), gpu("n")]) == "abn"


def test_without_any_known_gpu_the_machine_is_another() -> None:
    assert names([A, B], [gpu("x", 1)]) == "x"
    assert names([A, B], [gpu("y", 7), gpu("x", 1)]) == "yx"


GPUS = st.lists(st.builds(gpu, st.sampled_from("abcdef"), st.none() | st.integers(0, 3)), unique_by=lambda g: g.uuid)


@given(GPUS, GPUS.filter(bool))
def test_every_found_gpu_has_exactly_one_position(before: list[Gpu], found: list[Gpu]) -> None:
    ordered = in_order(before, found)
    assert set(found) <= set(ordered)
    assert len({one.uuid for one in ordered}) == len(ordered)


@given(GPUS, GPUS.filter(bool))
def test_a_gpu_that_stays_keeps_its_position(before: list[Gpu], found: list[Gpu]) -> None:
    here = {one.uuid for one in found}
    if here & {one.uuid for one in before}:
        now = [one.uuid for one in in_order(before, found)]
        assert [one.uuid for one in before if one.uuid in here] == [
            uuid for n, uuid in enumerate(now) if n < len(before) and uuid == before[n].uuid and uuid in here
        ]


# --- the list in the node's annotation


def test_the_annotation_of_a_node_reads_back_as_its_gpus() -> None:
    there = Inventory((replace(A, numa_node=1), replace(gpu("b"), product="NVIDIA A10")))
    text = write_node_gpus(node_gpus(Shares(1024).with_inventory(there), there, {"GPU-b": "too hot"}, "binpack"))
    assert listed_before(text) == tuple(replace(one, index=-1) for one in there.gpus)


def test_gpus_are_read_by_their_positions() -> None:
    there = Inventory((A, B))
    text = write_node_gpus(node_gpus(Shares(1024).with_inventory(there), there, {}, "binpack"))
    swapped = text.replace('"index":0', '"index":2')
    assert [one.uuid for one in listed_before(swapped)] == ["GPU-b", "GPU-a"]


LISTED = {"uuid": "a", "index": 0, "model": "T4", "memoryMiB": 1, "reservedMiB": 0, "shares": 1}


def listing(gpu: dict[str, object] | None = None, **changes: object) -> str:
    """A node's annotation with a GPU of few fields, beside a complete one with some changes."""
    gpus = [LISTED | changes, *([{"uuid": "b", "index": 1, "shares": 1} | gpu] if gpu is not None else [])]
    return json.dumps({"version": 1, "shareMiB": 1, "gpus": gpus})


def test_a_gpu_is_known_again_without_its_slot() -> None:
    assert [listed_before(listing(**more)) for more in ({}, {"pci": 1}, {"pci": "0000:3b:00.0"})] == [
        (Gpu("a", -1, "T4", 1, pci_bus_id=None),),
        (Gpu("a", -1, "T4", 1, pci_bus_id=None),),
        (Gpu("a", -1, "T4", 1, pci_bus_id="0000:3b:00.0"),),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version":1,"shareMiB":1,"gpus":null}',
        '{"version":1,"shareMiB":1,"gpus":[1]}',
        '{"version":2,"shareMiB":1,"gpus":[]}',
        listing(index="x"),
        listing(uuid=1),
        listing(uuid=""),
        listing(memoryMiB=None),
        listing(memoryMiB="1"),
        listing(reservedMiB=None),
        listing(numa=True),
        listing({"memoryMiB": 1}),
        listing({"reservedMiB": 0}),
        "[" * 100_000,
    ],
)
def test_a_malformed_annotation_lists_no_gpus(text: str) -> None:
    assert listed_before(text) == ()


# --- MIG instances ----------------------------------------------------------------------------------------------------


def order(before: Sequence[Gpu], found: Sequence[Gpu]) -> list[str]:
    return [gpu.uuid for gpu in in_order(before, found)]


def test_instances_keep_their_positions() -> None:
    before = (instance(0, 1), instance(0, 0), *gpus(1, 4))
    assert order(before, inventory((10, 10), 4).gpus)[:3] == ["MIG-0-1", "MIG-0-0", "GPU-1"]


def test_a_new_instance_takes_the_position_of_one_that_exists_no_more_on_its_gpu() -> None:
    """GPU 0 had the instances 8 and 9, and has 0 to 2 now; GPU 1 had 8, and has none."""
    before = (instance(0, 8), instance(1, 8), instance(0, 9), *gpus(2, 4))
    now = inventory((10, 10, 10), (), 4).gpus
    assert order(before, now) == ["MIG-0-0", "MIG-1-8", "MIG-0-1", "GPU-2", "GPU-0", "MIG-0-2", "GPU-1"]


def test_an_instance_takes_the_position_of_its_gpu_and_the_reverse() -> None:
    whole, parts = gpus(0, 8), inventory((10, 10), 4).gpus
    assert order((*whole, *gpus(1, 4)), parts)[:2] == ["MIG-0-0", "GPU-1"]
    assert order((instance(0, 0), instance(0, 1), *gpus(1, 4)), inventory(8, 4).gpus) == ["GPU-0", "MIG-0-1", "GPU-1"]


def test_a_gpu_in_mig_mode_without_instances_keeps_its_position() -> None:
    assert order((*gpus(0, 8), *gpus(1, 4)), inventory((), 4).gpus) == ["GPU-0", "GPU-1"]


def test_a_machine_whose_gpus_all_have_new_instances_is_no_other_machine() -> None:
    before = (instance(0, 9), instance(1, 9))
    assert order(before, inventory((), (10,)).gpus)[:2] == ["MIG-0-9", "MIG-1-0"]


def test_instances_are_read_from_the_annotation_with_those_that_are_gone() -> None:
    shares = Shares(1024).with_inventory(inventory((10, 10), 4), mig=MigMode.SHARE)
    shares = shares.with_inventory(inventory((10,), 4), mig=MigMode.SHARE)
    text = write_node_gpus(node_gpus(shares, inventory((10,), 4), {}, "binpack"))
    found = listed_before(text)
    assert [gpu.uuid for gpu in found] == ["MIG-0-0", "MIG-0-1", "GPU-1"]
    assert [gpu.card for gpu in found] == ["GPU-0", "GPU-0", "GPU-1"]
    # The place of an instance may be another by now: no setting can name it by that.
    assert [gpu.instance for gpu in found[:2]] == [MigInstance("GPU-0", -1, "1g.10gb", gi, 0) for gi in (7, 8)]
    whole = Shares(1024).with_inventory(inventory((10, 10), 4), mig=MigMode.WHOLE)
    text = write_node_gpus(node_gpus(whole, inventory((10, 10), 4), {}, "binpack", mig_domain="nvidia.com"))
    assert [gpu.uuid for gpu in listed_before(text)] == ["MIG-0-0", "MIG-0-1", "GPU-1"]
