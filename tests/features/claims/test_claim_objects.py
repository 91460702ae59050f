"""ResourceClaims as the API server writes them, and what of them we keep."""

import json
from typing import Any

import pytest

from gpu_device_plugin.features.claims.claim_objects import read_claim
from gpu_device_plugin.features.claims.contract import DRIVER, Claim, Consumer, Device, DeviceRequest, Parameters
from gpu_device_plugin.kubernetes.objects.decoding import PodReader, UnreadableObjectError

ALLOCATED: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {
        "name": "c1-gpu-8wpc6",
        "namespace": "default",
        "uid": "05ce649f",
        "resourceVersion": "361",
        "creationTimestamp": "2026-11-23T14:15:35Z",
    },
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "gpu",
                    "exactly": {
                        "deviceClassName": "gpushare",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "capacity": {"requests": {"memory": "3500Mi", "gpu-device-plugin/compute": "20"}},
                    },
                }
            ]
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "consumedCapacity": {"compute": "20", "memory": "4Gi"},
                        "device": "gpu-1",
                        "driver": "gpu-device-plugin",
                        "pool": "gpu-1",
                        "request": "gpu/small",
                        "shareID": "b7868b8d",
                    },
                    {"device": "nic", "driver": "other", "pool": "p", "request": "nic", "adminAccess": True},
                ],
                "config": [
                    {
                        "source": "FromClaim",
                        "requests": ["gpu/small"],
                        "opaque": {"driver": "gpu-device-plugin", "parameters": {"limits": "mps"}},
                    },
                    {"source": "FromClass", "opaque": {"driver": "gpu-device-plugin", "parameters": "text"}},
                    {"source": "FromClaim", "opaque": {"driver": "other", "parameters": {}}},
                ],
            }
        },
        "reservedFor": [
            {"resource": "pods", "name": "c1", "uid": "03438556"},
            {"apiGroup": "x", "resource": "y", "name": "z", "uid": "1"},
        ],
    },
}


def read(body: object) -> Claim:
    return read_claim(json.dumps(body).encode())


def test_an_allocated_claim() -> None:
    assert read(ALLOCATED) == Claim(
        uid="05ce649f",
        namespace="default",
        name="c1-gpu-8wpc6",
        created="2026-11-23T14:15:35Z",
        requests=(DeviceRequest("gpu", "gpushare", 3500, 20),),
        allocated=True,
        devices=(
            Device("gpu", "gpu-device-plugin", "gpu-1", "gpu-1", "b7868b8d", 4096, 20),
            Device("nic", "other", "p", "nic", admin=True),
        ),
        parameters=(Parameters({}, of_class=True), Parameters({"limits": "mps"}, frozenset({"gpu"}))),
        consumers=(Consumer("03438556", "c1"),),
    )
    assert str(read(ALLOCATED)) == "default/c1-gpu-8wpc6"
    assert [device.name for device in read(ALLOCATED).devices_of("other")] == ["nic"]


def test_a_claim_that_waits_and_one_with_alternatives() -> None:
    meta = {"name": "c", "uid": "u", "namespace": "n", "deletionTimestamp": "2026-11-23T14:15:35Z"}
    asked = [
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "gpushare"}, {"name": "b"}]},
        {"name": "all", "exactly": {"deviceClassName": "x", "allocationMode": "All", "adminAccess": True}},
        {"name": "odd"},
    ]
    found = read({"metadata": meta, "spec": {"devices": {"requests": asked}}, "status": {"allocation": None}})
    assert found.requests == (
        DeviceRequest("any", "gpushare"),
        DeviceRequest("all", "x", count=0, admin=True),
        DeviceRequest("odd"),
    )
    assert (found.allocated, found.deleting, found.devices) == (False, True, ())


@pytest.mark.parametrize(
    ("of_class", "of_claim", "whole"), [(True, None, True), (True, False, False), (None, True, True), (None, 1, False)]
)
def test_a_claim_has_a_device_whole_if_its_class_says_so_or_it_itself(
    of_class: object, of_claim: object, *, whole: bool
) -> None:
    result = {"request": "r/a", "driver": DRIVER, "pool": "p", "device": "x", "consumedCapacity": {"memory": "8Gi"}}

    def config(source: str, value: object, request: str = "r") -> dict[str, object]:
        parameters = {} if value is None else {"whole": value}
        return {"source": source, "requests": [request], "opaque": {"driver": DRIVER, "parameters": parameters}}

    configs = [
        config("FromClaim", of_claim),
        config("FromClaim", value=True, request="q"),
        config("FromClass", of_class),
    ]
    status = {"allocation": {"devices": {"results": [result, {**result, "adminAccess": True}], "config": configs}}}
    device, watched = read({"metadata": {"name": "c", "uid": "u"}, "status": status}).devices
    assert (device.whole, watched.whole) == (whole, False)


def test_an_amount_that_is_none_counts_as_absent() -> None:
    result = {"request": "r", "driver": "d", "pool": "p", "device": "x", "consumedCapacity": {"memory": "much"}}
    status = {"allocation": {"devices": {"results": [result]}}}
    (device,) = read({"metadata": {"name": "c", "uid": "u"}, "status": status}).devices
    assert (device.memory_mib, device.compute) == (None, 0)


@pytest.mark.parametrize("body", [[], {"metadata": {"name": "c"}}, {"metadata": {"name": "c", "uid": "u"}, "spec": 1}])
def test_another_object_is_refused(body: object) -> None:
    with pytest.raises(UnreadableObjectError, match="not a ResourceClaim"):
        read(body)


def test_the_claims_of_a_pods_containers_are_known_by_their_own_names() -> None:
    pod = {
        "metadata": {"name": "p", "uid": "u", "namespace": "n"},
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "mine"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "soon", "resourceClaimTemplateName": "t"},
            ],
            "initContainers": [{"name": "i", "resources": {"claims": [{"name": "own"}]}}],
            "containers": [
                {"name": "a", "resources": {"claims": [{"name": "made"}, {"name": "own"}, {"name": "own"}]}},
                {"name": "b", "resources": {"claims": [{"name": "soon"}]}},
                {"name": "c", "resources": {"limits": {"aliyun.com/gpu-count": "1"}}},
                {"name": "d"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "soon"}],
            "extendedResourceClaimStatus": {
                "resourceClaimName": "p-extended",
                "requestMappings": [{"containerName": "c", "resourceName": "aliyun.com/gpu-count", "requestName": "r"}],
            },
        },
    }
    raw = json.dumps(pod).encode()
    found, _ = PodReader((), lambda _key: False, claims=True).read(raw)
    assert found.claims == {"i": ("mine",), "a": ("p-made-x", "mine"), "c": ("p-extended",)}
    assert PodReader((), lambda _key: False).read(raw)[0].claims == {}
