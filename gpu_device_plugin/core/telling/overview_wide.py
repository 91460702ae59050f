"""The wide table of a cluster's GPUs, one line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.nodereport import not_held
from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.telling.columns import aligned
from gpu_device_plugin.core.telling.folded import CLAIMS
from gpu_device_plugin.core.telling.miginstances import place
from gpu_device_plugin.core.telling.reported import age, mib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.instances import Instances
    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu

_HEADING = (
    *("NODE", "GPU", "UUID", "MODEL", "MEMORY", "ALLOCATED", "USED", "LIMITS", "SHARE", "POLICY", "DRIVER", "HEALTH"),
    "PODS",
)
_NOTHING = "-"


def wide(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table with one line for each GPU. Usage of unknown GPUs has lines of its own, with `?` for the GPU.

    Sentences stand at the end of their lines, where they make no column wider.

    Args:
        nodes: by name. A node whose GPUs are unknown has a line with the reason.
    """
    rows = [row for node in nodes for row in _rows(node)]
    return aligned([_HEADING, *rows])


def short_uuid(uuid: str) -> str:
    """Return the first part of a GPU's UUID, enough to tell the GPUs of a node apart."""
    return uuid.removeprefix("MIG-").removeprefix("GPU-").partition("-")[0] or _NOTHING


def _rows(node: NodeView) -> Iterable[tuple[str, ...]]:
    if node.candidate.gpus.fault:
        yield (node.name, *(_NOTHING,) * 12, node.candidate.gpus.fault)
    for view in node.gpus():
        yield _row(node, view)
    for each in node.instances():
        yield from (_instance_row(node, each, gpu) for gpu in each.instances)
        for holder, number in each.loose:
            whole = f"{number} whole"
            dashes = (_NOTHING,) * 3
            yield (node.name, "?", *dashes, whole, *dashes, each.resource, *dashes[1:], f"{holder}: {whole}")
    for pod, usage in node.loose().items():
        used = " + ".join(node.amounts(usage))
        yield (node.name, "?", *(_NOTHING,) * 3, used, *(_NOTHING,) * 6, f"{pod}: {used}")


def _row(node: NodeView, view: GpuView) -> tuple[str, ...]:
    gpu, gpus = view.gpu, node.candidate.gpus
    whole = any(held.whole for held in view.held)
    return (
        node.name,
        place(gpu),
        short_uuid(gpu.uuid),
        gpu.model.removeprefix("NVIDIA ") or _NOTHING,
        format_mib(gpu.memory_mib) if gpu.memory_mib is not None else _NOTHING,
        f"{view.used}/{gpu.shares}" + (" whole" if whole else ""),
        _in_use(node, gpu.position),
        _limits(node, gpu.position),
        format_mib(gpus.share_mib) if gpus.share_mib is not None else _NOTHING,
        ", ".join(filter(None, (gpus.policy, CLAIMS if gpus.claims else ""))) or _NOTHING,
        gpus.driver or _NOTHING,
        "unhealthy" if gpu.unhealthy else "healthy",
        ", ".join(f"{held.pod}: {'whole' if held.whole else node.amount(held.shares)}" for held in view.held)
        or _NOTHING,
        *_why(gpu),
    )


def _instance_row(node: NodeView, offer: Instances, gpu: ListedGpu) -> tuple[str, ...]:
    held = offer.holders.get(gpu.uuid, ())
    return (
        node.name,
        place(gpu),
        short_uuid(gpu.uuid),
        gpu.model.removeprefix("NVIDIA ") or _NOTHING,
        format_mib(gpu.memory_mib) if gpu.memory_mib is not None else _NOTHING,
        "whole" if held else "free",
        _in_use(node, gpu.position),
        _limits(node, gpu.position),
        _NOTHING,
        offer.resource,
        node.candidate.gpus.driver or _NOTHING,
        "unhealthy" if gpu.unhealthy else "healthy",
        ", ".join(f"{pod}: whole" for pod in held) or _NOTHING,
        *_why(gpu),
    )


def _why(gpu: ListedGpu) -> tuple[str, ...]:
    return (f"unhealthy: {gpu.unhealthy}",) if gpu.unhealthy else ()


def _in_use(node: NodeView, position: int) -> str:
    used = node.report.used(position).used_mib
    if used is None:
        return _NOTHING
    return mib(used) + (f" ({age(node.report.use_age_s)})" if node.report.old else "")


def _limits(node: NodeView, position: int) -> str:
    rung = node.report.rung(position)
    if rung is None:
        return _NOTHING
    if rung.refusal:
        return f"{rung.rung}, shares refused"
    loose = sum(not_held(part) for part in node.report.parts(position))
    return rung.rung + (f", {loose} not held" if loose else "")
