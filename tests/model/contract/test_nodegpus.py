"""The GPUs of a node as its annotations, labels and capacity describe them."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS, NODE_GPUS, PLACEMENT_LABEL, MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import (
    AWAY,
    NO_GPUS,
    NOT_READ_YET,
    ListedGpu,
    ListedInstance,
    NodeGpus,
    node_gpus,
    read_node_gpus,
    write_node_gpus,
)
from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Link, Links, MigInstance
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.scheduler.rules.candidate import by_division, gpus_of_node, with_cordons

WHOLE = {
    "version": 1,
    "shareMiB": 256,
    "policy": "spread",
    "driver": "580.82.07",
    "gpus": [
        {"uuid": "GPU-b", "index": 3, "model": "NVIDIA A10", "memoryMiB": 23_028, "shares": 88, "healthy": True},
        {"uuid": "GPU-a", "index": 0, "model": "Tesla T4", "shares": 14, "healthy": False, "reason": "hot", "numa": 1},
    ],
    "links": [[3, 0, "nvlink", 4]],
}


def read(**changes: Any) -> NodeGpus:
    """Parse the node above with some fields changed."""
    return read_node_gpus(json.dumps(WHOLE | changes))


def read_gpu(**fields: Any) -> ListedGpu:
    (gpu,) = read(gpus=[{"index": 0, "shares": 14} | fields]).gpus
    return gpu


def test_every_field_of_a_node_is_read() -> None:
    assert read() == NodeGpus(
        (
            ListedGpu(0, 14, "GPU-a", "Tesla T4", unhealthy="hot", numa=1),
            ListedGpu(3, 88, "GPU-b", "NVIDIA A10", memory_mib=23_028),
        ),
        share_mib=256,
        policy="spread",
        driver="580.82.07",
        links=Links(((0, 3, Closeness.NVLINK, 4),)),
    )


def test_absent_fields_are_unknown() -> None:
    assert read_node_gpus('{"version":1,"shareMiB":1,"gpus":[{"index":0,"shares":1}]}') == NodeGpus(
        (ListedGpu(0, 1, uuid="", model="", memory_mib=None, unhealthy="", numa=None),),
        share_mib=1,
        policy=None,
        driver=None,
        divided=False,
        links=Links(),
    )


def test_fields_of_a_newer_agent_are_ignored() -> None:
    assert read(colour="red") == read()
    assert read_gpu(colour="red") == read_gpu()


@pytest.mark.parametrize("said", [None, "", 5, ["binpack"]])
def test_a_value_that_is_not_a_text_is_unknown(said: object) -> None:
    found = read(policy=said, driver=said)
    assert (found.policy, found.driver) == (None, None)
    assert read_gpu(uuid=said, model=said) == ListedGpu(0, 14)


@pytest.mark.parametrize("text", ["\ud800", "two\nlines", "bell\a"])
def test_an_unprintable_text_is_unknown(text: str) -> None:
    """It would break an answer or a table that contains it."""
    assert read_gpu(model=text).model == ""


@pytest.mark.parametrize(
    ("said", "unhealthy"),
    [
        ({}, ""),
        ({"healthy": True, "reason": "none"}, ""),
        ({"healthy": False, "reason": "hot"}, "hot"),
        ({"healthy": False}, "it is unhealthy"),
        ({"healthy": False, "reason": 7}, "it is unhealthy"),
        ({"healthy": "yes"}, "it is unhealthy"),
        ({"healthy": 1}, "it is unhealthy"),
        ({"healthy": None}, "it is unhealthy"),
    ],
)
def test_a_gpu_is_healthy_by_default(said: dict[str, Any], unhealthy: str) -> None:
    assert read_gpu(**said).unhealthy == unhealthy


def test_numbers_are_accepted_up_to_their_limits() -> None:
    assert read_gpu(index=640, shares=1 << 20, memoryMiB=1 << 40, numa=1 << 20) == ListedGpu(
        640, 1 << 20, memory_mib=1 << 40, numa=1 << 20
    )
    assert read_gpu(index=0, shares=1, memoryMiB=0, numa=0) == ListedGpu(0, 1, memory_mib=0, numa=0)
    assert (read(shareMiB=1).share_mib, read(shareMiB=1 << 20).share_mib) == (1, 1 << 20)
    assert len(read(gpus=[{"index": n, "shares": 1} for n in range(128)]).gpus) == 128


NO_NUMBER = [None, "1", 1.0, float("nan"), True, [1], -1, 10**400]


@pytest.mark.parametrize(
    ("where", "key", "outside", "sentence"),
    [
        ("gpu", "index", [*NO_NUMBER, 641], "no whole number from 0 to 640 for index"),
        ("gpu", "shares", [*NO_NUMBER, 0, (1 << 20) + 1], "no whole number from 1 to 1048576 for shares"),
        (
            "gpu",
            "memoryMiB",
            [*NO_NUMBER, (1 << 40) + 1],
            "no whole number from 0 to 1099511627776 for memoryMiB",
        ),
        ("gpu", "numa", [*NO_NUMBER, (1 << 20) + 1], "no whole number from 0 to 1048576 for numa"),
        ("node", "shareMiB", [*NO_NUMBER, 0, (1 << 20) + 1], "no whole number from 1 to 1048576 for shareMiB"),
    ],
)
def test_a_value_that_is_not_a_number_in_range_is_malformed(
    where: str, key: str, outside: list[object], sentence: str
) -> None:
    for value in outside:
        with pytest.raises(MalformedAnnotationError) as caught:
            read_gpu(**{key: value}) if where == "gpu" else read(**{key: value})
        assert str(caught.value) == f"the node's annotation gpu-device-plugin/gpus has {sentence}"


LINK = 'has a link that is not of the form [0, 1, "nvlink", 4]'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"version":' + "1" * 5000 + "}", "is not JSON"),
        ("null", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ("NaN", "is not a JSON object"),
        ("{}", "is of another version than 1; upgrade the older of agent and scheduler"),
        ('{"version":2}', "is of another version than 1; upgrade the older of agent and scheduler"),
        ('{"version":"1"}', "is of another version than 1; upgrade the older of agent and scheduler"),
        ('{"version":1}', "has no list of at most 128 gpus"),
        ('{"version":1,"gpus":{}}', "has no list of at most 128 gpus"),
        (json.dumps({"version": 1, "gpus": [{}] * 129}), "has no list of at most 128 gpus"),
        ('{"version":1,"gpus":[0]}', "has a gpu that is not a JSON object"),
        (json.dumps(WHOLE | {"gpus": [{"index": 1, "shares": 1}] * 2}), "has two gpus with the same index"),
        (json.dumps(WHOLE | {"links": None}), "has links that are not a list"),
        (json.dumps(WHOLE | {"links": {}}), "has links that are not a list"),
        *(
            (json.dumps(WHOLE | {"links": [link]}), LINK)
            for link in (
                0,
                [],
                [0, 1, "nvlink"],
                [0, 1, "nvlink", 4, 5],
                [0, 0, "nvlink", 4],
                ["0", 1, "nvlink", 4],
                [0, None, "nvlink", 4],
                [0, 1, 7, 4],
                [0, 1, "nvlink", 4.0],
            )
        ),
    ],
)
def test_an_annotation_of_another_form_is_malformed(text: str, why: str) -> None:
    with pytest.raises(
        MalformedAnnotationError, match=f"^the node's annotation gpu-device-plugin/gpus {re.escape(why)}$"
    ):
        read_node_gpus(text)


# --- how GPUs are connected


@pytest.mark.parametrize(("nvlinks", "counted"), [(-3, 700), (0, 700), (99, 799), (100, 799), (10**300, 799)])
def test_no_number_of_nvlinks_outweighs_a_closer_connection(nvlinks: int, counted: int) -> None:
    assert read(links=[[0, 1, "nvlink", nvlinks]]).links.connection(0, 1) == counted


def test_an_unknown_level_of_a_newer_agent_is_still_a_connection() -> None:
    found = read(links=[[1, 0, "light", 0]])
    assert found.links.pairs == ((0, 1, Closeness.UNKNOWN, 0),)
    assert found.links.connection(0, 1) == 0


def test_of_two_links_between_two_gpus_the_closer_counts() -> None:
    for links in ([[0, 1, "node", 0], [1, 0, "nvlink", 2]], [[1, 0, "nvlink", 2], [0, 1, "node", 0]]):
        assert read(links=links).links.connection(0, 1) == 702


def test_machines_of_one_kind_share_one_value_for_their_links() -> None:
    """The values of two caches are equal, though not the same object."""
    known: dict[str, Links] = {}
    one, other = (read_node_gpus(json.dumps(WHOLE | {"driver": driver}), known) for driver in ("1", "2"))
    assert one.links is other.links
    assert one.links == read().links
    assert len({one.links, read().links, read(links=[[3, 0, "nvlink", 5]]).links}) == 2
    assert len(known) == 1
    other = read_node_gpus(json.dumps(WHOLE | {"links": [[0, 1, "switch", 0]]}), known)
    assert other.links == Links(((0, 1, Closeness.SWITCH, 0),))
    assert len(known) == 2


LISTED = '"version":1,"shareMiB":1,"gpus":[]'
ENDS = ['[[0,1,"nvlink",4]]}', '[[0,1,"node",0]]}', "[]}", '[[0,1,"nvlink",4]],"away":true}']


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{{LISTED},"links":{end}' for end in ENDS),
        *(f'{{{LISTED},"links": {end}' for end in ENDS),
        *(f'{{"links":[[2,3,"board",0]],{LISTED},"links":{end}' for end in ENDS),
        *(f'{{"links":[[2,3,"board",0]],{LISTED},"x":{{"links":{end}}}' for end in ENDS),
        *(f'{{"links":[[2,3,"board",0]],{LISTED},"x":[{{"links":{end}]}}' for end in ENDS),
        f'{{"links" :[[2,3,"board",0]],{LISTED}}}',
        f'{{{LISTED},"links":[],"\\u006cinks":[[2,3,"board",0]]}}',
        f'{{"links" :[[2,3,"board",0]],{LISTED},"x":"\\"links\\":[]"}}',
        f"{{{LISTED}}}",
    ],
)
def test_links_of_another_text_are_never_taken_from_the_cache(text: str) -> None:
    known: dict[str, Links] = {}
    others = [f'{{{LISTED},"links":{end}' for end in ENDS]
    for each in (*others, text.replace("[2,3", "[4,5"), text):
        assert read_node_gpus(each, known) == read_node_gpus(each)


# --- annotations, labels and capacity together

SAID = json.dumps({"version": 1, "shareMiB": 1024, "policy": "spread", "gpus": [{"index": 0, "shares": 14}]})


def test_a_node_without_any_gpu_is_no_problem() -> None:
    assert gpus_of_node({}, {}, 0, 0) == NO_GPUS


def test_the_agents_list_takes_precedence_over_the_capacity() -> None:
    """The capacity is some seconds late, and does not show the single GPU."""
    assert gpus_of_node({NODE_GPUS: SAID}, {}, 28, 2) == read_node_gpus(SAID)


def test_a_node_of_gpushare_is_divided() -> None:
    assert gpus_of_node({"other": "x"}, {}, 30, 2) == by_division(30, 2)


def test_a_malformed_annotation_is_a_problem_and_not_a_reason_to_divide() -> None:
    assert gpus_of_node({NODE_GPUS: "{"}, {}, 30, 2) == NodeGpus(
        problem="the node's annotation gpu-device-plugin/gpus is not JSON"
    )


@pytest.mark.parametrize(
    ("label", "agents", "policy"),
    [
        ("binpack", "spread", "binpack"),
        ("spread", "binpack", "spread"),
        (None, "spread", "spread"),
        ("best", "spread", "spread"),
        ("", "spread", "spread"),
        ("binpack", "best", "binpack"),
        ("best", "better", None),
        (None, None, None),
    ],
)
def test_the_policys_label_takes_precedence_over_the_agent(
    label: str | None, agents: str | None, policy: str | None
) -> None:
    said = json.dumps({"version": 1, "shareMiB": 1024, "policy": agents, "gpus": []})
    labels = {} if label is None else {PLACEMENT_LABEL: label}
    assert gpus_of_node({NODE_GPUS: said}, labels, 0, 0).policy == policy


def test_the_label_counts_where_the_gpus_are_divided_or_unknown() -> None:
    labels = {PLACEMENT_LABEL: "spread"}
    assert gpus_of_node({}, labels, 30, 2) == replace(by_division(30, 2), policy="spread")
    assert gpus_of_node({NODE_GPUS: ""}, labels, 30, 2).policy == "spread"


def test_no_pod_is_placed_on_a_node_whose_agent_shuts_down() -> None:
    found = gpus_of_node({NODE_GPUS: json.dumps({**json.loads(SAID), "away": True})}, {}, 14, 1)
    assert (found.problem, found.gpus) == (AWAY, read_node_gpus(SAID).gpus)


# --- nodes of gpushare's own device plugin


def test_memory_is_divided_evenly() -> None:
    """Gpushare's plugin treats all GPUs as equal; the remainder belongs to none."""
    found = by_division(31, 2)
    assert found == NodeGpus((ListedGpu(0, 15), ListedGpu(1, 15)), divided=True)
    assert (found.gpus[0].uuid, found.gpus[0].model, found.share_mib, found.policy) == ("", "", None, None)


