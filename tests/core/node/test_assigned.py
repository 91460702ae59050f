"""The GPUs of a pod are known once the checkpoint shows all of its containers."""

from __future__ import annotations

from gpu_device_plugin.core.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.core.model.resources import Kind, Resource
from gpu_device_plugin.core.node.assigned import assigned_shares
from tests.nodes import ids, node, uuid

MEM, COUNT = Resource(Kind.MEMORY, "x.com/gpu-mem"), Resource(Kind.COUNT, "x.com/gpu-count")
RESOURCES = (MEM, COUNT)


def pod(*asked: tuple[Resource, int], uid: str = "u") -> Pod:
    containers = (
        Container(f"c{index}", ContainerKind.APP, index, {resource.name: amount})
        for index, (resource, amount) in enumerate(asked)
    )
    return Pod(uid, "default", "a", containers=tuple(containers))


def test_every_container_has_its_shares_and_a_whole_gpu_has_all_of_them() -> None:
    records = {
        ("u", "c0", Kind.MEMORY): frozenset([*ids(0, [1, 2]), *ids(1, [3])]),
        ("u", "c1", Kind.COUNT): frozenset([uuid(2)]),
    }
    assert assigned_shares(pod((MEM, 3), (COUNT, 1)), records, node(8, 8, 4), RESOURCES) == {
        ("c0", Kind.MEMORY): {0: 2, 1: 1},
        ("c1", Kind.COUNT): {2: 4},
    }


def test_a_container_missing_in_the_checkpoint_leaves_the_pod_unassigned() -> None:
    records = {("u", "c0", Kind.MEMORY): frozenset(ids(0, [0]))}
    assert assigned_shares(pod((MEM, 1), (MEM, 1)), records, node(8), RESOURCES) == {}


def test_a_device_that_is_not_on_the_node_leaves_the_pod_unassigned() -> None:
    records = {("u", "c0", Kind.MEMORY): frozenset([*ids(0, [0]), *ids(5, [0])])}
    assert assigned_shares(pod((MEM, 2)), records, node(8), RESOURCES) == {}


def test_the_kubelet_knows_a_static_pod_by_the_hash_of_its_file() -> None:
    mirror = Pod("in-api", "default", "a", static_uid="hash")
    assert (mirror.kubelet_uid, pod(uid="u").kubelet_uid) == ("hash", "u")
