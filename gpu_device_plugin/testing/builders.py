"""Pods and nodes as the Kubernetes API writes them, with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return a container that asks for `mem` shares and `count` GPUs, and for `limits` besides.

    A sidecar belongs among a pod's init containers.
    """
    wanted = {
        **({} if mem is None else {GPU_MEM: str(mem)}),
        **({} if count is None else {GPU_COUNT: str(count)}),
        **(limits or {}),
    }
    return {
        "name": name,
        "image": "example.com/app:1",
        **({"resources": {"limits": wanted}} if wanted else {}),
        **({"restartPolicy": "Always"} if sidecar else {}),
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
) -> Json:
    """Return a pod with `containers`, or with one that asks for nothing.

    Without a `uid`, a `phase` or a time of creation (RFC 3339) the API server chooses them.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            **({"uid": uid} if uid else {}),
            **({"creationTimestamp": created} if created else {}),
            **({"annotations": dict(annotations)} if annotations else {}),
            **({"labels": dict(labels)} if labels else {}),
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            **({"initContainers": list(init)} if init else {}),
            "containers": list(containers) or [container()],
        },
        **({"status": {"phase": phase}} if phase else {}),
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
    """Return a node that offers `mem` shares and `count` GPUs, or nothing of the kind."""
    offered = {
        "cpu": "16",
        "memory": "64Gi",
        "pods": "110",
        **({} if mem is None else {GPU_MEM: str(mem)}),
        **({} if count is None else {GPU_COUNT: str(count)}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "spec": {},
        "status": {
            "capacity": offered,
            "allocatable": dict(offered),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }
