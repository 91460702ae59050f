"""The answer to GetPreferredAllocation."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.matching import Call, ContainerRequest, Match, Matched, WaitingPod
from gpu_device_plugin.node.rules.node import Node
from gpu_device_plugin.node.rules.preferred_allocation import UNMATCHED, PreferredAllocationRequest
from tests.nodes import ids, node, uuid

BINPACK, SPREAD = POLICIES["binpack"], POLICIES["spread"]


def free(there: Node) -> list[str]:
    """The gpu-mem IDs that a kubelet with the knowledge of this node would list as available."""
    return [name for shared in there.shares.gpus for name in shared.shares if name not in there.ledger.id_states]


def memory(there: Node, available: Iterable[str], amount: int, *must: str) -> PreferredAllocationRequest:
    return PreferredAllocationRequest(there, Kind.MEMORY, available, must, amount)


def count(there: Node, positions: Iterable[int], amount: int, *must: int) -> PreferredAllocationRequest:
    return PreferredAllocationRequest(there, Kind.COUNT, map(uuid, positions), map(uuid, must), amount)


def promised(*shares: tuple[int, int], allowed: Iterable[int] | None = None) -> Matched:
    """Return the match of a container that was promised shares by position, and whose owner allows some GPUs."""
    amount, permitted = sum(number for _, number in shares), None if allowed is None else frozenset(allowed)
    wanted = ContainerRequest("c", Kind.MEMORY, amount, promise=Promise(shares) if shares else None, allowed=permitted)
    return Matched(Match(WaitingPod("u", "default/a", (wanted,)), wanted), {})


def forgotten(there: Node, *device_ids: str) -> Node:
    return there.with_ledger(there.ledger.with_forgotten(frozenset(device_ids)))


def shares(*numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the IDs of these shares of GPU 0, GPU 1 and so on."""
    return tuple(name for position, some in enumerate(numbers) for name in ids(position, some))


def gpus(*positions: int) -> tuple[str, ...]:
    return tuple(map(uuid, positions))


def test_shares_come_from_one_gpu_chosen_by_policy() -> None:
    """Free are 8, 4 and 5 shares."""
    there = node(8, 8, 8, used={1: range(4), 2: range(3)})
    assert memory(there, free(there), 4).answer(there, BINPACK) == ids(1, [4, 5, 6, 7])
    assert memory(there, free(there), 4).answer(there, SPREAD) == ids(0, [0, 1, 2, 3])


NONE = range(0)
FOUR = range(4)
ALL = range(8)
EIGHTS = node(8, 8)
BUSY = node(4, 5, 8, 8, used={3: ALL})
"""Free are 4, 5, 8 and none."""


