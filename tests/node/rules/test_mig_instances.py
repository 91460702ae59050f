"""MIG instances on a node: which IDs are offered, preferred, admitted, and what containers receive."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, refuse_unlimited
from gpu_device_plugin.features.limits.rules.running_limits import by_kind
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.placing import POLICIES, Demand, Placement
from gpu_device_plugin.model.resources import Kind, Names, Resource
from gpu_device_plugin.model.shares import SHARES, WHOLE_GPUS, Listing, parse_id
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode, admit
from gpu_device_plugin.node.rules.advertised_devices import offers
from gpu_device_plugin.node.rules.container_grants import NOBODY, Delivery, grant
from gpu_device_plugin.node.rules.gpu_health import Cause, GpuHealth, Problem, with_cards
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.node.rules.node_config import out_of_service
from gpu_device_plugin.node.rules.preferred_allocation import PreferredAllocationRequest
from tests.limiting import granted
from tests.mig import instance, inventory, mig_node

MEMORY, COUNT, INSTANCE = Kind
_, WHOLE, SHARE = MigMode
ONE_G: Listing = (INSTANCE, "1g.10gb")
THREE_G: Listing = (INSTANCE, "3g.30gb")


def listed(node: Node, listing: Listing) -> dict[str, bool]:
    return dict(device for offer in offers(node, listing) for device in offer.devices(listing))


def healthy(node: Node, listing: Listing) -> set[str]:
    return {name for name, well in listed(node, listing).items() if well}


def changed(node: Node, mode: MigMode, *cards: int | tuple[int, ...]) -> Node:
    return replace(node, shares=node.shares.with_inventory(inventory(*cards), mig=mode))


# --- Offers -----------------------------------------------------------------------------------------------------------


def test_each_profile_lists_its_instances() -> None:
    node = mig_node((10, 30, 10), 4, mode=WHOLE)
    assert listed(node, ONE_G) == {"MIG-0-0": True, "MIG-0-2": True}
    assert listed(node, THREE_G) == {"MIG-0-1": True}
    assert len(listed(node, SHARES)) == 4
    assert listed(node, WHOLE_GPUS) == {"GPU-1": True}


def test_ids_of_the_way_that_was_left_stay_listed_and_only_those_in_use_stay_healthy() -> None:
    node = mig_node((10, 10), used={"MIG-0-0": [3]})
    after = changed(node, WHOLE, (10, 10))
    assert len(listed(after, SHARES)) == 20
    assert healthy(after, SHARES) == {"MIG-0-0::3"}
    assert healthy(after, ONE_G) == {"MIG-0-1"}, "an instance with shares in use is not given whole"


def test_an_instance_in_use_as_a_whole_is_not_given_in_shares() -> None:
    after = changed(mig_node((10, 10), mode=WHOLE, whole=["MIG-0-0"]), SHARE, (10, 10))
    assert healthy(after, ONE_G) == {"MIG-0-0"}
    assert {parse_id(name)[0] for name in healthy(after, SHARES)} == {"MIG-0-1"}


# --- The preferred IDs ------------------------------------------------------------------------------------------------


def preferred(
    node: Node, kind: Kind, amount: int, policy: str = "binpack", available: set[str] | None = None
) -> list[str]:
    ids = available
    if ids is None:
        ids = healthy(node, SHARES) if kind is MEMORY else healthy(node, ONE_G)
    ids = ids - node.ledger.id_states.keys()
    return list(PreferredAllocationRequest(node, kind, sorted(ids), (), amount).answer(node, POLICIES[policy]))


@pytest.mark.parametrize(
    ("policy", "used", "expected"),
    [
        ("binpack", {"MIG-1-1": [0]}, "MIG-1-1"),
        ("binpack", {"MIG-1-1": range(10)}, "MIG-1-0"),
        ("spread", {"MIG-0-1": range(10)}, "MIG-1-0"),
        ("spread", {"MIG-0-0": [0], "MIG-1-0": [0, 1]}, "MIG-0-1"),
        ("binpack", {}, "MIG-0-0"),
    ],
)
def test_equal_instances_are_chosen_by_what_their_gpu_has_left(
    policy: str, used: dict[str, range], expected: str
) -> None:
    """Binpack fills the instances of one GPU before those of the next, spread takes the GPU with the most left."""
    node = mig_node((10, 10), (10, 10), used=used)
    assert {parse_id(name)[0] for name in preferred(node, MEMORY, 4, policy)} == {expected}


def test_an_instance_smaller_than_a_gpu_is_filled_first() -> None:
    assert {parse_id(name)[0] for name in preferred(mig_node(16, (10,)), MEMORY, 4)} == {"MIG-1-0"}
    assert {parse_id(name)[0] for name in preferred(mig_node(16, (10,)), MEMORY, 12)} == {"GPU-0"}


def test_whole_instances_are_taken_from_the_gpu_with_the_fewest_left_and_several_from_one() -> None:
    node = mig_node((10, 10, 10), (10, 10), mode=WHOLE, whole=["MIG-1-1"])
    assert preferred(node, INSTANCE, 1) == ["MIG-1-0"]
    assert preferred(node, INSTANCE, 2) == ["MIG-0-0", "MIG-0-1"]
    assert len(preferred(node, INSTANCE, 4)) == 4
    assert preferred(node, INSTANCE, 5) == []


def test_an_instance_that_an_init_container_had_is_taken_with_others_of_its_gpu() -> None:
    node = mig_node((10, 10, 10), (10, 10), mode=WHOLE)
    question = PreferredAllocationRequest(
        node, INSTANCE, ["MIG-0-0", "MIG-0-1", "MIG-0-2", "MIG-1-0", "MIG-1-1"], ["MIG-0-1"], 2
    )
    assert question.answer(node, POLICIES["binpack"]) == ("MIG-0-0", "MIG-0-1")


# --- Admission --------------------------------------------------------------------------------------------------------


def test_shares_of_one_instance_are_admitted() -> None:
    node = mig_node((10, 10))
    assert admit(node, MEMORY, ["MIG-0-1::0", "MIG-0-1::5"]) == Placement(Demand(MEMORY, 2), ((1, 2),))


def test_whole_instances_are_admitted() -> None:
    node = mig_node((10, 10), (10,), mode=WHOLE)
    assert admit(node, INSTANCE, ["MIG-0-1", "MIG-1-0"]) == Placement(Demand(INSTANCE, 2), ((1, 10), (2, 10)))


@pytest.mark.parametrize("ids", [["MIG-0-0::0", "MIG-0-1::0"], ["MIG-0-0::0", "GPU-1::0"]])
def test_shares_of_two_instances_are_refused_whoever_promised_them(ids: list[str]) -> None:
    node = mig_node((10, 10), 10)
    places = [node.shares.place_of(name) for name in ids]
    promise = Promise(tuple((place[0], 1) for place in places if place is not None))
    for promised in (None, promise):
        refused = admit(node, MEMORY, ids, promised)
        assert isinstance(refused, Refusal)
        assert refused.code is RefusalCode.SCATTERED or refused.code is RefusalCode.NO_ROOM


def test_an_instance_is_refused_in_the_way_that_was_left() -> None:
    node = changed(mig_node((10, 10)), WHOLE, (10, 10))
    refused = admit(node, MEMORY, ["MIG-0-0::0"])
    assert refused == Refusal(
        RefusalCode.NOT_OFFERED,
        "GPU 0 (MIG 1g.10gb) is no longer allocated through this resource, because it or the setting mig changed on "
        "this node; delete the pod so that it is scheduled again",
    )
    assert isinstance(admit(node, INSTANCE, ["MIG-0-0"]), Placement)


def test_a_node_of_instances_only_says_that_memory_of_several_gpus_is_not_to_be_had() -> None:
    refused = admit(mig_node((10, 10)), MEMORY, ["MIG-0-0::0", "MIG-0-1::0"], Promise(((0, 1), (1, 1))))
    assert refused == Refusal(
        RefusalCode.NO_ROOM,
        "GPU memory: 2 GiB requested from 2 GPUs, this node has MIG instances only, and no container can use several "
        "of "
        "them",
    )


# --- Grants -----------------------------------------------------------------------------------------------------------

NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def test_two_instances_of_one_gpu_need_each_device_node_once() -> None:
    node = mig_node((10, 10), mode=WHOLE)
    two = Placement(Demand(INSTANCE, 2), ((0, 10), (1, 10)))
    made = grant(two, node.shares, Delivery(methods=frozenset({"device-specs"})), present=())
    assert made.device_nodes == (
        *NODES,
        "/dev/nvidia0",
        *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (0, 100, 1)),
    )
    assert made.envs["NVIDIA_VISIBLE_DEVICES"] == "MIG-0-0,MIG-0-1"


@pytest.mark.parametrize(("amount", "enforcement"), [(4, "advisory"), (10, "partition")])
def test_all_shares_of_an_instance_are_held_by_the_hardware(amount: int, enforcement: str) -> None:
    node = mig_node((10, 10))
    made = granted(Placement(Demand(MEMORY, amount), ((1, amount),)), node.shares)
    assert made.envs == {
        "NVIDIA_VISIBLE_DEVICES": "MIG-0-1",
        "GPUSHARE_MEMORY_LIMIT_BY": enforcement,
        "GPUSHARE_MEMORY_LIMIT_MIB": str(amount * 1024),
        "GPUSHARE_MEMORY_GUARANTEED_MIB": str(amount * 1024),
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": str(amount),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(amount),
        "ALIYUN_COM_GPU_MEM_DEV": "10",
    }


def test_limits_that_are_not_there_refuse_a_part_of_an_instance_and_not_all_of_it() -> None:
    node = mig_node((10,))
    plan = LimitPlan(
        {"MIG-0-0": GpuEnforcement(Enforcement.ADVISORY, "no means", "limits are required here")}, refuse=True
    )
    part = refuse_unlimited(node, MEMORY, ["MIG-0-0::0"], plan, NOBODY)
    assert part == Refusal(RefusalCode.NO_LIMIT, "GPU 0 (MIG 1g.10gb): limits are required here")
    everything = [f"MIG-0-0::{number}" for number in range(10)]
    assert refuse_unlimited(node, MEMORY, everything, plan, NOBODY) is None


def test_of_a_gpu_that_gives_no_parts_all_of_an_instance_is_preferred_and_no_part() -> None:
    node = mig_node((4, 2))
    node = replace(node, blocks={"MIG-0-0": Block(parts="limits are required here"), "MIG-0-1": Block("it is lost")})
    free = [name for shared in node.shares.gpus for name in shared.shares]

    def preferred(there: Node, amount: int) -> list[str]:
        asked = PreferredAllocationRequest(there, MEMORY, free, (), amount)
        return sorted(asked.answer(there, POLICIES["binpack"]))

    assert preferred(node, 3) == []
    assert preferred(node, 4) == [f"MIG-0-0::{number}" for number in range(4)]
    assert preferred(replace(node, blocks={}), 3) == [f"MIG-0-0::{number}" for number in range(3)]


# --- Limits -----------------------------------------------------------------------------------------------------------


def test_the_limit_of_a_partition_holds_by_hardware() -> None:
    state = by_kind(ContainerGpus("uid", "main", {"MIG-0-0": 10240}, {}, whole=True, enforcement=Enforcement.PARTITION))
    assert state is not None
    assert (state.enforcement, state.held, state.why) == (Enforcement.PARTITION, "held", "")


# --- Health -----------------------------------------------------------------------------------------------------------


def test_a_failed_gpu_takes_its_instances_out_of_service() -> None:
    shares = mig_node((10, 10), 4).shares
    assert out_of_service({"GPU-0": ["XID 79"], "MIG-0-0": ["XID 79"]}, shares)["MIG-0-0"] == (
        "its GPU is unhealthy: XID 79"
    )
    assert out_of_service({"GPU-0": ["XID 79"], "MIG-0-1": ["XID 31"], "GPU-1": []}, shares) == {
        "GPU-0": "XID 79",
        "MIG-0-0": "its GPU is unhealthy: XID 79",
        "MIG-0-1": "XID 31; its GPU is unhealthy: XID 79",
    }


def test_beliefs_about_instances_have_the_problems_of_their_gpu() -> None:
    lost, xid = Problem(Cause.LOST, "lost"), Problem(Cause.FATAL_XID, "XID 31")
    health_by_uuid = {"GPU-0": GpuHealth((lost,)), "MIG-0-0": GpuHealth(), "MIG-0-1": GpuHealth((xid,))}
    gpus = (*inventory((10, 10, 10), 4).gpus, replace(instance(5, 0), uuid="MIG-stray"))
    found = with_cards(health_by_uuid, gpus)
    assert found == {
        "GPU-0": GpuHealth((lost,)),
        "MIG-0-0": GpuHealth((lost,)),
        "MIG-0-1": GpuHealth((lost, xid)),
    }


# --- Names of resources -----------------------------------------------------------------------------------------------


def test_resources_of_mig_profiles_are_ours_by_their_domain() -> None:
    names = Names({"aliyun.com/gpu-mem": Kind.MEMORY}, "nvidia.com")
    asked = ["aliyun.com/gpu-mem", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-large", "aliyun.com/mig-1g.10gb", 7]
    assert [name in names for name in asked] == [True, True, False, False, False]
    assert names.kind_of("nvidia.com/mig-1g.10gb.me") is INSTANCE
    assert Resource(INSTANCE, "nvidia.com/mig-1g.10gb", "1g.10gb").listing == ONE_G


# --- Nothing is given twice -------------------------------------------------------------------------------------------

CARDS = st.lists(st.integers(2, 6) | st.lists(st.sampled_from([5, 10]), max_size=3).map(tuple), min_size=1, max_size=3)


@given(st.lists(st.tuples(CARDS, st.sampled_from(MigMode)), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_whatever_is_re_partitioned_nothing_is_given_twice(
    rounds: list[tuple[list[int | tuple[int, ...]], MigMode]], chance: random.Random
) -> None:
    """The kubelet's part is played by chance: it gives healthy, free IDs, and pods end in between."""
    node = Node(mig_node().shares)
    for cards, mode in rounds:
        node = changed(node, mode, *cards)
        closed = out_of_service({}, node.shares)
        node = replace(node, blocks={uuid: Block(why) for uuid, why in closed.items()})
        for _ in range(4):
            listings = [SHARES, WHOLE_GPUS, *((INSTANCE, profile) for profile in node.shares.profiles)]
            listing = chance.choice(listings)
            free = sorted(healthy(node, listing) - node.ledger.id_states.keys())
            if not free:
                continue
            amount = chance.randint(1, min(3, len(free)))
            question = PreferredAllocationRequest(node, listing[0], free, (), amount)
            ids = question.answer(node, POLICIES[chance.choice(["binpack", "spread"])])
            verdict = admit(node, listing[0], ids) if len(ids) == amount else None
            if not isinstance(verdict, Placement):
                continue
            taken = [node.shares.gpus[position] for position in verdict.positions]
            assert all(not shared.gone for shared in taken)
            if listing[0] is MEMORY:
                assert len(taken) == 1
            assert not set(ids) & node.ledger.id_states.keys()
            node = node.with_ledger(node.ledger.granted(ids, 0.0))
        for shared in node.shares.gpus:
            use = node.use(shared)
            assert not (use.whole and use.shares)
        ended = [name for name in node.ledger.id_states if chance.random() < 0.3]
        node = node.with_ledger(node.ledger.without(ended))
