"""MIG instances cut into device IDs, by the way in which a node gives them to pods."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.gpus import MOST_POSITIONS, Inventory
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import OF_GPU, SHARES, WHOLE_GPUS, SharedGpu, Shares, TooManySharesError
from tests.mig import gpus, instance, inventory

ONE_G, THREE_G = (Kind.INSTANCE, "1g.10gb"), (Kind.INSTANCE, "3g.30gb")
OFF, WHOLE, SHARE = MigMode
WOULD_BE = "that --mig=whole or --mig=share, or the node label gpu-device-plugin/mig, would allocate to pods"


def cut(*cards: int | tuple[int, ...], mode: MigMode, **more: object) -> Shares:
    return Shares(1024).with_inventory(inventory(*cards), mig=mode, **more)  # type: ignore[arg-type]


def told(shares: Shares) -> dict[str, str]:
    return {gpu.uuid: why for gpu, why in shares.left_out}


def ids(shared: SharedGpu) -> dict[tuple[Kind, str], int]:
    return {listing: len(shared.ids(listing)) for listing in (SHARES, WHOLE_GPUS, ONE_G, THREE_G)}


def test_instances_are_shared_by_memory() -> None:
    shares = cut((10, 30), 4, mode=SHARE)
    assert [shared.gpu.uuid for shared in shares.gpus] == ["MIG-0-0", "MIG-0-1", "GPU-1"]
    assert [ids(shared) for shared in shares.gpus] == [
        {SHARES: 10, WHOLE_GPUS: 0, ONE_G: 0, THREE_G: 0},
        {SHARES: 30, WHOLE_GPUS: 0, ONE_G: 0, THREE_G: 0},
        {SHARES: 4, WHOLE_GPUS: 1, ONE_G: 0, THREE_G: 0},
    ]
    assert shares.gpus[0].ids(SHARES)[:2] == ("MIG-0-0::0", "MIG-0-0::1")
    assert (shares.profiles, shares.left_out, shares.mig) == ((), (), SHARE)


def test_instances_are_given_whole_by_their_profile() -> None:
    shares = cut((10, 30, 10), 4, mode=WHOLE)
    assert [ids(shared)[ONE_G] for shared in shares.gpus] == [1, 0, 1, 0]
    assert [ids(shared)[THREE_G] for shared in shares.gpus] == [0, 1, 0, 0]
    assert shares.gpus[1].ids(THREE_G) == ("MIG-0-1",)
    assert [len(shared.ids(SHARES)) for shared in shares.gpus] == [0, 0, 0, 4]
    assert shares.profiles == ("1g.10gb", "3g.30gb")


def test_an_instance_too_small_for_a_share_is_given_whole_only() -> None:
    assert cut((10,), mode=WHOLE).gpus
    large = Shares(20 * 1024)
    assert large.with_inventory(inventory((10,)), mig=WHOLE).profiles == ("1g.10gb",)
    left = large.with_inventory(inventory((10,)), mig=SHARE)
    assert told(left) == {"MIG-0-0": "10 GiB, less than one share of 20 GiB"}


@pytest.mark.parametrize(
    ("card", "mode", "why"),
    [
        ((), SHARE, "in MIG mode and without instances, which nvidia-smi mig or mig-parted creates"),
        ((10,), OFF, f"in MIG mode, with 1 instance {WOULD_BE}"),
        ((10, 10), OFF, f"in MIG mode, with 2 instances {WOULD_BE}"),
    ],
)
def test_of_instances_that_nobody_gets_their_gpu_is_told(card: tuple[int, ...], mode: MigMode, why: str) -> None:
    shares = cut(card, mode=mode)
    assert (told(shares), shares.gpus) == ({"GPU-0": why}, ())
    assert shares.why_none == (f"no GPU is shared: {why} (1 GPU); --share-size, --exclude-gpus and --mig decide this")


@pytest.mark.parametrize(
    ("excluded", "left", "left_out"),
    [
        ((), ["MIG-0-0", "MIG-0-1", "MIG-1-0"], []),
        (("GPU-0",), ["MIG-1-0"], ["GPU-0"]),
        (("0",), ["MIG-1-0"], ["GPU-0"]),
        (("0:1",), ["MIG-0-0", "MIG-1-0"], ["MIG-0-1"]),
        (("MIG-0-0", "1"), ["MIG-0-1"], ["MIG-0-0", "GPU-1"]),
    ],
)
@pytest.mark.parametrize("mode", [WHOLE, SHARE])
def test_instances_are_excluded_by_their_own_names_and_by_those_of_their_gpu(
    excluded: tuple[str, ...], left: list[str], left_out: list[str], mode: MigMode
) -> None:
    shares = cut((10, 10), (10,), mode=mode, excluded=excluded)
    assert [shared.gpu.uuid for shared in shares.gpus] == left
    assert told(shares) == dict.fromkeys(left_out, "excluded by the configuration")


@pytest.mark.parametrize("mode", [WHOLE, SHARE])
def test_a_compute_instance_that_shares_its_memory_is_not_given(mode: MigMode) -> None:
    parent, first = gpus(0, (20,))
    there = Inventory((parent, first, instance(0, 1, 20, alone=False)))
    shares = Shares(1024).with_inventory(there, mig=mode)
    assert told(shares) == {
        "MIG-0-1": "the compute instance 1c.2g.20gb uses the memory of its GPU instance together with others"
    }
    assert [shared.gpu.uuid for shared in shares.gpus] == ["MIG-0-0"]


def test_a_change_of_the_way_keeps_every_id_and_position() -> None:
    shares = cut((10,), 4, mode=SHARE)
    for mode, offered in ((WHOLE, {ONE_G}), (OFF, set()), (SHARE, {SHARES})):
        shares = shares.with_inventory(inventory((10,), 4), mig=mode)
        assert shares.gpus[0].offered == offered
        assert shares.gpus[0].ids(SHARES)
        assert [shared.position for shared in shares.gpus] == [0, 1]
    assert shares.gpus[0].listed == {SHARES, ONE_G}
    assert shares.gpus[1].offered == OF_GPU


def test_a_destroyed_instance_keeps_its_ids_and_is_given_to_nobody() -> None:
    shares = cut((10, 10), mode=SHARE).with_inventory(inventory((10,)), mig=SHARE)
    gone = shares.gpus[1]
    assert (gone.gone, gone.offered, len(gone.ids(SHARES))) == (True, frozenset(), 10)
    assert not shares.gpus[0].gone


def test_an_instance_made_again_by_another_profile_has_its_id_in_both_resources() -> None:
    """The driver can give the same UUID to an instance of another profile in the same place of the GPU."""
    shares = cut((10,), mode=WHOLE).with_inventory(inventory((30,)), mig=WHOLE)
    (shared,) = shares.gpus
    assert (shared.ids(ONE_G), shared.ids(THREE_G)) == (("MIG-0-0",), ("MIG-0-0",))
    assert shared.offered == {THREE_G}
    assert shares.profiles == ("1g.10gb", "3g.30gb")


@pytest.mark.parametrize("mode", [WHOLE, SHARE])
def test_an_instance_made_again_that_shares_its_memory_now_is_given_to_nobody(mode: MigMode) -> None:
    parent, first = gpus(0, (20,))
    shares = Shares(1024).with_inventory(Inventory((parent, first)), mig=mode)
    again = shares.with_inventory(Inventory((parent, instance(0, 0, 20, alone=False))), mig=mode)
    assert (again.gpus[0].offered, again.gpus[0].listed) == (frozenset(), shares.gpus[0].listed)


def test_an_instance_made_again_with_less_memory_is_not_shared_by_its_earlier_ids() -> None:
    shares = cut((20,), mode=SHARE)
    assert shares.with_inventory(inventory((10,)), mig=SHARE).gpus[0].offered == frozenset()
    more = cut((10,), mode=SHARE).with_inventory(inventory((20,)), mig=SHARE).gpus[0]
    assert (set(more.offered), len(more.ids(SHARES))) == ({SHARES}, 10)


def test_ids_of_destroyed_instances_count_and_a_restart_is_proposed() -> None:
    shares = cut((10, 10), mode=SHARE)
    parent, first, _ = gpus(0, (10, 10))
    there = Inventory((parent, first, instance(0, 5)))
    with pytest.raises(TooManySharesError) as failed:
        shares.with_inventory(there, mig=SHARE, limit=25)
    assert failed.value.restart_helps
    assert str(failed.value) == (
        "10 of 30 device IDs are of MIG instances that are no longer offered, and a kubelet handles about 25; an "
        "agent that starts anew does not list them"
    )
    with pytest.raises(TooManySharesError, match="10 of 30 device IDs are of MIG instances"):
        shares.with_inventory(there, mig=SHARE, limit=20)
    with pytest.raises(TooManySharesError, match="into 20 shares, and a kubelet handles about 15; set") as failed:
        shares.with_inventory(there, mig=SHARE, limit=15)
    assert not failed.value.restart_helps


def test_instances_given_whole_do_not_count_as_shares() -> None:
    assert len(cut((10, 10), mode=WHOLE, limit=5).gpus) == 2


# --- Positions of an earlier agent ------------------------------------------------------------------------------------


def test_former_instances_keep_their_positions_after_a_restart() -> None:
    order = (instance(0, 5), *gpus(0, (10,))[1:], *gpus(1, 4))
    there = replace(inventory((10,), 4), order=order)
    shares = Shares(1024).with_inventory(there, mig=SHARE)
    assert [(shared.gpu.uuid, shared.gone, len(shared.ids(SHARES))) for shared in shares.gpus] == [
        ("MIG-0-5", True, 0),
        ("MIG-0-0", False, 10),
        ("GPU-1", False, 4),
    ]
    again = shares.with_inventory(replace(inventory((10,), 4), order=order), mig=SHARE)
    assert again.gpus == shares.gpus


def test_instances_of_an_earlier_agent_that_are_switched_off_keep_their_positions() -> None:
    order = (*gpus(0, (10,))[1:], *gpus(1, 4))
    shares = Shares(1024).with_inventory(replace(inventory((10,), 4), order=order), mig=OFF)
    assert [(shared.gpu.uuid, bool(shared.listed), shared.gone) for shared in shares.gpus] == [
        ("MIG-0-0", False, False),
        ("GPU-1", True, False),
    ]


@pytest.mark.parametrize(
    ("excluded", "left_out"), [(("MIG-0-0",), ["MIG-0-0"]), (("0:0",), ["MIG-0-0"]), (("GPU-0",), ["GPU-0"])]
)
@pytest.mark.parametrize("first", MigMode)
def test_an_excluded_instance_of_an_earlier_agent_keeps_its_position_and_is_given_to_nobody(
    excluded: tuple[str, ...], left_out: list[str], first: MigMode
) -> None:
    there = replace(inventory((10,), 4), order=(*gpus(0, (10,))[1:], *gpus(1, 4)))
    shares = Shares(1024).with_inventory(there, excluded, mig=first)
    for mode in (WHOLE, SHARE):
        shares = shares.with_inventory(there, excluded, mig=mode)
        assert [(shared.gpu.uuid, bool(shared.offered)) for shared in shares.gpus] == [
            ("MIG-0-0", False),
            ("GPU-1", True),
        ]
        assert list(told(shares)) == left_out


def test_an_instance_too_small_for_a_share_is_not_shared_when_the_way_changes() -> None:
    whole = Shares(20 * 1024).with_inventory(inventory((10,)), mig=WHOLE)
    share = whole.with_inventory(inventory((10,)), mig=SHARE)
    assert share.gpus[0].offered == frozenset()
    assert told(share) == {"MIG-0-0": "10 GiB, less than one share of 20 GiB"}
    assert share.with_inventory(inventory((10,)), mig=WHOLE).gpus[0].offered == {ONE_G}


@pytest.mark.parametrize("excluded", [(), ("MIG-0-0",), ("GPU-0",), ("0",)])
def test_while_instances_are_given_to_nobody_only_their_gpu_is_told(excluded: tuple[str, ...]) -> None:
    assert list(told(cut((10, 10), mode=OFF, excluded=excluded))) == ["GPU-0"]


def test_as_many_positions_as_readers_cope_with_are_given() -> None:
    (parent,) = gpus(0, ())
    most = tuple(instance(0, number) for number in range(MOST_POSITIONS))
    shares = Shares(1024).with_inventory(Inventory((parent, *most[:-1])), mig=WHOLE)
    assert len(shares.with_inventory(Inventory((parent, most[-1])), mig=WHOLE).gpus) == MOST_POSITIONS


def test_positions_of_former_instances_are_bounded_by_a_restart() -> None:
    (parent,) = gpus(0, ())
    many = tuple(instance(0, number) for number in range(MOST_POSITIONS))
    shares = Shares(1024).with_inventory(Inventory((parent, *many)), mig=WHOLE)
    another = Inventory((parent, instance(0, MOST_POSITIONS)))
    with pytest.raises(TooManySharesError, match="512 of 513 positions of the node's list are of MIG") as failed:
        shares.with_inventory(another, mig=WHOLE)
    assert failed.value.restart_helps
    again = Shares(1024).with_inventory(replace(another, order=many), mig=WHOLE)
    assert [len(again.gpus), sum(bool(shared.offered) for shared in again.gpus)] == [MOST_POSITIONS + 1, 1]


def test_a_gpu_that_is_in_mig_mode_since_keeps_its_position_and_is_shared_again_afterwards() -> None:
    order = (*gpus(0, ()), *gpus(1, 4))
    shares = Shares(1024).with_inventory(replace(inventory((), 4), order=order), mig=SHARE)
    assert [(shared.gpu.uuid, shared.gone, shared.offered) for shared in shares.gpus] == [
        ("GPU-0", True, frozenset()),
        ("GPU-1", False, OF_GPU),
    ]
    assert shares.any_listed
    again = shares.with_inventory(replace(inventory(8, 4), order=order), mig=SHARE)
    assert [(shared.gone, len(shared.ids(SHARES))) for shared in again.gpus] == [(False, 8), (False, 4)]


@pytest.mark.parametrize("mode", MigMode)
def test_a_gpu_whose_instances_are_given_is_offered_to_nobody_itself(mode: MigMode) -> None:
    """Its own agent listed it before it was in MIG mode; with instances there is no reason to tell that it is not."""
    order = (*gpus(0, ()), *gpus(1, 4))
    shares = Shares(1024).with_inventory(replace(inventory((10,), 4), order=order), mig=mode)
    parent = shares.by_uuid("GPU-0")
    assert parent is not None
    assert (parent.position, parent.gone, parent.listed, parent.offered) == (0, True, frozenset(), frozenset())


def test_a_gpu_that_gets_instances_keeps_listing_its_ids_until_a_restart() -> None:
    shares = cut(8, 4, mode=SHARE).with_inventory(inventory((10,), 4), mig=SHARE)
    first = shares.gpus[0]
    assert (first.gpu.uuid, first.gone, first.listed, len(first.ids(SHARES))) == ("GPU-0", False, OF_GPU, 8)


def test_memory_that_is_kept_back_leaves_no_share_of_a_small_gpu_or_instance() -> None:
    shares = Shares(1024, reserve_mib=512).with_inventory(
        Inventory((*gpus(0, 1), *gpus(1, ()), instance(1, 0, 1))), mig=SHARE
    )
    assert not shares.any_listed
    assert [shared.gpu.uuid for shared in shares.gpus if not shared.vacant] == []
    why = "1 GiB, of which 512 MiB are reserved, less than one share of 1 GiB"
    assert told(shares) == {"GPU-0": why, "MIG-1-0": why}


def test_as_many_shares_as_a_kubelet_copes_with_are_not_too_many() -> None:
    assert len(cut((10,), 4, mode=SHARE, limit=14).gpus) == 2
    with pytest.raises(TooManySharesError) as failed:
        cut((10,), 4, mode=SHARE, limit=13)
    assert failed.value.restart_helps is False


def test_the_instances_of_a_gpu_have_a_number_in_common() -> None:
    shares = cut(4, (10, 10), (10,), mode=SHARE)
    assert [shared.card for shared in shares.gpus] == [None, 1, 1, 3]


def test_instances_are_named_with_their_profile() -> None:
    shares = cut((10,), 4, mode=SHARE)
    assert [shared.name for shared in shares.gpus] == ["GPU 0 (MIG 1g.10gb)", "GPU 1"]
    assert [shared.gpu.label for shared in shares.gpus] == ["0:0", "1"]
    assert [shared.gpu.card for shared in shares.gpus] == ["GPU-0", "GPU-1"]


CARDS = st.lists(st.integers(1, 8) | st.lists(st.sampled_from([5, 10, 20]), max_size=4).map(tuple), max_size=4)


@given(st.lists(st.tuples(CARDS, st.sampled_from(MigMode)), min_size=1, max_size=5))
def test_whatever_is_re_partitioned_no_id_vanishes_or_moves(
    rounds: list[tuple[list[int | tuple[int, ...]], MigMode]],
) -> None:
    shares = Shares(1024)
    for cards, mode in rounds:
        before, shares = shares, shares.with_inventory(inventory(*cards), mig=mode)
        now = {gpu.uuid for gpu in inventory(*cards).gpus}
        for old, new in zip(before.gpus, shares.gpus, strict=False):
            assert (new.position, new.gpu.uuid) == (old.position, old.gpu.uuid)
            assert old.listed <= new.listed
            assert all(set(old.ids(listing)) <= set(new.ids(listing)) for listing in old.listed)
        for position, shared in enumerate(shares.gpus):
            assert shared.position == position
            assert shared.offered <= shared.listed
            if shared.gpu.instance is not None:
                assert shared.gone is (shared.gpu.uuid not in now)
                assert WHOLE_GPUS not in shared.listed
                smaller = mode is SHARE and len(shared.shares) > shared.gpu.total_mib // 1024
                assert len(shared.offered) == (0 if shared.gone or mode is OFF or smaller else 1)
            for name in shared.shares:
                assert shares.place_of(name) is not None
