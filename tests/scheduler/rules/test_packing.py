"""Packing the containers of a pod, for many nodes within a budget of steps."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, Packer, TooLongError


def memory(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def test_an_effort_ends_with_its_last_step_and_begins_anew_with_all() -> None:
    effort = Effort(10)
    effort.spend(9)
    effort.check()
    effort.spend(1)
    assert effort.spent == 10
    with pytest.raises(TooLongError):
        effort.check()
    effort.renew()
    assert effort.spent == 0


rooms = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@given(
    st.lists(st.integers(1, 9).map(memory) | st.sampled_from([memory(4, 2), Demand(Kind.COUNT, 1)]), max_size=4),
    st.lists(st.tuples(rooms, rooms, st.integers(0, 4)), min_size=1, max_size=4),
)
def test_many_nodes_are_packed_as_each_by_itself(
    demands: list[Demand], nodes: list[tuple[tuple[int, ...], tuple[int, ...], int]]
) -> None:
    """Rooms that are as good for the pod as others are searched once."""
    caching = CachingPacker(demands, Effort(1000))
    for frees, instances, idle in nodes:
        one = Packer(demands)(frees, frees[:idle], instances)
        assert (caching(frees, frees[:idle], instances).taken is None) == (one.taken is None)


def test_a_search_for_many_nodes_ends_with_its_effort_and_what_is_cached_costs_nothing() -> None:
    effort = Effort(3)
    packer = CachingPacker([memory(3), memory(5)], effort)
    assert packer((8,), ()).taken == ()
    assert packer((9, 1), ()).taken == ()
    assert (effort.spent, packer.known) == (3, 1)
    assert packer((3, 4), ()).taken is None  # of which the sum says enough
    with pytest.raises(TooLongError):
        packer((3, 5), ())


def test_the_cache_of_searches_has_an_end() -> None:
    """Thousands of nodes of four GPUs, none like another."""
    packer = CachingPacker([memory(30), memory(1)], Effort(10**6))
    for frees in combinations(range(1, 32), 4):
        assert (packer(frees, ()).taken is None) == (frees[-1] < 30)
    assert packer.known <= 10_000
