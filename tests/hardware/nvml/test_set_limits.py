"""Limits of cgroups are set through the real pynvml, the pipe and a library with dmem's rules, and hold there."""

import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_device_plugin.hardware.messages import CgroupLimit
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.hardware.nvml import nvml_calls
from tests.hardware.conftest import Watching
from tests.hardware.memory_limits import OUT_OF_MEMORY, LimitingLibrary, cgroup, times_set
from tests.hardware.nvml.test_nvml_calls import Library
from tests.hardware.test_compiled_library import ONE_GPU, compiled

A = "GPU-a"
NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 4, 6, 13


@pytest.fixture
def library(tmp_path: Path) -> LimitingLibrary:
    return LimitingLibrary(tmp_path)


@pytest.fixture
def helper(watched: Watching, tmp_path: Path, library: LimitingLibrary) -> Any:
    assert library is not None

    @asynccontextmanager
    async def opened() -> AsyncIterator[Hardware]:
        async with watched("nvml", library_dir=tmp_path) as hardware:
            yield hardware

    return opened


async def set_to(hardware: Hardware, path: Path, hard_mib: int | None, soft_mib: int = 0) -> CgroupLimit:
    (found,) = await hardware.set_limits([(A, str(path), hard_mib, soft_mib)]) or ()
    return found


def test_the_structure_has_the_size_that_nvml_has() -> None:
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t
    assert ctypes.sizeof(limits) == 24
    assert (limits.nameSpace.offset, limits.softLimit.offset, limits.hardLimit.offset) == (0, 8, 16)


async def test_a_limit_is_held(helper: Any, tmp_path: Path, library: LimitingLibrary) -> None:
    leaf = cgroup(tmp_path / "leaf")
    assert library.allocate(leaf, 4097) == 0
    assert library.release(leaf, 4097) == 0
    async with helper() as hardware:
        assert await set_to(hardware, leaf, 4096) == CgroupLimit(A, str(leaf), 0, 4096, 0, 0)
    assert library.allocate(leaf, 4097) == OUT_OF_MEMORY
    assert library.allocate(leaf, 4096) == 0
    assert library.allocate(leaf, 1) == OUT_OF_MEMORY


async def test_memory_above_a_lowered_limit_stays_and_later_allocations_fail(
    helper: Any, tmp_path: Path, library: LimitingLibrary
) -> None:
    leaf = cgroup(tmp_path / "leaf", hard_mib=12288)
    assert library.allocate(leaf, 8192) == 0
    async with helper() as hardware:
        assert await set_to(hardware, leaf, 4096) == CgroupLimit(A, str(leaf), 0, 4096, 0, used_mib=8192)
        assert library.allocate(leaf, 1) == OUT_OF_MEMORY
        assert library.release(leaf, 4097) == 0
        assert library.allocate(leaf, 1) == 0
        assert await hardware.limits([(A, str(leaf))]) == (CgroupLimit(A, str(leaf), 0, 4096, 0, 4096),)
        assert library.allocate(leaf, 1) == OUT_OF_MEMORY


async def test_a_limit_is_raised_and_cleared(helper: Any, tmp_path: Path, library: LimitingLibrary) -> None:
    leaf = cgroup(tmp_path / "leaf", hard_mib=4096)
    async with helper() as hardware:
        assert (await set_to(hardware, leaf, 6144)).hard_mib == 6144
        assert library.allocate(leaf, 6144) == 0
        assert await set_to(hardware, leaf, None) == CgroupLimit(A, str(leaf), 0, None, 0, 6144)
        assert library.allocate(leaf, 100_000) == 0
        assert (leaf / "dmem.max").read_text() == "max"


async def test_a_limit_that_is_as_wanted_is_not_set_again(helper: Any, tmp_path: Path) -> None:
    """The driver would add a soft limit to the cgroups above once more."""
    leaf = cgroup(tmp_path / "leaf", hard_mib=4096)
    async with helper() as hardware:
        await set_to(hardware, leaf, 4096)
        assert times_set(leaf) == 0
        assert (await set_to(hardware, leaf, 4096, 1024)).soft_mib == 1024
        await set_to(hardware, leaf, 4096, 1024)
        assert times_set(leaf) == 1


async def test_where_no_limit_can_be_set_the_code_of_the_driver_comes_back(helper: Any, tmp_path: Path) -> None:
    unaccounted, guarded = cgroup(tmp_path / "unaccounted", dmem=False), cgroup(tmp_path / "guarded")
    (guarded / "no-permission").touch()
    async with helper() as hardware:
        assert await set_to(hardware, unaccounted, 4096) == CgroupLimit(A, str(unaccounted), NOT_FOUND)
        assert await set_to(hardware, guarded, 4096) == CgroupLimit(A, str(guarded), NO_PERMISSION)
        assert (await set_to(hardware, tmp_path / "gone", 4096)).code == 2
        assert await hardware.set_limits([("GPU-gone", str(guarded), 1, 0)]) == ()
    assert (guarded / "dmem.max").read_text() == "max"


async def test_a_driver_before_r615_has_no_such_function(watched: Watching, tmp_path: Path) -> None:
    compiled(tmp_path, ONE_GPU)
    async with watched("nvml", library_dir=tmp_path) as hardware:
        assert await set_to(hardware, tmp_path, 4096) == CgroupLimit(A, str(tmp_path), FUNCTION_NOT_FOUND)


def test_nor_has_an_older_pynvml() -> None:
    nothing: Any = None
    assert nvml_calls.set_limit(Library(), nothing, (A, "/c", 1, 0))["code"] == FUNCTION_NOT_FOUND
