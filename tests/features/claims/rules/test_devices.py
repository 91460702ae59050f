"""What ResourceSlices say of a node's GPUs."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.claims.rules.devices import (
    REORDER_S,
    Order,
    SliceInputs,
    devices,
    nvlink_groups,
    offered_as,
    plain_devices,
    quantity,
    reordered,
    semver,
    taint_value,
    wanted_order,
)
from gpu_device_plugin.model.gpus import Closeness, Gpu, Inventory, Links
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node
from tests.claims import mig_inventory, mig_node, mig_uuid, node, uuid

NAMES = [uuid(position).lower() for position in range(4)]
HELD = {"key": "gpu-device-plugin/unhealthy", "value": "held-otherwise", "effect": "NoSchedule"}


def named(*found: dict[str, Any]) -> list[str]:
    return [each["name"] for each in found]


def memory_of(device: dict[str, Any]) -> Any:
    return device["capacity"]["memory"]


def test_a_gpu_is_one_device_of_which_claims_take_parts_or_all_and_one_to_be_looked_at() -> None:
    here = node(16, nvlinks=())
    facts = SliceInputs((uuid(0),), "570.86.03", {uuid(0): Enforcement.DRIVER})
    device, monitor = devices(here, facts)
    said = {
        "uuid": {"string": uuid(0)},
        "productName": {"string": "NVIDIA H200"},
        "kernelDriver": {"string": "nvidia"},
        "driverVersion": {"version": "570.86.3"},
        "index": {"int": 0},
        "numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
    }
    kinds = {"type": {"string": "shared-gpu"}, "whole": {"string": "whole-gpu"}}
    assert device == {
        "name": NAMES[0],
        "allowMultipleAllocations": True,
        "attributes": {**said, **kinds, "limits": {"string": "driver"}},
        "capacity": {
            "memory": {
                "value": "16Gi",
                "requestPolicy": {"default": "16Gi", "validRange": {"min": "1Gi", "max": "16Gi", "step": "1Gi"}},
            },
            "compute": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
            },
        },
    }
    assert monitor == {"name": f"{NAMES[0]}-monitor", "attributes": {**said, "type": {"string": "monitor"}}}


def test_devices_come_in_the_given_order() -> None:
    found = devices(node(8, 8, 8), SliceInputs((uuid(2), uuid(0))))
    assert named(*found) == [NAMES[2], NAMES[0], NAMES[1], *(f"{NAMES[at]}-monitor" for at in (2, 0, 1))]


def test_where_only_parts_are_offered_no_class_of_whole_gpus_finds_a_device() -> None:
    device, _ = devices(node(8), SliceInputs((), kinds=frozenset({Kind.MEMORY})))
    assert device["attributes"]["type"] == {"string": "shared-gpu"}
    assert "whole" not in device["attributes"]


def test_where_only_whole_gpus_are_offered_each_amount_is_rounded_up_to_all() -> None:
    """The device is the same, so parts that claims took of it before still count."""
    device, _ = devices(node(8), SliceInputs((), kinds=frozenset({Kind.COUNT})))
    assert (device["name"], device["allowMultipleAllocations"]) == (NAMES[0], True)
    assert device["attributes"]["type"] == {"string": "whole-gpu"}
    assert memory_of(device)["requestPolicy"] == {"default": "8Gi", "validRange": {"min": "8Gi", "max": "8Gi"}}


@pytest.mark.parametrize(("evict", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
def test_a_gpu_out_of_service_has_a_taint_that_says_why(effect: str, *, evict: bool) -> None:
    here = node(8, 8, unhealthy={1: "XID 79 (it has fallen off the bus) was reported"})
    found = devices(here, SliceInputs((), evict=evict))
    taint = {"key": "gpu-device-plugin/unhealthy", "value": "xid-79", "effect": effect}
    assert [each.get("taints") for each in found] == [None, [taint], None, None]


def test_a_cordoned_gpu_has_a_taint_that_lets_the_claims_there_stay() -> None:
    here = replace(node(8, 8), blocks={uuid(0): Block("XID 79", "why"), uuid(1): Block(new_pods="why")})
    taints = [each["taints"][0] for each in devices(here, SliceInputs((), evict=True))[:2]]
    assert [each["key"] for each in taints] == ["gpu-device-plugin/unhealthy", "gpu-device-plugin/cordoned"]
    assert taints[1] == {"key": "gpu-device-plugin/cordoned", "effect": "NoSchedule"}
    assert [each["name"] for each in plain_devices(here, SliceInputs(())) if "monitor" not in each["name"]] == []
    both = dict.fromkeys([uuid(0), uuid(1)], Block(new_pods="why"))
    assert wanted_order(replace(here, blocks=both), "binpack")[-1] == uuid(1)


def test_a_gpu_that_is_held_through_another_resource_gets_no_claims() -> None:
    here = replace(node(8), ledger=Ledger().with_held_by_other_resource({uuid(0): "nvidia.com/gpu"}))
    assert devices(here, SliceInputs((), evict=True))[0]["taints"] == [HELD]


def test_a_gpu_that_is_held_by_a_device_of_a_former_agent_gets_no_claims() -> None:
    found = devices(node(8, 8, whole=[1]), SliceInputs((), held_formerly=frozenset({uuid(1)})))
    assert [each.get("taints") for each in found] == [None, [HELD], None, None]


def test_a_gpu_without_the_limits_that_are_required_gives_no_parts_and_is_given_whole() -> None:
    here = replace(node(8), blocks={uuid(0): Block(parts="why")})
    device, _ = devices(here, SliceInputs(()))
    assert "taints" not in device
    assert device["attributes"]["type"] == {"string": "whole-gpu"}
    only_parts, _ = devices(here, SliceInputs((), kinds=frozenset({Kind.MEMORY})))
    assert only_parts["taints"] == [HELD | {"value": "limits-missing"}]


def test_an_api_server_without_parts_gets_healthy_gpus_as_whole_devices() -> None:
    here = node(8, 8, unhealthy={0: "it is lost"})
    found, *monitors = plain_devices(here, SliceInputs(()))
    assert found["name"] == NAMES[1]
    assert found.keys() == {"name", "attributes", "capacity"}
    assert [each["name"] for each in monitors] == [f"{NAMES[0]}-monitor", f"{NAMES[1]}-monitor"]
    assert plain_devices(here, SliceInputs((), kinds=frozenset({Kind.MEMORY}))) == monitors


def mig_names(card: int, numbers: Iterable[int], ending: str = "") -> list[str]:
    return [mig_uuid(card, number).lower() + ending for number in numbers]


def test_an_instance_that_is_given_whole_is_a_device_with_its_place() -> None:
    whole, monitor = devices(mig_node([20], mode=MigMode.WHOLE), SliceInputs((), "570.86.03"))
    said = {
        "uuid": {"string": mig_uuid(0, 0)},
        "parentUUID": {"string": uuid(0)},
        "profile": {"string": "2g.20gb"},
        "gi": {"int": 7},
        "productName": {"string": "NVIDIA H100 MIG 2g.20gb"},
        "kernelDriver": {"string": "nvidia"},
        "driverVersion": {"version": "570.86.3"},
        "index": {"int": 0},
        "numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
    }
    assert whole["name"] == mig_uuid(0, 0).lower()
    assert whole["attributes"] == {**said, "type": {"string": "mig"}, "limits": {"string": "partition"}}
    assert memory_of(whole)["requestPolicy"] == {"default": "20Gi", "validRange": {"min": "20Gi", "max": "20Gi"}}
    assert monitor == {
        "name": mig_uuid(0, 0).lower() + "-monitor",
        "attributes": {**said, "type": {"string": "monitor"}},
    }


def test_an_instance_that_is_shared_can_be_had_whole_as_well() -> None:
    device, _ = devices(mig_node([20]), SliceInputs((), enforcements={mig_uuid(0, 0): Enforcement.CUSTOM}))
    assert memory_of(device)["requestPolicy"]["validRange"] == {"min": "1Gi", "max": "20Gi", "step": "1Gi"}
    said = {name: device["attributes"][name]["string"] for name in ("type", "whole", "limits")}
    assert said == {"type": "shared-gpu", "whole": "mig", "limits": "custom"}


def test_a_device_of_one_share_has_no_step() -> None:
    """The API server refuses a step that is larger than what is left of the capacity."""
    shared = devices(mig_node([10], share_mib=8192), SliceInputs(()))[0]
    assert shared["capacity"]["memory"] == {
        "value": "8Gi",
        "requestPolicy": {"default": "8Gi", "validRange": {"min": "8Gi", "max": "8Gi"}},
    }


@pytest.mark.parametrize(
    ("mode", "kinds", "expected"),
    [
        (MigMode.OFF, OF_GPUS, ""),
        (MigMode.WHOLE, OF_GPUS, "instance"),
        (MigMode.WHOLE, [Kind.MEMORY], "instance"),
        (MigMode.WHOLE, [Kind.COUNT], "instance"),
        (MigMode.SHARE, OF_GPUS, "instance memory"),
        (MigMode.SHARE, [Kind.MEMORY], "memory"),
        (MigMode.SHARE, [Kind.COUNT], "instance"),
    ],
)
def test_the_mode_and_the_resources_decide_which_devices_an_instance_is(
    mode: MigMode, kinds: Collection[Kind], expected: str
) -> None:
    here = mig_node([10], 8, mode=mode)
    here = replace(here, shares=here.shares.with_inventory(mig_inventory([10], 8), mig=mode))
    found = {shared.gpu.instance is not None: offered_as(shared, kinds) for shared in here.shares.gpus}
    assert found.get(True, frozenset()) == set(expected.split())
    assert found[False] == set(kinds)
    types = {
        each["attributes"][name]["string"]
        for each in devices(here, SliceInputs((), kinds=frozenset(kinds)))
        for name in ("type", "whole")
        if "profile" in each["attributes"] and name in each["attributes"]
    }
    words = {"memory": "shared-gpu", "instance": "mig"}
    assert types == {*(words[word] for word in expected.split()), *["monitor"] * bool(expected)}


def test_a_class_of_whole_gpus_never_sees_an_instance() -> None:
    for mode in MigMode:
        found = devices(mig_node([10, 20], 8, mode=mode), SliceInputs(()))
        whole = [each for each in found if each["attributes"].get("whole") == {"string": "whole-gpu"}]
        assert named(*whole) == [uuid(1).lower()]


def test_an_instance_that_exists_no_more_is_no_device_and_nor_is_its_gpu() -> None:
    here = mig_node([10, 10], 8)
    gone = replace(here, shares=here.shares.with_inventory(mig_inventory([10], 8), mig=MigMode.SHARE))
    names = named(*devices(gone, SliceInputs(())))
    assert [name for name in names if name.startswith("mig-")] == [
        *mig_names(0, [0]),
        *mig_names(0, [0], "-monitor"),
    ]
    assert not any(name.startswith(uuid(0).lower()) for name in names)
    assert not any("mig-" in each for each in named(*plain_devices(gone, SliceInputs(()))) if "monitor" not in each)


def test_an_instance_that_is_too_small_for_a_share_is_no_device_where_instances_are_shared() -> None:
    before = mig_node([10], mode=MigMode.WHOLE, share_mib=16384)
    assert named(*devices(before, SliceInputs(()))) == [
        *mig_names(0, [0]),
        *mig_names(0, [0], "-monitor"),
    ]
    here = replace(before, shares=before.shares.with_inventory(mig_inventory([10]), mig=MigMode.SHARE))
    assert devices(here, SliceInputs(())) == []


def test_an_api_server_without_parts_gets_instances_where_they_are_given_whole_only() -> None:
    for mode, expected in ((MigMode.WHOLE, mig_names(0, [1])), (MigMode.SHARE, []), (MigMode.OFF, [])):
        here = mig_node([10, 10], 8, mode=mode, unhealthy={mig_uuid(0, 0): "it is lost"})
        found = [
            each for each in plain_devices(here, SliceInputs(())) if each["attributes"]["type"]["string"] != "monitor"
        ]
        assert named(*found) == [uuid(1).lower(), *expected]
        assert all(each.keys() == {"name", "attributes", "capacity"} for each in found)


def test_the_architecture_is_said_where_it_is_known() -> None:
    (shared,) = node(8).shares.gpus
    known = replace(shared, gpu=replace(shared.gpu, architecture="Hopper"))
    here = replace(node(8), shares=replace(node(8).shares, gpus=(known,)))
    assert devices(here, SliceInputs(()))[0]["attributes"]["architecture"] == {"string": "Hopper"}


AMD = Gpu(
    "GPU-0123456789ABCDEF-p3",
    1,
    "AMD Instinct MI300X",
    24 * 1024,
    device_paths=("/dev/kfd", "/dev/dri/renderD131"),
    pci_bus_id="0000:C1:00.0",
    architecture="gfx942",
    driver="amdgpu",
    compute_units=38,
)
INTEL = Gpu("PCI-0000:03:00.0", 2, "Intel Arc B580", 12 * 1024, device_paths=("/dev/dri/renderD128",), driver="xe")


def test_gpus_of_other_kernel_drivers_say_so_and_have_no_version_of_nvidias() -> None:
    nvidia = node(16).shares.gpus[0].gpu
    here = Node(Shares(1024).with_inventory(Inventory((nvidia, AMD, INTEL))))
    facts = SliceInputs((), "570.86.03")
    first, partition, slot = (each for each in devices(here, facts) if not each["name"].endswith("-monitor"))
    assert partition["name"] == "gpu-0123456789abcdef-p3"
    assert partition["attributes"] == {
        "type": {"string": "shared-gpu"},
        "whole": {"string": "whole-gpu"},
        "uuid": {"string": "GPU-0123456789ABCDEF-p3"},
        "productName": {"string": "AMD Instinct MI300X"},
        "architecture": {"string": "gfx942"},
        "kernelDriver": {"string": "amdgpu"},
        "computeUnits": {"int": 38},
        "index": {"int": 1},
        "limits": {"string": "advisory"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:c1:00.0"},
    }
    assert slot["name"] == "pci-0000-03-00-0"
    assert slot["attributes"]["kernelDriver"] == {"string": "xe"}
    assert first["attributes"]["driverVersion"] == {"version": "570.86.3"}
    alone = Node(Shares(1024).with_inventory(Inventory((AMD,))))
    device, _ = devices(alone, SliceInputs((), "6.10.5"))
    assert device["attributes"]["driverVersion"] == {"version": "6.10.5"}


def test_gpus_that_nvlinks_connect_through_others_are_one_group() -> None:
    links = node(8, 8, 8, 8, 8, nvlinks=[(3, 1), (3, 4)]).links
    far = Links((*links.pairs, (0, 2, Closeness.SYSTEM, 0)))
    assert nvlink_groups(links) == nvlink_groups(far) == {1: 1, 3: 1, 4: 1}
    found = devices(node(8, 8, 8, nvlinks=[(1, 2)]), SliceInputs(()))
    assert [each["attributes"].get("nvlinkGroup") for each in found[:3]] == [None, {"int": 1}, {"int": 1}]


@pytest.mark.parametrize(
    ("mib", "text"), [(0, "0Mi"), (1, "1Mi"), (1000, "1000Mi"), (1024, "1Gi"), (144384, "141Gi"), (1 << 30, "1024Ti")]
)
def test_amounts_are_written_as_the_api_server_writes_them(mib: int, text: str) -> None:
    assert quantity(mib) == text


@pytest.mark.parametrize(
    ("version", "expected"),
    [("570.124.06", "570.124.6"), ("615.71", "615.71.0"), ("580", "580.0.0"), ("r580", None), ("1.2.3.4", None)],
)
def test_driver_versions_become_semantic_ones(version: str, expected: str | None) -> None:
    assert semver(version) == expected
    attributes = devices(node(8), SliceInputs((), version))[0]["attributes"]
    assert attributes.get("driverVersion") == (expected and {"version": expected})


def test_a_reason_without_a_number_has_a_word_of_its_own() -> None:
    assert taint_value("XID 48: double bit error") == "xid-48"
    assert taint_value("it does not answer; XIDs are not known") == "out-of-service"


def order(*positions: int) -> tuple[str, ...]:
    return tuple(uuid(position) for position in positions)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", (1, 0, 2, 3, 4, 5)), ("fit", (1, 0, 2, 3, 4, 5)), ("spread", (2, 0, 1, 3, 4, 5))],
)
def test_the_fullest_with_room_comes_first_or_the_emptiest(policy: str, expected: tuple[int, ...]) -> None:
    """GPU 3 is full, GPU 4 in whole use, GPU 5 out of service."""
    here = node(*[8] * 6, used={0: range(2), 1: range(5), 3: range(8)}, whole=[4], unhealthy={5: "it is lost"})
    assert wanted_order(here, policy) == order(*expected)


def instances(*places: tuple[int, int]) -> tuple[str, ...]:
    return tuple(mig_uuid(*place) for place in places)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", [(1, 0), (1, 2), (0, 0), (0, 1), (1, 1)]), ("spread", [(0, 0), (0, 1), (1, 2), (1, 0), (1, 1)])],
)
def test_of_equal_instances_those_of_the_fullest_gpu_come_first(policy: str, expected: list[tuple[int, int]]) -> None:
    """Instance 1:1 is in whole use, and 1:0 has 4 GiB left."""
    here = mig_node([10, 10], [10, 10, 10], used={(1, 0): range(6)}, whole=[(1, 1)])
    assert wanted_order(here, policy) == instances(*expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("binpack", [(1, 0), (0, 0), (0, 2), (0, 1), (1, 1)]), ("spread", [(0, 0), (0, 2), (1, 0), (0, 1), (1, 1)])],
)
def test_of_whole_instances_the_smallest_come_first(policy: str, expected: list[tuple[int, int]]) -> None:
    here = mig_node([10, 20, 10], [10, 10], mode=MigMode.WHOLE, whole=[(1, 1)])
    assert wanted_order(here, policy) == instances(*expected)


def test_instances_that_nobody_gets_have_a_place_too() -> None:
    assert wanted_order(mig_node(8, [10], mode=MigMode.OFF), "binpack") == order(0)


def test_the_order_changes_at_most_every_ten_seconds_and_is_due_then() -> None:
    first = reordered(Order(), node(8, 8), "binpack", 100.0)
    assert first == Order(order(0, 1), 100.0)
    assert reordered(first, node(8, 8), "binpack", 101.0) == first
    fuller = node(8, 8, used={1: [0]})
    soon = reordered(first, fuller, "binpack", 103.0)
    assert soon == Order(order(0, 1), 100.0, 100.0 + REORDER_S)
    assert reordered(soon, node(8, 8), "binpack", 105.0) == Order(order(0, 1), 100.0)
    assert reordered(soon, fuller, "binpack", 110.0) == Order(order(1, 0), 110.0)


def test_a_new_gpu_does_not_wait() -> None:
    before = Order(order(0), 100.0)
    assert reordered(before, node(8, 8), "binpack", 101.0) == Order(order(0, 1), 101.0)
