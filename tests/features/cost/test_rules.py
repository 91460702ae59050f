"""The time of all GPUs is divided between holders and nobody, and nothing is lost or counted twice."""

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.cost.rules import (
    CARD_MEMORY,
    GIVEN,
    INFO,
    NOBODY,
    NODE_MEMORY,
    REPLICASET_OWNER,
    STRANDED,
    Account,
    Holder,
    Key,
    Part,
    Period,
    Series,
    account,
    apportion,
)
from tests.features.cost.histories import GIB, History, container, gpu, on_node, owner, watts

HOUR = Period(0, 3600, 600)
TIMES = list(HOUR.times)


def hours(found: Account) -> dict[tuple[str, str], Fraction]:
    """Return GPU-hours by pod (empty: nobody) and part."""
    sums: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for (key, part), seconds in found.parts.items():
        sums[key.holder.pod, str(part)] += seconds / 3600
    assert sum(sums.values()) == found.whole / 3600
    return dict(sums)


def test_a_container_has_its_part_of_the_card_and_nobody_the_rest() -> None:
    series = [*gpu("a", TIMES, allocated=4), *container("a", "web", TIMES, 4, used=1)]
    assert hours(account(series, HOUR)) == {
        ("web", "used"): Fraction(1, 16), ("web", "idle"): Fraction(3, 16), ("", "free"): Fraction(12, 16),
    }  # fmt: skip


def test_use_that_was_not_measured_is_neither_used_nor_idle() -> None:
    series = [*gpu("a", TIMES), *container("a", "web", TIMES, 16)]
    assert hours(account(series, HOUR)) == {("web", "unmeasured"): Fraction(1)}


def test_time_without_samples_is_not_observed_and_given_to_nobody() -> None:
    series = [*gpu("a", TIMES[:2] + TIMES[4:]), *container("a", "web", TIMES[:2] + TIMES[4:], 16, used=16)]
    assert hours(account(series, HOUR)) == {("web", "used"): Fraction(4, 6), ("", "unobserved"): Fraction(2, 6)}


def test_a_gpu_whose_node_was_not_there_is_no_part_of_the_whole() -> None:
    """The extender lists the other node all the time, this one in the second half only; the agent came later still."""
    lists = [
        on_node(NODE_MEMORY, "n2", dict.fromkeys(TIMES, 1)),
        on_node(NODE_MEMORY, "n1", dict.fromkeys(TIMES[3:], 1)),
    ]
    found = account([*gpu("a", TIMES[4:]), *lists], HOUR)
    assert hours(found) == {("", "unobserved"): Fraction(1, 6), ("", "free"): Fraction(2, 6)}


def test_the_last_sample_of_a_period_may_stand_for_less_than_a_step() -> None:
    period = Period(0, 3600, 1500)
    found = account([*gpu("a", period.times), *container("a", "web", [3000], 16, used=16)], period)
    assert hours(found)["web", "used"] == Fraction(600, 3600)


def test_stranded_memory_is_divided_by_the_free_memory_of_the_node() -> None:
    series = [*gpu("a", TIMES), *container("a", "web", TIMES, 12), *gpu("b", TIMES, model="A10")]
    found = account([*series, on_node(STRANDED, "n1", dict.fromkeys(TIMES, 5))], HOUR)
    by_model = {key.model: seconds / 3600 for (key, part), seconds in found.parts.items() if part is Part.STRANDED}
    assert by_model == {"T4": Fraction(1, 16), "A10": Fraction(4, 16)}
    assert found.stranded_known
    assert not account(series, HOUR).stranded_known


def test_no_more_is_stranded_than_is_free() -> None:
    series = [*gpu("a", TIMES), *container("a", "web", TIMES, 12), on_node(STRANDED, "n1", dict.fromkeys(TIMES, 9))]
    assert hours(account(series, HOUR)) == {("web", "unmeasured"): Fraction(3, 4), ("", "stranded"): Fraction(1, 4)}