@pytest.mark.parametrize(
    ("memory", "count", "gpus"),
    [
        (0, 0, 0),
        (0, 2, 0),
        (16, 0, 0),
        (-16, 2, 0),
        (16, -2, 0),
        (1, 2, 0),
        (2, 2, 2),
        (1280, 128, 128),
        (1290, 129, 0),
    ],
)
def test_a_node_of_impossible_capacity_has_no_gpus(memory: int, count: int, gpus: int) -> None:
    assert len(by_division(memory, count).gpus) == gpus
    assert (by_division(memory, count) is NO_GPUS) == (gpus == 0)


# --- the annotation of the agent

T4 = Gpu("GPU-a", 0, "Tesla T4", 15_360, 450, device_paths=("/dev/nvidia0",), pci_bus_id="0000:3b:00.0", numa_node=0)
A10 = Gpu("GPU-b", 1, "NVIDIA A10", 23_028, device_paths=("/dev/nvidia1",))
MIG = Gpu("GPU-m", 2, "NVIDIA H100", 81_559, mig=True)
INVENTORY = Inventory(
    (T4, A10, MIG),
    (
        Link("GPU-a", "GPU-b", Closeness.NVLINK, 2),
        Link("GPU-a", "GPU-m", Closeness.NODE),
        Link("GPU-m", "GPU-x", Closeness.NODE),
        Link("GPU-0", "GPU-b", Closeness.NODE),
    ),
    "580.82.07",
)
SHARES = Shares(1024).with_inventory(INVENTORY)


