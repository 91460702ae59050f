"""Of a pod whose containers are not root it is read which groups they have."""

import json
from typing import Any

import msgspec
import pytest

from gpu_device_plugin.kubernetes.objects.pod_details import scheduling_status

GPU = {"limits": {"aliyun.com/gpu-mem": 4}}


def groups(of_pod: dict[str, Any] | None, *of_containers: dict[str, Any] | None, devices: bool = True) -> Any:
    containers = [
        {"name": f"c{at}", "resources": GPU if devices else {}, "securityContext": each}
        for at, each in enumerate(of_containers)
    ]
    raw = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": containers, "securityContext": of_pod}}
    return scheduling_status(msgspec.Raw(json.dumps(raw).encode()), ()).groups


@pytest.mark.parametrize(
    ("of_pod", "of_containers", "expected"),
    [
        (None, [None], None),
        ({"runAsUser": 0}, [None], None),
        ({"runAsUser": 1000}, [{"runAsUser": 0}], None),
        ({"runAsNonRoot": True}, [{"runAsNonRoot": False}], None),
        ({"runAsUser": 1000}, [None], set()),
        ({"runAsNonRoot": True}, [None], set()),
        (None, [{"runAsUser": 1000, "runAsGroup": 993}], {993}),
        ({"runAsUser": 1, "fsGroup": 44, "supplementalGroups": [993], "runAsGroup": 5}, [None], {44, 993, 5}),
        ({"supplementalGroups": [993]}, [{"runAsUser": 1, "runAsGroup": 7}, {"runAsUser": 2}, None], {993}),
    ],
)
def test_the_groups_of_containers_with_devices(
    of_pod: dict[str, Any] | None, of_containers: list[dict[str, Any] | None], expected: set[int] | None
) -> None:
    assert groups(of_pod, *of_containers) == expected


def test_a_container_without_devices_needs_no_group() -> None:
    assert groups({"runAsUser": 1000}, None, devices=False) is None
