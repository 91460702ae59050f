"""GPUs for a demand, or the reasons why not."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.placing import (
    POLICIES,
    TOGETHER,
    Demand,
    Obstacle,
    Placement,
    Rank,
    Room,
    Unplaceable,
    place,
)
from gpu_device_plugin.model.resources import Kind
from tests.nodes import node

BINPACK, SPREAD = POLICIES["binpack"], POLICIES["spread"]


def wanting(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def whole(gpus: int) -> Demand:
    return Demand(Kind.COUNT, gpus)


def rooms(*free: int, total: int = 8) -> list[Room]:
    """Healthy GPUs with these free shares of `total`."""
    return [Room(position, total, count, shared=count < total) for position, count in enumerate(free)]


def refused(answer: Placement | Unplaceable) -> Unplaceable:
    assert isinstance(answer, Unplaceable)
    return answer


def placed(answer: Placement | Unplaceable) -> tuple[int, ...]:
    assert isinstance(answer, Placement)
    return answer.positions


def test_binpack_takes_the_fullest_gpu_that_fits() -> None:
    """Free shares are 8, 4 and 5; 4 are wanted; GPU 1 is filled exactly."""
    assert place(wanting(4), rooms(8, 4, 5), BINPACK) == Placement(wanting(4), ((1, 4),))


@pytest.mark.parametrize("rank", POLICIES.values(), ids=POLICIES)
def test_among_equals_the_lower_position_wins(rank: Rank) -> None:
    assert placed(place(wanting(2), rooms(1, 6, 6, 6), rank)) == (1,)


def test_a_demand_over_several_gpus_is_met_in_equal_parts() -> None:
    """6 shares from 2 GPUs: 3 from each; 2 free do not suffice; binpack prefers 3 and 4 to 8."""
    assert place(wanting(6, gpus=2), rooms(8, 2, 3, 4), BINPACK) == Placement(wanting(6, 2), ((2, 3), (3, 3)))
    assert placed(place(wanting(6, gpus=2), rooms(8, 2, 3, 4), SPREAD)) == (0, 3)


def test_a_demand_that_does_not_divide_is_refused() -> None:
    """Rounded up, 5 shares from 2 GPUs would be 6, which the pod did not request and no kubelet would allocate."""
    answer = refused(place(wanting(5, gpus=2), rooms(8, 8), BINPACK))
    assert answer.sentence(1024) == (
        "GPU memory: 5 GiB requested from 2 GPUs, which cannot be split evenly into whole shares"
    )


def test_a_whole_gpu_is_taken_with_all_its_shares() -> None:
    there = [Room(0, 4, 3, shared=True), Room(1, 7, 7), Room(2, 4, 4)]
    assert place(whole(2), there, BINPACK) == Placement(whole(2), ((1, 7), (2, 4)))


@pytest.mark.parametrize(
    ("room", "demand", "obstacle"),
    [
        (Room(0, 4, 0, healthy=False, shared=True, whole=True), wanting(5), Obstacle.UNHEALTHY),
        (Room(0, 4, 0, shared=True, whole=True), wanting(5), Obstacle.SMALL),
        (Room(0, 4, 0, shared=True, whole=True), wanting(4), Obstacle.WHOLE),
        (Room(0, 4, 3, shared=True), wanting(4), Obstacle.FULL),
        (Room(0, 4, 4, whole=True), wanting(1), Obstacle.WHOLE),
        (Room(0, 4, 0, healthy=False, shared=True, whole=True), whole(1), Obstacle.UNHEALTHY),
        (Room(0, 4, 0, shared=True, whole=True), whole(1), Obstacle.WHOLE),
        (Room(0, 4, 0, shared=True), whole(1), Obstacle.SHARED),
        # It has room, and alone it is not enough.
        (Room(0, 4, 4), whole(2), Obstacle.FULL),
        (Room(0, 4, 4), wanting(8, gpus=2), Obstacle.FULL),
    ],
)
def test_the_most_lasting_reason_is_named(room: Room, demand: Demand, obstacle: Obstacle) -> None:
    assert place(demand, [room], BINPACK) == Unplaceable(demand, ((room, obstacle),))


def test_shares_in_use_are_no_obstacle_to_shares() -> None:
    assert placed(place(wanting(3), [Room(0, 4, 3, shared=True)], BINPACK)) == (0,)


def test_a_whole_gpu_needs_no_free_share_by_the_kubelets_count() -> None:
    """For gpu-count the free shares of gpu-mem say nothing."""
    assert placed(place(whole(1), [Room(0, 4, 0)], BINPACK)) == (0,)


def test_a_gpu_that_must_be_used_takes_precedence_over_the_policy() -> None:
    assert placed(place(wanting(2), rooms(2, 8), BINPACK, must=[1])) == (1,)
    assert placed(place(wanting(4, gpus=2), rooms(2, 2, 8), BINPACK, must=[2])) == (0, 2)
    assert placed(place(wanting(2), rooms(8), BINPACK, must=[0])) == (0,)
    assert placed(place(whole(2), rooms(8, 8, 8), BINPACK, must=[2])) == (0, 2)


@pytest.mark.parametrize(
    ("demand", "must"),
    [(wanting(4), [1]), (wanting(4), [5]), (wanting(2), [0, 1]), (whole(1), [1]), (whole(1), [2, 3])],
    ids=["no room there", "no such GPU", "two for one", "in use there", "two whole for one"],
)
def test_a_gpu_that_must_and_cannot_be_used_makes_a_refusal(demand: Demand, must: list[int]) -> None:
    assert isinstance(place(demand, rooms(8, 2, 8, 8), BINPACK, must=must), Unplaceable)


def test_no_whole_gpus_are_no_placement() -> None:
    assert isinstance(place(whole(0), rooms(8), BINPACK), Unplaceable)


def test_a_refusal_lists_its_reasons_by_position() -> None:
    there = rooms(1, 2, 3)
    expected = Unplaceable(wanting(4), tuple((room, Obstacle.FULL) for room in there))
    assert place(wanting(4), there[::-1], BINPACK) == expected


# --- whole GPUs that are close to each other

PAIRS = {(0, 2): 7, (1, 3): 7}
"""Two bridges of NVLink, crosswise."""


def connected(pairs: dict[tuple[int, int], int]) -> list[int]:
    there = node(8, 8, 8, 8, closeness=pairs)
    return [*placed(place(whole(2), there.rooms(), BINPACK, there.links.connection))]


def test_two_whole_gpus_are_the_two_that_are_linked() -> None:
    assert connected(PAIRS) == [0, 2]
    assert connected({(1, 3): 7, (0, 2): 5}) == [1, 3]


def test_of_two_equal_pairs_the_one_that_leaves_the_other_gpus_linked_is_taken() -> None:
    """1-2 and 2-3 are as close; without 2 and 3 there is still 0-1, without 1 and 2 nothing."""
    assert connected({(2, 3): 7, (1, 2): 7, (0, 1): 5}) == [2, 3]


def test_unconnected_gpus_are_taken_in_order() -> None:
    assert connected({}) == [0, 1]


def test_one_whole_gpu_leaves_the_linked_ones_together() -> None:
    """GPU 0 and 1 are linked, GPU 2 is alone."""
    there = node(8, 8, 8, closeness={(0, 1): 7})
    assert placed(place(whole(1), there.rooms(), BINPACK, there.links.connection)) == (2,)


def test_a_large_group_of_which_one_gpu_is_missing_is_completed() -> None:
    """Of 16 GPUs eight make more groups than are compared."""
    assert placed(place(whole(8), rooms(*[8] * 16), BINPACK, must=range(9, 16))) == (0, *range(9, 16))


def test_a_group_grows_around_the_gpus_that_must_be_used() -> None:
    there = node(8, 8, 8, 8, closeness={(0, 1): 7, (2, 3): 6})
    assert placed(place(whole(2), there.rooms(), BINPACK, there.links.connection, must=[3])) == (2, 3)


ISLANDS = {(a, b): 7 if a // 4 == b // 4 else 1 for a, b in combinations(range(16), 2)}
"""Sixteen GPUs in four islands of four."""


@pytest.mark.parametrize(
    ("size", "must", "group"),
    [
        (4, [], (0, 1, 2, 3)),
        (4, [9], (8, 9, 10, 11)),
        (2, [14, 15], (14, 15)),
        (6, [5], (0, 1, 2, 3, 4, 5)),
        (16, [], tuple(range(16))),
    ],
)
def test_among_many_gpus_an_island_is_filled_before_the_next(
    size: int, must: list[int], group: tuple[int, ...]
) -> None:
    there = node(*(8,) * 16, closeness=ISLANDS)
    assert placed(place(whole(size), there.rooms(), BINPACK, there.links.connection, must=must)) == group


def test_among_many_gpus_the_best_island_is_found_wherever_it_lies() -> None:
    """Only the last three of twelve are linked."""
    there = node(*(8,) * 12, closeness={(9, 10): 7, (10, 11): 7, (9, 11): 7})
    assert placed(place(whole(3), there.rooms(), BINPACK, there.links.connection)) == (9, 10, 11)


def test_of_few_groups_every_one_is_compared() -> None:
    """Step by step, GPU 1 would come beside GPU 0 first, though 0, 2 and 3 are closer together."""
    pairs = {(0, 1): 7, (0, 2): 5, (0, 3): 5, (2, 3): 5}
    there = node(*(8,) * 16, closeness=pairs)
    assert placed(place(whole(3), there.rooms(), BINPACK, there.links.connection, must=[0])) == (0, 2, 3)


def test_of_many_groups_one_grows_from_each_gpu() -> None:
    """4 of 16 are 1,820 groups. Beside 0 comes 1 first, in vain; beside 2 come 3, 0 and 4."""
    pairs = {(0, 1): 7, (0, 2): 5, (0, 3): 5, (2, 3): 6, (2, 4): 5, (3, 4): 5, (0, 4): 5}
    there = node(*(8,) * 16, closeness=pairs)
    assert placed(place(whole(4), there.rooms(), BINPACK, there.links.connection)) == (0, 2, 3, 4)
    assert placed(place(whole(4), there.rooms(), BINPACK, there.links.connection, must=[0])) == (0, 2, 3, 4)


@pytest.mark.parametrize("number", [10, 12, 16, 36])
def test_the_best_connected_group_is_left_whole_among_many_gpus_too(number: int) -> None:
    """GPUs 0 to 3 are linked all to all, the others in pairs by the same links: a pair is taken. 2 of 36 are 630."""
    pairs = {(a, b): 4 for a, b in combinations(range(number), 2) if b < 4 or (a >= 4 and a // 2 == b // 2)}
    there = node(*(8,) * number, closeness=pairs)
    assert placed(place(whole(2), there.rooms(), BINPACK, there.links.connection)) == (4, 5)


# --- the sentence for the owner of the pod


@pytest.mark.parametrize(
    ("demand", "there", "sentence"),
    [
        (wanting(8), rooms(1, 5, 3), "GPU memory: 8 GiB requested, the emptiest healthy GPU has 5 GiB free"),
        (wanting(3), [], "GPU memory: 3 GiB requested, this node has no shared GPU"),
        (
            wanting(9),
            [*rooms(8, 8), Room(2, 4, 4)],
            "GPU memory: 9 GiB requested, the largest GPU of this node has 8 GiB, so it can never run here",
        ),
        (
            wanting(8),
            [Room(0, 8, 8, healthy=False), Room(1, 4, 4, healthy=False)],
            "GPU memory: 8 GiB requested, no GPU of this node is healthy",
        ),
        (
            wanting(4),
            [Room(0, 8, 8, healthy=False), Room(1, 8, 8, whole=True)],
            "GPU memory: 4 GiB requested, all healthy GPUs of this node are exclusively allocated",
        ),
        # The smaller GPU is in whole use too, so its free shares do not count.
        (
            wanting(8),
            [Room(0, 4, 4, whole=True), Room(1, 8, 8, whole=True)],
            "GPU memory: 8 GiB requested, all healthy GPUs of this node are exclusively allocated",
        ),
        (
            wanting(8),
            [Room(0, 8, 8, healthy=False), Room(1, 8, 8, whole=True), Room(2, 8, 2, shared=True)],
            "GPU memory: 8 GiB requested, the emptiest healthy GPU has 2 GiB free",
        ),
        (
            wanting(8, gpus=2),
            [Room(0, 8, 4, shared=True), Room(1, 8, 3, shared=True), Room(2, 8, 8, whole=True)],
            "GPU memory: 8 GiB requested from 2 GPUs, healthy GPUs with 4 GiB free: 1",
        ),
        (
            wanting(18, gpus=2),
            rooms(8, 8),
            "GPU memory: 18 GiB requested from 2 GPUs, healthy GPUs with 9 GiB free: 0",
        ),
        (whole(3), rooms(8, 8), "whole GPUs: 3 requested, this node has 2, so it can never run here"),
        (
            whole(2),
            [Room(0, 8, 8), Room(1, 8, 7, shared=True), Room(2, 8, 8, whole=True), Room(3, 8, 8, healthy=False)],
            "whole GPUs: 2 requested, 1 free (1 exclusively allocated, 1 unhealthy, 1 with shares in use)",
        ),
        (whole(2), rooms(8, 7), "whole GPUs: 2 requested, 1 free (1 with shares in use)"),
        (whole(1), rooms(7, 7), "whole GPUs: 1 requested, 0 free (2 with shares in use)"),
        (whole(0), rooms(8), "whole GPUs: 0 requested, 1 free"),
    ],
)
def test_a_refusal_is_a_sentence_for_the_owner_of_the_pod(demand: Demand, there: list[Room], sentence: str) -> None:
    assert refused(place(demand, there, BINPACK)).sentence(1024) == sentence


def test_a_refusal_speaks_of_memory_and_not_of_shares() -> None:
    assert refused(place(wanting(7), rooms(2), BINPACK)).sentence(256) == (
        "GPU memory: 1.75 GiB requested, the emptiest healthy GPU has 512 MiB free"
    )


# --- properties, against every possibility


@st.composite
def some_rooms(draw: st.DrawFn) -> list[Room]:
    found = []
    for position in draw(st.lists(st.integers(0, 20), unique=True, max_size=5)):
        total = draw(st.integers(1, 6))
        free = draw(st.integers(0, total))
        healthy, taken = draw(st.booleans()), draw(st.booleans())
        found.append(Room(position, total, free, healthy=healthy, shared=free < total, whole=taken))
    return found


DEMANDS = st.one_of(
    st.builds(Demand, st.just(Kind.MEMORY), st.integers(1, 8), st.integers(1, 3)),
    st.builds(Demand, st.just(Kind.COUNT), st.integers(1, 4)),
)
RANKS = st.sampled_from(sorted(POLICIES))


def fits(demand: Demand, group: tuple[Room, ...]) -> bool:
    if any(not room.healthy or room.whole for room in group):
        return False
    if demand.kind is Kind.COUNT:
        return len(group) == demand.amount and not any(room.shared for room in group)
    return len(group) == demand.gpus and all(room.free * demand.gpus >= demand.amount for room in group)


@given(DEMANDS, some_rooms(), RANKS, st.sets(st.integers(0, 20), max_size=2))
def test_a_placement_fits_and_a_refusal_means_that_none_does(
    demand: Demand, there: list[Room], policy: str, must: set[int]
) -> None:
    every = [
        {room.position for room in group}
        for size in range(len(there) + 1)
        for group in combinations(there, size)
        if fits(demand, group) and demand.amount % demand.gpus == 0 and {room.position for room in group} >= must
    ]
    answer = place(demand, there, POLICIES[policy], must=must)
    if isinstance(answer, Unplaceable):
        assert every == []
        assert [room for room, _ in answer.reasons] == sorted(there, key=lambda room: room.position)
    else:
        assert set(answer.positions) in every
        assert list(answer.positions) == sorted(set(answer.positions))
        if demand.kind is Kind.MEMORY:
            assert sum(count for _, count in answer.shares) == demand.amount
        else:
            totals = {room.position: room.total for room in there}
            assert all(count == totals[position] for position, count in answer.shares)


@given(DEMANDS, some_rooms(), RANKS, st.data())
def test_the_order_of_the_rooms_does_not_matter(
    demand: Demand, there: list[Room], policy: str, data: st.DataObject
) -> None:
    pairs = {pair: data.draw(st.integers(0, 7)) for pair in combinations(sorted(room.position for room in there), 2)}
    shuffled = data.draw(st.permutations(there))

    def connection(a: int, b: int) -> int:
        return pairs[a, b]

    assert place(demand, there, POLICIES[policy], connection) == place(demand, shuffled, POLICIES[policy], connection)


@given(st.integers(1, 5), st.sets(st.integers(0, 6), max_size=2), st.data())
def test_no_group_of_whole_gpus_is_closer(size: int, must: set[int], data: st.DataObject) -> None:
    """On up to ten GPUs; and of two groups equally close the one that leaves the closer others behind."""
    pairs = {pair: data.draw(st.integers(0, 7)) for pair in combinations(range(7), 2)}
    there = node(*(4,) * 7, closeness=pairs)
    answer = place(whole(size), there.rooms(), BINPACK, there.links.connection, must=must)
    if len(must) > size:
        assert isinstance(answer, Unplaceable)
        return

    def inside(group: set[int]) -> int:
        return sum(pairs[pair] for pair in combinations(sorted(group), 2))

    groups = [set(group) for group in combinations(range(7), size) if must <= set(group)]
    chosen = set(placed(answer))
    best = max((inside(group), inside(set(range(7)) - group)) for group in groups)
    assert (inside(chosen), inside(set(range(7)) - chosen)) == best


# --- MIG instances


def instances(*free: int, card: int, first: int = 0, total: int = 10) -> list[Room]:
    """Healthy MIG instances of one GPU with these free shares of `total`, from position `first` on."""
    return [Room(first + n, total, count, shared=count < total, card=card) for n, count in enumerate(free)]


@pytest.mark.parametrize(
    ("demand", "taken"),
    [
        (wanting(8), (1,)),
        (wanting(11), (0,)),
        (wanting(16, gpus=2), (0, 3)),
        (whole(1), (0,)),
        (whole(2), (0, 3)),
    ],
    ids=["memory of one GPU", "more than an instance has", "memory of two GPUs", "a GPU", "two GPUs"],
)
def test_only_memory_of_one_gpu_may_be_that_of_an_instance(demand: Demand, taken: tuple[int, ...]) -> None:
    """GPUs 0 and 3 have 80 shares each, instances 1 and 2 have 10."""
    there = [Room(0, 80, 80), *instances(10, 10, card=1, first=1), Room(3, 80, 80)]
    assert placed(place(demand, there, BINPACK)) == taken


def test_a_whole_instance_is_one_that_nobody_uses() -> None:
    instance = Demand(Kind.INSTANCE, 1)
    there = [Room(0, 80, 80), *instances(10, 4, card=1, first=1)]
    assert place(instance, there, BINPACK) == Placement(instance, ((1, 10),))
    assert refused(place(instance, there[2:], BINPACK)).reasons == ((there[2], Obstacle.SHARED),)
    assert refused(place(instance, there[:1], BINPACK)).reasons == ((there[0], Obstacle.OTHER_KIND),)


ASKED = "GPU memory: 8 GiB requested from 2 GPUs"


@pytest.mark.parametrize(
    ("demand", "sentence"),
    [
        (whole(1), "whole GPUs: 1 requested, this node has 0, so it can never run here"),
        (
            wanting(8, gpus=2),
            f"{ASKED}, this node has MIG instances only, and no container can use several of them",
        ),
        (wanting(8), "GPU memory: 8 GiB requested, the emptiest healthy GPU has 5 GiB free"),
    ],
)
def test_a_node_of_instances_only_says_what_it_lacks(demand: Demand, sentence: str) -> None:
    assert refused(place(demand, instances(5, 2, card=0), BINPACK)).sentence(1024) == sentence


def test_memory_of_several_gpus_counts_gpus_alone() -> None:
    there = [Room(0, 80, 80), *instances(10, 10, card=1, first=1)]
    answer = refused(place(wanting(8, gpus=2), there, BINPACK))
    assert [obstacle for _, obstacle in answer.reasons] == [Obstacle.FULL, Obstacle.OTHER_KIND, Obstacle.OTHER_KIND]
    assert answer.sentence(1024) == "GPU memory: 8 GiB requested from 2 GPUs, healthy GPUs with 4 GiB free: 1"


@pytest.mark.parametrize(("rank", "taken"), [(BINPACK, 3), (SPREAD, 0)])
def test_of_equal_instances_all_of_their_gpu_together_decide(rank: Rank, taken: int) -> None:
    """Instances 0 to 2 have 10, 10 and 6 free, 3 and 4 have 10 and 1: theirs is the fuller GPU."""
    there = [*instances(10, 10, 6, card=0), *instances(10, 1, card=3, first=3)]
    assert placed(place(wanting(8), there, rank)) == (taken,)


def test_an_instance_that_gives_nothing_does_not_make_its_gpu_emptier() -> None:
    failed = Room(1, 10, 10, healthy=False, card=0)
    there = [*instances(10, card=0), failed, *instances(10, 5, card=2, first=2)]
    assert placed(place(wanting(8), there, BINPACK)) == (0,)
    assert placed(place(wanting(8), there, SPREAD)) == (2,)


def test_a_rank_is_asked_about_the_instances_of_each_gpu_together() -> None:
    asked: list[Room] = []

    def rank(room: Room) -> float:
        if room.position == TOGETHER:
            asked.append(room)
        return 0.0

    whole_in_use = Room(3, 10, 10, whole=True, card=0)
    there = [*instances(10, 10, 6, card=0), whole_in_use, *instances(40, 1, card=4, first=4, total=40), Room(6, 80, 80)]
    assert placed(place(wanting(5), there, rank)) == (0,)
    assert asked == [Room(TOGETHER, 40, 26, card=0), Room(TOGETHER, 80, 41, card=4)]


@pytest.mark.parametrize(
    ("amount", "must", "taken"),
    [
        (3, [], (6, 7, 8)),  # GPU 6 has as many as are wanted
        (2, [], (4, 5)),
        (4, [], (6, 7, 8, 9)),
        (6, [], (4, 5, 6, 7, 8, 9)),  # the largest first, then what suffices for the rest
        (2, [9], (6, 9)),  # GPU 4 has the fewest, but a container that has GPU 6 gets more of it
        (4, [4], (4, 5, 6, 7)),
    ],
)
def test_whole_instances_are_of_few_gpus(amount: int, must: list[int], taken: tuple[int, ...]) -> None:
    """GPU 0 has one instance left, GPU 4 has two, GPU 6 has four."""
    there = [*instances(10, card=0), *instances(10, 10, card=4, first=4), *instances(10, 10, 10, 10, card=6, first=6)]
    assert placed(place(Demand(Kind.INSTANCE, amount), there, BINPACK, must=must)) == taken


@pytest.mark.parametrize("rank", POLICIES.values(), ids=POLICIES)
def test_an_instance_is_taken_before_a_gpu_that_is_as_good(rank: Rank) -> None:
    assert placed(place(wanting(4), [Room(0, 10, 10), *instances(10, card=1, first=1)], rank)) == (1,)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from((None, 0, 1)), st.booleans(), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from((wanting(1), wanting(5), wanting(4, gpus=2), whole(1), whole(2), Demand(Kind.INSTANCE, 1))),
    st.sampled_from(sorted(POLICIES)),
)
def test_a_demand_is_met_if_enough_of_its_kind_have_room(
    there: list[tuple[int, int | None, bool, bool]], demand: Demand, policy: str
) -> None:
    """And the best of them are taken: no other that has room ranks before one of them."""
    rank = POLICIES[policy]
    each = [
        Room(n, 8, free, healthy=healthy, shared=free < 8, whole=whole, card=card)
        for n, (free, card, healthy, whole) in enumerate(there)
    ]
    memory = demand.kind is Kind.MEMORY
    suited = [
        room
        for room in each
        if (room.gives_shares and room.free >= demand.amount // demand.gpus if memory else room.unused)
        and ((room.card is None or demand.gpus == 1) if memory else (room.card is None) == (demand.kind is Kind.COUNT))
    ]
    wanted = demand.gpus if memory else demand.amount
    found = place(demand, each[::-1], rank)
    assert isinstance(found, Placement) == (len(suited) >= wanted)
    if isinstance(found, Placement) and memory:
        taken = [room for room in suited if room.position in found.positions]
        assert len(taken) == wanted
        assert all(rank(one) <= rank(other) for one in taken for other in suited if other not in taken)
