"""The same hardware, the same expectations: invented GPUs, and a real libnvidia-ml.so.1 where there is one.

NVML_LIB_DIR names the directory of the library: the driver's own, or NVIDIA's mock of it (NVIDIA/k8s-test-infra,
pkg/gpu/mocknvml). With the mock, MOCK_NVML_CONFIG names its configuration, and GPUs are made to fail through the
overrides.yaml that the mock reads beside a copy of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.core.gpus import Closeness
from gpu_device_plugin.core.memory import shares_of
from gpu_device_plugin.hardware.monitor import Hardware, HardwareView, State, Timings

Watching = Callable[..., AbstractAsyncContextManager[Hardware]]
Until = Callable[[Hardware, Callable[[HardwareView], object]], Awaitable[HardwareView]]

LIBRARY = os.environ.get("NVML_LIB_DIR")
MOCK_CONFIG = os.environ.get("MOCK_NVML_CONFIG")


def need_library() -> Path:
    if LIBRARY is None:
        pytest.skip("set NVML_LIB_DIR to the directory of a libnvidia-ml.so.1, real or NVIDIA's mock, to run this")
    return Path(LIBRARY)


def nvml() -> dict[str, Any]:
    return {"source": "nvml", "library_dir": need_library()}


def invented() -> dict[str, Any]:
    return {"source": "fake:8xH200"}


@pytest.fixture(params=[invented, nvml])
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = request.param()
    return arguments


async def test_the_facts_about_the_gpus_make_sense(source: dict[str, Any], watching: Watching, until: Until) -> None:
    async with watching(**source) as hardware:
        view = await until(hardware, lambda view: view.state is State.WATCHING)
    gpus = view.inventory.gpus
    assert gpus
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert [gpu.index for gpu in gpus] == sorted({gpu.index for gpu in gpus})
    for gpu in gpus:
        assert gpu.uuid.startswith("GPU-")
        assert len(gpu.uuid) == 40
        assert 0 <= gpu.reserved_mib < gpu.total_mib
        assert gpu.mig or shares_of(gpu, 256) > 0
        assert gpu.pci_bus_id is None or len(gpu.pci_bus_id.split(":")) == 3
    assert view.inventory.driver_version is not None
    assert view.inventory.driver_version[0].isdigit()


async def test_every_pair_of_gpus_is_linked_once(source: dict[str, Any], watching: Watching, until: Until) -> None:
    async with watching(**source) as hardware:
        view = await until(hardware, lambda view: view.state is State.WATCHING)
    uuids = sorted(gpu.uuid for gpu in view.inventory.gpus)
    pairs = [(a, b) for a in uuids for b in uuids if a < b]
    assert sorted((link.a, link.b) for link in view.inventory.links) == pairs
    assert all((link.closeness is Closeness.NVLINK) == (link.nvlinks > 0) for link in view.inventory.links)


async def test_a_second_look_shows_the_same(
    source: dict[str, Any], watching: Watching, until: Until, quick: Timings
) -> None:
    async with watching(**source, timings=replace(quick, rescan_every_s=0.1)) as hardware:
        first = await until(hardware, lambda view: view.state is State.WATCHING)
        child = hardware._child
        while hardware._child is child:
            await hardware.view.after(hardware.view.version - 1)
            await hardware._read(child) if child and not child.exited else None
        assert hardware.view.value.inventory == first.inventory
