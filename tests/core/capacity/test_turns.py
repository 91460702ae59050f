"""Namespaces take turns."""

from __future__ import annotations

from gpu_device_plugin.core.capacity.asks import in_turns


def test_every_namespace_has_its_turn_before_one_has_another() -> None:
    assert in_turns(["a1", "a2", "a3", "b1", "c1", "c2"], lambda name: name[0]) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert in_turns([], str) == []
