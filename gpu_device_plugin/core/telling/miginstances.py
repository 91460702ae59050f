"""The names of GPUs and MIG instances of a node, as people meet them in every table and sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.contract.nodegpus import ListedGpu


def gpu_name(gpu: ListedGpu) -> str:
    """Return the name of a GPU or a MIG instance by its position: ``GPU 3``, or ``GPU 3 (MIG 0:2 1g.10gb)``.

    ``0:2`` is the number of the instance in nvidia-smi.
    """
    return f"GPU {gpu.position}{detail(gpu)}"


def detail(gpu: ListedGpu) -> str:
    """Return what follows the position of a MIG instance: `` (MIG 0:2 1g.10gb)``; empty for a whole GPU."""
    return "" if gpu.instance is None else f" (MIG {gpu.instance.label} {gpu.instance.profile})"


def gpu_names(gpus: Iterable[ListedGpu]) -> str:
    """Return the names of several: ``GPU 0, 1``, or ``GPU 0, 3 (MIG 0:2 1g.10gb)``."""
    return f"GPU {', '.join(f'{gpu.position}{detail(gpu)}' for gpu in gpus)}"
