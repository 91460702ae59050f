"""The answer to GetPreferredAllocation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.promises import Promise
from gpu_device_plugin.core.model.policy import POLICIES
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.node.matching import Call, Match, Matched, WaitingPod, Wanted
from gpu_device_plugin.core.node.preferring import UNMATCHED, Question, not_on, spread_over
from tests.nodes import ids, node, uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.core.node.node import Node

BINPACK, SPREAD = POLICIES["binpack"], POLICIES["spread"]


def free(there: Node) -> list[str]:
    """The gpu-mem IDs that a kubelet with the knowledge of this node would list as available."""
    return [name for shared in there.shares.gpus for name in shared.shares if name not in there.ledger.holds]


def memory(there: Node, available: Iterable[str], amount: int, *must: str) -> Question:
    return Question(there, Kind.MEMORY, available, must, amount)


def count(there: Node, positions: Iterable[int], amount: int, *must: int) -> Question:
    return Question(there, Kind.COUNT, map(uuid, positions), map(uuid, must), amount)


def promised(amount: int, *shares: tuple[int, int], kind: Kind = Kind.MEMORY) -> Match:
    wanted = Wanted("c", kind, amount, promise=Promise(shares) if shares else None)
    return Match(WaitingPod("u", "default/a", (wanted,)), wanted)


def test_shares_come_from_one_gpu_chosen_by_policy() -> None:
    """Free are 8, 4 and 5 shares."""
    there = node(8, 8, 8, used={1: range(4), 2: range(3)})
    assert memory(there, free(there), 4).answer(there, BINPACK) == ids(1, [4, 5, 6, 7])
    assert memory(there, free(there), 4).answer(there, SPREAD) == ids(0, [0, 1, 2, 3])


def test_the_lowest_numbers_are_taken_in_whatever_order_the_kubelet_lists_them() -> None:
    there = node(16)
    assert memory(there, ids(0, [12, 2, 10, 1, 9]), 3).answer(there, BINPACK) == ids(0, [1, 2, 9])


def test_shares_of_an_init_container_are_reused_and_extended_on_its_gpu() -> None:
    """Binpack would prefer GPU 1, which has just enough."""
    there = node(8, 4, used={0: [5, 6]})
    available = [*ids(0, [7, 6, 5, 3, 2]), *ids(1, range(4))]
    assert memory(there, available, 4, *ids(0, [6, 5])).answer(there, BINPACK) == ids(0, [5, 6, 2, 3])


def wishing(amount: int, promise: tuple[int, int] | None, *allowed: int) -> Match:
    wanted = Wanted("c", Kind.MEMORY, amount, promise=Promise((promise,)) if promise else None)
    return Match(WaitingPod("u", "default/a", (wanted,)), replace(wanted, allowed=frozenset(allowed)))


@pytest.mark.parametrize(
    ("promise", "allowed", "position"),
    [
        (None, (1, 2), 1),  # the fullest of those that the owner wants
        ((2, 4), (1, 2), 2),  # as promised
        ((0, 4), (1, 2), 1),  # the promise of another, after a swap
        ((0, 4), (3,), 0),  # where no wanted GPU has room, at least the promise
        (None, (3,), 0),  # any, before none
    ],
)
def test_a_gpu_that_the_pods_owner_excludes_comes_last(
    promise: tuple[int, int] | None, allowed: tuple[int, ...], position: int
) -> None:
    """Free are 4, 5, 8 and none."""
    there = node(4, 5, 8, 8, used={3: range(8)})
    matched = Matched(wishing(4, promise, *allowed), {})
    assert memory(there, free(there), 4).answer(there, BINPACK, matched) == ids(position, range(4))


def test_shares_promised_to_others_are_used_before_an_excluded_gpu() -> None:
    there = node(8, 4)
    matched = Matched(wishing(4, None, 1), {1: 4})
    assert memory(there, free(there), 4).answer(there, BINPACK, matched) == ids(1, range(4))


def test_if_reused_shares_cannot_be_extended_only_they_are_answered() -> None:
    """Allocate will refuse the kubelet's completion with a sentence."""
    there = node(4, 8, used={0: range(4)})
    available = [*ids(0, [3]), *ids(1, range(8))]
    assert memory(there, available, 4, *ids(0, [3])).answer(there, BINPACK) == ids(0, [3])


def test_shares_that_must_be_used_and_are_unavailable_are_no_answer() -> None:
    """No kubelet asks this; it counts the devices to be reused among the available ones."""
    there = node(4, 4)
    assert memory(there, ids(1, range(4)), 2, *ids(0, [3])).answer(there, BINPACK) == ()


