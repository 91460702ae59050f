"""The frameworks of a pod's programs, which keep their caches within a part if a variable says how large it is."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import FRAMEWORKS, LONGEST, too_long

if TYPE_CHECKING:
    from collections.abc import Mapping

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
