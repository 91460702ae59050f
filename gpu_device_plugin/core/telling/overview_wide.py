"""The GPUs of a cluster, one line each, with everything that fits on a line."""

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
    """Draw every GPU as a line. Shares on unknown GPUs of a node have a line of their own, with `?` for the GPU.

    Args:
        nodes: by name. One whose GPUs are not known has a line that says why.
    """
    rows = [row for node in nodes for row in _rows(node)]
    return aligned([_HEADING, *rows])


def short_uuid(uuid: str) -> str:
    """Return as much of a GPU's UUID as tells it from the others of a node."""
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
