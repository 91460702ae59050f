"""What kubectl prints of a cluster becomes nodes, a queue, and the pods that run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.core.contract.keys import NODE_GPUS
from gpu_device_plugin.core.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus, write_node_gpus
from gpu_device_plugin.core.worth.mix import PodKind
from gpu_device_plugin.programs.simulate.clusterlist import ClusterList, read_cluster
from gpu_device_plugin.settings.common import ResourceSettings
from gpu_device_plugin.testing.builders import container, node, pod

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACED = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}


def two_gpus(name: str, **more: Any) -> Mapping[str, Any]:
    found = node(name, mem=20, count=2, **more)
    found["metadata"]["uid"] = name
    return found


def asking(name: str, mem: int | None = None, *, cpu: str = "", **more: Any) -> Mapping[str, Any]:
    each = container(mem=mem)
    if cpu:
        each.setdefault("resources", {})["requests"] = {"cpu": cpu}
    return pod(name, each, uid=name, **more)


def listed(*objects: Mapping[str, Any]) -> ClusterList:
    text = json.dumps({"kind": "List", "items": objects}).encode()
    return read_cluster(text, ResourceSettings().offered)


def test_running_pods_take_gpus_and_those_without_gpus_take_cpu() -> None:
    """20 shares on two GPUs are 10 each, of which 7 are taken of the second; 16 CPUs less 2 and 3."""
    found = listed(
        two_gpus("a"),
        asking("web", 7, cpu="2", node="a", phase="Running", annotations=PLACED),
        asking("log", cpu="3", node="a", phase="Running"),
        asking("done", 7, node="a", phase="Succeeded", annotations=PLACED),
    )
    (now,), (empty,) = found.nodes, found.empty
    assert (now.left.frees, now.left.cpu_milli) == ((10, 3), 11_000)
    assert (empty.left.frees, empty.left.cpu_milli) == ((10, 10), 13_000)
    assert found.running == (PodKind(7, 1, 2000),)


def test_waiting_pods_queue_by_age() -> None:
    found = listed(
        two_gpus("a"),
        asking("young", 4, created="2026-11-02T00:00:00Z"),
        asking("old", 5, created="2026-11-01T00:00:00Z"),
        asking("without a GPU", created="2026-11-01T00:00:00Z"),
    )
    assert found.waiting == (PodKind(5, 1), PodKind(4, 1))


def with_list(name: str, gpus: NodeGpus) -> Mapping[str, Any]:
    """Return a node whose agent lists these GPUs."""
    return two_gpus(name, annotations={NODE_GPUS: write_node_gpus(gpus)})


def test_instances_of_a_cluster_are_read_from_the_nodes_list() -> None:
    places = [ListedInstance("GPU-b", 1, n, "1g.10gb", n + 7) for n in range(2)]
    instances = tuple(
        ListedGpu(n + 1, 9, f"MIG-{n}", "H100 MIG 1g.10gb", instance=each) for n, each in enumerate(places)
    )
    shared = NodeGpus((ListedGpu(0, 80, "GPU-a", "H100"), *instances), share_mib=1024)
    found = listed(with_list("a", shared), asking("web", 7, node="a", phase="Running", annotations=PLACED))
    (now,) = found.nodes
    assert (now.shape.sizes, now.shape.cards, now.left.frees) == ((80, 9, 9), (None, 1, 1), (80, 2, 9))


def test_a_node_that_gives_its_instances_whole_is_left_out_and_named() -> None:
    whole = ListedInstance("GPU-b", 1, 0, "1g.10gb", 7, "aliyun.com/mig-1g.10gb")
    found = listed(
        two_gpus("a"), with_list("b", NodeGpus(share_mib=1024, instances=(ListedGpu(0, 9, instance=whole),)))
    )
    assert [each.name for each in found.nodes] == ["a"]
    assert found.notes == ("node b is left out: its MIG instances are given whole, by the resources of their profiles",)


def test_a_node_that_takes_no_pods_is_left_out_and_named() -> None:
    cordoned = {**two_gpus("c"), "spec": {"unschedulable": True}}
    found = listed(two_gpus("a"), two_gpus("b", ready=False), cordoned)
    assert [each.name for each in found.nodes] == ["a"]
    assert found.notes == ("node b is left out: it is not ready", "node c is left out: it is cordoned")


def test_a_pod_that_no_node_can_ever_take_is_left_out_and_named() -> None:
    both = container(limits={"aliyun.com/gpu-mem": "1", "aliyun.com/gpu-count": "1"})
    found = listed(two_gpus("a"), pod("odd", both, uid="odd"))
    assert found.waiting == ()
    (note,) = found.notes
    assert note.startswith("pod default/odd is left out: container 'main' asks for")


def test_a_request_that_no_machine_meets_stays_within_64_bits() -> None:
    (kind,) = listed(two_gpus("a"), asking("huge", 4, cpu="9E")).waiting
    assert 10**9 < kind.cpu_milli < 2**62


def test_an_object_that_cannot_be_read_does_not_hide_the_others() -> None:
    found = listed({"kind": "Pod", "metadata": {}}, two_gpus("a"))
    assert len(found.nodes) == 1
    assert found.notes[0].startswith("an object is left out: not a pod")


@pytest.mark.parametrize("text", [b'{"items": 3}', b"[]", b'{"items": "\xff"}'])
def test_anything_else_is_no_list(text: bytes) -> None:
    with pytest.raises(UnreadableObjectError):
        read_cluster(text, ResourceSettings().offered)