@pytest.mark.parametrize(
    ("there", "available", "amount", "must", "expected"),
    [
        # The lowest numbers are taken in whatever order the kubelet lists them.
        (node(16), ids(0, [12, 2, 10, 1, 9]), 3, (), shares([1, 2, 9])),
        # Shares of an init container are reused and extended on its GPU, though GPU 1 has just enough.
        (node(8, 4, used={0: [5, 6]}), shares([7, 6, 5, 3, 2], FOUR), 4, ids(0, [6, 5]), shares([5, 6, 2, 3])),
        # If they cannot be extended only they are answered: Allocate refuses the kubelet's completion with a sentence.
        (node(4, 8, used={0: FOUR}), shares([3], ALL), 4, ids(0, [3]), shares([3])),
        # Shares that must be used and are not available are no answer. No kubelet asks this.
        (node(4, 4), ids(1, FOUR), 2, ids(0, [3]), ()),
        # Without room on one GPU nothing is preferred.
        (node(4, 4, used={0: [0], 1: [0]}), shares([1, 2, 3], [1, 2, 3]), 4, (), ()),
        # GPUs out of service or in whole use, of which the kubelet does not know yet, are not preferred.
        (node(4, 4, 8, whole=[0], unhealthy={1: "lost"}), shares(FOUR, FOUR, ALL), 2, (), ids(2, [0, 1])),
        # Devices that the kubelet has forgotten are never preferred, even where nothing else is left.
        (forgotten(node(4), *shares([0, 2])), shares(FOUR), 1, (), shares([1])),
        (forgotten(node(4), *shares([0, 2])), shares(FOUR), 2, (), shares([1, 3])),
        (forgotten(node(4), *shares([0, 2])), shares(FOUR), 3, (), ()),
        # The kubelet's available IDs count and not our ledger: a pod has ended, and we do not know it yet.
        (node(4, used={0: FOUR}), shares(FOUR), 4, (), shares(FOUR)),
        # IDs that are not ours are ignored.
        (node(4), ["GPU-9::0", "GPU-0::4", "GPU-0", "nonsense", *ids(0, [2, 3])], 2, (), shares([2, 3])),
        # IDs that we still hold come last on a GPU: their container may run on after a forced deletion.
        (node(8, used={0: range(3)}), shares(ALL), 4, (), shares([3, 4, 5, 6])),
        (node(8, used={0: range(3)}), shares(ALL), 6, (), shares([3, 4, 5, 6, 7, 0])),
        # And so does a GPU that has room for the kubelet only: binpack would take GPU 0.
        (node(8, 16, used={0: range(6)}), shares(ALL, range(16)), 4, (), ids(1, FOUR)),
    ],
)
def test_which_shares_are_preferred(
    there: Node, available: Iterable[str], amount: int, must: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert memory(there, available, amount, *must).answer(there, BINPACK) == expected


@pytest.mark.parametrize(
    ("there", "positions", "amount", "must", "expected"),
    [
        # Those close to each other.
        (node(4, 4, 4, 4, closeness={(0, 2): 7, (1, 3): 5}), FOUR, 2, (), gpus(0, 2)),
        (node(4, 4, 4, 4, closeness={(0, 2): 7, (1, 3): 5}), [1, 2, 3], 2, (), gpus(1, 3)),
        # Only those that are completely free.
        (node(4, 4, 4, used={0: [1]}, unhealthy={1: "too hot"}), range(3), 1, (), gpus(2)),
        (node(4, 4, 4, used={0: [1]}, unhealthy={1: "too hot"}), range(3), 2, (), ()),
        # That of an init container is used again, and joined by its neighbour.
        (node(4, 4, 4, whole=[1], closeness={(1, 2): 7, (0, 1): 5}), range(3), 2, (1,), gpus(1, 2)),
        (node(4, 4, 4, whole=[1], closeness={(1, 2): 7, (0, 1): 5}), range(3), 1, (1,), gpus(1)),
        # One that we do not know to be free is the second choice: its pod was deleted a moment ago.
        (node(4, 4, 4, whole=[0], closeness={(0, 1): 7}), range(3), 2, (), gpus(1, 2)),
        (node(4, 4, 4, whole=[0], closeness={(0, 1): 7}), range(3), 3, (), gpus(0, 1, 2)),
        # One that the kubelet has forgotten is never preferred.
        (forgotten(node(4, 4), uuid(0)), [0, 1], 1, (), gpus(1)),
        (forgotten(node(4, 4), uuid(0)), [0], 1, (), ()),
    ],
)
def test_which_whole_gpus_are_preferred(
    there: Node, positions: Iterable[int], amount: int, must: tuple[int, ...], expected: tuple[str, ...]
) -> None:
    assert count(there, positions, amount, *must).answer(there, BINPACK) == expected


def test_ids_of_the_other_resource_are_no_whole_gpus() -> None:
    question = PreferredAllocationRequest(node(4), Kind.COUNT, ["GPU-0::0", "GPU-0", "GPU-1"], [], 1)
    assert question.answer(node(4), BINPACK) == gpus(0)


# --- Promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "available", "must", "matched", "expected"),
    [
        # A promise takes precedence over the policy, also one of several GPUs.
        (node(8, 4), shares(ALL, FOUR), (), promised((0, 4)), shares(FOUR)),
        (node(8, 4, 8), shares(ALL, FOUR, ALL), (), promised((0, 2), (2, 2)), shares([0, 1], NONE, [0, 1])),
        # If it cannot be kept the policy chooses: of GPU 0 three shares or none are left.
        (node(8, 4), shares(range(3), FOUR), (), promised((0, 4)), ids(1, FOUR)),
        (node(8, 4), ids(1, FOUR), (), promised((0, 4)), ids(1, FOUR)),
        # So does it without the GPU that must be used, or with fewer of its shares than must be used.
        (node(8, 8, used={1: [0]}), shares(ALL, ALL), ids(1, [0]), promised((0, 4)), ids(1, FOUR)),
        (
            node(8, 8, used={1: range(3)}),
            shares(ALL, ALL),
            ids(1, range(3)),
            promised((0, 2), (1, 2)),
            ids(1, range(3)),
        ),
        (
            node(8, 8, used={1: [0, 1]}),
            shares(ALL, ALL),
            ids(1, [0, 1]),
            promised((0, 2), (1, 2)),
            shares([0, 1], [0, 1]),
        ),
        # A broken promise of two GPUs becomes two others, and never one although that has room for all.
        (
            node(8, 8, 8, used={0: range(7)}),
            shares([7], ALL, ALL),
            (),
            promised((0, 2), (1, 2)),
            shares(NONE, [0, 1], [0, 1]),
        ),
        (EIGHTS, ids(1, ALL), (), promised((0, 2), (1, 2)), ()),
        # Without a promise the policy chooses.
        (node(8, 4), shares(ALL, FOUR), (), promised(), ids(1, FOUR)),
        # Room promised to others is left alone while anything else fits, though GPU 0 would be filled exactly.
        (node(4, 8), shares(FOUR, ALL), (), Matched(None, {0: 1}), ids(1, FOUR)),
        (node(4, 8), shares(FOUR, ALL), (), Matched(None, {}, frozenset({0})), ids(1, FOUR)),
        (node(5, 8), shares(range(5), ALL), (), Matched(None, {0: 1}), shares(FOUR)),
        # It is used where nothing else fits.
        (node(4, 8, used={1: range(6)}), shares(FOUR, [6, 7]), (), Matched(None, {0: 1}), shares(FOUR)),
        (node(4, 8, used={1: range(6)}), shares(FOUR, [6, 7]), (), Matched(None, {}, frozenset({0})), shares(FOUR)),
        (node(4, used={0: FOUR}), shares(FOUR), (), Matched(None, {0: 4}), shares(FOUR)),
        # Room that is free for the kubelet only comes before it.
        (node(4, 4, used={1: FOUR}), shares(FOUR, FOUR), (), Matched(None, {0: 4}), ids(1, FOUR)),
        # A GPU that the pod's owner excludes comes last: the fullest of the allowed ones, or the promised one of them.
        (BUSY, free(BUSY), (), promised(allowed=(1, 2)), ids(1, FOUR)),
        (BUSY, free(BUSY), (), promised((2, 4), allowed=(1, 2)), ids(2, FOUR)),
        # The promise of another, after a swap; if no wanted GPU has room, at least that; and any GPU before none.
        (BUSY, free(BUSY), (), promised((0, 4), allowed=(1, 2)), ids(1, FOUR)),
        (BUSY, free(BUSY), (), promised((0, 4), allowed=(3,)), ids(0, FOUR)),
        (BUSY, free(BUSY), (), promised(allowed=(3,)), ids(0, FOUR)),
        # Room promised to others comes before an excluded GPU.
        (node(8, 4), shares(ALL, FOUR), (), replace(promised(allowed=(1,)), reserved={1: 4}), ids(1, FOUR)),
    ],
)
def test_promises_and_wishes_come_before_the_policy(
    there: Node, available: Iterable[str], must: tuple[str, ...], matched: Matched, expected: tuple[str, ...]
) -> None:
    """Four shares are asked for."""
    assert memory(there, available, 4, *must).answer(there, BINPACK, matched) == expected