def test_the_agent_writes_every_gpu_of_its_node() -> None:
    text = write_node_gpus(node_gpus(SHARES, INVENTORY, {"GPU-b": "it fell off the bus"}, "binpack"))
    assert json.loads(text) == {
        "version": 1,
        "shareMiB": 1024,
        "policy": "binpack",
        "driver": "580.82.07",
        "gpus": [
            {
                "uuid": "GPU-a",
                "index": 0,
                "model": "Tesla T4",
                "memoryMiB": 15_360,
                "reservedMiB": 450,
                "shares": 14,
                "healthy": True,
                "numa": 0,
                "pci": "0000:3b:00.0",
            },
            {
                "uuid": "GPU-b",
                "index": 1,
                "model": "NVIDIA A10",
                "memoryMiB": 23_028,
                "reservedMiB": 0,
                "shares": 22,
                "healthy": False,
                "reason": "it fell off the bus",
            },
        ],
        "links": [[0, 1, "nvlink", 2]],
    }
    assert " " not in text.replace("Tesla T4", "").replace("NVIDIA A10", "").replace("it fell off the bus", "")


def test_gpus_that_are_not_read_are_what_is_wrong_with_the_node() -> None:
    why = "the GPU GPU-c (nvidia-smi counts it as 2) is left out, it cannot be read: GPU is lost (15)"
    node = node_gpus(SHARES, replace(INVENTORY, unread=(why,)), {}, "binpack")
    assert read_node_gpus(write_node_gpus(node)).unread == (why,)
    assert (node.fault, node.problem) == (why, "")
    assert replace(node, problem=AWAY, away=True).fault == f"{AWAY}; {why}"