def test_without_room_on_one_gpu_nothing_is_preferred() -> None:
    there = node(4, 4, used={0: [0], 1: [0]})
    assert memory(there, free(there), 4).answer(there, BINPACK) == ()


def test_gpus_out_of_service_and_in_whole_use_are_not_preferred() -> None:
    """The kubelet does not know it yet."""
    there = node(4, 4, 8, whole=[0], unhealthy={1: "it fell off the bus"})
    available = [*ids(0, range(4)), *ids(1, range(4)), *ids(2, range(8))]
    assert memory(there, available, 2).answer(there, BINPACK) == ids(2, [0, 1])


@pytest.mark.parametrize("amount", [1, 2, 3])
def test_devices_that_the_kubelet_has_forgotten_are_never_preferred(amount: int) -> None:
    """Not even where nothing else is left: the kubelet takes them for free, and running containers use them."""
    there = node(4, whole=[])
    there = there.with_ledger(there.ledger.with_forgotten(frozenset(ids(0, [0, 2]))))
    expected = ids(0, [1, 3])[:amount] if amount <= 2 else ()
    assert memory(there, ids(0, range(4)), amount).answer(there, BINPACK) == expected


def test_a_whole_gpu_that_the_kubelet_has_forgotten_is_never_preferred() -> None:
    there = node(4, 4)
    there = there.with_ledger(there.ledger.with_forgotten(frozenset({uuid(0)})))
    question = Question(there, Kind.COUNT, [uuid(0), uuid(1)], (), 1)
    assert question.answer(there, BINPACK) == (uuid(1),)
    assert Question(there, Kind.COUNT, [uuid(0)], (), 1).answer(there, BINPACK) == ()


def test_the_kubelets_available_ids_count_and_not_our_ledger() -> None:
    """A pod has ended; the kubelet knows it and we do not yet."""
    there = node(4, used={0: range(4)})
    assert memory(there, ids(0, range(4)), 4).answer(there, BINPACK) == ids(0, range(4))


def test_ids_that_are_not_ours_are_ignored() -> None:
    there = node(4)
    available = ["GPU-9::0", "GPU-0::4", "GPU-0", "nonsense", *ids(0, [2, 3])]
    assert memory(there, available, 2).answer(there, BINPACK) == ids(0, [2, 3])
    whole = Question(there, Kind.COUNT, ["GPU-0::0", "GPU-0", "GPU-1"], [], 1)
    assert whole.answer(there, BINPACK) == ("GPU-0",)


def test_whole_gpus_are_those_close_to_each_other() -> None:
    there = node(4, 4, 4, 4, closeness={(0, 2): 7, (1, 3): 5})
    assert count(there, range(4), 2).answer(there, BINPACK) == (uuid(0), uuid(2))
    assert count(there, [1, 2, 3], 2).answer(there, BINPACK) == (uuid(1), uuid(3))


def test_whole_gpus_are_completely_free_ones() -> None:
    there = node(4, 4, 4, used={0: [1]}, unhealthy={1: "too hot"})
    assert count(there, range(3), 1).answer(there, BINPACK) == (uuid(2),)
    assert count(there, range(3), 2).answer(there, BINPACK) == ()


def test_a_whole_gpu_of_an_init_container_is_used_again_and_joined_by_its_neighbour() -> None:
    there = node(4, 4, 4, whole=[1], closeness={(1, 2): 7, (0, 1): 5})
    assert count(there, range(3), 2, 1).answer(there, BINPACK) == (uuid(1), uuid(2))
    assert count(there, range(3), 1, 1).answer(there, BINPACK) == (uuid(1),)


def test_a_whole_gpu_that_we_do_not_know_free_yet_is_the_second_choice() -> None:
    """The kubelet offers GPU 0, which is still in whole use by our ledger: a pod was deleted a moment ago."""
    there = node(4, 4, 4, whole=[0], closeness={(0, 1): 7})
    assert count(there, range(3), 2).answer(there, BINPACK) == (uuid(1), uuid(2))
    assert count(there, range(3), 3).answer(there, BINPACK) == (uuid(0), uuid(1), uuid(2))


# --- promises


def test_a_promise_takes_precedence_over_the_policy() -> None:
    there = node(8, 4)
    matched = Matched(promised(4, (0, 4)), {})
    assert memory(there, free(there), 4).answer(there, BINPACK, matched) == ids(0, range(4))


