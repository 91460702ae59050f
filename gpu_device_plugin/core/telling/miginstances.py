"""The names of GPUs and MIG instances of a node, and the instances of a cluster in lines below its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.telling.explaining_mig import holders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpu_device_plugin.core.cluster.nodeview import GpuView, NodeView
    from gpu_device_plugin.core.contract.nodegpus import ListedGpu


def gpu_names(gpus: Iterable[ListedGpu]) -> str:
    """Return the names of GPUs and MIG instances by position: ``GPU 0, 3 (MIG 0:2 1g.10gb)``.

    ``0:2`` is the number of an instance in nvidia-smi.
    """
    return f"GPU {', '.join(f'{gpu.position}{_detail(gpu)}' for gpu in gpus)}"


def _detail(gpu: ListedGpu) -> str:
    return "" if gpu.instance is None else f" (MIG {gpu.instance.label} {gpu.instance.profile})"


def place(gpu: ListedGpu) -> str:
    """Return a position for a column of a table, of an instance with its number: ``0``, or ``3 (0:2)``."""
    return f"{gpu.position}" if gpu.instance is None else f"{gpu.position} ({gpu.instance.label})"


def instance_lines(
    nodes: Iterable[NodeView], amount: Callable[[NodeView, int], int], *, pods: bool = False
) -> list[str]:
    """Return the MIG instances of some nodes: the shared ones by GPU, then the whole ones by resource.

    Args:
        nodes: the nodes; those without instances have no lines.
        amount: converts shares of a node to the unit of the table above.
        pods: name the pods that hold whole instances.
    """
    lines = [line for node in nodes for line in _lines(node, amount, pods=pods)]
    return ["", "MIG instances:", *lines] if lines else []


def _lines(node: NodeView, amount: Callable[[NodeView, int], int], *, pods: bool) -> Iterator[str]:
    cards: dict[int, list[GpuView]] = {}
    for view in node.gpus():
        if view.gpu.instance is not None:
            cards.setdefault(view.gpu.instance.gpu, []).append(view)
    for index, views in sorted(cards.items()):
        yield f"{node.name}: GPU {index} (MIG): {', '.join(_shared(node, view, amount) for view in views)}"
    for each in node.instances():
        held = f": {found}" if pods and (found := holders(each)) else ""
        ill = f", {len(each.ill)} out of service" if each.ill else ""
        yield f"{node.name}: {each.resource}: {each.used}/{len(each.instances)} in use{ill}{held}"


def _shared(node: NodeView, view: GpuView, amount: Callable[[NodeView, int], int]) -> str:
    """Return one instance: its number and profile, its column in the table, and the memory that is given of it.

    One that is not available is out of service, or a container has it whole since before the way was changed.
    """
    instance = view.gpu.instance
    named = "" if instance is None else f"{instance.label} {instance.profile} "
    closed = " (not available)" if view.gpu.unhealthy else ""
    return f"{named}(GPU{view.gpu.position}) {amount(node, view.used)}/{amount(node, view.gpu.shares)}{closed}"
