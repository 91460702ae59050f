"""The GPUs of a cluster as one JSON document; docs/inspect.md is its contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.nodereport import trespasses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.instances import InstancePod, Instances
    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.cluster.usage import Occupant
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu, ListedInstance
    from gpu_device_plugin.core.contract.nodereport import NodeReport, UsedPart

VERSION = 1
"""Increases when a field changes its meaning or is removed. Fields may be added at any time."""


def document(nodes: Iterable[NodeView]) -> dict[str, Any]:
    """Return the complete state of the nodes in the types of JSON.

    Args:
        nodes: by name.
    """
    return {"version": VERSION, "nodes": [_node(node) for node in nodes]}


def _node(node: NodeView) -> dict[str, Any]:
    gpus, offers = node.candidate.gpus, node.instances()
    return {
        "name": node.name,
        "address": node.address or None,
        "ready": node.ready,
        "unschedulable": node.unschedulable,
        "problem": gpus.fault or None,
        **({"claims": True} if gpus.claims else {}),
        "shareMiB": gpus.share_mib,
        "policy": gpus.policy,
        "driver": gpus.driver,
        "divided": gpus.divided,
        "capacity": dict(node.capacity),
        "allocatable": dict(node.allocatable),
        "totalShares": node.total,
        "usedShares": node.used,
        "limits": None if node.report.limits is None else node.report.limits.rung.value,
        "use": _use(node.report),
        "gpus": [_gpu(view, node.report) for view in node.gpus()],
        **({"instances": [_offer(each, node.report) for each in offers]} if offers else {}),
        "links": [
            {"a": a, "b": b, "closeness": closeness.name.lower(), "nvlinks": nvlinks}
            for a, b, closeness, nvlinks in gpus.links.pairs
        ],
        "unplaced": [
            {**_pod(pod), "shares": usage.all_shares, "wholeGpus": usage.all_gpus}
            for pod, usage in node.loose().items()
        ],
    }


def _use(report: NodeReport) -> dict[str, Any] | None:
    if report.use is None:
        return None
    return {
        "at": report.use.at or None,
        "ageSeconds": None if report.use_age_s is None else round(report.use_age_s),
        "blind": report.use.blind or None,
        "leftOut": report.use.left_out,
    }


def _gpu(view: GpuView, report: NodeReport) -> dict[str, Any]:
    gpu = view.gpu
    used, rung = report.used(gpu.position), report.rung(gpu.position)
    return {
        **_described(gpu),
        "totalShares": gpu.shares,
        "usedShares": view.used,
        "freeShares": view.free,
        "whole": view.room.whole,
        "usedMiB": used.used_mib,
        "unattributedMiB": used.unattributed_mib,
        "limits": None if rung is None else rung.rung.value,
        "limitsReason": None if rung is None else rung.why,
        "refusal": (rung.refusal or None) if rung is not None else None,
        "containers": [_part(part) for part in report.parts(gpu.position)],
        "pods": [{**_pod(held.pod), "shares": held.shares, "whole": held.whole} for held in view.held],
    }


def _described(gpu: ListedGpu) -> dict[str, Any]:
    return {
        "index": gpu.position,
        "uuid": gpu.uuid or None,
        "model": gpu.model or None,
        "memoryMiB": gpu.memory_mib,
        "numa": gpu.numa,
        "healthy": not gpu.unhealthy,
        "reason": gpu.unhealthy or None,
        **({} if gpu.instance is None else {"mig": _place(gpu.instance)}),
    }


def _place(instance: ListedInstance) -> dict[str, Any]:
    return {
        "parent": instance.parent,
        "gpu": instance.gpu,
        "number": instance.number,
        "profile": instance.profile,
        "gi": instance.gi,
    }


def _offer(offer: Instances, report: NodeReport) -> dict[str, Any]:
    return {
        "resource": offer.resource,
        "profile": offer.profile,
        "total": len(offer.instances),
        "used": offer.used,
        "free": offer.free,
        "instances": [
            {
                **_described(gpu),
                "usedMiB": report.used(gpu.position).used_mib,
                "containers": [_part(part) for part in report.parts(gpu.position)],
                "pods": [_holder(pod) for pod in offer.holders.get(gpu.uuid, ())],
            }
            for gpu in offer.instances
        ],
        "unplaced": [{**_holder(pod), "instances": number} for pod, number in offer.loose],
    }


def _holder(pod: InstancePod) -> dict[str, Any]:
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "deleting": pod.terminating}


def _part(part: UsedPart) -> dict[str, Any]:
    return {
        "namespace": part.namespace,
        "pod": part.pod,
        "container": part.container or None,
        "grantedMiB": part.granted_mib,
        "usedMiB": part.used_mib,
        "smPercent": part.sm_percent,
        "trespassing": trespasses(part),
        "overSince": part.over_since or None,
        "rung": None if part.rung is None else part.rung.value,
        "held": None if part.held is None else part.held.value,
        "foundMiB": part.found_mib,
        "why": part.why or None,
    }


def _pod(pod: Occupant) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "priority": pod.priority,
        "deleting": pod.terminating,
        **({"claims": list(pod.claims), "pods": list(pod.pods)} if pod.claims else {}),
    }
