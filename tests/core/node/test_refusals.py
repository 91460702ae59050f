"""The bound on free shares while demands of one size are refused again and again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.node.refusals import HOLD_S, WINDOW_S, Refusals


def after(*refused: tuple[int, float], limit: int = 3) -> Refusals:
    """The state after refusals of (shares, time)."""
    state = Refusals(limit)
    for shares, at in refused:
        state = state.refused(shares, at)
    return state


RUN = after((8, 100.0), (8, 101.0), (8, 102.0))
"""A run of demands for 8 shares, the last refused at 102."""


def test_a_few_refusals_are_no_run() -> None:
    assert after((8, 100.0), (8, 101.0)).most_free(4, 102.0) is None
    assert Refusals().most_free(0, 0.0) is None


def test_a_run_offers_less_than_the_refused_size() -> None:
    """Eight are asked and no GPU has them: seven may be shown, so that the scheduler looks elsewhere."""
    assert RUN.most_free(4, 103.0) == 7


def test_by_default_ten_make_a_run() -> None:
    nine = Refusals()
    for _ in range(9):
        nine = nine.refused(8, 100.0)
    assert (nine.run, nine.refused(8, 100.0).run) == (None, 8)


def test_refusals_of_different_sizes_do_not_add_up() -> None:
    assert after((8, 100.0), (7, 101.0), (8, 102.0), (7, 103.0)).run is None


@pytest.mark.parametrize(("first", "run"), [(100.0, None), (100.1, 8)])
def test_refusals_count_together_within_a_minute(first: float, run: int | None) -> None:
    assert WINDOW_S == 60.0
    assert after((8, first), (8, 159.0), (8, 160.0)).run == run


def test_old_refusals_are_forgotten() -> None:
    assert after((8, 100.0), (7, 150.0), (7, 165.0)).times == ((150.0, 7), (165.0, 7))


def test_zero_turns_it_off() -> None:
    assert after(*[(8, 100.0)] * 50, limit=0).run is None


def test_one_can_be_enough() -> None:
    assert after((8, 100.0), limit=1).run == 8


def test_a_run_is_without_effect_as_soon_as_a_gpu_has_room() -> None:
    assert RUN.most_free(8, 103.0) is None
    assert RUN.most_free(9, 103.0) is None
    assert RUN.settled(8, 103.0) == Refusals(3)


def test_a_run_is_without_effect_five_minutes_after_the_last_refusal() -> None:
    assert HOLD_S == 300.0
    assert RUN.most_free(4, 401.9) == 7
    assert RUN.most_free(4, 402.0) is None
    assert RUN.settled(4, 401.9) is RUN
    assert RUN.settled(4, 402.0) == Refusals(3)


def test_without_a_run_there_is_nothing_to_settle() -> None:
    some = after((8, 100.0))
    assert some.settled(8, 1000.0) is some


def test_every_refusal_prolongs_the_run() -> None:
    assert RUN.refused(5, 400.0).most_free(4, 699.0) == 7


def test_a_smaller_run_replaces_a_larger() -> None:
    state = RUN
    for at in (103.0, 104.0, 105.0):
        assert state.run == 8
        state = state.refused(5, at)
    assert state.run == 5


def test_a_larger_run_does_not_replace_a_smaller() -> None:
    state = RUN
    for at in (103.0, 104.0, 105.0):
        state = state.refused(12, at)
    assert state.run == 8


def test_a_run_that_is_over_does_not_come_back_with_a_single_refusal() -> None:
    """`settled` was not called in between."""
    late = RUN.refused(8, 402.0)
    assert (late.run, late.most_free(4, 402.0)) == (None, None)
    # A larger one may begin then.
    assert late.refused(12, 403.0).refused(12, 404.0).refused(12, 405.0).run == 12


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 200), st.integers(0, 8)), max_size=25))
def test_no_run_outlives_its_reason(limit: int, steps: list[tuple[int, int, int]]) -> None:
    """For every history: a bound means that a run of its size was refused lately and that no GPU has room for it."""
    state, now = Refusals(limit), 0.0
    events: list[tuple[float, int]] = []
    for shares, pause, emptiest in steps:
        now += pause
        events.append((now, shares))
        state = state.refused(shares, now)
        bound = state.most_free(emptiest, now)
        if bound is not None:
            assert emptiest <= bound
            assert any(
                sum(size == bound + 1 and at - WINDOW_S < earlier <= at for earlier, size in events) >= limit
                for at, _ in events
            )
        assert state.most_free(6, now) is None
        assert state.most_free(0, now + HOLD_S) is None
        state = state.settled(emptiest, now)
        assert state.most_free(emptiest, now) == bound
        assert (state.run is None) is (bound is None)
