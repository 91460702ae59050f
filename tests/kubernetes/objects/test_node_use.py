"""How much memory is in use on each GPU of a node, by what its agent writes."""

from __future__ import annotations

import json

import pytest

from gpu_device_plugin.features.use.contract import ContainerUse, GpuUse, NodeUse, write_node_use
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.followed_objects import used_mib


def test_what_an_agent_writes_is_read_without_its_containers() -> None:
    parts = tuple(ContainerUse("default", f"pod-{n}", "main", 0, 1024, n) for n in range(400))
    text = write_node_use(NodeUse("2026-01-01T00:00:00Z", {0: GpuUse(700), 1: GpuUse(), 3: GpuUse(0)}, parts))
    assert used_mib(text) == ({0: 700, 3: 0}, epoch_s("2026-01-01T00:00:00Z"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"gpus": 7}',
        '{"gpus": [7]}',
        '{"gpus": [{"used": "x"}]}',
        "[" * 9000,
        "{}" + " " * 140_000,
    ],
    ids=lambda text: text[:24].strip(),
)
def test_of_anything_else_nothing_is_known(text: str) -> None:
    assert used_mib(text) == ({}, None)


def test_no_more_gpus_are_read_than_a_node_has() -> None:
    assert len(used_mib(json.dumps({"gpus": [{"index": n, "used": 1} for n in range(5000)]}))[0]) <= 1024
