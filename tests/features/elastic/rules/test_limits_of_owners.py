"""How much of its GPU a container may use, and which containers may get more."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType

import pytest

from gpu_device_plugin.features.elastic.contract import MemoryRequests, is_elastic
from gpu_device_plugin.features.elastic.rules.reclaiming import owners_limits, uses_now
from gpu_device_plugin.features.elastic.rules.reservations import elastic_gpu
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus, container_gpus
from gpu_device_plugin.features.use.rules.process_use import UseReading
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.model.memory import MIB_PER_GIB
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.ledger import Reservation, Reservations
from tests.features.use.rules.test_container_gpus import entry, pod
from tests.mig import mig_node
from tests.nodes import ids, node, uuid

SHARES = node(16, 16).shares
NONE: Reservations = MappingProxyType({})


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


# --- As the holders of GPUs are known ---------------------------------------------------------------------------------


def held_by(
    allocations: Iterable[Allocation],
    pods: Iterable[Pod] = (),
    reservations: Reservations = NONE,
    *,
    may_borrow: bool = True,
) -> tuple[ContainerGpus, ...]:
    """Return what containers hold on a node that lends, or does not."""
    limits = partial(owners_limits, shares=SHARES, requests={}, may_borrow=may_borrow)
    return container_gpus(allocations, pods, SHARES, reservations=reservations, limits=limits)


@pytest.mark.parametrize(
    ("annotations", "may_borrow", "limits"),
    [
        ({}, True, {}),
        ({MEMORY_LIMIT: "12"}, True, {uuid(0): 12 * MIB_PER_GIB}),
        ({MEMORY_LIMIT: "99"}, True, {uuid(0): 16 * MIB_PER_GIB}),
        ({MEMORY_LIMIT: "12"}, False, {}),
        ({MEMORY_LIMIT: "5"}, True, {}),
        ({MEMORY_GUARANTEE: "1"}, False, {uuid(0): MIB_PER_GIB}),
    ],
)
def test_the_owner_of_a_pod_sets_its_limit(
    annotations: Mapping[str, str], *, may_borrow: bool, limits: Mapping[str, int]
) -> None:
    known = replace(pod("a", "main"), annotations=annotations)
    reservations = {("a", "main"): Reservation(uuid(0), 3, frozenset(ids(0, [0, 1])))}
    (found,) = held_by([entry("a", "main", ids(0, [0, 1]))], [known], reservations, may_borrow=may_borrow)
    assert (found.granted, found.limits) == ({uuid(0): 5 * MIB_PER_GIB}, limits)


def test_whole_gpus_have_no_limit_of_the_owner() -> None:
    known = replace(pod("a", "main"), annotations={MEMORY_LIMIT: "12"})
    (found,) = held_by([entry("a", "main", [uuid(1)], Kind.COUNT)], [known])
    assert (found.limits, found.limit_mib(uuid(1))) == ({}, 16 * MIB_PER_GIB)


def test_a_claim_has_its_own_limit_whoever_uses_it() -> None:
    """While the agent does not know the pod, too; its owner's annotations say nothing about claims."""
    held = replace(entry("a", "main", ids(0, [0, 1])), source=AllocationSource.CLAIM, limit_mib=6 * MIB_PER_GIB)
    known = replace(pod("a", "main"), annotations={MEMORY_LIMIT: "12"})
    for pods in ([], [known]):
        (found,) = held_by([held], pods)
        assert (found.granted, found.limit_mib(uuid(0))) == ({uuid(0): 2 * MIB_PER_GIB}, 6 * MIB_PER_GIB)
        (found,) = held_by([held], pods, may_borrow=False)
        assert found.limits == {}
    (found,) = held_by([replace(held, limit_mib=0)], [known])
    assert found.limits == {}


def test_the_wishes_of_a_pod_are_read_once_for_all_of_its_containers() -> None:
    """Each takes a tenth of a millisecond if its owner makes it long, and a node has hundreds of containers."""

    class Counting(dict[str, str]):
        reads = 0

        def __getitem__(self, key: str) -> str:
            Counting.reads += 1
            return super().__getitem__(key)

    names = [f"c{n}" for n in range(12)]
    owner = replace(pod("a", *names), annotations=Counting({MEMORY_LIMIT: "2"}))
    found = held_by([entry("a", name, ids(0, [n])) for n, name in enumerate(names)], [owner])
    assert [each.limits for each in found] == [{uuid(0): 2 * MIB_PER_GIB}] * 12
    assert Counting.reads <= 2


def test_who_was_started_with_more_than_its_guarantee_was_lent_it_where_the_node_lends() -> None:
    one, both = entry("a", "main", ids(0, [1, 2])), entry("b", "main", [*ids(0, [3]), *ids(1, [1])])
    told = held_by([replace(each, limit_mib=3 * MIB_PER_GIB) for each in (one, both)])

    def lent(holders: Iterable[ContainerGpus], *, may_borrow: bool = True) -> list[bool]:
        uses = uses_now(UseReading(), holders, may_borrow=may_borrow)
        return [use.lent for use in sorted(chain(*uses.values()), key=lambda use: use.place)]

    assert lent(told) == [True, False, False]
    assert lent(told, may_borrow=False) == [False, False, False]
    assert lent(held_by([replace(one, limit_mib=2 * MIB_PER_GIB)])) == [False]