WHOLE = promised((0, 4), (2, 4))


@pytest.mark.parametrize(
    ("positions", "amount", "matched", "expected"),
    [
        (range(3), 2, WHOLE, gpus(0, 2)),
        ([1, 2], 1, promised((0, 4)), gpus(1)),  # what was promised is in use
        (range(3), 1, Matched(None, {0: 1}, frozenset({1})), gpus(2)),
        (range(3), 2, Matched(None, {0: 1}, frozenset({1})), gpus(0, 1)),
    ],
)
def test_whole_gpus_are_promised_too_and_keep_off_what_others_were_promised(
    positions: Iterable[int], amount: int, matched: Matched, expected: tuple[str, ...]
) -> None:
    there = node(4, 4, 4, closeness={(0, 1): 7})
    assert count(there, positions, amount).answer(there, BINPACK, matched) == expected


# --- the call for matching


def test_a_call_counts_by_gpu() -> None:
    there = node(8, 8)
    question = memory(there, [*ids(0, [1, 2, 3]), *ids(1, [5]), "GPU-7::1"], 3, *ids(0, [2]))
    assert question.call == Call(Kind.MEMORY, 3, {0: 3, 1: 1}, frozenset({0}))
    assert count(there, [0, 1], 2, 1).call == Call(Kind.COUNT, 2, {0: 1, 1: 1}, frozenset({1}))


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
        and shared.gpu.uuid not in there.blocks
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