def test_memory_that_no_share_covers_is_stranded() -> None:
    assert hours(account(gpu("a", TIMES, gib=15, shares=14), HOUR)) == {
        ("", "free"): Fraction(14, 15), ("", "stranded"): Fraction(1, 15),
    }  # fmt: skip


def test_a_gpu_without_facts_has_no_model_and_one_without_a_share_size_can_be_given_whole() -> None:
    memory, info, shares = gpu("a", TIMES, shares=14)
    found = account([memory, shares, gpu("b", TIMES)[0]], HOUR)
    assert found.parts == {(Key(NOBODY, ""), Part.FREE): 2 * 3600}
    assert found.cards == 2
    undivided = Series(INFO, {"gpu": "a", "model": "T4"}, info.values)
    assert account([memory, undivided, shares], HOUR).parts == {(Key(NOBODY, "T4"), Part.FREE): 3600}


def test_mig_instances_are_their_part_of_the_cards_memory() -> None:
    series = [
        *gpu("i1", TIMES, gib=10, parent="card", model="H100 MIG 1g.10gb"),
        *gpu("i2", TIMES[:3], gib=20, parent="card", model="H100 MIG 2g.20gb"),
        *container("i1", "web", TIMES, 10, used=10),
        Series(CARD_MEMORY, {"gpu": "card"}, {0: 80.0 * GIB}),
    ]
    found = account(series, HOUR)
    assert (found.cards, {key.model for key, _ in found.parts}) == (1, {"H100"})
    assert hours(found) == {
        ("web", "used"): Fraction(1, 8), ("", "free"): Fraction(1, 8), ("", "stranded"): Fraction(6, 8),
    }  # fmt: skip


def test_where_the_cards_memory_is_not_known_its_instances_are_all_of_it() -> None:
    series = [*gpu("i1", TIMES, gib=10, parent="c"), *gpu("i2", TIMES, gib=30, parent="c")]
    assert hours(account([*series, *container("i1", "web", TIMES, 10)], HOUR))["web", "unmeasured"] == Fraction(1, 4)


def test_containers_that_have_the_same_shares_one_after_the_other_have_them_once() -> None:
    series = [*gpu("a", TIMES, allocated=8), *container("a", "x", TIMES, 8), *container("a", "y", TIMES, 8)]
    found = hours(account(series, HOUR))
    assert (found["x", "unmeasured"], found["y", "unmeasured"], found["", "free"]) == (
        Fraction(1, 4), Fraction(1, 4), Fraction(1, 2),
    )  # fmt: skip


def test_containers_of_one_pod_have_their_shares_beside_each_other() -> None:
    given = dict.fromkeys(TIMES, 4.0 * GIB)
    place = {"namespace": "ml", "pod": "x", "gpu": "a"}
    both = [Series(GIVEN, {**place, "container": name}, given) for name in ("main", "side")]
    assert hours(account([*gpu("a", TIMES), *both], HOUR))["x", "unmeasured"] == Fraction(1, 2)


def test_memory_that_a_gpu_gave_to_no_container_that_is_known_is_told() -> None:
    series = [*gpu("a", TIMES, allocated=8), *container("a", "x", TIMES, 4)]
    assert account(series, HOUR).parts[Key(NOBODY, "T4"), Part.UNMEASURED] == 3600 / 4


def test_what_is_borrowed_is_no_part_of_the_whole() -> None:
    series = [
        each for uuid in "ab" for each in (*gpu(uuid, TIMES), *container(uuid, "web", TIMES, 4, used=8, borrowed=4))
    ]
    found = account(series, HOUR)
    assert hours(found) == {("web", "used"): Fraction(2, 4), ("", "free"): Fraction(6, 4)}
    assert [(key.holder.pod, seconds) for key, seconds in found.borrowed.items()] == [("web", Fraction(1800))]


