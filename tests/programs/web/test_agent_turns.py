"""Whose turn it is to be read, of many agents."""

from gpu_device_plugin.programs.web.figures import Attempt, due, shared

PACE = {"every_s": 10.0, "longest_s": 300.0}


def test_who_was_never_read_comes_first_then_who_waits_longest() -> None:
    last = {"a": Attempt(85), "b": Attempt(80), "c": Attempt(91)}
    assert due("abcd", last, 100, **PACE) == ["d", "b", "a"]


def test_equal_ones_come_by_name() -> None:
    assert due(("z", "x", "y"), {}, 0, **PACE) == ["x", "y", "z"]


def test_who_does_not_answer_is_asked_ever_more_rarely_up_to_a_bound() -> None:
    pauses = []
    for failures in (0, 1, 2, 3, 4, 5, 10_000):
        last = {"a": Attempt(0, failures)}
        pauses.append(next(second for second in range(1000) if due("a", last, second, **PACE)))
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


def test_who_comes_first_leaves_the_others_the_turns_that_are_kept_for_them() -> None:
    assert shared("abcdef", "uvwxyz", 0, 4) == ["a", "b", "c", "d"]
    assert shared("abcdef", "uvwxyz", 1, 4) == ["a", "b", "c", "u"]
    assert shared("abcdef", "uvwxyz", 9, 4) == ["u", "v", "w", "x"]


def test_turns_that_one_group_does_not_need_are_the_other_s() -> None:
    assert shared("ab", "uvwxyz", 1, 4) == ["a", "b", "u", "v"]
    assert shared("abcdef", "u", 3, 4) == ["a", "b", "c", "u"]
    assert shared("", "uv", 0, 4) == ["u", "v"]
    assert shared("ab", "", 3, 4) == ["a", "b"]
