"""Which pods are kept off a node by nothing but what other pods request."""

import json
from typing import Any

import pytest

from gpu_device_plugin.scheduler.wire import fits_by_requests_alone

USUAL: dict[str, Any] = {
    "containers": [{"name": "main", "ports": [{"containerPort": 8080}], "resources": {"requests": {"cpu": "1"}}}],
    "initContainers": None,
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
    "nodeSelector": {"zone": "x"},
    "tolerations": [{"operator": "Exists"}],
    "volumes": [
        {"name": "token", "projected": {"sources": []}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "hostPath": {"path": "/data"}},
    ],
}


def test_a_usual_pod_fits_by_its_requests_alone() -> None:
    assert fits_by_requests_alone(json.dumps({"metadata": {}, "spec": USUAL}).encode())
    assert fits_by_requests_alone(b"{}")


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"ports": [{"containerPort": 8080}, {"hostPort": 8080}]}]},
        {"initContainers": [{"ports": [{"hostPort": 8080}]}]},
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"topologySpreadConstraints": [{}]},
        {"resourceClaims": [{"name": "nic"}]},
        {"volumes": [*USUAL["volumes"], {"name": "x", "persistentVolumeClaim": {"claimName": "x"}}]},
        {"volumes": [{"name": "x", "ephemeral": {}}]},
        {"volumes": [{"name": "x", "csi": {}}]},
        {"volumes": [{"name": "x", "something-new": {}}]},
    ],
    ids=lambda spec: json.dumps(spec)[:60],
)
def test_a_pod_that_wants_something_else_of_a_node_does_not(spec: dict[str, Any]) -> None:
    assert not fits_by_requests_alone(json.dumps({"spec": {**USUAL, **spec}}).encode())


@pytest.mark.parametrize(
    "junk", [b"", b"[]", b'{"spec":7}', b'{"spec":{"volumes":{}}}', b'{"spec":{"volumes":[{"\xff":1}]}}', b"[" * 10**6]
)
def test_of_what_is_no_pod_nothing_is_known(junk: bytes) -> None:
    assert not fits_by_requests_alone(junk)
