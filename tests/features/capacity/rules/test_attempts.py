"""Whoever asked for nodes in vain waits twice as long each time, and so does a namespace with many of them."""

import pytest

from gpu_device_plugin.features.capacity.rules.node_requests import Asker, Attempts

START_S = 600.0
WEB = Asker("team", "web")


def tried(attempts: Attempts, asker: Asker, now: float) -> float:
    """Let a node come that was asked for at `now`, and be of no help; return until when none is asked for."""
    attempts.asked([asker], now, START_S)
    until = attempts.in_vain(asker, now + 10, now + START_S, START_S)
    assert until is not None
    return until


def test_whoever_asked_in_vain_waits_twice_as_long_each_time() -> None:
    attempts, now = Attempts(), 0.0
    assert attempts.may_ask(WEB, now)
    for times in (2, 4, 8, 16):
        until = tried(attempts, WEB, now)
        assert until == now + START_S + times * START_S
        assert not attempts.may_ask(WEB, until - 1)
        assert attempts.may_ask(WEB, until)
        now = until


def test_the_longest_wait_is_a_day() -> None:
    attempts, now = Attempts(), 0.0
    for _ in range(12):
        now = tried(attempts, WEB, now)
    assert tried(attempts, WEB, now) - now == START_S + 86_400


def test_nobody_waits_for_a_node_that_was_not_asked_for() -> None:
    attempts = Attempts()
    assert attempts.in_vain(WEB, 10, 600, START_S) is None
    attempts.asked([WEB], 100, START_S)
    assert attempts.in_vain(WEB, 98, 600, START_S) is None, "it was there before"
    assert attempts.may_ask(WEB, 600)
    assert attempts.in_vain(WEB, 99, 600, START_S) is not None, "the API server says it in whole seconds"
    assert attempts.in_vain(WEB, 110, 601, START_S) is None, "several nodes came, and it waits already"


def test_others_ask_meanwhile() -> None:
    attempts = Attempts()
    until = tried(attempts, WEB, 0)
    assert attempts.may_ask(Asker("team", "db"), until - 1)
    assert attempts.may_ask(Asker("other", "web"), until - 1)


def test_controllers_that_are_invented_anew_have_no_more_nodes() -> None:
    """One after the other, each with one node; the namespace has other pods too, so it waits not for days."""
    attempts, now, waits = Attempts(), 0.0, []
    for n in range(20):
        asker = Asker("team", f"invented-{n}")
        while not attempts.may_ask(asker, now):
            now += START_S
        before = now
        tried(attempts, asker, now)
        now += START_S
        while not attempts.may_ask(Asker("team", "new"), now):
            now += START_S
        waits.append(round((now - before) / START_S) - 1)
    assert waits == [0, 0, 0, 2, *[4] * 4, *[8] * 4, *[16] * 8]
    assert attempts.may_ask(Asker("other", "web"), now)


def test_what_was_long_ago_is_forgotten() -> None:
    attempts = Attempts()
    until = tried(attempts, WEB, 0)
    assert tried(attempts, WEB, until + 10 * START_S) == until + 10 * START_S + START_S + 2 * START_S


@pytest.mark.timeout(20)
def test_what_is_remembered_is_bounded() -> None:
    attempts = Attempts()
    attempts.asked((Asker("team", str(n)) for n in range(20_000)), 0, START_S)
    assert attempts.in_vain(Asker("team", "9999"), 10, 600, START_S) is not None
    assert attempts.in_vain(Asker("team", "10000"), 10, 600, START_S) is None
