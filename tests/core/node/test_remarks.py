"""What is to be known of a node beside its GPUs, and what of it a person should change."""

from __future__ import annotations

from gpu_device_plugin.core.model.gpus import Inventory
from gpu_device_plugin.core.node.remarks import remarks
from gpu_device_plugin.testing.nodes import node

LIMITS = "memory limits: advisory: its driver has no limits of memory, which come with r615"


def test_a_node_without_gpus_has_nothing_to_say() -> None:
    assert remarks(node().shares, Inventory(), ()) == {}


def test_limits_are_told_and_an_exclusion_of_no_gpu_is_a_mistake() -> None:
    shares = node(8).shares
    inventory = Inventory(tuple(shared.gpu for shared in shares.gpus))
    assert remarks(shares, inventory, ()) == {LIMITS: False}
    (limits, unknown), urgent = zip(*remarks(shares, inventory, ("9",)).items(), strict=True)
    assert (limits, urgent) == (LIMITS, (False, True))
    assert unknown.startswith("--exclude-gpus names 9, which no GPU of this node is")


def test_gpus_none_of_which_is_shared_are_a_mistake_too() -> None:
    found = Inventory(tuple(shared.gpu for shared in node(8).shares.gpus))
    shares = node().shares.with_inventory(found, ("0",))
    assert remarks(shares, found, ("0",)) == {shares.why_none: True}