@pytest.mark.parametrize("unread", [1, None, "x", [1, "", "a\n"], [["x"]]])
def test_sentences_that_are_none_are_left_out(unread: object) -> None:
    assert read_node_gpus(json.dumps({"version": 1, "gpus": [], "unread": unread, "shareMiB": 1})).unread == ()


def test_of_what_is_not_read_no_more_is_kept_than_people_read() -> None:
    many = NodeGpus(share_mib=1, unread=("x" * 1000,) * 100)
    for found in (json.loads(write_node_gpus(many))["unread"], read_node_gpus(write_node_gpus(many)).unread):
        assert list(found) == ["x" * 400] * 16


def test_the_end_of_the_agent_is_the_last_key_of_the_annotation() -> None:
    there, away = (write_node_gpus(node_gpus(SHARES, INVENTORY, {}, "binpack", away=away)) for away in (False, True))
    assert away == f'{there[:-1]},"away":true}}'


def test_a_node_that_gives_its_gpus_to_claims_says_so() -> None:
    there, claims = (node_gpus(SHARES, INVENTORY, {}, "binpack", claims=claims) for claims in (False, True))
    assert write_node_gpus(claims) == f'{write_node_gpus(there)[:-1]},"claims":true}}'
    assert (read_node_gpus(write_node_gpus(there)), read_node_gpus(write_node_gpus(claims))) == (there, claims)
    assert (there.claims, claims.claims) == (False, True)