def test_the_owner_is_the_one_above_the_replicaset_if_it_is_known() -> None:
    names = ("namespace", "replicaset", "owner_kind", "owner_name")
    above = [("web-7d9", "Deployment", "web"), ("old-1", "<none>", "<none>"), ("old-2", "", "")]
    series = [
        *gpu("a", TIMES),
        *[each for pod in ("p1", "p2", "p3", "p4", "p5", "p6") for each in container("a", pod, TIMES, 2)],
        owner("p1", "ReplicaSet", "web-7d9"), owner("p2", "ReplicaSet", "old-1"), owner("p3", "<none>", "<none>"),
        owner("p5", "Job", "web-7d9"), owner("p6", "ReplicaSet", "old-2"),
        *[Series(REPLICASET_OWNER, dict(zip(names, ("ml", *each), strict=True)), {0: 1.0}) for each in above],
    ]  # fmt: skip
    assert sorted(key.holder for key, part in account(series, HOUR).parts if part is Part.UNMEASURED) == [
        Holder("ml", "", "", "p3"),
        Holder("ml", "", "", "p4"),
        Holder("ml", "Deployment", "web", "p1"),
        Holder("ml", "Job", "web-7d9", "p5"),
        Holder("ml", "ReplicaSet", "old-1", "p2"),
        Holder("ml", "ReplicaSet", "old-2", "p6"),
    ]


def test_an_agent_that_is_replaced_is_read_twice_and_counts_once() -> None:
    """The new one has not seen all of the container yet: what both tell of it is the larger amount."""
    series = [*gpu("a", TIMES), *container("a", "web", TIMES, 4)]
    assert hours(account([*series, *series, *container("a", "web", TIMES, 2)], HOUR)) == hours(account(series, HOUR))


def test_idle_power_goes_by_memory_and_the_rest_by_use_of_multiprocessors() -> None:
    """At first 60 W; then 360 W: 2/3 of the 300 W beyond are of the busy pod, none of the one without figures."""
    period = Period(0, 200, 100)
    series = [
        *gpu("a", period.times),
        *container("a", "busy", period.times, 4, busy=0.6),
        *container("a", "calm", period.times, 8, busy=0.3),
        *container("a", "dark", period.times, 2),
        watts("a", {0: 60.0, 100: 360.0}),
    ]
    found = {key.holder.pod: amount for key, amount in account(series, period).energy_mj.items()}
    assert found == {"busy": 23_000_000, "calm": 16_000_000, "dark": 1_500_000, "": 1_500_000}


def test_without_use_of_multiprocessors_all_power_goes_by_memory() -> None:
    period = Period(0, 200, 100)
    series = [
        each
        for uuid in "ab"
        for each in (
            *gpu(uuid, period.times),
            *container(uuid, "web", period.times, 4),
            watts(uuid, {0: 60.0, 100: 100.0}),
        )
    ]
    found = {key.holder.pod: amount for key, amount in account(series, period).energy_mj.items()}
    assert found == {"web": 8_000_000, "": 24_000_000}


@pytest.mark.parametrize(("total", "weights", "parts"), [
    (10, {"a": 1, "b": 1, "c": 1}, {"a": 4, "b": 3, "c": 3}),
    (1, {"a": 1, "b": 2}, {"a": 0, "b": 1}),
    (5, {"a": 5, "b": 3}, {"a": 3, "b": 2}),
    (5, {}, {}),
    (5, {"a": 0}, {}),
])  # fmt: skip
def test_largest_remainders_are_rounded_up(total: int, weights: Mapping[str, int], parts: Mapping[str, int]) -> None:
    assert apportion(total, weights) == parts


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, Period]:
    """GPUs and MIG instances whose agents come and go, with containers that do so too, at odd sizes and steps."""
    period = Period(0, draw(st.integers(1, 50)), draw(st.integers(1, 9)))
    times = list(period.times)
    some = st.sets(st.sampled_from(times))
    history = History()
    for card in draw(st.sets(st.sampled_from(["A1", "A2", "B1"]), min_size=1)):
        names = [card] if draw(st.booleans()) else [f"{card}-{n}" for n in range(draw(st.integers(1, 3)))]
        for uuid in names:
            history.memory[uuid], history.card_of[uuid] = draw(st.integers(1, 97)), card
            history.observed[uuid] = draw(some)
            left = dict.fromkeys(times, history.memory[uuid])
            for pod in draw(st.sets(st.sampled_from(["x1", "x2", "y1"]))):
                place, amounts = (uuid, pod), {}
                for at in draw(some) & history.observed[uuid]:
                    amounts[at] = draw(st.integers(0, left[at]))
                    left[at] -= amounts[at]
                history.given[place] = amounts
                history.used[place] = {at: draw(st.integers(0, 120)) for at in draw(some) if at in amounts}
    history.stranded = {at: draw(st.integers(0, 200)) for at in draw(some)}
    history.listed = draw(some)
    return history, period


