"""The variables that a container receives with its GPUs; `core.node.grants` gives them their values."""

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""UUIDs of its GPUs, with commas between them: NVIDIA's container runtime shows it these and no others."""
MEMORY_LIMIT = "GPUSHARE_MEMORY_LIMIT_MIB"
"""How much memory of each of its GPUs is its own, in MiB."""
DRIVER_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"
DRIVER_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""The same. nvidia-container-toolkit (after 1.20.0) turns both, it wants the two, into a limit of the container's
cgroup on each of its GPUs."""

# Those of gpushare, which programs in containers may read.
IDX = "ALIYUN_COM_GPU_MEM_IDX"
"""Positions of its GPUs in the node's list, with commas between them."""
POD = "ALIYUN_COM_GPU_MEM_POD"
"""Shares of the whole pod where that is known, of the container where not."""
CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""Shares of the container."""
DEV = "ALIYUN_COM_GPU_MEM_DEV"
"""Shares that its first GPU has in all."""
CGPU_DISABLE = "CGPU_DISABLE"
"""``"true"``: Alibaba's cGPU is not to isolate it."""
