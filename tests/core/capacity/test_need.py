"""How many nodes of which type the waiting pods need."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.core.capacity.node_kinds import NewNode, Waiting, needed
from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.model.contract.gpu_preferences import GpuPreferences
from gpu_device_plugin.model.resources import Amounts
from tests.core.cluster.test_fitting import asking, mem, node, whole
from tests.steps import result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.cluster.candidate import Candidate

FOUR = node(8, 8, 8, 8)
BIG = node(16, 16, models=("A100", "A100"))


def number(waiting: Sequence[Waiting], types: Sequence[Candidate], coming: Sequence[int] = ()) -> dict[int, int]:
    return dict(
        Counter(new.type for new in result_of(needed(waiting, types, [(place, types[place]) for place in coming])))
    )


@pytest.mark.parametrize(
    ("waiting", "coming", "new"),
    [
        ([], [], {}),
        ([Waiting(asking(mem(8)))], [], {0: 1}),
        ([Waiting(asking(mem(8)), 0)], [], {}),
        ([Waiting(asking(mem(5)), 6, types={0})], [], {0: 2}),  # the sums would do with one
        ([Waiting(asking(mem(5)), 6)], [], {1: 1}),
        ([Waiting(asking(mem(5)), 6)], [0], {0: 1}),
        ([Waiting(asking(mem(5)), 6)], [0, 0, 0], {}),
        ([Waiting(asking(mem(5)), 5), Waiting(asking(mem(3)), 5)], [], {0: 2}),
        ([Waiting(asking(whole(3))), Waiting(asking(mem(8)), 2)], [], {0: 2}),
        ([Waiting(asking(mem(16)))], [], {1: 1}),
        ([Waiting(asking(mem(16))), Waiting(asking(mem(8)), 2)], [], {1: 1}),
        ([Waiting(asking(mem(16))), Waiting(asking(mem(8)), 3)], [1], {0: 1}),
        ([Waiting(asking(mem(8)), types={1})], [0], {1: 1}),
    ],
)
def test_pods_are_packed_gpu_by_gpu(waiting: Sequence[Waiting], coming: Sequence[int], new: dict[int, int]) -> None:
    assert number(waiting, [FOUR, BIG], coming) == new


def test_each_new_node_says_which_pods_it_is_for() -> None:
    need = result_of(needed([Waiting(asking(mem(5)), 6), Waiting(asking(mem(3)), 9)], [FOUR]))

    assert need == [NewNode(0, {0: 4, 1: 4}), NewNode(0, {0: 2, 1: 5})]


def test_pods_that_fit_on_no_empty_node_change_nothing_for_others() -> None:
    need = result_of(needed([Waiting(asking(mem(99))), Waiting(asking(mem(1)))], [FOUR]))

    assert need == [NewNode(0, {1: 1})]


def test_the_pods_wishes_count() -> None:
    choosy = asking(mem(4), preferences=GpuPreferences(use_models=("A100",)))

    assert number([Waiting(choosy)], [FOUR, BIG]) == {1: 1}


def test_cpu_and_memory_count_where_they_are_known() -> None:
    small = candidate("", FOUR.gpus, (), Amounts(4000, 100))

    assert number([Waiting(asking(mem(1)), 4, Amounts(3000, 10))], [small]) == {0: 4}
    assert number([Waiting(asking(mem(1)), 4, Amounts(3000, 10))], [FOUR]) == {0: 1}
    assert not number([Waiting(asking(mem(1)), 1, Amounts(5000, 10))], [small])


def test_many_pods_take_small_steps() -> None:
    steps = needed([Waiting(asking(mem(1)), 1000)], [node(*[64] * 16)])
    taken = sum(1 for _ in steps)

    assert taken > 1000 // 16


def holds_all(pods: Sequence[int], frees: tuple[int, ...]) -> bool:
    """Whether all pods find room on GPUs, by trying every way."""
    if not pods:
        return True
    first, *rest = pods
    return any(
        holds_all(rest, tuple(sorted((*frees[:at], free - first, *frees[at + 1 :]))))
        for at, free in enumerate(frees)
        if free >= first and frees.index(free) == at
    )


@given(
    pods=st.lists(st.integers(1, 8), min_size=1, max_size=7),
    sizes=st.lists(st.sampled_from([(8,), (8, 8), (4, 4, 4), (6, 8)]), min_size=1, max_size=2, unique=True),
)
@settings(deadline=None)
def test_it_is_never_more_than_the_optimum_and_one(pods: list[int], sizes: list[tuple[int, ...]]) -> None:
    asked = Counter(pods)
    need = result_of(
        needed([Waiting(asking(mem(size)), times) for size, times in asked.items()], [node(*s) for s in sizes])
    )
    served = sorted((size for size in pods if size <= max(map(max, sizes))), reverse=True)

    fewer = max(0, len(need) - 2)
    for types in combinations_with_replacement(sizes, fewer):
        assert not served or not holds_all(served, tuple(sorted(gpu for gpus in types for gpu in gpus)))
    # And the answer holds them.
    assert holds_all(served, tuple(sorted(gpu for new in need for gpu in sizes[new.type])))
