"""What sizes of pods are worth on one GPU."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.learning.rules.price_learning import packed_values, prices_of_sizes
from gpu_device_plugin.scheduler.rules.packing import finished


def prices(demand: dict[int, float], capacity: int) -> dict[int, float]:
    return finished(prices_of_sizes(demand, capacity))


def test_one_size_costs_its_part_of_a_gpu_that_it_fills() -> None:
    """Three pods of 5 fill a GPU of 16: each is worth a third of it, and so is the share that is left over."""
    assert prices({5: 1.0}, 16) == {5: pytest.approx(1 / 3)}
    assert prices({16: 1.0}, 16) == {16: pytest.approx(1.0)}


def test_sizes_that_fill_a_gpu_together_share_its_worth() -> None:
    """A pod of 0.8 needs one of 0.2 beside it, of which there are as many."""
    found = prices({80: 1.0, 20: 1.0}, 100)
    assert found[80] + found[20] == pytest.approx(1.0)
    assert 0.6 < found[80] < 1.0


def test_a_size_beside_which_nothing_fits_is_worth_a_whole_gpu() -> None:
    """13 of 16 strand 3: no pod is smaller than 4."""
    found = prices({13: 1.0, 4: 1.0}, 16)
    assert found[13] == pytest.approx(1.0)
    assert found[4] == pytest.approx(0.25, abs=0.01)


def test_a_size_of_which_there_is_plenty_costs_little_beside_a_rare_one() -> None:
    """Of ten pods of 3 only one fills a gap beside a pod of 13; the others make GPUs full among themselves."""
    found = prices({13: 1.0, 3: 10.0}, 16)
    assert found[13] == pytest.approx(1 - found[3], abs=0.02)
    assert found[3] == pytest.approx(1 / 5, abs=0.02)


def test_sizes_that_do_not_come_or_do_not_fit_have_no_price() -> None:
    assert prices({}, 16) == {}
    assert prices({17: 1.0, 0: 1.0, 4: 0.0}, 16) == {}
    assert prices({17: 1.0, 8: 1.0}, 16).keys() == {8}


def test_the_best_set_of_pods_may_repeat_a_size_and_leave_shares_over() -> None:
    """Of 7 shares: 3 + 4 are worth 5, 3 + 3 are worth 4, and 4 alone 3."""
    assert packed_values({3: 2.0, 4: 3.0}, 8) == [0, 0, 0, 2, 3, 3, 4, 5, 6]
    assert packed_values({}, 3) == [0, 0, 0, 0]


demands = st.dictionaries(st.integers(1, 12), st.floats(0.1, 10), min_size=1, max_size=4)


@given(demands)
def test_no_packing_is_worth_more_than_the_gpu(demand: dict[int, float]) -> None:
    found = prices(demand, 12)
    assert packed_values(found, 12)[12] == pytest.approx(1.0)
    for number in range(1, 6):
        for sizes in combinations_with_replacement(sorted(demand), number):
            assert sum(sizes) > 12 or sum(found[size] for size in sizes) <= 1 + 1e-9


@given(demands, st.sampled_from((0.25, 2.0, 64.0)))
def test_only_ratios_matter(demand: dict[int, float], factor: float) -> None:
    """Of powers of 2, by which floats are scaled exactly: of two equally good packings either may be the best."""
    assert prices({size: often * factor for size, often in demand.items()}, 12) == pytest.approx(prices(demand, 12))


@given(st.dictionaries(st.integers(1, 6), st.floats(0, 5), max_size=3), st.integers(0, 12))
def test_the_best_set_is_the_best_of_all(prices_of: dict[int, float], capacity: int) -> None:
    sets = (
        sizes
        for number in range(capacity + 1)
        for sizes in combinations_with_replacement(sorted(prices_of), number)
        if sum(sizes) <= capacity
    )
    best = max(sum(prices_of[size] for size in sizes) for sizes in sets)
    assert packed_values(prices_of, capacity)[capacity] == pytest.approx(best)
