"""GPUs that containers hold through resources that are not ours, or not theirs any more."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.resources import Kind, Names
from gpu_device_plugin.core.node.foreign import held_through_others
from gpu_device_plugin.core.node.offers import offers
from tests.mig import inventory, mig_node

OURS = Names(frozenset({"aliyun.com/gpu-mem", "aliyun.com/gpu-count"}), "aliyun.com")
ONE_G, THREE_G = "aliyun.com/mig-1g.10gb", "aliyun.com/mig-3g.30gb"


def test_gpus_that_another_plugin_gives_are_found() -> None:
    shares = mig_node((10, 10), 4, mode=MigMode.WHOLE).shares
    held = [("GPU-1", "nvidia.com/gpu"), ("MIG-0-0", "nvidia.com/mig-1g.10gb"), ("MIG-0-1", ONE_G), ("GPU-9", "x/y")]
    assert held_through_others(held, shares, OURS) == {
        "GPU-1": "nvidia.com/gpu",
        "MIG-0-0": "nvidia.com/mig-1g.10gb",
    }


def test_shares_and_whole_gpus_of_ours_are_not_of_others() -> None:
    shares = mig_node((10,), 4).shares
    held = [("GPU-1", "aliyun.com/gpu-count"), ("MIG-0-0::3", "aliyun.com/gpu-mem"), ("MIG-0-0", ONE_G)]
    assert held_through_others(held, shares, OURS) == {}


def test_an_instance_that_was_made_again_as_another_profile_is_held_through_the_former_one() -> None:
    """Both resources list its ID: neither gives it to anybody while the pod of the earlier instance is there."""
    node = mig_node((10,), mode=MigMode.WHOLE, whole=["MIG-0-0"])
    shares = node.shares.with_inventory(inventory((30,)), mig=MigMode.WHOLE)
    found = held_through_others([("MIG-0-0", ONE_G)], shares, OURS)
    assert found == {"MIG-0-0": ONE_G}
    assert held_through_others([("MIG-0-0", THREE_G)], shares, OURS) == {}
    held = replace(node, shares=shares, ledger=node.ledger.with_foreign(found))
    for profile in ("1g.10gb", "3g.30gb"):
        (offer,) = offers(held, (Kind.INSTANCE, profile))
        assert list(offer.devices((Kind.INSTANCE, profile))) == [("MIG-0-0", False)]


def test_who_holds_an_instance_that_exists_no_more_bars_nobody() -> None:
    shares = mig_node((10, 10), mode=MigMode.WHOLE).shares.with_inventory(inventory((10,)), mig=MigMode.WHOLE)
    assert held_through_others([("MIG-0-1", THREE_G)], shares, OURS) == {}
