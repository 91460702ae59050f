"""A node as the API tells it: whether it shares GPUs, and whether pods may come to it."""

from dataclasses import dataclass, replace

import pytest

from gpu_device_plugin.model.contract.keys import STARTUP_TAINT
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Taint

NODE = NodeRecord("a", "uid", "7", allocatable={"aliyun.com/gpu-mem": 8}, ready=True, created="2026-11-29T00:00:10Z")


def test_what_a_node_shares_is_told_by_its_label_and_its_kubelet() -> None:
    assert (NODE.shares_gpus, NODE.offers, NODE.created_s) == (False, True, 1795910410.0)
    assert replace(NODE, labels={"gpushare": "true"}).shares_gpus
    assert not replace(NODE, allocatable={"aliyun.com/gpu-mem": 0}).offers
    assert replace(NODE, created="soon").created_s == 0.0


def test_a_node_has_the_host_name_of_its_label_or_else_its_own() -> None:
    assert (NODE.hostname, replace(NODE, labels={"kubernetes.io/hostname": "b"}).hostname) == ("a", "b")


@pytest.mark.parametrize(
    ("node", "is_open"),
    [
        (NODE, True),
        (replace(NODE, ready=False), False),
        (replace(NODE, unschedulable=True), False),
        (replace(NODE, taints=(Taint("dedicated", "ml"),)), True),
        (replace(NODE, taints=(Taint("karpenter.sh/disrupted"),)), False),
    ],
)
def test_pods_may_come_to_nodes_that_are_ready_and_stay(node: NodeRecord, is_open: bool) -> None:  # noqa: FBT001 - pytest's
    assert node.open is is_open


def test_a_node_starts_while_it_has_the_taint_of_startup() -> None:
    assert (NODE.starting, replace(NODE, taints=(Taint(STARTUP_TAINT),)).starting) == (False, True)


def test_nodes_that_differ_in_their_version_alone_are_equal() -> None:
    assert replace(NODE, resource_version="8") == NODE
    assert replace(NODE, uid="other") != NODE


def test_a_node_becomes_one_of_another_class_with_more_fields() -> None:
    @dataclass(frozen=True, slots=True)
    class More(NodeRecord):
        more: int = 0

    assert More.of(NODE, more=1, ready=False) == More("a", "uid", "7", allocatable=NODE.allocatable, ready=False,
                                                      created=NODE.created, more=1)  # fmt: skip
