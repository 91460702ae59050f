"""A cluster with an autoscaler, told in either way what nodes are needed."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.autoscaler.world import AutoscaledCluster, autoscaled

AGED_S = 120.0
"""A node that has been ready for more than a minute is the autoscaler's example of its group, fences and all."""


@pytest.fixture(params=["buffers", "stand-ins"])
def how(request: pytest.FixtureRequest) -> str:
    """How the autoscaler is told."""
    return str(request.param)


@pytest.fixture(params=["aged", "young"])
def age_s(request: pytest.FixtureRequest) -> float:
    """How long the first node has been ready."""
    return AGED_S if request.param == "aged" else 0.0


def growing(folder: Path, how: str, **more: Any) -> AbstractAsyncContextManager[AutoscaledCluster]:
    """Run a cluster whose extender asks for nodes and keeps them; `more` as for `autoscaled`."""
    settings = {"grow": how, "keep_nodes": "true", "node_start": "20s"}
    return autoscaled(folder, buffers=how == "buffers", extender=settings, **more)