def test_a_gpu_out_of_service_without_a_reason_is_out_of_service() -> None:
    there = node_gpus(SHARES, INVENTORY, {"GPU-b": ""}, "binpack")
    assert [gpu.unhealthy for gpu in there.gpus] == ["", "it is unhealthy"]


# --- MIG

H100 = "NVIDIA H100 80GB HBM3"
CARD = Gpu("GPU-h", 2, H100, 81_559, device_paths=("/dev/nvidia2",), pci_bus_id="0000:5e:00.0", numa_node=1, mig=True)


def mig(number: int, profile: str = "1g.10gb") -> Gpu:
    """Return an instance of the GPU in MIG mode."""
    place = MigInstance("GPU-h", number, profile, gi=number + 7, ci=0)
    memory = 9_728 if profile == "1g.10gb" else 40_448
    return replace(
        CARD, uuid=f"MIG-{number}", product=f"{H100} MIG {profile}", total_mib=memory, mig=False, instance=place
    )


def divided(*instances: Gpu) -> Inventory:
    """Return a node with a Tesla T4 and instances of an H100."""
    return Inventory((T4, CARD, *instances))


ON_MIG = divided(mig(0), mig(1, "3g.40gb"))
FIRST = ListedInstance("GPU-h", 2, 0, "1g.10gb", 7)
SECOND = ListedInstance("GPU-h", 2, 1, "3g.40gb", 8)


def listed(position: int, place: ListedInstance, shares: int, memory_mib: int) -> ListedGpu:
    return ListedGpu(
        position,
        shares,
        f"MIG-{place.number}",
        f"{H100} MIG {place.profile}",
        memory_mib,
        numa=1,
        reserved_mib=0,
        pci="0000:5e:00.0",
        instance=place,
    )


def test_instances_that_are_shared_stand_among_the_gpus() -> None:
    there = node_gpus(Shares(1024).with_inventory(ON_MIG, mig=MigMode.SHARE), ON_MIG, {}, "binpack")
    assert there.gpus[1:] == (listed(1, FIRST, 9, 9_728), listed(2, SECOND, 39, 40_448))
    assert (there.instances, there.gone, there.all) == ((), (), there.gpus)
    assert (there.cards, there.parents, there.elsewhere) == ({1: 1, 2: 1}, frozenset({"GPU-h"}), frozenset())
    assert [gpu.card for gpu in there.gpus] == ["GPU-a", "GPU-h", "GPU-h"]
    assert SECOND.label == "2:1"
    assert read_node_gpus(write_node_gpus(there)) == there


def test_instances_that_are_given_whole_stand_apart_with_their_resource() -> None:
    shares = Shares(1024).with_inventory(ON_MIG, mig=MigMode.WHOLE)
    there = node_gpus(shares, ON_MIG, {"MIG-1": "XID 79"}, "binpack", mig_domain="nvidia.com")
    first = listed(1, replace(FIRST, resource="nvidia.com/mig-1g.10gb"), 9, 9_728)
    second = listed(2, replace(SECOND, resource="nvidia.com/mig-3g.40gb"), 39, 40_448)
    assert [gpu.uuid for gpu in there.gpus] == ["GPU-a"]
    assert there.instances == (first, replace(second, unhealthy="XID 79"))
    assert [gpu.position for gpu in there.all] == [0, 1, 2]
    assert (there.cards, there.models, there.elsewhere) == ({}, frozenset({"Tesla T4"}), frozenset({1, 2}))
    assert read_node_gpus(write_node_gpus(there)) == there


