"""How much of its GPU a container may use, and which containers may get more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.features.elastic.contract import MemoryRequests, is_elastic
from gpu_device_plugin.features.use.rules.container_gpus import elastic_gpu
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from tests.mig import mig_node
from tests.nodes import ids, node

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("annotations", "guaranteed", "limit"),
    [
        ({}, 4, 4),
        ({MEMORY_LIMIT: "12"}, 4, 12),
        ({MEMORY_LIMIT: '{"main": 12}'}, 4, 12),
        ({MEMORY_LIMIT: '{"side": 12}'}, 4, 4),
        ({MEMORY_LIMIT: "40"}, 4, 16),
        ({MEMORY_LIMIT: "twelve"}, 4, 4),
        ({MEMORY_LIMIT: "2"}, 4, 2),
        ({MEMORY_GUARANTEE: "6"}, 4, 4),
        ({MEMORY_GUARANTEE: "6"}, 6, 6),
        ({MEMORY_GUARANTEE: "3"}, 4, 3),
        ({MEMORY_GUARANTEE: "3", MEMORY_LIMIT: "8"}, 4, 8),
    ],
)
def test_the_limit_follows_from_the_wishes(annotations: Mapping[str, str], guaranteed: int, limit: int) -> None:
    assert MemoryRequests.of(annotations).limit_of("main", guaranteed, 16, may_borrow=True) == limit


def test_where_nobody_may_borrow_the_limit_is_the_guarantee() -> None:
    assert MemoryRequests.of({MEMORY_LIMIT: "12"}).limit_of("main", 4, 16, may_borrow=False) == 4
    assert MemoryRequests.of({MEMORY_LIMIT: "2"}).limit_of("main", 4, 16, may_borrow=False) == 2


def test_only_a_wish_makes_a_pod_elastic() -> None:
    assert not is_elastic({})
    assert is_elastic({MEMORY_LIMIT: "12"})
    assert is_elastic({MEMORY_GUARANTEE: "12"})


def test_only_shares_of_one_gpu_through_the_device_plugin_may_change() -> None:
    there = node(8, 8).shares
    containers = (Container("first", ContainerKind.INIT, 0), Container("main", ContainerKind.APP, 0))
    owner = Pod("a", "default", "web", containers=containers)
    good = Allocation("a", "main", Kind.MEMORY, frozenset(ids(1, [2, 3])))
    assert elastic_gpu(good, owner, there) is there.gpus[1]
    for bad in (
        replace(good, container="first"),
        replace(good, container="unknown"),
        replace(good, kind=Kind.COUNT, device_ids=frozenset({"GPU-1"})),
        replace(good, kind=None),
        replace(good, source=AllocationSource.CLAIM),
        replace(good, device_ids=good.device_ids.union(ids(0, [1]))),
        replace(good, device_ids=frozenset({"GPU-gone::1"})),
    ):
        assert elastic_gpu(bad, owner, there) is None
    instances = mig_node((10, 30), mode=MigMode.SHARE).shares
    one = next(shared for shared in instances.gpus if shared.shares)
    assert elastic_gpu(replace(good, device_ids=frozenset(one.shares[:1])), owner, instances) is None
