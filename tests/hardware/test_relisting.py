"""When an outdated inventory is listed again."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.hardware.monitor import Relisting

FROM_S, TO_S = 1.0, 30.0


def due_s(relisting: Relisting, now_s: float) -> float:
    return relisting.due_s(now_s, FROM_S, TO_S)


def test_the_first_time_is_at_once() -> None:
    assert due_s(Relisting(), 100) == 100


def test_an_inventory_that_stays_outdated_is_listed_ever_more_rarely() -> None:
    relisting, waits = Relisting(), []
    for now_s in range(100, 240, 20):
        waits.append(due_s(relisting, now_s) - now_s)
        relisting.listed()
    assert waits == [0, 1, 2, 4, 8, 16, 30]


def test_further_readings_before_the_listing_change_nothing() -> None:
    relisting = Relisting()
    due_s(relisting, 100)
    relisting.listed()
    assert [due_s(relisting, 100.2), due_s(relisting, 100.7), due_s(relisting, 101.1)] == [101.2] * 3


def test_after_a_while_without_a_change_the_next_is_a_first_one() -> None:
    relisting = Relisting()
    for now_s in (100, 120):
        due_s(relisting, now_s)
        relisting.listed()
    assert due_s(relisting, 120 + TO_S) == 120 + TO_S + 2
    relisting.listed()
    assert due_s(relisting, 150 + TO_S + 0.1) == 150 + TO_S + 0.1


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=200))
def test_instances_that_come_and_go_all_the_time_cause_few_listings(pauses_s: list[float]) -> None:
    """Whenever the readings find a change: after the first five, at most one listing in 15 s."""
    relisting, now_s, listings = Relisting(), 0.0, 0
    for pause_s in pauses_s:
        now_s += pause_s
        if due_s(relisting, now_s) <= now_s:
            relisting.listed()
            listings += 1
    assert listings <= 6 + now_s / 15
