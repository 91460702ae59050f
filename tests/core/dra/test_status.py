"""What the status of a claim says of our devices."""

from __future__ import annotations

from gpu_device_plugin.core.dra.prepared import PreparedClaim, PreparedDevice
from gpu_device_plugin.core.dra.status import status_body
from gpu_device_plugin.core.model.limits import Rung
from tests.claims import uuid


def test_it_names_the_gpu_the_memory_and_whether_the_limit_holds() -> None:
    shared = PreparedDevice("gpu", "gpu-1", "gpu-x", "share", uuid(0), 4096, 20)
    claim = PreparedClaim("u-1", "default", "c1", (shared,), rung=Rung.DRIVER)
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