def test_an_instance_that_exists_no_more_keeps_its_position_apart_while_nobody_holds_it() -> None:
    fewer = divided(mig(1, "3g.40gb"))
    shares = Shares(1024).with_inventory(ON_MIG, mig=MigMode.SHARE).with_inventory(fewer, mig=MigMode.SHARE)
    there = node_gpus(shares, fewer, {"MIG-0": "it is gone"}, "binpack")
    gone = replace(listed(1, FIRST, 9, 9_728), unhealthy="it is gone")
    assert ([gpu.position for gpu in there.gpus], there.gone, there.elsewhere) == ([0, 2], (gone,), frozenset({1}))
    assert read_node_gpus(write_node_gpus(there)) == there
    held = node_gpus(shares, fewer, {"MIG-0": "it is gone"}, "binpack", held_shares={"MIG-0"})
    assert (held.gpus[1], held.gone) == (gone, ())


@pytest.mark.parametrize("held", ["held_shares", "held_whole"])
def test_a_gpu_that_is_excluded_while_a_container_has_some_of_it_leaves_the_list_readable(held: str) -> None:
    """It has no shares, but the ledger has those of the container."""
    there = Inventory(tuple(Gpu(f"GPU-{n}", n, "Tesla T4", 4096) for n in range(3)))
    found = node_gpus(Shares(1024).with_inventory(there, ["GPU-1"]), there, {}, "binpack", **{held: {"GPU-1"}})  # type: ignore[arg-type]
    assert [gpu.position for gpu in found.all] == [0, 2]
    assert [gpu.position for gpu in found.gone] == [1]
    assert read_node_gpus(write_node_gpus(found)) == found


def test_an_instance_that_a_container_has_shares_of_and_that_went_while_no_agent_ran_leaves_the_list_readable() -> None:
    gone = Gpu("MIG-9", -1, "NVIDIA H100 MIG 1g.10gb", 9_728, instance=MigInstance("GPU-0", -1, "1g.10gb", 9, 0))
    (card,) = cards = (Gpu("GPU-0", 0, "Tesla T4", 4096),)
    there = Inventory(cards, order=(gone, card))
    shares = Shares(1024).with_inventory(there, mig=MigMode.SHARE)
    found = node_gpus(shares, there, {}, "binpack", held_shares={"MIG-9"})
    assert ([gpu.position for gpu in found.gpus], [gpu.position for gpu in found.gone]) == ([1], [0])
    assert read_node_gpus(write_node_gpus(found)) == found


def test_an_instance_that_is_held_in_the_way_that_was_left_is_listed_so_that_nobody_gets_it() -> None:
    """Its shares are held although it is given whole now, or the reverse; with a reason of its own, that is told."""
    other = "a container holds it under the previous setting mig of this node"
    share = Shares(1024).with_inventory(ON_MIG, mig=MigMode.SHARE)
    whole = share.with_inventory(ON_MIG, mig=MigMode.WHOLE)
    there = node_gpus(whole, ON_MIG, {}, "binpack", mig_domain="nvidia.com", held_shares={"MIG-0"})
    assert [(gpu.uuid, gpu.unhealthy) for gpu in there.gpus] == [("GPU-a", ""), ("MIG-0", other)]
    assert [gpu.uuid for gpu in there.instances] == ["MIG-1"]
    there = node_gpus(share, ON_MIG, {}, "binpack", held_whole={"MIG-0"})
    assert [gpu.unhealthy for gpu in there.gpus] == ["", other, ""]
    there = node_gpus(share, ON_MIG, {"MIG-0": "XID 79"}, "binpack", held_whole={"MIG-0"})
    assert [gpu.unhealthy for gpu in there.gpus] == ["", "XID 79", ""]
    off = whole.with_inventory(ON_MIG, mig=MigMode.OFF)
    there = node_gpus(off, ON_MIG, {}, "binpack", mig_domain="nvidia.com", held_whole={"MIG-1"})
    assert [gpu.uuid for gpu in there.gpus] == ["GPU-a"]
    assert [(gpu.uuid, gpu.instance and gpu.instance.resource) for gpu in there.instances] == [
        ("MIG-1", "nvidia.com/mig-3g.40gb")
    ]
    assert [gpu.uuid for gpu in there.gone] == ["MIG-0"]


