"""How many nodes of which type the waiting pods need."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.capacity.rules.node_kinds import Needs, NodeKind, needed
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from tests.scheduler.rules.test_fitting import asking, mem, node, whole
from tests.steps import result_of

FOUR = node(8, 8, 8, 8)
BIG = node(16, 16, models=("A100", "A100"))


def pods(asked: GpuRequest, number: int = 1, amounts: Amounts = NO_AMOUNTS, on: int | None = None) -> tuple[Needs, int]:
    """Return so many pods that want the same, and of which the terms allow every kind, or the one at a place."""
    terms = NO_TERMS if on is None else Terms(selector={"place": str(on)})
    return Needs(asked, terms, amounts), number


def kinds_of(nodes: Iterable[Candidate]) -> list[NodeKind]:
    return [NodeKind(node=node, labels={"place": str(place)}) for place, node in enumerate(nodes)]


def number(
    waiting: Iterable[tuple[Needs, int]], nodes: Sequence[Candidate], coming: Sequence[int] = ()
) -> dict[int, int]:
    kinds = kinds_of(nodes)
    new = result_of(needed(dict(waiting), kinds, [kinds[place] for place in coming]))
    return dict(Counter(kinds.index(kind) for kind, _ in new))


@pytest.mark.parametrize(
    ("waiting", "coming", "new"),
    [
        ([], [], {}),
        ([pods(asking(mem(8)))], [], {0: 1}),
        ([pods(asking(mem(8)), 0)], [], {}),
        ([pods(asking(mem(5)), 6, on=0)], [], {0: 2}),  # the sums would do with one
        ([pods(asking(mem(5)), 6)], [], {1: 1}),
        ([pods(asking(mem(5)), 6)], [0], {0: 1}),
        ([pods(asking(mem(5)), 6)], [0, 0, 0], {}),
        ([pods(asking(mem(5)), 5), pods(asking(mem(3)), 5)], [], {0: 2}),
        ([pods(asking(whole(3))), pods(asking(mem(8)), 2)], [], {0: 2}),
        ([pods(asking(mem(16)))], [], {1: 1}),
        ([pods(asking(mem(16))), pods(asking(mem(8)), 2)], [], {1: 1}),
        ([pods(asking(mem(16))), pods(asking(mem(8)), 3)], [1], {0: 1}),
        ([pods(asking(mem(8)), on=1)], [0], {1: 1}),
    ],
)
def test_pods_are_packed_gpu_by_gpu(
    waiting: Sequence[tuple[Needs, int]], coming: Sequence[int], new: dict[int, int]
) -> None:
    assert number(waiting, [FOUR, BIG], coming) == new


def test_each_new_node_says_which_pods_it_is_for() -> None:
    (five, _), (three, _) = waiting = pods(asking(mem(5)), 6), pods(asking(mem(3)), 9)
    (kind,) = kinds_of([FOUR])

    need = result_of(needed(dict(waiting), [kind]))

    assert need == [(kind, {five: 4, three: 4}), (kind, {five: 2, three: 5})]


def test_pods_that_fit_on_no_empty_node_change_nothing_for_others() -> None:
    (_, (small, _)) = waiting = pods(asking(mem(99))), pods(asking(mem(1)))
    (kind,) = kinds_of([FOUR])

    need = result_of(needed(dict(waiting), [kind]))

    assert need == [(kind, {small: 1})]


def test_the_pods_wishes_count() -> None:
    choosy = asking(mem(4), preferences=GpuSelector(use_models=("A100",)))

    assert number([pods(choosy)], [FOUR, BIG]) == {1: 1}


def test_cpu_and_memory_count_where_they_are_known() -> None:
    small = candidate("", FOUR.gpus, (), Amounts(4000, 100))

    assert number([pods(asking(mem(1)), 4, Amounts(3000, 10))], [small]) == {0: 4}
    assert number([pods(asking(mem(1)), 4, Amounts(3000, 10))], [FOUR]) == {0: 1}
    assert not number([pods(asking(mem(1)), 1, Amounts(5000, 10))], [small])


def test_many_pods_take_small_steps() -> None:
    steps = needed(dict([pods(asking(mem(1)), 1000)]), kinds_of([node(*[64] * 16)]))
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
    wanted=st.lists(st.integers(1, 8), min_size=1, max_size=7),
    sizes=st.lists(st.sampled_from([(8,), (8, 8), (4, 4, 4), (6, 8)]), min_size=1, max_size=2, unique=True),
)
@settings(deadline=None)
def test_it_is_never_more_than_the_optimum_and_one(wanted: list[int], sizes: list[tuple[int, ...]]) -> None:
    kinds = kinds_of(node(*each) for each in sizes)
    need = result_of(needed(Counter(Needs(asking(mem(size)), NO_TERMS) for size in wanted), kinds))
    served = sorted((size for size in wanted if size <= max(map(max, sizes))), reverse=True)

    fewer = max(0, len(need) - 2)
    for types in combinations_with_replacement(sizes, fewer):
        assert not served or not holds_all(served, tuple(sorted(gpu for gpus in types for gpu in gpus)))
    # And the answer holds them.
    assert holds_all(served, tuple(sorted(gpu for kind, _ in need for gpu in sizes[kinds.index(kind)])))
