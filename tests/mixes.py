"""Types of nodes, and kinds of pods that come to them: what placing is tried with."""

from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector

T4 = NodeType((16, 16), ("T4", "T4"), 32_000, 131_072)
A10 = NodeType((24,), ("A10",), 32_000, 131_072)
MIG = NodeType((16, 8, 8, 4), ("A10",) * 4, 32_000, 131_072, (None, 1, 1, 3))
"""A GPU, and three MIG instances of two."""
KINDS = (
    PodKind(5, 1, 2000, 4096),
    PodKind(11, 1, 4000, 8192),
    PodKind(0, 1, 8000, 16_384),
    PodKind(0, 2, 8000, 16_384),
    PodKind(8, 2, 4000, 8192),
    PodKind(20, 1, 4000, 8192, GpuSelector(("A10",))),
    PodKind(0, 0, 3000, 2048),
)
