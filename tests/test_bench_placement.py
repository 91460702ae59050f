"""What the measurement of placement counts, without a cluster."""

import pytest

from bench.placement import Ledger, cluster, node_json, pod_json
from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.keys import NODE_GPUS, USE_MODEL
from gpu_device_plugin.model.contract.nodegpus import read_node_gpus

T4 = NodeType((100, 100), ("T4", "T4"), 96_000, 393_216)
NODE = Start.empty("n", T4)


def test_a_pod_of_no_gpu_with_room_is_refused_though_the_sum_suffices() -> None:
    ledger = Ledger([NODE])
    assert [ledger.take("n", PodKind(60, 1)) for _ in range(3)] == [True, True, False]
    assert ledger.take("n", PodKind(40, 1))
    assert not ledger.take("n", PodKind(0, 1))
    picky = Ledger([NODE])
    assert not picky.take("n", PodKind(1, 1, selector=GpuSelector(("A10",))))
    assert picky.take("n", PodKind(0, 2, selector=GpuSelector(("T4",))))


def test_nodes_and_pods_say_what_they_have_and_ask() -> None:
    node = node_json(NODE)
    assert node["status"]["allocatable"]["aliyun.com/gpu-mem"] == "200"
    assert [gpu.shares for gpu in read_node_gpus(node["metadata"]["annotations"][NODE_GPUS]).gpus] == [100, 100]
    whole = pod_json(7, PodKind(0, 2, 500, 64, GpuSelector(("T4", "A10"))), "s")
    assert whole["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "500m",
        "memory": "64Mi",
        "aliyun.com/gpu-count": "2",
    }
    assert whole["metadata"]["annotations"] == {USE_MODEL: "T4,A10"}
    without = pod_json(8, PodKind(0, 0, 500, 64), "s")["spec"]["containers"][0]["resources"]
    assert without["limits"].keys() == {"cpu", "memory"}


def test_without_traces_nodes_and_pods_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENB", raising=False)
    there = cluster(6, "default", 0)
    assert [node.name for node in there.nodes][:2] == ["node-0000", "node-0001"]
    assert sum(there.demand) >= 100 * sum(len(node.shape.sizes) for node in there.nodes)
