"""The file by which a program in a container knows its memory."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic.contract import MemoryFile, write_memory_file
from gpu_device_plugin.features.elastic.memory_files import _SLOT, slot
from tests.memory import read_memory_file

MIB = st.integers(0, 1 << 20)
ASKED = st.builds(MemoryFile, MIB, MIB, MIB, st.integers(1, 1 << 20), st.just("2026-11-28T10:00:00Z"), st.just("a/b"))


@given(st.builds(MemoryFile, MIB, MIB, MIB) | ASKED)
def test_it_is_read_as_it_was_written(memory: MemoryFile) -> None:
    assert read_memory_file(write_memory_file(memory)) == memory


def test_a_program_that_is_not_asked_finds_null() -> None:
    assert json.loads(write_memory_file(MemoryFile(4096, 8192, 12288))) == {
        "version": 1,
        "guaranteed_mib": 4096,
        "limit_mib": 8192,
        "most_mib": 12288,
        "return": None,
    }


def test_nobody_evicts_where_no_time_is_named() -> None:
    asked = json.loads(write_memory_file(MemoryFile(4096, 4096, 12288, 3072, "", "default/nb")))["return"]
    assert asked == {"mib": 3072, "by": None, "needed_by": "default/nb"}


def test_a_container_finds_its_directory_by_its_devices_alone() -> None:
    names = {slot(["a", "b"]), slot(["b", "a"]), slot(["a"]), slot(["ab"])}
    assert len(names) == 3
    assert all(_SLOT.fullmatch(name) for name in names)