def test_a_reader_that_knows_no_mig_sees_shared_instances_as_gpus_and_no_others() -> None:
    """As releases before MIG read it: the list "gpus" has what it had, and a key more for each instance."""
    known = {"uuid", "index", "model", "memoryMiB", "reservedMiB", "shares", "healthy", "reason", "numa", "pci"}
    said = {}
    for mode in MigMode:
        shares = Shares(1024).with_inventory(ON_MIG, mig=mode)
        said[mode] = json.loads(write_node_gpus(node_gpus(shares, ON_MIG, {}, "binpack", mig_domain="nvidia.com")))
        for gpu in said[mode]["gpus"]:
            assert gpu.keys() - known <= {"mig"}
    assert [gpu["index"] for gpu in said[MigMode.SHARE]["gpus"]] == [0, 1, 2]
    assert said[MigMode.SHARE]["gpus"][1] == {
        "uuid": "MIG-0",
        "index": 1,
        "model": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "memoryMiB": 9_728,
        "reservedMiB": 0,
        "shares": 9,
        "healthy": True,
        "numa": 1,
        "pci": "0000:5e:00.0",
        "mig": {"parent": "GPU-h", "gpu": 2, "number": 0, "profile": "1g.10gb", "gi": 7},
    }
    plain = {"version", "shareMiB", "policy", "driver", "gpus", "links"}
    assert said[MigMode.WHOLE].keys() == plain | {"instances"}
    assert said[MigMode.OFF].keys() == said[MigMode.SHARE].keys() == plain
    assert said[MigMode.WHOLE]["gpus"] == said[MigMode.OFF]["gpus"] == said[MigMode.SHARE]["gpus"][:1]


def test_machines_of_one_kind_share_their_links_whatever_instances_they_have() -> None:
    known: dict[str, Links] = {}
    shares = Shares(1024).with_inventory(ON_MIG, mig=MigMode.WHOLE)
    there = node_gpus(shares, ON_MIG, {}, "binpack", mig_domain="nvidia.com")
    for why in ("", "hot"):
        changed = replace(there, instances=tuple(replace(gpu, unhealthy=why) for gpu in there.instances))
        assert read_node_gpus(write_node_gpus(changed), known) == changed
    assert len(known) == 1


INSTANCE = {"parent": "GPU-h", "gpu": 2, "number": 0, "profile": "1g.10gb", "gi": 7}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"instances": {}}, "has no list of at most 128 instances"),
        ({"instances": None}, "has no list of at most 128 instances"),
        ({"instances": [{}] * 129}, "has no list of at most 128 instances"),
        ({"gone": [{}] * 513}, "has no list of at most 512 gone"),
        ({"gone": [0]}, "has a gpu that is not a JSON object"),
        ({"gone": [{"index": 0, "shares": 1}]}, "has two gpus with the same index"),
        ({"instances": [{"index": 7, "shares": -1}]}, "has no whole number from 0 to 1048576 for shares"),
        ({"instances": [{"index": 7, "shares": 1, "mig": []}]}, "has a mig that is not a JSON object"),
        *(
            ({"gpus": [{"index": 7, "shares": 1, "mig": {**INSTANCE, key: said}}]}, "has no whole number from 0 to")
            for key in ("gpu", "number", "gi")
            for said in (None, "1", -1)
        ),
    ],
)
def test_instances_of_another_form_are_malformed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MalformedAnnotationError, match=re.escape(why)):
        read(**changes)


def test_absent_fields_of_an_instance_are_unknown() -> None:
    """One of no shares is given whole all the same, and its parent may be nobody's business."""
    there = read(instances=[{"index": 7, "shares": 0, "mig": {**INSTANCE, "parent": 7, "profile": None}}])
    assert there.instances == (ListedGpu(7, 0, instance=ListedInstance("", 2, 0, "", 7)),)


def test_no_more_instances_are_written_as_gone_than_are_read() -> None:
    """The oldest positions are kept."""
    there = NodeGpus(share_mib=1024, gone=tuple(ListedGpu(n, 1) for n in range(513)))
    found = read_node_gpus(write_node_gpus(there))
    assert [gpu.position for gpu in found.gone] == list(range(512))


