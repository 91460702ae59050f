"""The names that both resources have where nobody configures others; `resources` has what they name."""

from gpu_device_plugin.model.resources import Kind, Names
from tests.builders import GPU_COUNT, GPU_MEM

MEM = GPU_MEM
COUNT = GPU_COUNT
OURS = Names({MEM: Kind.MEMORY, COUNT: Kind.COUNT}, "aliyun.com")
"""Of all resources that the agent may serve."""
