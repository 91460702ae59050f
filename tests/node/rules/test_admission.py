"""The decision behind Allocate."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.node.rules.admission import (
    Refusal,
    RefusalCode,
    admit,
    refuse_request,
    refuse_without_nodes,
)
from gpu_device_plugin.node.rules.container_grants import CONTROL_NODES, Delivery
from gpu_device_plugin.node.rules.matching import ContainerRequest, Match, WaitingPod
from gpu_device_plugin.node.rules.node import Block, Node
from tests.nodes import ids, node, uuid

MEMORY, COUNT = Kind.MEMORY, Kind.COUNT
ASIDE = replace(node(8, 8), blocks={uuid(1): Block(new_pods="cordoned by alice")})


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
    ("there", "kind", "device_ids", "why", "part"),
    [
        (node(8), MEMORY, ["GPU-7::0"], RefusalCode.UNKNOWN_DEVICE, "device GPU-7::0 is not on this node"),
        (node(8), MEMORY, [*ids(0, [7, 8]), "GPU-7::0"], RefusalCode.UNKNOWN_DEVICE, "device GPU-0::8 is"),
        (node(8), COUNT, ["GPU-0", "GPU-7"], RefusalCode.UNKNOWN_DEVICE, "device GPU-7 is"),
        # An ID of the other resource is none of this one.
        (node(8), MEMORY, ["GPU-0"], RefusalCode.UNKNOWN_DEVICE, "device GPU-0 is"),
        (node(8), COUNT, ["GPU-0::0"], RefusalCode.UNKNOWN_DEVICE, "device GPU-0::0 is"),
        (ASIDE, MEMORY, ids(1, [1]), RefusalCode.CORDONED, "GPU 1 takes no new pods: it is cordoned by alice"),
        (ASIDE, COUNT, [uuid(0), uuid(1)], RefusalCode.CORDONED, "GPU 1 takes no new pods: it is cordoned by alice"),
        (
            node(8, 8, unhealthy={1: "XID 79"}),
            MEMORY,
            ids(1, [0]),
            RefusalCode.UNHEALTHY,
            "GPU 1 is unhealthy: XID 79",
        ),
        (
            node(8, 8, unhealthy={1: "XID 79"}),
            COUNT,
            [uuid(0), uuid(1)],
            RefusalCode.UNHEALTHY,
            "GPU 1 is unhealthy",
        ),
        (node(8, 8, whole=[1]), MEMORY, ids(1, [0]), RefusalCode.IN_WHOLE_USE, "GPU 1 is exclusively allocated"),
        (node(8, 8, used={1: [0, 5, 6]}), COUNT, [uuid(0), uuid(1)], RefusalCode.SHARES_IN_USE, "3 GiB of its memory"),
        # Of several barred GPUs the first is named.
        (
            node(8, 8, 8, used={1: [0]}, unhealthy={2: "too hot"}),
            COUNT,
            [uuid(2), uuid(1), uuid(0)],
            RefusalCode.SHARES_IN_USE,
            "GPU 1 cannot be taken whole: 1 GiB",
        ),
        # While the checkpoint is unreadable only held IDs are allocated again.
        (
            node(8, used={0: [0, 1]}, certain=False),
            MEMORY,
            ids(0, [2]),
            RefusalCode.RECORDS_UNREADABLE,
            "cannot be read",
        ),
        (
            node(8, used={0: [0, 1]}, certain=False),
            MEMORY,
            ids(0, [1, 2]),
            RefusalCode.RECORDS_UNREADABLE,
            "cannot be read",
        ),
        (node(8, certain=False), COUNT, [uuid(0)], RefusalCode.RECORDS_UNREADABLE, "cannot be read"),
    ],
)
def test_devices_that_cannot_be_given_are_refused_with_the_reason(
    there: Node, kind: Kind, device_ids: Sequence[str], why: RefusalCode, part: str
) -> None:
    refused = admit(there, kind, device_ids)
    assert isinstance(refused, Refusal)
    assert refused.code is why
    assert part in refused.sentence


def test_while_the_checkpoint_is_unreadable_held_ids_are_allocated_again() -> None:
    there = node(8, 8, used={0: [0, 1]}, whole=[1], certain=False)
    assert isinstance(admit(there, MEMORY, ids(0, [0, 1])), Placement)
    assert isinstance(admit(there, COUNT, [uuid(1)]), Placement)


# --- several GPUs


def test_shares_of_several_gpus_are_allocated_if_exactly_they_were_promised() -> None:
    there = node(8, 8, 8)
    promise = Promise(((0, 2), (2, 2)))
    device_ids = (*ids(2, [0, 1]), *ids(0, [5, 6]))
    assert admit(there, MEMORY, device_ids, promise) == Placement(Demand(MEMORY, 4, gpus=2), ((0, 2), (2, 2)))


def test_equal_parts_of_gpus_other_than_the_promised_ones_serve_as_well() -> None:
    found = admit(node(8, 8, 8), MEMORY, (*ids(1, [0, 1]), *ids(2, [0, 1])), Promise(((0, 2), (1, 2))))
    assert found == Placement(Demand(MEMORY, 4, gpus=2), ((1, 2), (2, 2)))


def test_shares_of_one_gpu_are_given_though_others_were_promised() -> None:
    """Equal pods were swapped: neither loses."""
    assert isinstance(admit(node(8, 8), MEMORY, ids(1, [0, 1]), Promise(((0, 2),))), Placement)


TWO = (*ids(0, [0, 1]), *ids(1, [0, 1]))
PARTS = (*ids(0, range(5)), *ids(1, range(5)), *ids(2, range(2)))
SIX_EACH = Promise(((0, 6), (2, 6)))
TWO_EACH = Promise(((0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("there", "device_ids", "promise", "why", "sentence"),
    [
        # Shares of several GPUs need that very promise.
        (
            node(8, 8, 8),
            TWO,
            None,
            RefusalCode.SCATTERED,
            "4 GiB requested, and the kubelet chose shares of several GPUs although",
        ),
        (
            node(8, 8, 8),
            TWO,
            Promise(((0, 4),)),
            RefusalCode.SCATTERED,
            "shares of several GPUs although one GPU has room",
        ),
        (node(8, 8, 8), TWO, Promise(((0, 1), (1, 3))), RefusalCode.SCATTERED, "shares of several GPUs although"),
        (node(8, 8, 8), TWO, Promise(((0, 3), (2, 3))), RefusalCode.SCATTERED, "shares of several GPUs although"),
        (node(8, 8, 8), TWO, Promise(()), RefusalCode.SCATTERED, "shares of several GPUs although"),
        # Equal parts were promised.
        (
            node(8, 8, 8),
            PARTS,
            SIX_EACH,
            RefusalCode.SCATTERED,
            "the kubelet chose unequal shares of 2 GPUs",
        ),
        (node(8, 8), ids(0, range(4)), TWO_EACH, RefusalCode.SCATTERED, "unequal shares of 2 GPUs"),
        (
            node(8, 8, 8, used={0: [5, 6, 7], 2: [5, 6, 7]}),
            PARTS,
            SIX_EACH,
            RefusalCode.NO_ROOM,
            "12 GiB requested from 2 GPUs, healthy GPUs with 6 GiB free: 1",
        ),
        (node(5, 5, 5), PARTS, SIX_EACH, RefusalCode.TOO_LARGE, "from 2 GPUs, healthy GPUs with 6 GiB free: 0"),
        # A GPU twice the size does not stand for two, of which one is in whole use.
        (node(8, 8, whole=[1]), ids(0, range(4)), TWO_EACH, RefusalCode.NO_ROOM, "healthy GPUs with 2 GiB free: 1"),
        # No single GPU has room.
        (
            node(8, 8, used={0: range(3), 1: range(5)}),
            (*ids(0, [4, 5, 6, 7]), *ids(1, [5, 6])),
            None,
            RefusalCode.NO_ROOM,
            "6 GiB requested, the emptiest healthy GPU has 5 GiB free",
        ),
        (
            node(8, 8, used={0: [0], 1: [0]}),
            (*ids(0, range(1, 8)), *ids(1, [1])),
            None,
            RefusalCode.NO_ROOM,
            "8 GiB requested, the emptiest healthy GPU has 7 GiB free",
        ),
        (
            node(4, 8, used={1: range(4)}),
            (*ids(0, range(4)), *ids(1, range(3, 8))),
            None,
            RefusalCode.TOO_LARGE,
            "9 GiB requested, the largest GPU of this node has 8 GiB",
        ),
    ],
)
def test_scattered_shares_are_refused_with_what_there_is(
    there: Node, device_ids: Sequence[str], promise: Promise | None, why: RefusalCode, sentence: str
) -> None:
    refused = admit(there, MEMORY, device_ids, promise)
    assert isinstance(refused, Refusal)
    assert (refused.code, sentence in refused.sentence) == (why, True)


MEND = "GPU 0, which has less; have the init container request as much as the largest container"


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
    assert admit(there, MEMORY, (*ids(0, [2, 3]), *ids(1, [0, 1])), after_init=after_init) == Refusal(
        RefusalCode.SCATTERED, f"GPU memory: 4 GiB requested, {why}"
    )


def test_shares_that_were_drawn_at_random_of_gpus_that_give_no_parts_are_refused_for_that() -> None:
    """No GPU gives parts, so none was preferred; the kubelet's choice is not the fault."""
    there = replace(node(8, 8), blocks={uuid(at): Block(parts="limits are not there") for at in (0, 1)})
    refused = admit(there, MEMORY, (*ids(0, [0, 1]), *ids(1, [0])))
    assert refused == Refusal(RefusalCode.NO_LIMIT, "GPU 0, GPU 1: limits are not there")


