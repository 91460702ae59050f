"""The wide table of a cluster's GPUs, one line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.memory import format_mib
from gpu_device_plugin.core.telling.columns import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView

_HEADING = ("NODE", "GPU", "UUID", "MODEL", "MEMORY", "USED", "SHARE", "POLICY", "DRIVER", "HEALTH", "PODS")
_NOTHING = "-"


def wide(nodes: Iterable[NodeView]) -> list[str]:
    """Return a table with one line for each GPU. Usage of unknown GPUs has lines of its own, with `?` for the GPU.

    Args:
        nodes: by name. A node whose GPUs are unknown has a line with the reason.
    """
    rows = [row for node in nodes for row in _rows(node)]
    return aligned([_HEADING, *rows])


def short_uuid(uuid: str) -> str:
    """Return the first part of a GPU's UUID, enough to tell the GPUs of a node apart."""
    return uuid.removeprefix("GPU-").partition("-")[0] or _NOTHING


def _rows(node: NodeView) -> Iterable[tuple[str, ...]]:
    if node.candidate.gpus.problem:
        yield (node.name, *(_NOTHING,) * 8, node.candidate.gpus.problem, _NOTHING)
    for view in node.gpus():
        yield _row(node, view)
    for pod, usage in node.loose().items():
        used = " + ".join(node.amounts(usage))
        yield (node.name, "?", *(_NOTHING,) * 3, used, *(_NOTHING,) * 4, f"{pod}: {used}")


def _row(node: NodeView, view: GpuView) -> tuple[str, ...]:
    gpu, gpus = view.gpu, node.candidate.gpus
    whole = any(held.whole for held in view.held)
    return (
        node.name,
        str(gpu.position),
        short_uuid(gpu.uuid),
        gpu.model.removeprefix("NVIDIA ") or _NOTHING,
        format_mib(gpu.memory_mib) if gpu.memory_mib is not None else _NOTHING,
        f"{view.used}/{gpu.shares}" + (" whole" if whole else ""),
        format_mib(gpus.share_mib) if gpus.share_mib is not None else _NOTHING,
        gpus.policy or _NOTHING,
        gpus.driver or _NOTHING,
        f"unhealthy: {gpu.unhealthy}" if gpu.unhealthy else "healthy",
        ", ".join(f"{held.pod}: {'whole' if held.whole else node.amount(held.shares)}" for held in view.held)
        or _NOTHING,
    )
