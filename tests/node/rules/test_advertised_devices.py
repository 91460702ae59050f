"""The device IDs that are advertised as healthy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.model.shares import SHARES, WHOLE_GPUS
from gpu_device_plugin.node.rules.advertised_devices import Offer, RecentRefusals, offers
from gpu_device_plugin.node.rules.node import Block, Node
from tests.nodes import ids, node, uuid

MEMORY, COUNT = Kind.MEMORY, Kind.COUNT


def healthy(there: Node, kind: Kind, most_free: int | None = None) -> set[str]:
    return {name for offer in offers(there, (kind, ""), most_free) for name, good in offer.devices((kind, "")) if good}


def test_everything_is_offered_of_a_free_node() -> None:
    there = node(3, 2)
    assert healthy(there, MEMORY) == {*ids(0, range(3)), *ids(1, range(2))}
    assert healthy(there, COUNT) == {uuid(0), uuid(1)}


def test_every_id_is_listed_in_order_healthy_or_not() -> None:
    there = node(3, 2, used={0: [1]}, whole=[1], unhealthy={0: "too hot"})
    listed = [name for offer in offers(there, (MEMORY, "")) for name, _ in offer.devices((MEMORY, ""))]
    assert listed == [*ids(0, range(3)), *ids(1, range(2))]
    assert [name for offer in offers(there, (COUNT, "")) for name, _ in offer.devices((COUNT, ""))] == [
        uuid(0),
        uuid(1),
    ]


def test_ids_in_use_never_flip_because_of_a_fence() -> None:
    """The kubelet's records show both uses of GPU 0: IDs in use stay as they were, free IDs are fenced."""
    there = node(3, used={0: [1]}, whole=[0])
    assert healthy(there, MEMORY) == {*ids(0, [1])}
    assert healthy(there, COUNT) == {uuid(0)}
    assert offers(there, (MEMORY, "")) == (Offer(there.shares.gpus[0], fenced=frozenset({0, 2})),)
    assert offers(there, (COUNT, "")) == (Offer(there.shares.gpus[0]),)


def test_of_a_cordoned_gpu_free_ids_are_fenced_and_ids_in_use_never_flip() -> None:
    there = replace(
        node(3, 2, 2, used={0: [1]}, whole=[1]), blocks=dict.fromkeys([uuid(0), uuid(1)], Block(new_pods="why"))
    )
    assert healthy(there, MEMORY) == {*ids(0, [1]), *ids(2, range(2))}
    assert healthy(there, COUNT) == {uuid(1), uuid(2)}
    assert there.emptiest == 2
    assert healthy(replace(there, blocks={}), MEMORY) == {*ids(0, range(3)), *ids(2, range(2))}


def test_all_ids_of_a_gpu_out_of_service_change_at_once() -> None:
    """Those in use too: their containers have lost the GPU anyway."""
    there = node(3, 2, used={0: [1]}, unhealthy={0: "it fell off the bus"})
    assert healthy(there, MEMORY) == {*ids(1, range(2))}
    assert healthy(there, COUNT) == {uuid(1)}
    assert [offer.unhealthy for offer in offers(there, (MEMORY, ""))] == [True, False]


# --- showing less after a run of refusals


def test_a_bound_on_free_shares_is_met_by_the_emptiest_gpus_first() -> None:
    """Free are 2, 4 and 3 shares; shown are 5: 4 of GPU 1, 1 of GPU 2. Those in use stay healthy."""
    there = node(4, 4, 4, used={0: [0, 2], 2: [1]})
    assert healthy(there, MEMORY, 5) == {*ids(0, [0, 2]), *ids(1, range(4)), *ids(2, [0, 1])}
    assert [offer.fenced for offer in offers(there, (MEMORY, ""), 5)] == [{1, 3}, set(), {2, 3}]


def test_among_gpus_equally_empty_the_lower_position_shows_its_shares() -> None:
    assert healthy(node(2, 2), MEMORY, 2) == {*ids(0, range(2))}


def test_the_bound_counts_only_offered_shares() -> None:
    """GPU 0 is out of service, GPU 1 in whole use; both offer no shares anyway."""
    there = node(4, 4, 2, 2, whole=[1], unhealthy={0: "too hot"})
    assert healthy(there, MEMORY, 3) == {*ids(2, range(2)), *ids(3, [0])}
    assert [offer.unhealthy for offer in offers(there, (MEMORY, ""), 3)] == [True, False, False, False]


def test_whole_gpus_are_not_bounded() -> None:
    assert healthy(node(2, 2), COUNT, 0) == {uuid(0), uuid(1)}


# --- properties


@st.composite
def worlds(draw: st.DrawFn) -> Node:
    gib = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    return node(
        *gib,
        used={p: draw(st.sets(st.integers(0, size - 1))) for p, size in enumerate(gib) if draw(st.booleans())},
        whole=[p for p in range(len(gib)) if draw(st.integers(0, 2)) == 0],
        unhealthy={p: "broken" for p in range(len(gib)) if draw(st.integers(0, 4)) == 0},
        certain=draw(st.integers(0, 4)) > 0,
    )


@given(worlds())
def test_a_fence_is_exactly_the_use_of_the_other_resource(there: Node) -> None:
    for kind in Kind:
        for shared in there.shares.gpus:
            use = there.use(shared)
            other = use.whole if kind is MEMORY else bool(use.shares)
            for name in shared.ids((kind, "")):
                expected = shared.gpu.uuid not in there.blocks and (
                    name in there.ledger.id_states or (there.ledger.certain and not other)
                )
                assert (name in healthy(there, kind)) is expected