@given(histories())
def test_the_parts_are_the_whole_and_each_holders_what_a_naive_count_finds(drawn: tuple[History, Period]) -> None:
    history, period = drawn
    found = account(history.series(), period)
    seen = {uuid for uuid, times in history.observed.items() if times}
    cards = {history.card_of[uuid] for uuid in seen}
    memory = {
        card: max(
            sum(history.memory[uuid] for uuid in seen if history.card_of[uuid] == card and at in history.observed[uuid])
            for at in period.times
        )
        for card in cards
    }
    expected: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    whole, end = Fraction(), period.end
    for at in period.times:
        weight = min(period.step_s, end - at)
        for card in cards:
            members = [uuid for uuid in seen if history.card_of[uuid] == card and at in history.observed[uuid]]
            if not members and at in history.listed:
                continue
            whole += weight
            if not members:
                expected["", "unobserved"] += weight
            for uuid in members:
                for pod in ("x1", "x2", "y1"):
                    amount = history.given.get((uuid, pod), {}).get(at, 0)
                    use = history.used.get((uuid, pod), {}).get(at)
                    time = Fraction(amount * weight, memory[card])
                    if use is None:
                        expected[pod, "unmeasured"] += time
                    else:
                        in_use = Fraction(min(use, amount) * weight, memory[card])
                        expected[pod, "used"] += in_use
                        expected[pod, "idle"] += time - in_use
    assert found.whole == whole == sum(found.parts.values())
    counted: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for (key, part), seconds in found.parts.items():
        counted[key.holder.pod, str(part)] += seconds
        assert seconds > 0
    held = {key: value for key, value in counted.items() if key[1] not in {"free", "stranded"}}
    assert held == {key: value for key, value in expected.items() if value}
    assert counted["", "stranded"] <= whole - sum(held.values())


def test_a_gpu_that_two_nodes_tell_of_for_a_moment_is_one() -> None:
    """The machine behind a node's GPU got another name; for one step both are read. The pod has all of it."""
    twice = [*gpu("a", TIMES[:4], node="old"), *gpu("a", TIMES[3:], node="new")]
    assert hours(account([*twice, *container("a", "web", TIMES, 16)], HOUR)) == {("web", "unmeasured"): Fraction(1)}
    assert hours(account(twice, HOUR)) == {("", "free"): Fraction(1)}


def test_an_instance_that_somebody_still_has_and_those_in_its_place_are_no_more_than_the_card() -> None:
    series = [
        *gpu("old", TIMES[:4], gib=70, parent="c", allocated=70), *container("old", "x", TIMES[:4], 70),
        *[each for name in "123" for each in gpu(name, TIMES[3:], gib=20, parent="c")],
        *container("1", "y", TIMES[3:], 20),
        Series(CARD_MEMORY, {"gpu": "c"}, {0: 80.0 * GIB}),
    ]  # fmt: skip
    found = hours(account(series, HOUR))
    assert sum(found.values()) == 1
    assert float(found["y", "unmeasured"]) == pytest.approx((2 * 20 + 80 * 20 / 90) / (6 * 80))
    assert float(found["x", "unmeasured"]) == pytest.approx((3 * 70 + 80 * 70 / 90) / (6 * 80))
