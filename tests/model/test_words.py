"""The small values that the rest of the story is told with."""

from itertools import pairwise

import pytest

from gpu_device_plugin.model.gpus import Closeness, Inventory
from gpu_device_plugin.model.placing import POLICIES, Room
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind, Resource


def test_a_resource_is_a_kind_with_a_name() -> None:
    assert Resource(Kind.MEMORY, "aliyun.com/gpu-mem") == Resource(Kind("memory"), "aliyun.com/gpu-mem")


def test_closer_is_greater() -> None:
    """NVLink, then the same board, the same PCIe switch, the same host bridge, the same NUMA node, the same machine."""
    ways = [
        Closeness.NVLINK,
        Closeness.BOARD,
        Closeness.SWITCH,
        Closeness.SWITCHES,
        Closeness.HOST_BRIDGE,
        Closeness.NODE,
        Closeness.SYSTEM,
        Closeness.UNKNOWN,
    ]
    assert ways == sorted(Closeness, reverse=True)
    assert all(nearer > farther for nearer, farther in pairwise(ways))


def test_a_node_without_a_driver_has_an_inventory_too() -> None:
    assert Inventory() == Inventory(gpus=(), links=(), driver_version=None)


@pytest.mark.parametrize(
    ("phase", "ended"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_has_ended_when_none_of_its_containers_will_run_again(phase: str, *, ended: bool) -> None:
    assert Pod("u", "default", "a", phase=phase).ended is ended


def test_a_pod_under_deletion_may_still_run() -> None:
    assert not Pod("u", "default", "a", phase="Running", deleting=True).ended


def test_a_container_asks_nothing_unless_it_says_so() -> None:
    assert Container("c", ContainerKind.APP, 0).limits == {}


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fit", [1, 3, 8]), ("binpack", [1, 3, 8]), ("spread", [8, 3, 1])],
)
def test_a_policy_ranks_gpus_by_their_free_shares(policy: str, order: list[int]) -> None:
    """Without a scheduler that knows what pods come, `fit` fills one GPU before the next."""
    rooms = [Room(position, 8, free) for position, free in enumerate([3, 8, 1])]
    assert [room.free for room in sorted(rooms, key=POLICIES[policy])] == order


def test_there_are_three_policies() -> None:
    assert set(POLICIES) == {"fit", "binpack", "spread"}
