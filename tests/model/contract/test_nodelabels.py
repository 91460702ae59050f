"""The labels by which pods select nodes for their GPUs."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.keys import NODE_GPUS, NODE_LIMITS, NODE_USE
from gpu_device_plugin.model.contract.nodelabels import (
    NodeLimits,
    label_value,
    node_labels,
    our_annotations,
    our_labels,
    switched_on,
)
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares
from tests.mig_gpus import SMALL, in_mig_mode

T4 = Gpu("GPU-a", 0, "Tesla T4", 15_360, 450, device_paths=("/dev/nvidia0",), pci_bus_id="0000:3b:00.0", numa_node=0)
A10 = Gpu("GPU-b", 1, "NVIDIA A10", 23_028, device_paths=("/dev/nvidia1",))
MIG = Gpu("GPU-m", 2, "NVIDIA H100", 81_559, mig=True)
INVENTORY = Inventory((T4, A10, MIG), (), "580.82.07")
SHARES = Shares(1024).with_inventory(INVENTORY)


def test_a_node_with_one_model_is_labelled_with_it() -> None:
    only = Inventory((T4, replace(T4, uuid="GPU-c", total_mib=15_109)), driver_version="580.82.07")
    assert node_labels(Shares(1024).with_inventory(only), only, "binpack") == {
        "gpu-device-plugin/count": "2",
        "gpu-device-plugin/share-mib": "1024",
        "gpu-device-plugin/policy": "binpack",
        "gpu-device-plugin/driver": "580.82.07",
        "gpu-device-plugin/product": "Tesla-T4",
        "gpu-device-plugin/memory-mib": "15109",
        "gpu-device-plugin/product.Tesla-T4": "true",
    }


def test_the_label_of_limits_is_the_weakest_means_of_the_node_and_absent_without_gpus() -> None:
    limits = NodeLimits({0: GpuEnforcement(Enforcement.DRIVER, "a"), 1: GpuEnforcement(Enforcement.MPS, "b")})
    assert node_labels(SHARES, INVENTORY, "binpack", limits)["gpu-device-plugin/limits"] == "mps"
    assert "gpu-device-plugin/limits" not in node_labels(SHARES, INVENTORY, "binpack")


def test_a_node_with_several_models_has_a_label_for_each() -> None:
    labels = node_labels(SHARES, INVENTORY, "spread")
    assert labels["gpu-device-plugin/product"] == "mixed"
    assert {key for key in labels if key.startswith("gpu-device-plugin/product.")} == {
        "gpu-device-plugin/product.Tesla-T4",
        "gpu-device-plugin/product.NVIDIA-A10",
    }
    assert labels["gpu-device-plugin/memory-mib"] == "15360"


def test_a_node_without_gpus_or_driver_has_the_remaining_labels() -> None:
    assert node_labels(Shares(512), Inventory(), "binpack") == {
        "gpu-device-plugin/count": "0",
        "gpu-device-plugin/share-mib": "512",
        "gpu-device-plugin/policy": "binpack",
    }


def test_a_long_product_name_still_makes_a_label() -> None:
    """The part behind the slash may have 63 characters, of which the 56th here, a dot, must not be the last."""
    long = replace(T4, product="N" * 54 + ".." + "N" * 20)
    there = Inventory((long,))
    labels = node_labels(Shares(1024).with_inventory(there), there, "binpack")
    assert "gpu-device-plugin/product." + "N" * 54 in labels
    assert labels["gpu-device-plugin/product"] == "N" * 54 + ".." + "N" * 7


def test_instances_have_a_label_for_each_profile_and_are_no_gpus() -> None:
    """What is said of whole GPUs is said of the T4 alone."""
    parted = Inventory((T4, *in_mig_mode(1, SMALL, SMALL, ("1g.20gb+me", 19_968))), (), "580.82.07")
    labels = node_labels(Shares(1024).with_inventory(parted, mig=MigMode.WHOLE), parted, "binpack")
    assert labels == {
        "gpu-device-plugin/count": "1",
        "gpu-device-plugin/share-mib": "1024",
        "gpu-device-plugin/policy": "binpack",
        "gpu-device-plugin/driver": "580.82.07",
        "gpu-device-plugin/product": "Tesla-T4",
        "gpu-device-plugin/memory-mib": "15360",
        "gpu-device-plugin/product.Tesla-T4": "true",
        "gpu-device-plugin/mig-1g.10gb": "2",
        "gpu-device-plugin/mig-1g.20gb.me": "1",
    }
    shared = node_labels(Shares(1024).with_inventory(parted, mig=MigMode.SHARE), parted, "binpack")
    assert shared == labels
    off = node_labels(Shares(1024).with_inventory(parted), parted, "binpack")
    assert off == {key: value for key, value in labels.items() if "/mig-" not in key}


def test_a_node_with_instances_only_has_no_gpu() -> None:
    parted = Inventory(in_mig_mode(0, SMALL))
    labels = node_labels(Shares(1024).with_inventory(parted, mig=MigMode.SHARE), parted, "binpack")
    assert (labels["gpu-device-plugin/count"], labels["gpu-device-plugin/mig-1g.10gb"]) == ("0", "1")
    assert not any("product" in key or "memory-mib" in key for key in labels)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA H200 (141GB)", "NVIDIA-H200--141GB"),
        ("580.82.07", "580.82.07"),
        ("--x__", "x"),
        ("X-GTX", "X-GTX"),
        ("a" * 62 + "--b", "a" * 62),
        ("", ""),
        ("Größe²", "Gr--e"),
    ],
)
def test_a_text_becomes_a_valid_label_value(text: str, value: str) -> None:
    assert label_value(text) == value


def test_a_product_name_keeps_its_letters_up_to_the_last_that_fits() -> None:
    there = Inventory((replace(T4, product="GeForce GTX"), replace(T4, uuid="GPU-c", product="N" * 80)))
    labels = node_labels(Shares(1024).with_inventory(there), there, "binpack")
    assert labels.keys() >= {"gpu-device-plugin/product.GeForce-GTX", "gpu-device-plugin/product." + "N" * 55}


def test_a_product_name_without_valid_characters_has_no_label() -> None:
    there = Inventory((replace(T4, product="显卡"),))
    labels = node_labels(Shares(1024).with_inventory(there), there, "binpack")
    assert {key: value for key, value in labels.items() if "product" in key} == {"gpu-device-plugin/product": ""}


@given(st.lists(st.text(max_size=80), min_size=1, max_size=3), st.none() | st.text())
def test_every_label_of_a_node_is_valid_in_kubernetes(products: list[str], driver: str | None) -> None:
    there = Inventory(tuple(Gpu(f"GPU-{n}", n, name, 2048) for n, name in enumerate(products)), (), driver)
    by_key: dict[str, list[str]] = defaultdict(list)
    for key, value in node_labels(Shares(1024).with_inventory(there), there, "binpack").items():
        by_key[key].append(value)
    for key, values in by_key.items():
        assert re.fullmatch(r"gpu-device-plugin/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", key)
        assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", values[0])


@pytest.mark.parametrize(
    ("labels", "on"),
    [({"gpushare": "true"}, True), ({"gpushare": "false"}, False), ({"gpushare": ""}, False), ({}, False)],
)
def test_a_node_shares_while_its_label_says_true(labels: dict[str, str], on: bool) -> None:  # noqa: FBT001 - pytest's
    assert switched_on(labels) is on


def test_every_label_of_the_agent_is_recognised() -> None:
    """Two models, so that each has a label of its own beside `mixed`."""
    gpus = (Gpu("GPU-a", 0, "Tesla T4", 15360, 0), Gpu("GPU-b", 1, "NVIDIA A10", 24576, 0), *in_mig_mode(2, SMALL))
    inventory = Inventory(gpus, driver_version="580.95")
    written = node_labels(Shares(1024).with_inventory(inventory, mig=MigMode.WHOLE), inventory, "binpack")
    others = {
        "gpushare": "true",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig-1g.10gb.count": "1",
        "gpu-device-plugin/share-size": "2GiB",
        "gpu-device-plugin/mig": "whole",
        "gpu-device-plugin/mig-config": "all-balanced",
    }
    assert set(our_labels({**others, **written})) == set(written)
    assert len(written) == 9


def test_of_annotations_the_gpus_the_limits_and_the_use_are_ours() -> None:
    written = {NODE_USE: "{}", NODE_LIMITS: "{}", NODE_GPUS: "{}", "volumes.kubernetes.io/x": "1"}
    assert set(our_annotations(written)) == {NODE_GPUS, NODE_LIMITS, NODE_USE}
    assert our_annotations({}) == ()
