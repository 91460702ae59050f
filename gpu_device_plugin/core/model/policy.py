"""The policies by which one of the fitting GPUs is chosen: rank functions in one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.placing import Rank

FIT = "fit"

POLICIES: Mapping[str, Rank] = MappingProxyType(
    {
        FIT: lambda room: room.free,
        "binpack": lambda room: room.free,
        "spread": lambda room: -room.free,
    }
)
"""`binpack` fills one GPU before the next and keeps the others unused; `spread` takes the emptiest. `fit` takes the GPU
that costs the node the least placement value (`core.value`); only the scheduler extender knows which pods come, and
where it does not decide, `fit` is `binpack`."""