@st.composite
def worlds_and_what_is_available(draw: st.DrawFn) -> tuple[Node, list[str]]:
    there = draw(worlds())
    every = [name for shared in there.shares.gpus for name in shared.ids((Kind.MEMORY, ""))]
    return there, [name for name in draw(st.permutations(every)) if draw(st.integers(0, 3))]


@given(worlds_and_what_is_available(), st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1))
@example((node(1, 2, 2), [*ids(1, [0, 1]), *ids(2, [0, 1])]), {0: 2, 1: 2})  # GPU 0 has no two; GPUs 1 and 2 have
@example((node(4, 4), ids(1, range(4))), {0: 2, 1: 2})  # GPU 0 has none; GPU 1 alone is not two GPUs
@example((node(4, 4), ids(1, range(4))), {0: 3, 1: 1})  # unequal parts are one demand: GPU 1 has all of it
def test_a_promise_is_kept_exactly_whenever_it_can_be(world: tuple[Node, list[str]], parts: Mapping[int, int]) -> None:
    """Else the same number of equal parts comes from other GPUs, or all from one if the parts were unequal, or none."""
    there, available = world
    amount = sum(parts.values())
    answer = memory(there, available, amount).answer(there, BINPACK, promised(*sorted(parts.items())))
    room = Counter(parse_id(name)[0] for name in available)
    found = there.shares.spread(answer)
    if all(room[uuid(position)] >= n for position, n in parts.items()):
        assert found == parts
        return
    several = len(parts) if len(set(parts.values())) == 1 else 1
    part = amount // several
    good = fitting(there, available, [], part, UNMATCHED)
    if len(good) >= several:
        assert sorted(found.values()) == [part] * several
        assert {uuid(position) for position in found} <= good
    else:
        assert not answer


def test_shares_that_stand_for_guarantees_beyond_requests_are_not_chosen() -> None:
    """The kubelet offers them until it has received the list that fences them."""
    there = node(8, 8, used={0: [0, 1]}, reserved={0: 3})
    available = [*ids(0, range(2, 8)), *ids(1, range(8))]
    asked = PreferredAllocationRequest(there, Kind.MEMORY, available, (), 4)
    assert asked.call.free == {0: 3, 1: 8}
    assert asked.answer(there, POLICIES["binpack"]) == ids(1, range(4))
    assert PreferredAllocationRequest(there, Kind.MEMORY, available, (), 3).answer(there, POLICIES["binpack"]) == ids(
        0, [2, 3, 4]
    )


def test_ids_that_only_the_ledger_holds_take_the_place_of_those() -> None:
    """The kubelet has freed shares 0 and 1; it may give them again, but no further ones."""
    there = node(6, used={0: [0, 1]}, reserved={0: 3})
    asked = PreferredAllocationRequest(there, Kind.MEMORY, ids(0, range(6)), (), 3)
    assert asked.answer(there, POLICIES["binpack"]) == ids(0, [2, 0, 1])
