"""The environment variables of a container with GPUs; `core.node.grants` sets their values."""

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""UUIDs of its GPUs, separated by commas: NVIDIA's container runtime exposes these and no others."""
MEMORY_LIMIT = "GPUSHARE_MEMORY_LIMIT_MIB"
"""The container's memory on each of its GPUs, in MiB."""
DRIVER_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
DRIVER_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""The same. nvidia-container-toolkit (after 1.20.0) requires both variables, and sets their value as the limit of the
container's cgroup on each of its GPUs."""

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
