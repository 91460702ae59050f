"""What ResourceSlices say of a node's GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.core.dra.devices import (
    Facts,
    counters,
    devices,
    nvlink_groups,
    plain_devices,
    quantity,
    semver,
    taint_value,
)
from gpu_device_plugin.core.model.gpus import Closeness, Links
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.ledger import Ledger
from tests.claims import node, uuid

NAMES = [uuid(position).lower() for position in range(4)]
SETS = {uuid(position): "gpus-0" for position in range(4)}


def test_a_gpu_is_offered_in_parts_and_whole_and_both_take_the_same_counter() -> None:
    here = node(16, nvlinks=())
    facts = Facts((uuid(0),), "570.86.03", {uuid(0): Rung.DRIVER})
    shared, whole, monitor = devices(here, facts, SETS)
    lock = [{"counterSet": "gpus-0", "counters": {NAMES[0]: {"value": "1"}}}]
    said = {
        "uuid": {"string": uuid(0)},
        "productName": {"string": "NVIDIA H200"},
        "driverVersion": {"version": "570.86.3"},
        "index": {"int": 0},
        "numaNode": {"int": 0},
        "resource.kubernetes.io/pciBusID": {"string": "0000:0a:00.0"},
    }
    assert counters(here.shares.gpus) == {NAMES[0]: {"value": "1"}}
    assert shared == {
        "name": NAMES[0],
        "allowMultipleAllocations": True,
        "attributes": {**said, "type": {"string": "shared-gpu"}, "limits": {"string": "driver"}},
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
        "consumesCounters": lock,
    }
    assert whole == {
        "name": f"{NAMES[0]}-whole",
        "attributes": {**said, "type": {"string": "whole-gpu"}},
        "capacity": {"memory": {"value": "16Gi"}},
        "consumesCounters": lock,
    }
    assert monitor == {"name": f"{NAMES[0]}-monitor", "attributes": {**said, "type": {"string": "monitor"}}}


def test_shares_are_taken_from_one_end_of_the_order_and_whole_gpus_from_the_other() -> None:
    found = devices(node(8, 8, 8), Facts((uuid(2), uuid(0))), SETS)
    assert [each["name"] for each in found] == [
        *(NAMES[2], NAMES[0], NAMES[1]),
        *(f"{NAMES[1]}-whole", f"{NAMES[0]}-whole", f"{NAMES[2]}-whole"),
        *(f"{NAMES[2]}-monitor", f"{NAMES[0]}-monitor", f"{NAMES[1]}-monitor"),
    ]


@pytest.mark.parametrize("kind", list(Kind))
def test_a_resource_that_is_not_offered_has_no_devices(kind: Kind) -> None:
    names = [each["name"] for each in devices(node(8), Facts((), kinds=frozenset({kind})), SETS)]
    assert names == [NAMES[0] + "-whole" * (kind is Kind.COUNT), f"{NAMES[0]}-monitor"]


@pytest.mark.parametrize(("evict", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
def test_a_gpu_out_of_service_has_a_taint_that_says_why(effect: str, *, evict: bool) -> None:
    here = node(8, 8, unhealthy={1: "XID 79 (it has fallen off the bus) was reported"})
    found = devices(here, Facts((), evict=evict), SETS)
    taint = {"key": "gpu-device-plugin/unhealthy", "value": "xid-79", "effect": effect}
    assert [each.get("taints") for each in found] == [None, [taint], [taint], None, None, None]


def test_a_gpu_that_is_held_through_another_resource_gets_no_claims() -> None:
    here = replace(node(8), ledger=Ledger().with_foreign({uuid(0): "nvidia.com/gpu"}))
    for each in devices(here, Facts((), evict=True), SETS)[:2]:
        assert each["taints"] == [
            {"key": "gpu-device-plugin/unhealthy", "value": "held-otherwise", "effect": "NoSchedule"}
        ]


def test_a_gpu_without_the_limits_that_are_required_gives_no_parts_and_is_given_whole() -> None:
    shared, whole, _ = devices(node(8), Facts((), barred=frozenset({uuid(0)})), SETS)
    assert shared["taints"] == [
        {"key": "gpu-device-plugin/unhealthy", "value": "limits-missing", "effect": "NoSchedule"}
    ]
    assert "taints" not in whole


def test_an_api_server_without_parts_gets_healthy_gpus_as_whole_devices() -> None:
    here = node(8, 8, unhealthy={0: "it is lost"})
    found, *monitors = plain_devices(here, Facts(()))
    assert found["name"] == f"{NAMES[1]}-whole"
    assert found.keys() == {"name", "attributes", "capacity"}
    assert [each["name"] for each in monitors] == [f"{NAMES[0]}-monitor", f"{NAMES[1]}-monitor"]
    assert plain_devices(here, Facts((), kinds=frozenset({Kind.MEMORY}))) == monitors


def test_the_architecture_is_said_where_it_is_known() -> None:
    (shared,) = node(8).shares.gpus
    known = replace(shared, gpu=replace(shared.gpu, architecture="Hopper"))
    here = replace(node(8), shares=replace(node(8).shares, gpus=(known,)))
    assert devices(here, Facts(()), SETS)[0]["attributes"]["architecture"] == {"string": "Hopper"}


def test_gpus_that_nvlinks_connect_through_others_are_one_group() -> None:
    links = node(8, 8, 8, 8, 8, nvlinks=[(3, 1), (3, 4)]).links
    far = Links((*links.pairs, (0, 2, Closeness.SYSTEM, 0)))
    assert nvlink_groups(links) == nvlink_groups(far) == {1: 1, 3: 1, 4: 1}
    found = devices(node(8, 8, 8, nvlinks=[(1, 2)]), Facts(()), SETS)
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
    attributes = devices(node(8), Facts((), version), SETS)[0]["attributes"]
    assert attributes.get("driverVersion") == (expected and {"version": expected})


def test_a_reason_without_a_number_has_a_word_of_its_own() -> None:
    assert taint_value("XID 48: double bit error") == "xid-48"
    assert taint_value("it does not answer; XIDs are not known") == "out-of-service"