def test_all_gpus_of_an_init_container_are_named() -> None:
    there = node(8, 8, 8, used={0: range(8), 1: range(8)})
    refused = admit(there, MEMORY, (*ids(0, [0]), *ids(1, [0]), *ids(2, [0])), after_init=True)
    assert isinstance(refused, Refusal)
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


@given(worlds(), st.data())
def test_ids_that_are_free_in_all_records_are_allocated(there: Node, data: st.DataObject) -> None:
    """No refusal without cause."""
    good = [
        shared
        for shared in there.shares.gpus
        if shared.gpu.uuid not in there.blocks and not there.use(shared).whole and there.ledger.certain
    ]
    for shared in good:
        some = data.draw(st.lists(st.sampled_from(shared.shares), unique=True, min_size=1))
        assert admit(there, MEMORY, some) == Placement(Demand(MEMORY, len(some)), ((shared.position, len(some)),))


@pytest.mark.parametrize("kind", OF_GPUS)
def test_a_gpu_held_through_another_resource_is_not_allocated(kind: Kind) -> None:
    there = node(8, 8)
    there = there.with_ledger(there.ledger.with_held_by_other_resource({uuid(0): "nvidia.com/gpu"}))
    refused = admit(there, kind, there.shares.gpus[0].ids((kind, ""))[:1])
    assert refused == Refusal(
        RefusalCode.OTHER_RESOURCE, "GPU 0 is in use through nvidia.com/gpu, which this agent does not offer"
    )
    assert isinstance(admit(there, kind, there.shares.gpus[1].ids((kind, ""))[:1]), Placement)


