"""A node's GPUs by what NVIDIA's device plugin and GPU feature discovery say of it, and by the names of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.hardware.fake.gpu_models import MODELS, UNIFIED
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.resources import Kind, Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = Resource(Kind.COUNT, "nvidia.com/gpu")
"""The resource of NVIDIA's device plugin: whole GPUs, unless it is told to hand each out several times."""
_COUNT, _MEMORY, _PRODUCT, _REPLICAS = (f"{WHOLE.name}.{each}" for each in ("count", "memory", "product", "replicas"))
LABELS = frozenset({_COUNT, _MEMORY, _PRODUCT, _REPLICAS})
"""Of GPU feature discovery (k8s-device-plugin, docs/gpu-feature-discovery): memory in MiB, of one GPU."""
_SHARE_MIB = 1024
_RESERVED_MIB = 768
"""No driver of a known model reserves more."""
_SHARED, _DIVIDED = "-SHARED", "-MIG-"
"""In a product's name: each GPU is handed out several times; GPUs are MIG instances (strategy ``single``)."""


def known_model(name: str) -> tuple[str, int] | None:
    """Return a model of GPUs by its name, such as ``H100`` or ``rtx4090``; None: it is not known.

    It is the product as the driver names it, and the shares that an agent makes of it by default, 1 GiB each.
    """
    short = name.strip().upper().replace(" ", "").replace("-", "").removeprefix("NVIDIA")
    if short not in MODELS:
        return None
    product, total_mib, reserved_mib, *_ = MODELS[short]
    # An agent gives one with the machine's memory whole.
    return product, 1 if short in UNIFIED else (total_mib - reserved_mib) // _SHARE_MIB


def gpus_by_labels(labels: Mapping[str, str], offered: int) -> tuple[NodeGpus, int]:
    """Return the GPUs as an agent of ours would list them, and how often NVIDIA's device plugin hands out each.

    `offered` is the node's capacity of `WHOLE`. Where GPUs cannot be known, there are none, and `problem` says why.
    """
    product = labels.get(_PRODUCT, "").replace(" ", "-")
    if _DIVIDED in product:
        return NodeGpus(problem="its GPUs are divided into MIG instances; name it in words, with mig="), 1
    memory_mib, replicas = _number(labels, _MEMORY), max(1, _number(labels, _REPLICAS))
    number = _number(labels, _COUNT) or offered // replicas
    if not memory_mib:
        why = f"no label {_MEMORY} says how much memory its GPUs have; deploy NVIDIA's GPU feature discovery"
        return NodeGpus(problem=f"{why}, or name it in words"), 1
    if not 0 < number <= MOST_GPUS:
        return NodeGpus(problem=f"its label {_COUNT} is no number of GPUs"), 1
    product = product.removesuffix(_SHARED)
    reserved_mib = next((known[2] for known in MODELS.values() if known[0].replace(" ", "-") == product), _RESERVED_MIB)
    shares = max(0, memory_mib - reserved_mib) // _SHARE_MIB
    model = product.replace("-", " ")
    gpus = [ListedGpu(at, shares, model=model, memory_mib=memory_mib) for at in range(number)]
    return NodeGpus(tuple(gpus), share_mib=_SHARE_MIB), replicas


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
