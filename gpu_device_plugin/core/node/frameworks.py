"""Derive the variables by which frameworks of machine learning keep their own caches within a part of a GPU."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract.keys import FRAMEWORKS, LONGEST, too_long
from gpu_device_plugin.core.model.limits import Rung

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.node.extra_grant import Part

VARIABLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # Older versions of PyTorch refuse an option that they do not know, so a pod has to ask for this.
        "pytorch": ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:"),
        # JAX refuses this one beside the XLA_PYTHON_CLIENT_MEM_FRACTION that it replaces.
        "jax": ("XLA_CLIENT_MEM_FRACTION", ""),
    }
)
"""By the name of the framework: the variable, and the beginning of its value; the end is a fraction of the memory that
the framework sees."""

_SEES_WHOLE = frozenset({Rung.MPS, Rung.ADVISORY})
"""Under these a framework sees the whole GPU. Under `DRIVER` it sees the limit as all the memory, of which a fraction
would be a fraction of the part. Under `CUSTOM` that is unknown: HAMi-core shows the limit."""

_STEPS = 10_000
"""A fraction has four digits."""


def read_frameworks(text: str) -> tuple[tuple[str, ...], str]:
    """Return the frameworks that a pod's annotation `FRAMEWORKS` names, and why the others are ignored, in a sentence.

    The sentence does not repeat the annotation, which anyone who creates a pod can write. It is empty if none is
    ignored.
    """
    words = [word.strip().lower() for word in text[: LONGEST[FRAMEWORKS]].split(",")]
    known = tuple(name for name in VARIABLES if name in words)
    ignored = too_long(FRAMEWORKS, text) or any(word and word not in VARIABLES for word in words)
    return known, (
        f"the annotation {FRAMEWORKS} names more than is known, which is ignored; known are {', '.join(VARIABLES)}"
        if ignored
        else ""
    )


def framework_envs(frameworks: Iterable[str], rung: Rung, parts: Sequence[Part]) -> Mapping[str, str]:
    """Return the variables of these frameworks for a container.

    A variable in the container's own env takes their place: the kubelet puts it after ours (kubelet_pods.go).

    Args:
        frameworks: names in `VARIABLES`.
        rung: the means by which the container is limited.
        parts: its part on each GPU. A framework has one fraction for all GPUs, so it is that of the smallest.
    """
    if rung not in _SEES_WHOLE:
        return {}
    steps = min(part.mib * _STEPS // max(part.visible_mib, 1) for part in parts)
    # Neither framework accepts zero.
    fraction = f"{min(max(steps, 1), _STEPS) / _STEPS:.4f}"
    return {name: f"{begin}{fraction}" for name, begin in (VARIABLES[framework] for framework in frameworks)}