@pytest.mark.parametrize(("kind", "lost"), [(MEMORY, ids(0, [2, 3])), (COUNT, (uuid(0),))])
def test_devices_that_the_kubelet_has_forgotten_are_refused_until_their_pods_end(
    kind: Kind, lost: Sequence[str]
) -> None:
    there = node(8, 8)
    there = there.with_ledger(there.ledger.with_forgotten(frozenset(lost)))
    asked = there.shares.gpus[0].ids((kind, ""))[:3]
    assert admit(there, kind, asked) == Refusal(
        RefusalCode.FORGOTTEN,
        "the kubelet chose devices of GPU 0 that running containers use: its record of them was lost with its "
        "checkpoint; they become free when the pods of those containers end",
    )
    assert isinstance(admit(there, kind, there.shares.gpus[1].ids((kind, ""))[:1]), Placement)
    assert isinstance(admit(there.with_ledger(there.ledger.with_forgotten(frozenset())), kind, asked), Placement)


# --- Device nodes ----------------------------------------------------------------------------------------------------


def test_a_container_waits_for_the_device_nodes_that_every_container_needs() -> None:
    by_path = Delivery(methods=frozenset({"device-specs"}))
    shares = node(8).shares
    missing = refuse_without_nodes(by_path, {"/dev/nvidiactl"}, shares)
    assert missing is not None
    assert (missing.code, missing.sentence.split()[0]) == (RefusalCode.NO_DEVICE_NODE, "/dev/nvidia-uvm")
    assert refuse_without_nodes(by_path, CONTROL_NODES, shares) is None
    assert refuse_without_nodes(Delivery(methods=frozenset({"cdi"})), (), shares) is None
    gpu = replace(shares.gpus[0].gpu, driver="amdgpu")
    assert refuse_without_nodes(by_path, (), shares.with_inventory(Inventory((gpu,)))) is None


