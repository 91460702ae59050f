"""A node at one moment."""

from dataclasses import replace

from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import Room
from tests.mig import mig_node
from tests.nodes import node


def test_rooms_show_the_state_of_each_gpu() -> None:
    there = node(4, 8, 2, used={0: [0, 3], 1: range(8)}, whole=[2], unhealthy={1: "it fell off the bus"})
    assert there.rooms() == (
        Room(0, total=4, free=2, healthy=True, shared=True, whole=False),
        Room(1, total=8, free=0, healthy=False, shared=True, whole=False),
        Room(2, total=2, free=2, healthy=True, shared=False, whole=True),
    )


def test_the_kubelets_count_of_free_shares_replaces_ours() -> None:
    there = node(4, used={0: [0]})
    assert there.room(there.shares.gpus[0], 1) == Room(0, total=4, free=1, shared=True)
    assert there.room(there.shares.gpus[0], 0) == Room(0, total=4, free=0, shared=True)


def test_more_ids_in_use_than_there_are_shares_leave_no_room() -> None:
    """The shares were half as large when these were given out."""
    there = node(4, used={0: range(6)})
    assert there.rooms() == (Room(0, total=4, free=0, shared=True),)


def test_the_emptiest_gpu_is_healthy_and_held_by_nobody_else() -> None:
    there = node(9, 4, 8, 7, used={1: [0]}, whole=[2], unhealthy={0: "it fell off the bus"})
    assert there.emptiest == 7
    assert (
        there.with_ledger(replace(there.ledger, held_by_other_resource={"GPU-3": "held by another resource"})).emptiest
        == 3
    )
    assert node(unhealthy={}).emptiest == 0
    assert node(4, used={0: range(6)}).emptiest == 0
    assert mig_node((10, 30), mode=MigMode.SHARE).emptiest == 30
    assert mig_node((10, 30), mode=MigMode.WHOLE).emptiest == 0


def test_guarantees_beyond_requests_leave_less_room() -> None:
    there = node(8, 8, used={0: [0, 1, 7]}, reserved={0: 2})
    assert there.rooms()[0] == Room(0, total=8, free=3, shared=True)
    assert there.emptiest == 8
    assert (
        there.with_ledger(replace(there.ledger, held_by_other_resource={"GPU-1": "held by another resource"})).emptiest
        == 3
    )


def test_the_free_shares_with_the_highest_numbers_stand_for_them() -> None:
    there = node(8, 8, used={0: [0, 1, 7]}, reserved={0: 2})
    first, second = there.shares.gpus
    assert there.reserved_share_numbers(first) == {5, 6}
    assert not there.reserved_share_numbers(second)
    full = node(4, used={0: [0]}, reserved={0: 9})
    assert full.reserved_share_numbers(full.shares.gpus[0]) == {1, 2, 3}
    assert full.rooms()[0].free == 0
