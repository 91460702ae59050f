"""The compute units that containers on AMD GPUs are asked to keep to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.limits.rules.compute_mask import compute_mask
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.shares import Shares

UUID = "GPU-946D7E1EF9B172DD"


def shares(*gpus: Gpu) -> Shares:
    return Shares(1024).with_inventory(Inventory(gpus))


def card(units: int | None, gib: int = 16, uuid: str = UUID, index: int = 0, driver: str = "amdgpu") -> Gpu:
    return Gpu(uuid, index, "AMD", gib * 1024, driver=driver, compute_units=units)


def of(gpu: str, *numbers: int) -> set[str]:
    return {f"{gpu}::{number}" for number in numbers}


def units(mask: str) -> set[int]:
    """Return the compute units that a mask of one GPU names, as ROCm reads it."""
    bounds = (part.split("-") for part in mask.removeprefix("0:").split(","))
    return {unit for first, last in bounds for unit in range(int(first), int(last) + 1)}


@pytest.mark.parametrize(
    ("held", "count", "mask"),
    [
        ([0], 64, "0:0-3"),
        ([0, 1, 2, 3], 64, "0:0-15"),
        ([15], 64, "0:60-63"),
        ([0, 1, 8], 64, "0:0-7,32-35"),
        (range(16), 64, "0:0-63"),
        (range(16), 65, "0:0-64"),  # none is left out
        ([0], 38, "0:0-3"),  # 19 pairs for 16 shares
        ([1], 38, "0:2-5"),
        ([3], 8, "0:0-1"),  # fewer pairs than shares: nobody is without
    ],
)
def test_shares_stand_for_parts_of_the_compute_units(held: list[int], count: int, mask: str) -> None:
    assert compute_mask(shares(card(count)), of(UUID, *held)) == {"HSA_CU_MASK": mask}


def test_gpus_are_numbered_as_rocm_numbers_those_of_the_container() -> None:
    """Not by the node's positions, and without the GPUs of other drivers."""
    gpus = shares(
        card(20, uuid="GPU-B", index=3),
        card(None, uuid="GPU-N", index=0, driver="nvidia"),
        card(40, uuid="GPU-A", index=1),
        card(None, uuid="GPU-C", index=2),
    )
    held = of("GPU-A", *range(8)) | of("GPU-B", *range(8)) | of("GPU-C", 0) | of("GPU-N", 0)
    assert compute_mask(gpus, held) == {"HSA_CU_MASK": "0:0-19;2:0-9"}


@pytest.mark.parametrize("gpu", [card(None), card(64, driver="nvidia")])
def test_without_known_compute_units_there_is_no_mask(gpu: Gpu) -> None:
    assert compute_mask(shares(gpu), of(UUID, 1)) == {}


def test_a_whole_gpu_has_no_mask() -> None:
    assert compute_mask(shares(card(64)), {UUID}) == {}


@given(st.integers(1, 400), st.integers(1, 200), st.data())
def test_all_shares_together_have_all_units_and_two_overlap_by_a_pair_at_most(
    count: int, gib: int, data: st.DataObject
) -> None:
    node = shares(replace(card(count), total_mib=gib * 1024))
    names = [of(UUID, number) for number in range(gib)]
    each = [units(compute_mask(node, name)["HSA_CU_MASK"]) for name in names]
    assert set().union(*each) == set(range(count))
    mine = data.draw(st.sets(st.integers(0, gib - 1), min_size=1))
    held = units(compute_mask(node, of(UUID, *mine))["HSA_CU_MASK"])
    assert held == set().union(*(each[number] for number in mine))
    if gib > 1 and count >= 2 * gib:
        pairs = [len(one & other) for n, one in enumerate(each) for other in each[n + 1 :]]
        assert max(pairs) <= 2
