"""The environment variables of a container with GPUs; `node.rules.container_grants` sets their values."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_device_plugin.model.contract.keys import FRAMEWORKS, LONGEST, too_long

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""UUIDs of its GPUs, separated by commas: NVIDIA's container runtime exposes these and no others."""
MEMORY_LIMIT = "GPUSHARE_MEMORY_LIMIT_MIB"
"""The most memory that the container may use on each of its GPUs, in MiB."""
MEMORY_GUARANTEED = "GPUSHARE_MEMORY_GUARANTEED_MIB"
"""The memory on each of its GPUs that the container is guaranteed; less than the limit if it may borrow."""
COMPUTE_LIMIT = "GPUSHARE_COMPUTE_LIMIT_PERCENT"
"""The percentage of a GPU's multiprocessors that its claim has. Only MPS holds anybody to it."""
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
"""What of the driver a container gets; ``utility`` is nvidia-smi and NVML, without CUDA."""
DRIVER_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
DRIVER_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""The soft and the hard limit in MiB, set only where the driver has such limits. nvidia-container-toolkit after 1.20.0
requires both variables, and sets them for the container's cgroup on each of its GPUs."""

LIMITS = "GPUSHARE_MEMORY_LIMIT_BY"
"""How the container's limit is enforced, a `model.limits.Enforcement`. Not GPUSHARE_LIMITS, which is the variable
of the setting `limits`: a program of ours may run in a container with shares."""

GRANTED_TO = "gpu-device-plugin/granted-to"
"""Not a variable but an annotation for the container's runtime, which the kubelet keeps in its checkpoint: for which
container the answer was made, ``<UID of its pod>/<name>``. No call names a pod, so another one may have got it."""

# Of NVIDIA's MPS, for clients.
MPS_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
"""The directory with the sockets of the GPU's control daemon."""
MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""``0=4096M``: the limit of each process, by the GPU's ordinal in the container."""
MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The most multiprocessors that a process uses, in percent of the GPU."""

# Those of gpushare, which programs in containers may read.
IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""Positions of its GPUs in the node's list, separated by commas."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Shares of the whole pod if they are known, otherwise of the container."""
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""Shares of the container."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Total shares of its first GPU."""
CGPU_DISABLE = "CGPU_DISABLE"
"""``"true"`` turns the isolation by Alibaba's cGPU off."""

# --- Of frameworks, which keep their caches within a part if a variable says how large it is --------------------------

OF_FRAMEWORKS: Mapping[str, tuple[str, str]] = {
    # Older versions of PyTorch refuse an option that they do not know, so a pod has to ask for this.
    "pytorch": ("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:"),
    # JAX refuses this one beside the XLA_PYTHON_CLIENT_MEM_FRACTION that it replaces.
    "jax": ("XLA_CLIENT_MEM_FRACTION", ""),
}
"""By the name of the framework: the variable, and the beginning of its value; the end is a fraction of the memory that
the framework sees."""


def read_frameworks(text: str) -> tuple[tuple[str, ...], str]:
    """Return the frameworks that a pod's annotation `FRAMEWORKS` names, and why the others are ignored, in a sentence.

    The sentence does not repeat the annotation, which anyone who creates a pod can write. It is empty if none is
    ignored.
    """
    words = [word.strip().lower() for word in text[: LONGEST[FRAMEWORKS]].split(",")]
    known = tuple(name for name in OF_FRAMEWORKS if name in words)
    ignored = too_long(FRAMEWORKS, text) or any(word and word not in OF_FRAMEWORKS for word in words)
    return known, (
        f"the annotation {FRAMEWORKS} names more than is known, which is ignored; known are {', '.join(OF_FRAMEWORKS)}"
        if ignored
        else ""
    )