# --- round trip

gpus_of_nodes = st.lists(
    st.builds(
        Gpu,
        uuid=st.uuids().map(lambda uuid: f"GPU-{uuid}"),
        index=st.integers(0, 63),
        product=st.sampled_from(["Tesla T4", "NVIDIA A10", "NVIDIA H100 80GB HBM3", ""]),
        total_mib=st.integers(1024, 200_000),
        reserved_mib=st.integers(0, 600),
        pci_bus_id=st.none() | st.just("0000:3b:00.0"),
        numa_node=st.none() | st.integers(0, 7),
        mig=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda gpu: gpu.uuid,
)


@given(gpus_of_nodes, st.sampled_from([512, 1024, 2048]), st.sampled_from(["binpack", "spread"]), st.data())
def test_the_annotation_reads_as_it_was_written(
    gpus: list[Gpu], share_mib: int, policy: str, data: st.DataObject
) -> None:
    names = sorted(gpu.uuid for gpu in gpus)
    pairs = [(a, b) for a in names for b in names if a < b]
    levels = data.draw(st.lists(st.sampled_from(Closeness), min_size=len(pairs), max_size=len(pairs)))
    links = tuple(
        Link(a, b, level, 4 if level is Closeness.NVLINK else 0) for (a, b), level in zip(pairs, levels, strict=True)
    )
    inventory = Inventory(tuple(gpus), links, data.draw(st.none() | st.just("580.82.07")))
    shares = Shares(share_mib).with_inventory(inventory)
    unhealthy = dict.fromkeys(data.draw(st.sets(st.sampled_from(names))) if names else (), "hot")
    there = node_gpus(shares, inventory, unhealthy, policy, away=data.draw(st.booleans()))
    found = read_node_gpus(write_node_gpus(there))
    assert found == there


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.text()
    | JSON.map(json.dumps)
    | st.dictionaries(st.sampled_from(sorted(WHOLE)), JSON).map(lambda changes: json.dumps(WHOLE | changes))
    | st.dictionaries(st.sampled_from(["index", "shares", "memoryMiB", "healthy", "reason", "numa"]), JSON).map(
        lambda fields: json.dumps(WHOLE | {"gpus": [fields]})
    )
)
def test_junk_is_malformed_at_worst(text: str) -> None:
    try:
        found = read_node_gpus(text)
    except MalformedAnnotationError:
        return
    assert all(gpu.shares > 0 for gpu in found.gpus)
    assert read_node_gpus(write_node_gpus(found)) == found
    repr(found).encode()


def test_the_groups_of_device_nodes_are_bounded_and_what_is_none_is_left_out() -> None:
    shares = Shares(1024).with_inventory(Inventory((Gpu("GPU-a", 0, "T4", 4096, 0), Gpu("GPU-b", 1, "T4", 4096, 1))))
    text = write_node_gpus(node_gpus(shares, Inventory(), {}, "fit", groups={"GPU-b": (993,)}))
    assert [gpu.groups for gpu in read_node_gpus(text).gpus] == [(), (993,)]
    for listed, groups in (("[1, -1, true, 2, 3]", (1, 2)), ("{}", ()), ('["x", 4294967296]', ())):
        assert read_node_gpus(text.replace("[993]", listed)).gpus[1].groups == groups


def test_a_gpu_stays_cordoned_until_the_agent_has_read_that_it_is_not() -> None:
    """Else a pod would be promised a GPU that the agent still refuses."""
    shares = Shares(1024).with_inventory(Inventory((Gpu("GPU-a", 0, "T4", 4096, 0), Gpu("GPU-b", 1, "T4", 4096, 1))))
    text = write_node_gpus(node_gpus(shares, Inventory(), {}, "fit", cordoned=["GPU-b"]))
    mark = Cordon("alice")
    cordons = write_cordons({"GPU-a": mark, "GPU-b": mark})
    assert cordons is not None
    assert [gpu.cordon for gpu in gpus_of_node({NODE_GPUS: text, CORDONS: cordons}, {}, 0, 0).gpus] == [mark, mark]
    after = gpus_of_node({NODE_GPUS: text}, {}, 0, 0)
    assert [gpu.cordon for gpu in after.gpus] == [None, NOT_READ_YET]
    assert [gpu.cordon for gpu in with_cordons(after, {}).gpus] == [None, None]