@given(worlds(), st.integers(0, 12))
def test_a_bound_withholds_just_the_excess(there: Node, most_free: int) -> None:
    plain, bounded = healthy(there, MEMORY), healthy(there, MEMORY, most_free)
    free = len(plain - there.ledger.id_states.keys())
    assert bounded <= plain
    assert len(bounded - there.ledger.id_states.keys()) == min(free, most_free)


@pytest.mark.parametrize("kind", OF_GPUS)
def test_free_ids_of_a_gpu_held_through_another_resource_are_fenced(kind: Kind) -> None:
    """One share of GPU 0 is ours and in use, and stays as it is; all else of the GPU is not offered."""
    there = node(3, 3, used={0: [1]})
    there = there.with_ledger(there.ledger.with_held_by_other_resource({uuid(0): "nvidia.com/gpu"}))
    shown = {name: healthy for offer in offers(there, (kind, "")) for name, healthy in offer.devices((kind, ""))}
    other = dict.fromkeys(there.shares.gpus[1].ids((kind, "")), True)
    ours = (
        {ids(0, [0])[0]: False, ids(0, [1])[0]: True, ids(0, [2])[0]: False}
        if kind is Kind.MEMORY
        else {uuid(0): False}
    )
    assert shown == other | ours


@pytest.mark.parametrize("kind", OF_GPUS)
def test_a_node_that_changes_over_offers_what_is_in_use_and_nothing_else(kind: Kind) -> None:
    here = replace(node(4, 4, 4, used={0: [1]}, whole=[2]), closing=True)
    healthy = [name for offer in offers(here, (kind, "")) for name, well in offer.devices((kind, "")) if well]
    assert healthy == ([*ids(0, [1])] if kind is Kind.MEMORY else [uuid(2)])


# --- Less while demands are refused again and again -------------------------------------------------------------------


def after(*refused: tuple[int, float], limit: int = 3) -> RecentRefusals:
    """The state after refusals of (shares, time)."""
    state = RecentRefusals(limit)
    for shares, at in refused:
        state = state.refused(shares, at)
    return state


RUN = after((8, 100.0), (8, 101.0), (8, 102.0))
"""A run of demands for 8 shares, the last refused at 102."""


@pytest.mark.parametrize(
    ("refused", "limit", "run"),
    [
        ([(8, 100.0), (8, 101.0)], 3, None),
        ([(8, 100.0), (7, 101.0), (8, 102.0), (7, 103.0)], 3, None),  # different sizes do not add up
        ([(8, 100.0), (8, 159.0), (8, 160.0)], 3, None),  # one of them is a minute old
        ([(8, 100.1), (8, 159.0), (8, 160.0)], 3, 8),
        ([(8, 100.0)] * 9, 10, None),
        ([(8, 100.0)] * 10, 10, 8),
        ([(8, 100.0)] * 50, 0, None),  # turned off
        ([(8, 100.0)], 1, 8),
        ([(8, 100.0)] * 3 + [(5, 103.0)] * 2, 3, 8),
        ([(8, 100.0)] * 3 + [(5, 103.0)] * 3, 3, 5),  # a smaller run is the stronger bound
        ([(8, 100.0)] * 3 + [(12, 103.0)] * 3, 3, 8),
        ([(8, 100.0)] * 3 + [(8, 400.0)], 3, None),  # the run is over, and does not come back with one refusal
        ([(8, 100.0)] * 3 + [(12, 400.0)] * 3, 3, 12),
    ],
)
def test_a_run_is_of_one_size_within_a_minute(refused: list[tuple[int, float]], limit: int, run: int | None) -> None:
    assert after(*refused, limit=limit).run == run


@pytest.mark.parametrize(
    ("emptiest", "now", "most_free"),
    [
        (4, 103.0, 7),  # eight are asked and no GPU has them: the scheduler looks elsewhere
        (8, 103.0, None),
        (9, 103.0, None),
        (4, 401.9, 7),
        (4, 402.0, None),  # five minutes after the last refusal
    ],
)
def test_a_run_offers_less_than_the_refused_size_until_it_is_over(
    emptiest: int, now: float, most_free: int | None
) -> None:
    assert RUN.most_free(emptiest, now) == most_free
    assert RUN.settled(emptiest, now) == (RecentRefusals(3) if most_free is None else RUN)


def test_without_a_run_there_is_nothing_to_settle() -> None:
    some = after((8, 100.0))
    assert some.settled(8, 1000.0) is some
    assert RecentRefusals().most_free(0, 0.0) is None
    assert RecentRefusals().limit == 10


def test_old_refusals_are_forgotten_and_a_new_one_prolongs_the_run() -> None:
    assert after((8, 100.0), (7, 150.0), (7, 165.0)).times == ((150.0, 7), (165.0, 7))
    assert RUN.refused(5, 400.0).most_free(4, 699.0) == 7


def test_as_many_free_shares_are_fenced_as_are_guaranteed_beyond_requests() -> None:
    there = node(8, 4, used={0: [0, 7]}, reserved={0: 2})
    assert [offer.fenced for offer in offers(there, SHARES)] == [{5, 6}, frozenset()]
    assert [offer.fenced for offer in offers(there, SHARES, 3)] == [{4, 5, 6}, {0, 1, 2, 3}]
    assert [offer.fenced for offer in offers(there, WHOLE_GPUS)] == [{0}, frozenset()]