def test_a_promise_may_be_of_several_gpus() -> None:
    there = node(8, 4, 8)
    matched = Matched(promised(6, (0, 2), (2, 4)), {})
    assert memory(there, free(there), 6).answer(there, BINPACK, matched) == (*ids(0, [0, 1]), *ids(2, range(4)))


def test_whole_gpus_may_be_promised_too() -> None:
    there = node(4, 4, 4, closeness={(0, 1): 7})
    matched = Matched(promised(2, (0, 4), (2, 4), kind=Kind.COUNT), {})
    assert count(there, range(3), 2).answer(there, BINPACK, matched) == (uuid(0), uuid(2))


@pytest.mark.parametrize("gone", [[*ids(0, range(3)), *ids(1, range(4))], ids(1, range(4))])
def test_a_promise_that_cannot_be_kept_leaves_the_choice_to_the_policy(gone: list[str]) -> None:
    """Of GPU 0, promised with 4 shares, 3 or none are left."""
    there = node(8, 4)
    assert memory(there, gone, 4).answer(there, BINPACK, Matched(promised(4, (0, 4)), {})) == ids(1, range(4))


def test_a_promised_whole_gpu_in_use_leaves_the_choice_to_the_policy() -> None:
    there = node(4, 4)
    matched = Matched(promised(1, (0, 4), kind=Kind.COUNT), {})
    assert count(there, [1], 1).answer(there, BINPACK, matched) == (uuid(1),)


def test_a_promise_without_the_gpu_that_must_be_used_cannot_be_kept() -> None:
    there = node(8, 8, used={1: [0]})
    question = memory(there, [*ids(0, range(8)), *ids(1, range(8))], 4, *ids(1, [0]))
    assert question.answer(there, BINPACK, Matched(promised(4, (0, 4)), {})) == ids(1, [0, 1, 2, 3])


def test_a_promise_too_small_for_the_shares_that_must_be_used_cannot_be_kept() -> None:
    """Two shares of each GPU are promised, three of GPU 1 must be reused."""
    there = node(8, 8, used={1: [0, 1, 2]})
    question = memory(there, [*ids(0, range(8)), *ids(1, range(8))], 4, *ids(1, [0, 1, 2]))
    assert question.answer(there, BINPACK, Matched(promised(4, (0, 2), (1, 2)), {})) == ids(1, [0, 1, 2])


def test_a_broken_promise_of_two_gpus_becomes_two_others() -> None:
    """Of GPU 0, promised, one share is left. GPU 2 has room for all 4, and is not two GPUs."""
    there = node(8, 8, 8, used={0: range(7)})
    answer = memory(there, free(there), 4).answer(there, BINPACK, Matched(promised(4, (0, 2), (1, 2)), {}))
    assert answer == (*ids(1, [0, 1]), *ids(2, [0, 1]))


def test_a_promise_of_two_gpus_is_not_kept_by_one() -> None:
    question = memory(node(8, 8), ids(1, range(8)), 4)
    assert question.answer(node(8, 8), BINPACK, Matched(promised(4, (0, 2), (1, 2)), {})) == ()


def test_a_promise_just_as_large_as_the_shares_that_must_be_used_is_kept() -> None:
    there = node(8, 8, used={1: [0, 1]})
    question = memory(there, [*ids(0, range(8)), *ids(1, range(8))], 4, *ids(1, [0, 1]))
    answer = question.answer(there, BINPACK, Matched(promised(4, (0, 2), (1, 2)), {}))
    assert answer == (*ids(0, [0, 1]), *ids(1, [0, 1]))


def test_a_match_without_a_promise_leaves_the_choice_to_the_policy() -> None:
    there = node(8, 4)
    assert memory(there, free(there), 4).answer(there, BINPACK, Matched(promised(4), {})) == ids(1, range(4))


def test_room_promised_to_others_is_not_used_while_anything_else_fits() -> None:
    """GPU 0 would be filled exactly, but one of its shares is promised."""
    there = node(4, 8)
    assert memory(there, free(there), 4).answer(there, BINPACK, Matched(None, {0: 1})) == ids(1, range(4))
    assert memory(there, free(there), 3).answer(there, BINPACK, Matched(None, {0: 1})) == ids(0, range(3))
    assert memory(there, free(there), 1).answer(there, BINPACK, Matched(None, {}, frozenset({0}))) == ids(1, [0])


def test_room_promised_to_others_is_used_where_nothing_else_fits() -> None:
    there = node(4, 8, used={1: range(6)})
    assert memory(there, free(there), 4).answer(there, BINPACK, Matched(None, {0: 1})) == ids(0, range(4))
    whole = Matched(None, {}, frozenset({0}))
    assert memory(there, free(there), 4).answer(there, BINPACK, whole) == ids(0, range(4))


