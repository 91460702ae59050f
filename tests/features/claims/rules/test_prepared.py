"""The file of a prepared claim."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.claims.contract import Consumer
from gpu_device_plugin.features.claims.rules.prepared import (
    PreparedClaim,
    PreparedDevice,
    PreparedFileError,
    claim_allocations,
    overlapping,
    read_prepared,
    status_body,
    write_prepared,
)
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from tests.claims import ids, mig_uuid, uuid

CLAIM = PreparedClaim(
    "u-1",
    "default",
    "c1",
    (PreparedDevice("gpu", "gpu-1", "gpu-x", "share", uuid(0), 4096, 20),),
    ids(0, range(4)),
    Enforcement.MPS,
    (Consumer("p-1", "pod"),),
    ("gpu-device-plugin/claim=u-1",),
    {"cdiVersion": "0.5.0", "devices": [{"name": "u-1"}]},
)
WHOLE = PreparedClaim("u-2", "default", "c2", (PreparedDevice("gpu", "gpu-1", "gpu-x"),), frozenset({uuid(0)}))


INSTANCES = PreparedClaim(
    "u-3",
    "default",
    "c3",
    (PreparedDevice("gpu", "gpu-1", "mig-x", uuid=mig_uuid(0, 0)),),
    frozenset({mig_uuid(0, 0), mig_uuid(0, 1)}),
    Enforcement.PARTITION,
)


BURST = replace(CLAIM, uid="u-4", limit_mib=12288)


def test_a_file_of_an_earlier_agent_has_no_limit_beyond_the_amount() -> None:
    former = json.loads(write_prepared(BURST))
    del former["limitMiB"]
    assert read_prepared(json.dumps(former), "u-4") == replace(BURST, limit_mib=0)


def test_its_status_and_its_containers_have_the_limit() -> None:
    (allocation,) = claim_allocations([BURST], [])
    assert allocation.limit_mib == 12288
    (told,) = status_body(BURST, {})["status"]["devices"]
    assert (told["data"]["memoryMiB"], told["data"]["memoryLimitMiB"]) == (4096, 12288)
    (told,) = status_body(CLAIM, {})["status"]["devices"]
    assert "memoryLimitMiB" not in told["data"]


@pytest.mark.parametrize("claim", [CLAIM, WHOLE, INSTANCES, BURST])
def test_what_is_written_is_read(claim: PreparedClaim) -> None:
    assert read_prepared(write_prepared(claim), claim.uid) == claim


def test_a_claim_says_what_it_holds_and_not_its_variables() -> None:
    assert (replace(CLAIM).kind, replace(WHOLE).kind, str(CLAIM)) == (Kind.MEMORY, Kind.COUNT, "default/c1")
    assert (replace(INSTANCES).kind, INSTANCES.enforcement) == (Kind.INSTANCE, Enforcement.PARTITION)
    of_instance = replace(CLAIM, device_ids=frozenset({f"{mig_uuid(0, 0)}::3"}))
    assert of_instance.kind is Kind.MEMORY
    assert "cdiVersion" not in repr(CLAIM)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"uid": "u-3"},
        {"devices": []},
        {"devices": [{}]},
        {"devices": [{**json.loads(write_prepared(CLAIM))["devices"][0], "mib": -1}]},
        {"deviceIDs": [1]},
        {"enforcement": "iron"},
        {"consumers": [["one"]]},
        {"cdi": 1},
        {"cdiNames": "x"},
        {"deviceIDs": "GPU-1::0"},
        {"cdi": {"a": float("inf")}},
        {"cdi": {"a": "\ud800"}},
        {"name": "\ud800"},
    ],
)
def test_a_damaged_file_is_named_as_such(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(write_prepared(CLAIM)) | change)
    with pytest.raises(PreparedFileError, match=r"damaged|version 2|another claim"):
        read_prepared(text, "u-1")


def test_what_is_wrong_with_a_file_is_said() -> None:
    for text, sentence in (("[]", "Expected `object`, got `array`"), ("{", "Input data was truncated")):
        with pytest.raises(PreparedFileError) as caught:
            read_prepared(text, "u-1")
        assert str(caught.value) == f"it is damaged ({sentence})"
    with pytest.raises(PreparedFileError) as caught:
        read_prepared(write_prepared(CLAIM), "u-3")
    assert str(caught.value) == "it is of another claim"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
"""Also what Python alone takes for JSON: Infinity, NaN, and halves of surrogate pairs."""


@given(st.sampled_from([CLAIM, WHOLE, INSTANCES]), st.data())
def test_a_file_with_anything_in_one_place_is_damaged_or_can_be_written_again(
    claim: PreparedClaim, data: st.DataObject
) -> None:
    content = json.loads(write_prepared(claim))
    inner = data.draw(st.sampled_from([content, content["devices"][0], *content["consumers"]]))
    place = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    inner[place] = data.draw(JSON)
    try:
        found = read_prepared(json.dumps(content), claim.uid)
    except PreparedFileError:
        return
    assert read_prepared(write_prepared(found), claim.uid) == found
    write_prepared(found).encode()
    json.dumps(found.cdi, allow_nan=False).encode()
    assert all(device.mib >= 0 <= device.compute for device in found.devices)


def test_claims_that_hold_the_same_share_or_a_gpu_whole_and_in_part_overlap() -> None:
    def holding(uid: str, *device_ids: str) -> PreparedClaim:
        return replace(CLAIM, uid=uid, device_ids=frozenset(device_ids))

    apart = [holding("a", "GPU-1::0", "GPU-2"), holding("b", "GPU-1::1"), holding("c"), holding("d", "GPU-3")]
    assert overlapping(apart) == frozenset()
    assert overlapping([*apart, holding("e", "GPU-1::1", "GPU-4")]) == {"b", "e"}
    assert overlapping([*apart, holding("e", "GPU-2::5")]) == {"a", "e"}
    assert overlapping([*apart, holding("e", "GPU-3")]) == {"d", "e"}
    assert overlapping([holding("a", "GPU-1", "GPU-1::0"), holding("b", "GPU-1::1")]) == {"a", "b"}
    assert overlapping([holding("a", "GPU-1", "GPU-1::0")]) == frozenset()


# --- What containers hold by prepared claims --------------------------------------------------------------------------


def prepared(name: str, *pods: str, namespace: str = "default") -> PreparedClaim:
    consumers = tuple(Consumer(f"uid-of-{pod}", pod) for pod in pods)
    return replace(CLAIM, uid=f"uid-of-{name}", namespace=namespace, name=name, consumers=consumers)


def pod(name: str, **claims: tuple[str, ...]) -> Pod:
    return Pod(f"uid-of-{name}", "default", name, claims=claims)


def holds(claims: list[PreparedClaim], pods: list[Pod]) -> list[tuple[str, str, str]]:
    """Return pod, container and claim of each hold."""
    return [
        (allocation.pod_uid, allocation.container, allocation.through) for allocation in claim_allocations(claims, pods)
    ]


def test_each_container_that_uses_a_claim_holds_it() -> None:
    one, two = prepared("c1", "p1", "p2"), prepared("c2", "p1")
    pods = [pod("p1", a=("c1",), b=("c2", "unknown")), pod("p2", a=("c1",))]
    assert holds([one, two], pods) == [
        ("uid-of-p1", "a", "uid-of-c1"),
        ("uid-of-p1", "b", "uid-of-c2"),
        ("uid-of-p2", "a", "uid-of-c1"),
    ]
    assert claim_allocations([one], pods)[0] == Allocation(
        "uid-of-p1", "a", Kind.MEMORY, CLAIM.device_ids, AllocationSource.CLAIM, "uid-of-c1", Enforcement.MPS
    )


def test_a_claim_counts_for_its_pods_until_they_are_known() -> None:
    ended = replace(pod("p1", a=("c1",)), phase="Succeeded")
    for pods in ([], [ended]):
        assert holds([prepared("c1", "p1", "p2")], pods) == [
            ("uid-of-p1", "", "uid-of-c1"),
            ("uid-of-p2", "", "uid-of-c1"),
        ]


def test_a_claim_of_the_same_name_elsewhere_and_one_that_holds_nothing_do_not_count() -> None:
    beside = replace(prepared("c1", "p1"), device_ids=frozenset())
    assert holds([beside, prepared("c1", namespace="other")], [pod("p1", a=("c1",))]) == []


def test_it_names_the_gpu_the_memory_and_whether_the_limit_holds() -> None:
    shared = PreparedDevice("gpu", "gpu-1", "gpu-x", "share", uuid(0), 4096, 20)
    claim = PreparedClaim("u-1", "default", "c1", (shared,), enforcement=Enforcement.DRIVER)
    assert status_body(claim, {uuid(0): "held"}) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c1", "namespace": "default", "uid": "u-1"},
        "status": {
            "devices": [
                {
                    "driver": "gpu-device-plugin",
                    "pool": "gpu-1",
                    "device": "gpu-x",
                    "shareID": "share",
                    "data": {
                        "uuid": uuid(0),
                        "memoryMiB": 4096,
                        "computePercent": 20,
                        "limitBy": "driver",
                        "limit": "held",
                    },
                }
            ]
        },
    }


def test_a_whole_gpu_has_no_share_and_no_limit() -> None:
    whole = PreparedDevice("gpu", "gpu-1", "gpu-x-whole", "", uuid(0), 8192)
    (device,) = status_body(PreparedClaim("u", "n", "c", (whole,)), {})["status"]["devices"]
    assert device == {
        "driver": "gpu-device-plugin",
        "pool": "gpu-1",
        "device": "gpu-x-whole",
        "data": {"uuid": uuid(0), "memoryMiB": 8192},
    }
