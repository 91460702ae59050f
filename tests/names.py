"""The names that both resources have where nobody configures others; `resources` has what they name."""

from __future__ import annotations

from gpu_device_plugin.testing.builders import GPU_COUNT, GPU_MEM

MEM = GPU_MEM
COUNT = GPU_COUNT