def test_whole_gpus_avoid_promised_shares_and_promised_whole_gpus() -> None:
    there = node(4, 4, 4)
    matched = Matched(None, {0: 1}, frozenset({1}))
    assert count(there, range(3), 1).answer(there, BINPACK, matched) == (uuid(2),)
    assert count(there, range(3), 2).answer(there, BINPACK, matched) == (uuid(0), uuid(1))


# --- the call for matching


def test_a_call_counts_by_gpu() -> None:
    there = node(8, 8)
    question = memory(there, [*ids(0, [1, 2, 3]), *ids(1, [5]), "GPU-7::1"], 3, *ids(0, [2]))
    assert question.call == Call(Kind.MEMORY, 3, {0: 3, 1: 1}, frozenset({0}))
    assert count(there, [0, 1], 2, 1).call == Call(Kind.COUNT, 2, {0: 1, 1: 1}, frozenset({1}))


def test_ids_are_counted_by_gpu() -> None:
    there = node(8, 8)
    assert spread_over(there, [*ids(1, [1, 2, 3]), *ids(0, [5]), "GPU-7::1", uuid(0)]) == {0: 2, 1: 3}
    assert spread_over(there, []) == {}


# --- properties


@st.composite
def worlds(draw: st.DrawFn) -> Node:
    gib = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return node(
        *gib,
        used={p: draw(st.sets(st.integers(0, size - 1))) for p, size in enumerate(gib) if draw(st.booleans())},
        whole=[p for p in range(len(gib)) if draw(st.integers(0, 4)) == 0],
        unhealthy={p: "broken" for p in range(len(gib)) if draw(st.integers(0, 4)) == 0},
        closeness={(0, 1): draw(st.integers(0, 7))},
    )


def draw_ids(data: st.DataObject, there: Node, kind: Kind) -> tuple[list[str], list[str], int]:
    """The available IDs, the IDs that must be used, and the amount."""
    every = [name for shared in there.shares.gpus for name in shared.ids((kind, ""))]
    available = [name for name in data.draw(st.permutations(every)) if data.draw(st.integers(0, 3))]
    some = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=3)) if available else []
    must = [name for name in some if parse_id(name)[0] == parse_id(some[0])[0] or data.draw(st.booleans())]
    return available, must, data.draw(st.integers(max(1, len(must)), 8))


def others(data: st.DataObject) -> Matched:
    reserved: Mapping[int, int] = data.draw(st.dictionaries(st.integers(0, 2), st.integers(1, 6)))
    return Matched(None, reserved, data.draw(st.frozensets(st.integers(0, 2), max_size=1)))


def fitting(there: Node, available: list[str], must: list[str], amount: int, kept: Matched) -> set[str]:
    """The GPUs that have room for the whole amount, without the reservations for others."""
    room = Counter(parse_id(name)[0] for name in available)
    return {
        shared.gpu.uuid
        for shared in there.shares.gpus
        if room[shared.gpu.uuid] - kept.reserved.get(shared.position, 0) >= amount
        and shared.position not in kept.whole
        and shared.gpu.uuid not in there.unhealthy
        and not there.use(shared).whole
        and {parse_id(name)[0] for name in must} <= {shared.gpu.uuid}
    }


@given(worlds(), st.sampled_from(sorted(POLICIES)), st.data())
def test_shares_asked_are_all_on_one_gpu_whenever_one_has_room(there: Node, policy: str, data: st.DataObject) -> None:
    """And on one without promises to others, whenever there is one."""
    available, must, amount = draw_ids(data, there, Kind.MEMORY)
    matched = others(data)
    answer = memory(there, available, amount, *must).answer(there, POLICIES[policy], matched)
    assert len(set(answer)) == len(answer)
    assert set(must) <= set(answer) <= set(available)
    good = fitting(there, available, must, amount, matched) or fitting(there, available, must, amount, UNMATCHED)
    if good:
        assert len(answer) == amount
        assert len({parse_id(name)[0] for name in answer}) == 1
        assert {parse_id(name)[0] for name in answer} <= good
    else:
        assert set(answer) == set(must)


