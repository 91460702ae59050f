"""Whose turn it is to be read."""

from __future__ import annotations

from gpu_device_plugin.core.cluster.turns import Attempt, Pace, due

PACE = Pace(every_s=10, longest_s=300)


def test_who_was_never_read_comes_first_then_who_waits_longest() -> None:
    last = {"a": Attempt(85), "b": Attempt(80), "c": Attempt(91)}
    assert due("abcd", last, 100, PACE, 9) == ["d", "b", "a"]
    assert due("abcd", last, 100, PACE, 2) == ["d", "b"]


def test_equal_ones_come_by_name() -> None:
    assert due(("z", "x", "y"), {}, 0, PACE, 2) == ["x", "y"]


def test_who_does_not_answer_is_asked_ever_more_rarely_up_to_a_bound() -> None:
    pauses = []
    for failures in (0, 1, 2, 3, 4, 5, 10_000):
        last = {"a": Attempt(0, failures)}
        pauses.append(next(second for second in range(1000) if due("a", last, second, PACE, 1)))
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
