"""The GPUs of a cluster as one JSON document; docs/inspect.md is its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.cluster.usage import Occupant

VERSION = 1
"""Increases when a field changes its meaning or is removed. Fields may be added at any time."""


def document(nodes: Iterable[NodeView]) -> dict[str, Any]:
    """Return the complete state of the nodes in the types of JSON.

    Args:
        nodes: by name.
    """
    return {"version": VERSION, "nodes": [_node(node) for node in nodes]}


def _node(node: NodeView) -> dict[str, Any]:
    gpus = node.candidate.gpus
    return {
        "name": node.name,
        "address": node.address or None,
        "ready": node.ready,
        "unschedulable": node.unschedulable,
        "problem": gpus.problem or None,
        "shareMiB": gpus.share_mib,
        "policy": gpus.policy,
        "driver": gpus.driver,
        "divided": gpus.divided,
        "capacity": dict(node.capacity),
        "allocatable": dict(node.allocatable),
        "totalShares": node.total,
        "usedShares": node.used,
        "gpus": [_gpu(view) for view in node.gpus()],
        "links": [
            {"a": a, "b": b, "closeness": closeness.name.lower(), "nvlinks": nvlinks}
            for a, b, closeness, nvlinks in gpus.links.pairs
        ],
        "unplaced": [
            {**_pod(pod), "shares": usage.all_shares, "wholeGpus": usage.all_gpus}
            for pod, usage in node.loose().items()
        ],
    }


def _gpu(view: GpuView) -> dict[str, Any]:
    gpu = view.gpu
    return {
        "index": gpu.position,
        "uuid": gpu.uuid or None,
        "model": gpu.model or None,
        "memoryMiB": gpu.memory_mib,
        "numa": gpu.numa,
        "healthy": not gpu.unhealthy,
        "reason": gpu.unhealthy or None,
        "totalShares": gpu.shares,
        "usedShares": view.used,
        "freeShares": view.free,
        "whole": view.room.whole,
        "pods": [{**_pod(held.pod), "shares": held.shares, "whole": held.whole} for held in view.held],
    }


def _pod(pod: Occupant) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "deleting": pod.terminating,
    }
