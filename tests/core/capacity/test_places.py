"""How many pods have to leave a node at least, and the places that a pod has there."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.core.capacity.movable import Resident, Site, Stays
from gpu_device_plugin.core.capacity.places import Fits, fewest_leaving, places, waste
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.packing import Packer
from gpu_device_plugin.core.cluster.pod_demand import Ask, Part
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from tests.core.capacity.clusters import node
from tests.core.cluster.occupants import occupants

if TYPE_CHECKING:
    from collections.abc import Sequence


def mem(amount: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, amount, gpus)


def whole(number: int) -> Demand:
    return Demand(Kind.COUNT, number)


def site(sizes: Sequence[int], pods: str, *, left: Amounts | None = None, each: int = 0) -> Site:
    """A node with pods in shorthand, of which those in capitals stay; each has so much CPU."""
    there = [
        Resident(pod, amounts=Amounts(each), stays=Stays.NO_CONTROLLER if pod.name.isupper() else None)
        for pod in occupants(pods)
    ]
    empty = node("n", sizes).node
    usages = [pod.pod.usage for pod in there]
    return Site(candidate("n", empty.gpus, usages, left), tuple(there))


def leaving(there: Site, *demands: Demand, spread: int = 1, **want: Any) -> float:
    ask = Ask(tuple(map(Part, demands)))
    goal = Fits(ask, **want)
    return fewest_leaving(goal, there, lambda pod: pod.stays is None, spread, Packer(demands))


@pytest.mark.parametrize(
    ("sizes", "pods", "demands", "least"),
    [
        ([8], "a4@0", [mem(4)], 0),
        ([8], "a4@0", [mem(5)], 1),
        ([8, 8], "a4@0 b2@0 c1@1 d1@1 e1@1 f1@1", [mem(8)], 2),  # the two of GPU 0
        ([8], "a2@0 b3@0 c3@0", [mem(5)], 2),  # 3 + 3
        ([8], "A4@0 b4@0", [mem(5)], inf),
        ([8], "a*@0", [mem(5)], 1),
        ([8], "A*@0", [mem(5)], inf),
        ([8, 16], "a9@1 b*@0", [mem(12)], 1),
        ([8], "", [mem(9)], inf),
        ([8, 8], "a1@0 b1@1", [whole(1)], 1),
        ([8, 8], "a1@0 A1@0 b1@1 c1@1", [whole(1)], 2),
        ([8, 8], "a1@0 b1@1", [whole(2)], 2),
        ([8, 8], "A1@0", [whole(2)], inf),
        ([8, 8, 8], "a1@0,1@1", [whole(2)], 1),
        ([8, 8], "a1@0,1@1", [whole(2)], 1),  # one pod on both
        ([8, 8], "a5@0 b5@1", [mem(8, 2)], 2),
        ([8, 8], "a5@0 b5@1", [mem(3), mem(4)], 1),
        ([8, 8], "a5@0 b5@1", [mem(4), mem(4)], 1),
    ],
)
def test_so_many_pods_have_to_leave(sizes: Sequence[int], pods: str, demands: Sequence[Demand], least: float) -> None:
    assert leaving(site(sizes, pods), *demands) == least


def test_pods_on_several_gpus_may_make_room_on_all_of_them() -> None:
    there = site([8, 8], "a5@0,5@1")
    assert leaving(there, mem(8, 2), spread=2) == 1


def test_cpu_and_memory_count_beside_gpus() -> None:
    there = site([8], "a1@0 b1@0 c1@0", left=Amounts(1000, 10), each=500)
    assert leaving(there, mem(1), amounts=Amounts(1000, 10)) == 0
    assert leaving(there, mem(1), amounts=Amounts(1900, 10)) == 2
    assert leaving(there, mem(1), amounts=Amounts(1000, 11)) == inf
    assert leaving(there, mem(6), amounts=Amounts(2500, 10)) == 3


def test_no_pod_fits_where_it_may_not_go() -> None:
    there = site([8], "")
    assert leaving(there, mem(1), nodes=frozenset({"m"})) == inf
    assert leaving(replace(there, open=False), mem(1)) == inf


# --- Places ----------------------------------------------------------------------------------------------------------


def ways(there: Site, *demands: Demand) -> list[list[tuple[tuple[int, int], ...]]]:
    ask = Ask(tuple(map(Part, demands)))
    found = places(ask, there, lambda _position: None)
    return [[placement.shares for placement in way] for way in found]


def test_of_gpus_that_are_alike_one_is_tried() -> None:
    there = site([8, 8, 8], "a4@2")
    assert ways(there, mem(2)) == [[((2, 2),)], [((0, 2),)]]
    assert ways(there, whole(1)) == [[((0, 8),)]]
    assert ways(there, whole(2)) == [[((0, 8), (1, 8))]]
    assert ways(there, whole(3)) == []
    assert ways(there, mem(4, 2)) == [[((0, 2), (2, 2))], [((0, 2), (1, 2))]]


def test_several_parts_are_placed_together() -> None:
    assert ways(site([8, 8], "a8@1"), mem(8), mem(8)) == []
    assert ways(site([8], ""), mem(3), mem(5)) == [[((0, 3),), ((0, 5),)]]
    assert ways(site([8, 8], ""), whole(1), mem(5)) == [[((0, 8),), ((1, 5),)]]


def test_nodes_that_take_no_such_pods_have_no_places() -> None:
    there = site([8], "")
    closed = replace(there.node, gpus=replace(there.node.gpus, problem="its agent has ended"))
    claims = replace(there.node, gpus=replace(there.node.gpus, claims=True))
    assert ways(replace(there, node=closed), mem(1)) == []
    assert ways(replace(there, node=claims), whole(1)) == []
    assert ways(there) == []


def test_whole_gpus_are_no_mig_instances() -> None:
    instance = ListedInstance("GPU-0", 0, 0, "1g.10gb", 1)
    gpus = NodeGpus((ListedGpu(0, 8), ListedGpu(1, 8, instance=instance)), 1024)
    there = Site(candidate("n", gpus, ()))
    assert ways(there, whole(1)) == [[((0, 8),)]]
    assert ways(there, mem(4)) == [[((1, 4),)], [((0, 4),)]]
    assert leaving(there, whole(2)) == inf


def test_waste_is_the_gpus_begun_and_then_the_room_beside() -> None:
    there = site([8, 8], "a4@0")
    ask = Ask((Part(mem(3)),))
    assert [waste(way, there) for way in places(ask, there, lambda _position: None)] == [(0, 1), (1, 5)]
