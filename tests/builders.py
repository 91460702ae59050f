"""Build pods and nodes in the JSON of the Kubernetes API, with defaults for all fields that a test does not set."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

GPU_MEM = "aliyun.com/gpu-mem"
GPU_COUNT = "aliyun.com/gpu-count"


def container(
    name: str = "main",
    *,
    mem: int | None = None,
    count: int | None = None,
    limits: Mapping[str, str] | None = None,
    sidecar: bool = False,
) -> Json:
    """Return a container that requests `mem` shares, `count` GPUs and the further `limits`.

    A sidecar belongs among a pod's init containers.
    """
    limits = {**_amounts(mem, count), **(limits or {})}
    return {
        "name": name,
        "image": "example.com/app:1",
        **_given(resources=_given(limits=limits), restartPolicy="Always" if sidecar else ""),
    }


def pod(
    name: str,
    *containers: Json,
    init: tuple[Json, ...] = (),
    namespace: str = "default",
    uid: str = "",
    node: str = "",
    phase: str = "",
    created: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    grace_s: int | None = None,
) -> Json:
    """Return a pod with `containers`, or with one that requests nothing.

    The API server chooses the `uid`, the `phase`, the creation time (RFC 3339) and `grace_s`, the seconds that the pod
    has to end, if they are empty.
    """
    grace = {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **_given(
                uid=uid, creationTimestamp=created, annotations=dict(annotations or {}), labels=dict(labels or {})
            ),
        },
        "spec": {
            **_given(nodeName=node, initContainers=list(init)),
            **grace,
            "containers": list(containers) or [container()],
        },
        **_given(status=_given(phase=phase)),
    }


def node(
    name: str,
    *,
    mem: int | None = None,
    count: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    ready: bool = True,
    kubelet: str = "v1.36.2",
) -> Json:
    """Return a node that offers `mem` shares and `count` GPUs; None: the node lacks the resource."""
    offered = {"cpu": "16", "memory": "64Gi", "pods": "110", **_amounts(mem, count)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            **_given(annotations=dict(annotations or {})),
        },
        "spec": {},
        "status": {
            "capacity": offered,
            "allocatable": dict(offered),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }


def _amounts(mem: int | None, count: int | None) -> dict[str, str]:
    return {resource: str(number) for resource, number in ((GPU_MEM, mem), (GPU_COUNT, count)) if number is not None}


def _given(**fields: object) -> Json:
    return {name: value for name, value in fields.items() if value}