# --- The requests of a pod --------------------------------------------------------------------------------------------


def asking(*wanted: ContainerRequest) -> Refusal | None:
    return refuse_request(Match(WaitingPod("a", "default/a", wanted), wanted[0]))


def test_a_container_cannot_have_both_resources() -> None:
    refusal = asking(ContainerRequest("main", MEMORY, 2), ContainerRequest("main", COUNT, 1))
    assert refusal is not None
    assert (refusal.code, "'main' requests GPU memory and whole GPUs at once" in refusal.sentence) == (
        RefusalCode.BOTH_RESOURCES,
        True,
    )
    assert asking(ContainerRequest("main", MEMORY, 2), ContainerRequest("other", COUNT, 1)) is None
    assert refuse_request(None) is None


@pytest.mark.parametrize(("containers", "why"), [(64, None), (65, RefusalCode.TOO_MANY_CONTAINERS)])
def test_a_pod_has_no_more_containers_than_a_call_can_look_at(containers: int, why: RefusalCode | None) -> None:
    refusal = asking(*(ContainerRequest(f"c{number}", MEMORY, 2) for number in range(containers)))
    assert (None if refusal is None else refusal.code) == why


# --- Shares beyond a request ------------------------------------------------------------------------------------------


def test_shares_that_running_containers_are_guaranteed_beyond_their_requests_are_refused() -> None:
    """The list that fences them may still be on its way to the kubelet."""
    there = node(8, 8, used={0: [0, 1]}, reserved={0: 3})
    assert admit(there, MEMORY, ids(0, [5, 6, 7])) == Placement(Demand(MEMORY, 3), ((0, 3),))
    assert admit(there, MEMORY, ids(0, [0, 1, 2, 3, 4])) == Placement(Demand(MEMORY, 5), ((0, 5),))
    assert isinstance(admit(there, MEMORY, ids(1, range(8))), Placement)
    assert admit(there, MEMORY, ids(0, [2, 3, 4, 5])) == Refusal(
        RefusalCode.GUARANTEED,
        "GPU 0 has 3 GiB that is not guaranteed to any container, and 4 GiB is requested: the guarantee of a running "
        "container grew while this pod was being placed; delete the pod to try again",
    )
