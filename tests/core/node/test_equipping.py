"""The share size, the GPUs out of service and the remarks of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_device_plugin.core.model.gpus import Inventory
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.shares import Shares
from gpu_device_plugin.core.node.equipping import out_of_service, remarks, share_size
from tests.mig import gpus, instance, inventory
from tests.nodes import node


@pytest.mark.parametrize(
    ("before", "holders", "ended", "expected"),
    [
        (None, {"a"}, [], 1024),
        (2048, set(), [], 1024),
        (2048, {"a"}, [], 2048),
        (2048, {"a"}, ["a", "b"], 1024),
        (2048, {"a", "c"}, ["a", "b"], 2048),
        (2048, None, [], 2048),
        (None, None, [], 1024),
    ],
)
def test_the_share_size_waits_while_a_pod_holds_shares_or_may(
    before: int | None, holders: set[str] | None, ended: list[str], expected: int
) -> None:
    assert share_size(1024, before, holders, ended) == expected


def test_a_gpu_is_out_of_service_for_its_health_or_in_mig_mode() -> None:
    shares = node(4, 4, 4).shares
    gpus = [replace(shared, gpu=replace(shared.gpu, mig=shared.position > 0)) for shared in shares.gpus]
    shares = replace(shares, gpus=tuple(gpus))
    assert out_of_service({"GPU-0": ["too hot", "too old"], "GPU-1": [], "GPU-2": ["lost"]}, shares) == {
        "GPU-0": "too hot; too old",
        "GPU-1": "it is in MIG mode now",
        "GPU-2": "lost",
    }
    assert out_of_service({"GPU-0": ()}, replace(shares, gpus=tuple(gpus[:1]))) == {}


def test_an_instance_that_is_gone_and_a_gpu_in_mig_mode_that_was_never_offered_are_out_of_service() -> None:
    order = (*gpus(0, ()), instance(0, 5), *gpus(1, 4))
    shares = Shares(1024).with_inventory(replace(inventory((), 4), order=order), mig=MigMode.SHARE)
    assert out_of_service({"GPU-0": ["lost"], "MIG-0-5": ["lost"]}, shares) == {
        "GPU-0": "it is in MIG mode now",
        "MIG-0-5": "the MIG instance exists no more",
    }


def test_a_node_without_gpus_has_no_remarks() -> None:
    assert remarks(node().shares, Inventory(), ()) == ()


def test_an_exclusion_of_no_gpu_is_a_mistake() -> None:
    shares = node(8).shares
    inventory = Inventory(tuple(shared.gpu for shared in shares.gpus))
    assert remarks(shares, inventory, ()) == ()
    (unknown,) = remarks(shares, inventory, ("9",))
    assert unknown.startswith("--exclude-gpus names 9, but this node has no such GPU")


def test_gpus_none_of_which_is_shared_are_a_mistake_too() -> None:
    found = Inventory(tuple(shared.gpu for shared in node(8).shares.gpus))
    shares = node().shares.with_inventory(found, ("0",))
    assert remarks(shares, found, ("0",)) == (shares.why_none,)
