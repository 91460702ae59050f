"""The decision behind Allocate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.core.contract.promises import Promise
from gpu_device_plugin.core.model.limits import GpuRung, Rung
from gpu_device_plugin.core.model.placing import Demand, Placement
from gpu_device_plugin.core.model.resources import OF_GPUS, Kind
from gpu_device_plugin.core.node.admitting import Refused, Why, admit, refuse_request, refuse_unlimited
from gpu_device_plugin.core.node.extra_grant import NOBODY, ExtraGrant, Owner
from gpu_device_plugin.core.node.limit_grants import NO_MEANS, Means
from gpu_device_plugin.core.node.matching import Match, WaitingPod, Wanted
from tests.nodes import ids, node, uuid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.core.node.node import Node

MEMORY, COUNT = Kind.MEMORY, Kind.COUNT


def test_shares_of_one_gpu_are_allocated() -> None:
    there = node(8, 8, used={1: [0]})
    assert admit(there, MEMORY, ids(1, [3, 1, 2])) == Placement(Demand(MEMORY, 3), ((1, 3),))


def test_whole_gpus_are_given_with_all_their_shares() -> None:
    there = node(8, 4, 6)
    assert admit(there, COUNT, [uuid(2), uuid(0)]) == Placement(Demand(COUNT, 2), ((0, 8), (2, 6)))


def test_within_one_resource_the_kubelet_is_trusted() -> None:
    """It reuses IDs of an init container, and IDs that it knows to be free before we do."""
    there = node(8, 8, used={0: [0, 1]}, whole=[1])
    assert isinstance(admit(there, MEMORY, ids(0, [0, 1, 2])), Placement)
    assert isinstance(admit(there, COUNT, [uuid(1)]), Placement)


@pytest.mark.parametrize(
    ("kind", "device_ids", "culprit"),
    [
        (MEMORY, ["GPU-7::0"], "GPU-7::0"),
        (MEMORY, [*ids(0, [7]), *ids(0, [8]), "GPU-7::0"], "GPU-0::8"),
        (COUNT, ["GPU-0", "GPU-7"], "GPU-7"),
        # An ID of the other resource is none of this one.
        (MEMORY, ["GPU-0"], "GPU-0"),
        (COUNT, ["GPU-0::0"], "GPU-0::0"),
    ],
)
def test_a_device_that_is_not_ours_is_refused(kind: Kind, device_ids: Sequence[str], culprit: str) -> None:
    assert admit(node(8), kind, device_ids) == Refused(
        Why.UNKNOWN_DEVICE,
        f"device {culprit} is not on this node (any more), although the kubelet still knows it; "
        "delete the pod so that it is scheduled again",
    )


@pytest.mark.parametrize(("kind", "device_ids"), [(MEMORY, ids(1, [0])), (COUNT, [uuid(0), uuid(1)])])
def test_a_gpu_out_of_service_is_refused_with_its_reason(kind: Kind, device_ids: Sequence[str]) -> None:
    there = node(8, 8, unhealthy={1: "it fell off the bus (XID 79)"})
    assert admit(there, kind, device_ids) == Refused(
        Why.UNHEALTHY, "GPU 1 is out of service: it fell off the bus (XID 79)"
    )


def test_shares_of_a_gpu_in_whole_use_are_refused() -> None:
    assert admit(node(8, 8, whole=[1]), MEMORY, ids(1, [0])) == Refused(
        Why.IN_WHOLE_USE, "GPU 1 is in whole use by another container"
    )


def test_a_gpu_with_shares_in_use_is_not_given_whole() -> None:
    assert admit(node(8, 8, used={1: [0, 5, 6]}), COUNT, [uuid(0), uuid(1)]) == Refused(
        Why.SHARES_IN_USE, "GPU 1 cannot be taken whole: 3 GiB of its memory are in use"
    )


def test_of_several_barred_gpus_the_first_is_named() -> None:
    there = node(8, 8, 8, used={1: [0]}, unhealthy={2: "too hot"})
    refused = admit(there, COUNT, [uuid(2), uuid(1), uuid(0)])
    assert refused == Refused(Why.SHARES_IN_USE, "GPU 1 cannot be taken whole: 1 GiB of its memory are in use")


UNREADABLE = Refused(
    Why.RECORDS_UNREADABLE,
    "the kubelet's checkpoint cannot be read, so nothing proves that these devices are free; "
    "the log of the GPU device plugin on this node says what to do",
)


def test_while_the_checkpoint_is_unreadable_only_held_ids_are_allocated_again() -> None:
    there = node(8, 8, used={0: [0, 1]}, whole=[1], certain=False)
    assert admit(there, MEMORY, ids(0, [2])) == UNREADABLE
    assert admit(there, MEMORY, ids(0, [1, 2])) == UNREADABLE
    assert isinstance(admit(there, MEMORY, ids(0, [0, 1])), Placement)
    assert isinstance(admit(there, COUNT, [uuid(1)]), Placement)
    assert isinstance(admit(node(8, used={0: [0, 1]}, certain=False), MEMORY, ids(0, [0, 1])), Placement)
    assert admit(node(8, certain=False), COUNT, [uuid(0)]) == UNREADABLE


# --- several GPUs


def test_shares_of_several_gpus_are_allocated_if_exactly_they_were_promised() -> None:
    there = node(8, 8, 8)
    promise = Promise(((0, 2), (2, 2)))
    device_ids = (*ids(2, [0, 1]), *ids(0, [5, 6]))
    assert admit(there, MEMORY, device_ids, promise) == Placement(Demand(MEMORY, 4, gpus=2), ((0, 2), (2, 2)))


@pytest.mark.parametrize(
    "promise",
    [None, Promise(((0, 4),)), Promise(((0, 1), (1, 3))), Promise(((0, 3), (2, 3))), Promise(())],
    ids=["none", "one GPU", "other sizes", "of more", "nothing"],
)
def test_shares_of_several_gpus_are_refused_without_that_very_promise(promise: Promise | None) -> None:
    refused = admit(node(8, 8, 8), MEMORY, (*ids(0, [0, 1]), *ids(1, [0, 1])), promise)
    assert refused == Refused(
        Why.SCATTERED,
        "GPU memory: 4 GiB asked, and the kubelet chose shares of several GPUs although one GPU has room; "
        "delete the pod to try again",
    )


@pytest.mark.parametrize(
    ("sizes", "used", "refused"),
    [
        (
            (8, 8, 8),
            {},
            Refused(
                Why.SCATTERED,
                "GPU memory: 12 GiB asked, and the kubelet chose shares that are not equal parts of 2 GPUs; "
                "delete the pod to try again",
            ),
        ),
        (
            (8, 8, 8),
            {0: [5, 6, 7], 2: [5, 6, 7]},
            Refused(Why.NO_ROOM, "GPU memory: 12 GiB asked from 2 GPUs, healthy GPUs with 6 GiB free: 1"),
        ),
        (
            (5, 5, 5),
            {},
            Refused(Why.TOO_LARGE, "GPU memory: 12 GiB asked from 2 GPUs, healthy GPUs with 6 GiB free: 0"),
        ),
    ],
)
def test_a_refusal_of_equal_parts_of_several_gpus_names_the_parts(
    sizes: tuple[int, ...], used: dict[int, list[int]], refused: Refused
) -> None:
    """6 GiB each of GPUs 0 and 2 were promised."""
    device_ids = (*ids(0, range(5)), *ids(1, range(5)), *ids(2, range(2)))
    assert admit(node(*sizes, used=used), MEMORY, device_ids, Promise(((0, 6), (2, 6)))) == refused


def test_equal_parts_of_gpus_other_than_the_promised_ones_serve_as_well() -> None:
    found = admit(node(8, 8, 8), MEMORY, (*ids(1, [0, 1]), *ids(2, [0, 1])), Promise(((0, 2), (1, 2))))
    assert found == Placement(Demand(MEMORY, 4, gpus=2), ((1, 2), (2, 2)))


def test_a_promise_of_two_gpus_is_not_met_by_one() -> None:
    refused = admit(node(8, 8), MEMORY, ids(0, range(4)), Promise(((0, 2), (1, 2))))
    assert refused == Refused(
        Why.SCATTERED,
        "GPU memory: 4 GiB asked, and the kubelet chose shares that are not equal parts of 2 GPUs; "
        "delete the pod to try again",
    )


def test_a_gpu_twice_the_size_does_not_stand_for_two() -> None:
    """GPU 1 is in whole use: no container can get 2 of each of two GPUs."""
    refused = admit(node(8, 8, whole=[1]), MEMORY, ids(0, range(4)), Promise(((0, 2), (1, 2))))
    assert refused == Refused(Why.NO_ROOM, "GPU memory: 4 GiB asked from 2 GPUs, healthy GPUs with 2 GiB free: 1")


def test_shares_of_one_gpu_are_given_though_others_were_promised() -> None:
    """Equal pods were swapped: neither loses."""
    assert isinstance(admit(node(8, 8), MEMORY, ids(1, [0, 1]), Promise(((0, 2),))), Placement)


def test_shares_of_several_gpus_are_refused_because_no_single_one_has_room() -> None:
    there = node(8, 8, used={0: range(3), 1: range(5)})
    assert admit(there, MEMORY, (*ids(0, [4, 5, 6, 7]), *ids(1, [5, 6]))) == Refused(
        Why.NO_ROOM, "GPU memory: 6 GiB asked, the emptiest healthy GPU has 5 GiB free"
    )


def test_a_request_larger_than_every_gpu_is_too_large() -> None:
    there = node(4, 8, used={1: range(4)})
    assert admit(there, MEMORY, (*ids(0, range(4)), *ids(1, range(3, 8)))) == Refused(
        Why.TOO_LARGE,
        "GPU memory: 9 GiB asked, the largest GPU of this node has 8 GiB in all, so it can never run here",
    )


def test_a_request_as_large_as_the_largest_gpu_is_not_too_large() -> None:
    there = node(8, 8, used={0: [0], 1: [0]})
    assert admit(there, MEMORY, (*ids(0, range(1, 8)), *ids(1, [1]))) == Refused(
        Why.NO_ROOM, "GPU memory: 8 GiB asked, the emptiest healthy GPU has 7 GiB free"
    )


MEND = "GPU 0, which has less; let the init container ask as much as the largest container"


@pytest.mark.parametrize(
    ("after_init", "why"),
    [
        (True, f"but an init container of this pod took {MEND}"),
        (None, f"but an init container of this pod seems to have had {MEND}, or delete the pod to try again"),
        (False, "and the kubelet chose shares of several GPUs although one GPU has room; delete the pod to try again"),
    ],
    ids=["served", "not known", "none"],
)
def test_the_refusal_after_a_smaller_init_container_names_the_remedy(why: str, *, after_init: bool | None) -> None:
    """The init container took 2 GiB of GPU 0, whose other shares are in use; GPU 1 could serve all 4 GiB.

    Shares that we hold may as well be those of a pod that has just ended, if the container of the call is unknown.
    """
    there = node(8, 8, used={0: range(8)})
    assert admit(there, MEMORY, (*ids(0, [2, 3]), *ids(1, [0, 1])), after_init=after_init) == Refused(
        Why.SCATTERED, f"GPU memory: 4 GiB asked, {why}"
    )


def test_all_gpus_of_an_init_container_are_named() -> None:
    there = node(8, 8, 8, used={0: range(8), 1: range(8)})
    refused = admit(there, MEMORY, (*ids(0, [0]), *ids(1, [0]), *ids(2, [0])), after_init=True)
    assert isinstance(refused, Refused)
    assert "an init container of this pod took GPU 0, GPU 1, which has less" in refused.sentence


# --- properties


@st.composite
def worlds(draw: st.DrawFn) -> Node:
    gib = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    return node(
        *gib,
        used={p: draw(st.sets(st.integers(0, size - 1))) for p, size in enumerate(gib) if draw(st.booleans())},
        whole=[p for p in range(len(gib)) if draw(st.integers(0, 4)) == 0],
        unhealthy={p: "broken" for p in range(len(gib)) if draw(st.integers(0, 4)) == 0},
        certain=draw(st.integers(0, 4)) > 0,
    )


@given(worlds(), st.sampled_from(Kind), st.data())
def test_no_forbidden_placement_is_allocated(there: Node, kind: Kind, data: st.DataObject) -> None:
    """For every call: never shares of two GPUs without that promise, never both uses of one GPU."""
    every = [name for shared in there.shares.gpus for k in Kind for name in shared.ids((k, ""))]
    device_ids = data.draw(st.lists(st.sampled_from([*every, "GPU-9::0"]), unique=True, min_size=1, max_size=6))
    positions = st.integers(0, len(there.shares.gpus) - 1)
    shares = data.draw(st.none() | st.dictionaries(positions, st.integers(1, 3)))
    promise = None if shares is None else Promise(tuple(sorted(shares.items())))
    answer = admit(there, kind, device_ids, promise)
    if isinstance(answer, Refused):
        assert answer.sentence
        return
    assert {name for shared in there.shares.gpus for name in shared.ids((kind, ""))} >= set(device_ids)
    assert len(answer.positions) == 1 or kind is COUNT or (promise is not None and answer.shares == promise.shares)
    for position in answer.positions:
        use = there.use(there.shares.gpus[position])
        assert not (use.whole if kind is MEMORY else use.shares)
        assert uuid(position) not in there.unhealthy
    assert there.ledger.certain or set(device_ids) <= there.ledger.holds.keys()
    assert answer.demand.amount == len(device_ids)


@given(worlds(), st.data())
def test_ids_that_are_free_in_all_records_are_allocated(there: Node, data: st.DataObject) -> None:
    """No refusal without cause."""
    good = [
        shared
        for shared in there.shares.gpus
        if shared.gpu.uuid not in there.unhealthy and not there.use(shared).whole and there.ledger.certain
    ]
    for shared in good:
        some = data.draw(st.lists(st.sampled_from(shared.shares), unique=True, min_size=1))
        assert admit(there, MEMORY, some) == Placement(Demand(MEMORY, len(some)), ((shared.position, len(some)),))


@pytest.mark.parametrize("kind", OF_GPUS)
def test_a_gpu_held_through_another_resource_is_not_allocated(kind: Kind) -> None:
    there = node(8, 8)
    there = there.with_ledger(there.ledger.with_foreign({uuid(0): "nvidia.com/gpu"}))
    refused = admit(there, kind, there.shares.gpus[0].ids((kind, ""))[:1])
    assert refused == Refused(
        Why.OTHER_RESOURCE, "GPU 0 is in use through nvidia.com/gpu, which this agent does not offer"
    )
    assert isinstance(admit(there, kind, there.shares.gpus[1].ids((kind, ""))[:1]), Placement)


@pytest.mark.parametrize(("kind", "lost"), [(MEMORY, ids(0, [2, 3])), (COUNT, (uuid(0),))])
def test_devices_that_the_kubelet_has_forgotten_are_refused_until_their_pods_end(
    kind: Kind, lost: Sequence[str]
) -> None:
    there = node(8, 8)
    there = there.with_ledger(there.ledger.with_forgotten(frozenset(lost)))
    asked = there.shares.gpus[0].ids((kind, ""))[:3]
    assert admit(there, kind, asked) == Refused(
        Why.FORGOTTEN,
        "the kubelet chose devices of GPU 0 that running containers use: its record of them was lost with its "
        "checkpoint; they become free when the pods of those containers end",
    )
    assert isinstance(admit(there, kind, there.shares.gpus[1].ids((kind, ""))[:1]), Placement)
    assert isinstance(admit(there.with_ledger(there.ledger.with_forgotten(frozenset())), kind, asked), Placement)


# --- The requests of a pod --------------------------------------------------------------------------------------------


def asking(*wanted: Wanted) -> Refused | None:
    return refuse_request(Match(WaitingPod("a", "default/a", wanted), wanted[0]))


def test_a_container_cannot_have_both_resources() -> None:
    refused = asking(Wanted("main", MEMORY, 2), Wanted("main", COUNT, 1))
    assert refused is not None
    assert (refused.why, "'main' asks for GPU memory and for whole GPUs at once" in refused.sentence) == (
        Why.BOTH_RESOURCES,
        True,
    )
    assert asking(Wanted("main", MEMORY, 2), Wanted("other", COUNT, 1)) is None
    assert refuse_request(None) is None


@pytest.mark.parametrize(("containers", "why"), [(64, None), (65, Why.TOO_MANY_CONTAINERS)])
def test_a_pod_has_no_more_containers_than_a_call_can_look_at(containers: int, why: Why | None) -> None:
    refused = asking(*(Wanted(f"c{number}", MEMORY, 2) for number in range(containers)))
    assert (None if refused is None else refused.why) == why


# --- Memory limits that are required ----------------------------------------------------------------------------------

BARRED = Means({uuid(1): GpuRung(Rung.ADVISORY, "why", "there is no daemon")})


def test_shares_of_a_gpu_without_the_required_limits_are_refused() -> None:
    """Also those that the kubelet put together at random; whole GPUs have no limits."""
    there = node(8, 8)
    refused = Refused(Why.NO_LIMIT, "GPU 1: there is no daemon")
    for device_ids in (ids(1, [0, 1]), (*ids(0, [3]), *ids(1, [0]))):
        assert refuse_unlimited(there, MEMORY, device_ids, BARRED, NOBODY) == refused
    assert refuse_unlimited(there, MEMORY, ids(0, [0, 1]), BARRED, NOBODY) is None
    assert refuse_unlimited(there, COUNT, [uuid(1)], BARRED, NOBODY) is None
    assert refuse_unlimited(there, MEMORY, ids(1, [0]), NO_MEANS, NOBODY) is None
    assert refuse_unlimited(there, MEMORY, ["GPU-gone::1"], BARRED, NOBODY) is None


def test_an_extra_grant_for_a_pod_that_is_not_known_is_refused_where_limits_are_required() -> None:
    there = node(8, 8)
    custom = Means({uuid(0): GpuRung(Rung.CUSTOM, "")}, extra=ExtraGrant((("X", "{pod_uid}"),)), refuse=True)
    refused = refuse_unlimited(there, MEMORY, ids(0, [0]), custom, NOBODY)
    assert refused is not None
    assert (refused.why, refused.sentence.partition(" {")[0]) == (
        Why.NO_LIMIT,
        "GPU 0: the node's extra_grant needs",
    )
    assert refuse_unlimited(there, MEMORY, ids(0, [0]), custom, Owner("u", "main")) is None