@given(worlds(), st.data())
def test_whole_gpus_asked_are_answered_whenever_there_are_enough(there: Node, data: st.DataObject) -> None:
    available, must, amount = draw_ids(data, there, Kind.COUNT)
    answer = Question(there, Kind.COUNT, available, must, amount).answer(there, BINPACK, others(data))
    assert len(set(answer)) == len(answer)
    assert set(must) <= set(answer) <= set(available)
    good = {name for name in available if name not in there.unhealthy and not there.ledger.use(name).shares}
    assert (len(answer) == amount and set(answer) <= good) or answer == tuple(sorted(must))
    if len(good) >= amount and set(must) <= good:
        assert len(answer) == amount


@st.composite
def worlds_and_what_is_available(draw: st.DrawFn) -> tuple[Node, list[str]]:
    there = draw(worlds())
    every = [name for shared in there.shares.gpus for name in shared.ids((Kind.MEMORY, ""))]
    return there, [name for name in draw(st.permutations(every)) if draw(st.integers(0, 3))]


@given(worlds_and_what_is_available(), st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1))
@example((node(1, 2, 2), [*ids(1, [0, 1]), *ids(2, [0, 1])]), {0: 2, 1: 2})  # GPU 0 has no two; GPUs 1 and 2 have
@example((node(4, 4), ids(1, range(4))), {0: 2, 1: 2})  # GPU 0 has none; GPU 1 alone is not two GPUs
@example((node(4, 4), ids(1, range(4))), {0: 3, 1: 1})  # unequal parts are one demand: GPU 1 has all of it
def test_a_promise_is_kept_exactly_whenever_it_can_be(world: tuple[Node, list[str]], shares: Mapping[int, int]) -> None:
    """Else the same number of equal parts comes from other GPUs, or all from one if the parts were unequal, or none."""
    there, available = world
    amount = sum(shares.values())
    answer = memory(there, available, amount).answer(
        there, BINPACK, Matched(promised(amount, *sorted(shares.items())), {})
    )
    room = Counter(parse_id(name)[0] for name in available)
    found = spread_over(there, answer)
    if all(room[uuid(position)] >= n for position, n in shares.items()):
        assert found == shares
        return
    gpus = len(shares) if len(set(shares.values())) == 1 else 1
    part = amount // gpus
    good = fitting(there, available, [], part, UNMATCHED)
    if len(good) >= gpus:
        assert sorted(found.values()) == [part] * gpus
        assert {uuid(position) for position in found} <= good
    else:
        assert not answer


@given(worlds(), st.data())
def test_the_order_in_which_the_kubelet_lists_ids_does_not_matter(there: Node, data: st.DataObject) -> None:
    available, must, amount = draw_ids(data, there, Kind.MEMORY)
    matched = others(data)
    one = memory(there, available, amount, *must).answer(there, BINPACK, matched)
    two = memory(there, sorted(available), amount, *sorted(must)).answer(there, BINPACK, matched)
    assert one == two


def test_ids_still_held_in_our_ledger_are_the_last_choice_on_a_gpu() -> None:
    """The kubelet calls 0 to 7 free; we still hold 0 to 2: their container may run on after a forced deletion."""
    there = node(8, used={0: range(3)})
    assert memory(there, ids(0, range(8)), 4).answer(there, BINPACK) == ids(0, [3, 4, 5, 6])
    assert memory(there, ids(0, range(8)), 6).answer(there, BINPACK) == ids(0, [3, 4, 5, 6, 7, 0])


def test_a_gpu_with_room_in_our_ledger_comes_before_one_that_is_free_for_the_kubelet_only() -> None:
    """By the kubelet both fit and binpack would take GPU 0, the smaller; 6 of its 8 shares are still held by us."""
    there = node(8, 16, used={0: range(6)})
    question = memory(there, [*ids(0, range(8)), *ids(1, range(16))], 4)
    assert question.answer(there, BINPACK) == ids(1, [0, 1, 2, 3])


def test_room_free_for_the_kubelet_only_comes_before_room_promised_to_others() -> None:
    there = node(4, 4, used={1: range(4)})
    question = memory(there, [*ids(0, range(4)), *ids(1, range(4))], 4)
    assert question.answer(there, BINPACK, Matched(None, {0: 4})) == ids(1, range(4))


def test_promised_room_that_is_free_for_the_kubelet_only_is_better_than_none() -> None:
    there = node(4, used={0: range(4)})
    assert memory(there, ids(0, range(4)), 4).answer(there, BINPACK, Matched(None, {0: 4})) == ids(0, range(4))


def test_shares_of_gpus_that_may_not_be_used_are_left_out() -> None:
    device_ids = (*ids(0, [0, 1]), "another", *ids(1, [2]))
    assert list(not_on(device_ids, {uuid(0)})) == ["another", *ids(1, [2])]
    assert not_on(device_ids, ()) is device_ids
