"""The file by which a program in a container knows its memory."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.elastic.contract import MemoryFile, write_memory_file
from gpu_device_plugin.features.elastic.memory_files import _SLOT, slot
from gpu_device_plugin.features.elastic.rules.reclaiming import ReclaimRequest, memory_files
from gpu_device_plugin.features.use.rules.process_use import AttributedUse
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from tests.memory import read_memory_file
from tests.nodes import ids, uuid

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


def test_each_container_with_shares_is_told_what_it_may_use_and_return() -> None:
    pod, place = Pod("a", "default", "web"), ("a", "main", uuid(0))
    held = [
        Allocation("a", "main", Kind.MEMORY, frozenset(ids(0, [0, 1]))),
        Allocation("a", "other", Kind.MEMORY, frozenset(ids(0, [2]))),
        Allocation("b", "main", Kind.COUNT, frozenset({uuid(1)})),
        Allocation("gone", "main", Kind.MEMORY, frozenset(ids(1, [2]))),
    ]
    uses = {
        uuid(0): (
            AttributedUse(*place, 2048, 5000, pod=pod, limit_mib=8192),
            AttributedUse("a", "other", uuid(0), 1024, 0, pod=pod),
        ),
        uuid(1): (AttributedUse("b", "main", uuid(1), 16384, 0),),
    }
    request = ReclaimRequest(place, 1.0, 1.0, 700, 2952, 31.0, "default/new", pod)
    due = {place: "2026-11-28T10:00:00Z"}

    def said(**requests: ReclaimRequest) -> list[MemoryFile]:
        found = memory_files(held, uses, {place: 2048}, {each.place: each for each in requests.values()}, due)
        return [memory for _, _, memory in found]

    other = MemoryFile(1024, 1024, 1024)
    assert said() == [MemoryFile(2048, 2048, 8192), other]
    assert said(a=request) == [MemoryFile(2048, 2048, 8192, 700, due[place], "default/new"), other]
    assert said(a=replace(request, mib=0)) == said()
