"""The order of devices, by which a scheduler that takes the first one packs or spreads."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.dra.ordering import REORDER_S, Order, reordered, wanted_order
from gpu_device_plugin.core.model.mig import MigMode
from tests.claims import mig_node, mig_uuid, node, uuid


def order(*positions: int) -> tuple[str, ...]:
    return tuple(uuid(position) for position in positions)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", (1, 0, 2, 3, 4, 5)), ("fit", (1, 0, 2, 3, 4, 5)), ("spread", (2, 0, 1, 3, 4, 5))],
)
def test_the_fullest_with_room_comes_first_or_the_emptiest(policy: str, expected: tuple[int, ...]) -> None:
    """GPU 3 is full, GPU 4 in whole use, GPU 5 out of service."""
    here = node(*[8] * 6, used={0: range(2), 1: range(5), 3: range(8)}, whole=[4], unhealthy={5: "it is lost"})
    assert wanted_order(here, policy) == order(*expected)


def instances(*places: tuple[int, int]) -> tuple[str, ...]:
    return tuple(mig_uuid(*place) for place in places)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", [(1, 0), (1, 2), (0, 0), (0, 1), (1, 1)]), ("spread", [(0, 0), (0, 1), (1, 2), (1, 0), (1, 1)])],
)
def test_of_equal_instances_those_of_the_fullest_gpu_come_first(policy: str, expected: list[tuple[int, int]]) -> None:
    """Instance 1:1 is in whole use, and 1:0 has 4 GiB left."""
    here = mig_node([10, 10], [10, 10, 10], used={(1, 0): range(6)}, whole=[(1, 1)])
    assert wanted_order(here, policy) == instances(*expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", [(1, 0), (0, 0), (0, 2), (0, 1), (1, 1)]), ("spread", [(0, 0), (0, 2), (1, 0), (0, 1), (1, 1)])],
)
def test_of_whole_instances_the_smallest_come_first(policy: str, expected: list[tuple[int, int]]) -> None:
    here = mig_node([10, 20, 10], [10, 10], mode=MigMode.WHOLE, whole=[(1, 1)])
    assert wanted_order(here, policy) == instances(*expected)


def test_instances_that_nobody_gets_have_a_place_too() -> None:
    assert wanted_order(mig_node(8, [10], mode=MigMode.OFF), "binpack") == order(0)


def test_the_order_changes_at_most_every_ten_seconds_and_is_due_then() -> None:
    first = reordered(Order(), node(8, 8), "binpack", 100.0)
    assert first == Order(order(0, 1), 100.0)
    assert reordered(first, node(8, 8), "binpack", 101.0) == first
    fuller = node(8, 8, used={1: [0]})
    soon = reordered(first, fuller, "binpack", 103.0)
    assert soon == Order(order(0, 1), 100.0, 100.0 + REORDER_S)
    assert reordered(soon, node(8, 8), "binpack", 105.0) == Order(order(0, 1), 100.0)
    assert reordered(soon, fuller, "binpack", 110.0) == Order(order(1, 0), 110.0)


def test_the_order_is_that_of_the_policy() -> None:
    here = node(8, 8, used={1: [0]})
    assert reordered(Order(), here, "spread", 100.0).uuids == order(0, 1)
    assert reordered(Order(), here, "binpack", 100.0).uuids == order(1, 0)


def test_a_new_gpu_does_not_wait() -> None:
    before = Order(order(0), 100.0)
    assert reordered(before, node(8, 8), "binpack", 101.0) == Order(order(0, 1), 101.0)
