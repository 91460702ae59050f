"""The memory of nodes and the reasons of waiting pods have their names in the metrics."""

from __future__ import annotations

from gpu_device_plugin.core.cluster.candidate import candidate
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.cluster.waiting import Reason
from gpu_device_plugin.core.contract.nodegpus import NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.core.telling.cluster_gauges import node_gauges, sums, waiting_gauges


def test_a_node_shows_its_memory_and_what_of_it_is_allocated() -> None:
    """Of two GPUs with 8 shares of 1 GiB, three shares and one whole GPU are allocated. A node without GPUs is none."""
    gpus = NodeGpus(gpus=(ListedGpu(0, 8), ListedGpu(1, 8)), share_mib=1024)
    nodes = (candidate("a", gpus, [Usage(((0, 3),), (1,))]), candidate("plain", NO_GPUS, ()))
    assert sums((*nodes, candidate("b", gpus, ()))) == (2, 32 << 30, 11 << 30)
    assert {gauge.name: list(values) for gauge, values in node_gauges(nodes)} == {
        "gpushare_extender_node_memory_bytes": [(("a",), 16 << 30)],
        "gpushare_extender_node_memory_allocated_bytes": [(("a",), 11 << 30)],
    }


def test_a_node_whose_share_size_is_not_known_has_no_memory() -> None:
    (_, total), (_, allocated) = node_gauges([candidate("a", NodeGpus(gpus=(ListedGpu(0, 8),), share_mib=None), ())])
    assert [*total, *allocated] == []


def test_every_reason_has_a_number() -> None:
    ((gauge, values),) = waiting_gauges({Reason.NO_ROOM: 3})
    assert gauge.labels == ("reason",)
    assert values == [(("not_asked",), 0), (("no_room",), 3), (("never_fits",), 0), (("fits",), 0)]
