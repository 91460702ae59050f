"""GPUs cut into device IDs."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Link, Links
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import (
    SHARES,
    SharedGpu,
    Shares,
    TooManySharesError,
    misread_exclusions,
    parse_id,
    share_id,
    unknown_exclusions,
)

UUID = "GPU-8f0bb6f5-6a3b-4b7a-9d2e-0d4a3a1d2c11"


NO_INSTANCES = "in MIG mode and without instances, which nvidia-smi mig or mig-parted creates"


def card(name: str, index: int, gib: int = 4, *, mig: bool = False, reserved_mib: int = 0) -> Gpu:
    return Gpu(name, index, "Tesla T4", gib * 1024, reserved_mib, mig=mig)


@pytest.mark.parametrize(
    ("device_id", "meaning"),
    [
        (f"{UUID}::0", (UUID, 0)),
        (f"{UUID}::139", (UUID, 139)),
        (UUID, (UUID, None)),
        ("", ("", None)),
        ("::", ("::", None)),
        (f"{UUID}::", (f"{UUID}::", None)),
        (f"{UUID}::x", (f"{UUID}::x", None)),
        (f"{UUID}::-1", (f"{UUID}::-1", None)),
        (f"{UUID}::٣", (f"{UUID}::٣", None)),
        (f"{UUID}::²", (f"{UUID}::²", None)),
        (f"{UUID}::1::2", (f"{UUID}::1::2", None)),
        (f"{UUID}::999999999", (UUID, 999_999_999)),
        (f"{UUID}::1000000000", (f"{UUID}::1000000000", None)),
        (f"{UUID}::{'9' * 5000}", (f"{UUID}::{'9' * 5000}", None)),
        # The original's form, and the one of other plugins.
        (f"{UUID}-_-3", (f"{UUID}-_-3", None)),
    ],
)
def test_a_device_id_names_its_gpu_and_its_share(device_id: str, meaning: tuple[str, int | None]) -> None:
    assert parse_id(device_id) == meaning


@given(st.text(alphabet=st.characters(exclude_characters=":")), st.integers(min_value=0, max_value=10**8))
def test_a_share_id_parses_to_its_gpu_and_number(uuid: str, number: int) -> None:
    assert parse_id(share_id(uuid, number)) == (uuid, number)


def test_a_gpu_has_an_id_for_every_share_and_one_for_the_whole() -> None:
    shares = Shares(1024).with_inventory(Inventory((card("GPU-a", 0, 2), card("GPU-b", 1, 1))))
    assert [shared.ids((Kind.MEMORY, "")) for shared in shares.gpus] == [("GPU-a::0", "GPU-a::1"), ("GPU-b::0",)]
    assert [shared.ids((Kind.COUNT, "")) for shared in shares.gpus] == [("GPU-a",), ("GPU-b",)]


def test_cards_of_different_sizes_give_different_numbers_of_shares() -> None:
    """4 GiB, 7 GiB and 3.5 GiB with 512 MiB to the share."""
    gpus = (card("GPU-a", 0, 4), card("GPU-b", 1, 7), Gpu("GPU-c", 2, "Tesla M10", 3584))
    assert [len(shared.shares) for shared in Shares(512).with_inventory(Inventory(gpus)).gpus] == [8, 14, 7]


def test_every_id_has_its_place() -> None:
    shares = Shares(1024).with_inventory(Inventory((card("GPU-a", 0, 2), card("GPU-b", 1, 1))))
    known = ["GPU-a::0", "GPU-a::1", "GPU-a", "GPU-b::0", "GPU-b"]
    assert [shares.place_of(name) for name in known] == [(0, 0), (0, 1), (0, -1), (1, 0), (1, -1)]
    assert [shares.place_of(name) for name in ("GPU-a::2", "GPU-b::00", "GPU-c", "")] == [None] * 4


def test_gpus_are_left_out_with_a_reason() -> None:
    gpus = (
        card("GPU-a", 0),
        card("GPU-b", 1, mig=True),
        card("GPU-c", 2),
        card("GPU-d", 3),
        Gpu("GPU-e", 4, "Quadro", 512),
        card("GPU-f", 5, 2, reserved_mib=500),
    )
    shares = Shares(1024, reserve_mib=524).with_inventory(Inventory(gpus), excluded=("GPU-c", "3", "1"))
    # 4,096 - 524 = 3 x 1,024 + 500; 2,048 - 500 - 524 = 1,024
    given = [(s.gpu.uuid, s.position, len(s.shares)) for s in shares.gpus if s.listed]
    assert given == [("GPU-a", 0, 3), ("GPU-f", 4, 1)]
    assert [(s.gpu.uuid, s.position, s.ids(SHARES)) for s in shares.gpus if s.vacant] == [
        ("GPU-c", 1, ()),
        ("GPU-d", 2, ()),
        ("GPU-e", 3, ()),
    ]
    assert shares.by_uuid("GPU-c") is None
    assert (shares.called("GPU-c"), shares.called("GPU-f")) == ("the GPU GPU-c", "GPU 4")
    assert shares.capacity_mib == {"GPU-a": 4096, "GPU-f": 1548}
    assert {gpu.uuid: why for gpu, why in shares.left_out} == {
        "GPU-b": "excluded by the configuration",
        "GPU-c": "excluded by the configuration",
        "GPU-d": "excluded by the configuration",
        "GPU-e": "512 MiB, less than one share of 1 GiB",
    }


def test_a_gpu_has_its_number_whether_those_before_it_are_given_or_not() -> None:
    """What people read as GPU 1, and write in a promise, is what nvidia-smi and the exclusion call 1."""
    there = Inventory((card("GPU-a", 0), card("GPU-b", 1)))
    shares = Shares(1024).with_inventory(there, excluded=("0",))
    assert [(s.gpu.uuid, s.name) for s in shares.gpus if s.offered] == [("GPU-b", "GPU 1")]
    assert shares.why_none == ""
    again = shares.with_inventory(replace(there, driver_version="2"), excluded=("0",))
    assert (again.gpus, again.left_out) == (shares.gpus, shares.left_out)
    restarted = Shares(1024).with_inventory(replace(there, order=there.gpus))
    assert [(s.gpu.uuid, s.position) for s in restarted.gpus if s.offered] == [("GPU-a", 0), ("GPU-b", 1)]


def test_a_number_that_excludes_another_gpu_than_people_read_by_it_is_told() -> None:
    """The list goes by an earlier listing, in which the two stood the other way round."""
    a, b = card("GPU-a", 0), card("GPU-b", 1)
    there = Inventory((a, b), order=(b, a))
    shares = Shares(1024).with_inventory(there, excluded=("0",))
    assert [shared.name for shared in shares.gpus if shared.offered] == ["GPU 0"]
    why = misread_exclusions(("0",), there, shares)
    assert why.startswith("--exclude-gpus names 0, by which nvidia-smi counts GPU-a; ")
    assert misread_exclusions(("GPU-a", "1:2"), there, shares) == ""
    assert misread_exclusions(("0",), Inventory((a, b)), Shares(1024).with_inventory(Inventory((a, b)), ("0",))) == ""


def test_a_gpu_is_named_by_its_number_or_without_one_by_its_uuid() -> None:
    a, b = card("GPU-a", 0, mig=True), card("GPU-b", 1)
    shares = Shares(1024).with_inventory(Inventory((a, b)))
    assert shares.name_of(b) == "GPU 0"
    assert shares.name_of(a) == "the GPU GPU-a (nvidia-smi counts it as 0)"
    assert shares.name_of(replace(card("GPU-c", 2), driver="amdgpu")) == "the GPU GPU-c"


@pytest.mark.parametrize(
    ("gpus", "excluded", "reasons"),
    [
        ((card("GPU-a", 0), card("GPU-b", 1)), (), "4 GiB, less than one share of 100 GiB (2 GPUs)"),
        ((card("GPU-a", 0), card("GPU-b", 1)), ("0", "GPU-b"), "excluded by the configuration (2 GPUs)"),
        (
            (card("GPU-a", 0, mig=True),),
            (),
            f"{NO_INSTANCES} (1 GPU)",
        ),
        (
            (card("GPU-a", 0, mig=True), card("GPU-b", 1)),
            (),
            f"{NO_INSTANCES} (1 GPU), 4 GiB, less than one share of 100 GiB (1 GPU)",
        ),
    ],
)
def test_where_no_gpu_is_shared_the_reasons_are_named(
    gpus: tuple[Gpu, ...], excluded: tuple[str, ...], reasons: str
) -> None:
    assert Shares(100 * 1024).with_inventory(Inventory(gpus), excluded).why_none == (
        f"no GPU is shared: {reasons}; --share-size, --exclude-gpus and --mig decide this"
    )


def test_there_is_no_problem_where_a_gpu_is_shared_or_none_is_there() -> None:
    assert Shares(1024).why_none == Shares(1024).with_inventory(Inventory()).why_none == ""
    assert Shares(1024).with_inventory(Inventory((card("GPU-a", 0), card("GPU-b", 1))), ("0",)).why_none == ""


@pytest.mark.parametrize(
    ("excluded", "start"),
    [
        ((), ""),
        (("0", "GPU-b"), ""),
        (("9", "0", "GPU-x"), "--exclude-gpus names 9, GPU-x, but this node has no such GPU; "),
    ],
)
def test_an_excluded_gpu_that_the_node_lacks_is_named(excluded: tuple[str, ...], start: str) -> None:
    inventory = Inventory((card("GPU-a", 0), card("GPU-b", 1)))
    said = unknown_exclusions(excluded, inventory)
    assert said.startswith(start)
    assert bool(said) == bool(start)
    assert unknown_exclusions(excluded, Inventory()) == ""


def test_where_gpus_of_other_drivers_are_named_is_told() -> None:
    said = unknown_exclusions(("9",), Inventory((replace(card("PCI-0000:03:00.0", 0), driver="xe"),)))
    assert said == "--exclude-gpus names 9, but this node has no such GPU; see the agent's log, and use UUIDs"


def test_a_later_gpu_comes_after_the_others_whatever_its_slot() -> None:
    first = Shares(1024).with_inventory(Inventory((card("GPU-b", 0),)))
    then = first.with_inventory(Inventory((card("GPU-a", 0), card("GPU-b", 1))))
    assert [(shared.gpu.uuid, shared.gpu.index, shared.position) for shared in then.gpus] == [
        ("GPU-b", 1, 0),
        ("GPU-a", 0, 1),
    ]
    assert then.place_of("GPU-a::3") == (1, 3)


def test_an_id_once_listed_stays_listed() -> None:
    """The driver shows the first GPU no longer, the second smaller, the third in MIG mode and the fourth excluded."""
    before = Shares(1024).with_inventory(Inventory(tuple(card(f"GPU-{name}", n) for n, name in enumerate("abcd"))))
    gpus = (card("GPU-b", 0, 2), card("GPU-c", 1, mig=True), card("GPU-d", 2))
    after = before.with_inventory(Inventory(gpus), excluded=["GPU-d"])
    assert [shared.shares for shared in after.gpus] == [shared.shares for shared in before.gpus]
    assert [shared.position for shared in after.gpus] == [0, 1, 2, 3]
    assert after.gpus[0].gpu == card("GPU-a", 0)
    assert after.gpus[1].gpu == card("GPU-b", 0, 2)
    assert after.left_out == ()


def test_too_many_shares_are_refused_with_a_size_that_fits() -> None:
    """8 x 143,771 MiB at 128 MiB give 8 x 1,123 = 8,984; at 256 MiB 8 x 561 = 4,488; at 512 MiB 8 x 280 = 2,240."""
    gpus = tuple(Gpu(f"GPU-{n}", n, "NVIDIA H200", 143_771) for n in range(8))
    expected = (
        "a share size of 128 MiB splits the GPUs of this node into 8984 shares, and a kubelet handles about 4000; "
        "set the share size to 512 MiB or more"
    )
    with pytest.raises(TooManySharesError, match=f"^{re.escape(expected)}$"):
        Shares(128).with_inventory(Inventory(gpus))
    assert sum(len(shared.shares) for shared in Shares(512).with_inventory(Inventory(gpus)).gpus) == 2240


def test_memory_kept_back_counts_for_the_size_that_fits() -> None:
    """Of 5,000 MiB 2,600 are left: 2,600 shares of 1 MiB, 1,300 of 2 MiB. Without the reserve 4 MiB would be named."""
    gpus = Inventory((Gpu("GPU-a", 0, "Tesla T4", 5000),))
    with pytest.raises(TooManySharesError, match="set the share size to 2 MiB or more"):
        Shares(1, reserve_mib=2400).with_inventory(gpus, limit=1300)


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5), st.booleans()), unique_by=lambda g: g[0]))
)
def test_positions_and_ids_only_grow(views: list[list[tuple[str, int, bool]]]) -> None:
    """Whatever the driver shows one after the other."""
    shares = Shares(1024)
    for view in views:
        gpus = tuple(card(f"GPU-{name}", n, gib, mig=mig) for n, (name, gib, mig) in enumerate(view))
        new = shares.with_inventory(Inventory(gpus))
        assert [(s.gpu.uuid, s.shares) for s in new.gpus[: len(shares.gpus)]] == [
            (s.gpu.uuid, s.shares) for s in shares.gpus
        ]
        assert [s.position for s in new.gpus] == list(range(len(new.gpus)))
        assert {s.gpu.uuid for s in new.gpus} | {g.uuid for g, _ in new.left_out} >= {g.uuid for g in gpus}
        every = [name for s in new.gpus for kind in Kind for name in s.ids((kind, ""))]
        assert len(set(every)) == len(every)
        for shared in new.gpus:
            assert new.by_uuid(shared.gpu.uuid) is (None if shared.vacant else shared)
            assert all(new.place_of(name) == (shared.position, n) for n, name in enumerate(shared.shares))
        shares = new


def test_shares_with_equal_fields_are_equal() -> None:
    gpus = Inventory((card("GPU-a", 0),))
    one = Shares(1024).with_inventory(gpus)
    assert one == Shares(1024).with_inventory(gpus)
    assert one == replace(one, _places={})
    assert one.gpus[0] == SharedGpu(card("GPU-a", 0), 0, ("GPU-a::0", "GPU-a::1", "GPU-a::2", "GPU-a::3"))


def test_shared_gpus_are_connected_as_the_links_say() -> None:
    """By position, the lower one first: GPU-b stands before GPU-a here. GPU-x is not shared."""
    shares = Shares(1024).with_inventory(Inventory((card("GPU-b", 0), card("GPU-a", 1), card("GPU-c", 2))))
    links = (
        Link("GPU-a", "GPU-b", Closeness.NVLINK, 4),
        Link("GPU-a", "GPU-c", Closeness.NVLINK, 2),
        Link("GPU-b", "GPU-c", Closeness.BOARD),
        Link("GPU-a", "GPU-x", Closeness.BOARD),
        Link("GPU-x", "GPU-a", Closeness.BOARD),
    )
    assert shares.links(links) == Links(
        ((0, 1, Closeness.NVLINK, 4), (0, 2, Closeness.BOARD, 0), (1, 2, Closeness.NVLINK, 2))
    )
    assert [shares.links(links).connection(*pair) for pair in ((0, 1), (1, 2), (0, 2))] == [704, 702, 600]
