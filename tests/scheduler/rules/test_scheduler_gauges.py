"""Each figure of a cluster has its name."""

from dataclasses import replace

from gpu_device_plugin.model.contract.nodegpus import NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics, WaitingReason
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.reports import lines


def test_a_node_shows_its_memory_and_what_of_it_is_allocated() -> None:
    """Of two GPUs with 8 shares of 1 GiB, three shares and one whole GPU are allocated. A node without GPUs is none."""
    gpus = NodeGpus(gpus=(ListedGpu(0, 8), ListedGpu(1, 8)), share_mib=1024)
    unknown = candidate("unknown", NodeGpus(gpus=(ListedGpu(0, 8),), share_mib=None), ())
    nodes = (candidate("a", gpus, [Usage(((0, 3),), (1,))]), candidate("plain", NO_GPUS, ()), unknown)
    assert lines(ExtenderMetrics(nodes=(*nodes, candidate("b", gpus, ()))), "extender_node", "extender_memory") == [
        "extender_nodes_wanted 0.0",
        "extender_nodes_kept 0.0",
        'extender_node_memory_bytes{node="a"} 1.7179869184e+10',
        'extender_node_memory_bytes{node="b"} 1.7179869184e+10',
        'extender_node_memory_allocated_bytes{node="a"} 1.1811160064e+10',
        'extender_node_memory_allocated_bytes{node="b"} 0.0',
        "extender_nodes 3.0",
        "extender_memory_bytes 3.4359738368e+10",
        "extender_memory_taken_bytes 1.1811160064e+10",
    ]


def test_the_memory_that_is_of_no_use_is_shown_where_the_size_of_a_share_is_known() -> None:
    gpus = NodeGpus(gpus=(ListedGpu(0, 8),), share_mib=1024)
    known, unknown = candidate("a", gpus, ()), candidate("b", replace(gpus, share_mib=None), ())
    stranded = [(known, 2.5), (unknown, 1.0), (candidate("c", replace(gpus, claims=True), ()), 1.0)]
    shown = lines(ExtenderMetrics(stranded=stranded), "extender_node_memory_stranded")
    assert shown == ['extender_node_memory_stranded_bytes{node="a"} 2.68435456e+09']


def test_the_cluster_is_shown_as_it_stands() -> None:
    watches = {"pods": (True, 0.5, 2, 1)}
    shown = ExtenderMetrics(
        leader=True,
        pods=7,
        pending=2,
        oldest_s=9.5,
        claims=4,
        in_doubt=1,
        learned=True,
        distrusted=3,
        wanted=2,
        kept=5,
        held=1,
        watches=watches,
        waiting={WaitingReason.NO_ROOM: 3},
    )
    assert lines(shown, "extender_") == [
        "extender_leader 1.0",
        "extender_pods 7.0",
        "extender_pods_pending 2.0",
        "extender_pods_waiting_oldest_seconds 9.5",
        "extender_claims 4.0",
        "extender_claims_in_doubt 1.0",
        "extender_learned 1.0",
        "extender_namespaces_distrusted 3.0",
        "extender_nodes_wanted 2.0",
        "extender_nodes_kept 5.0",
        "extender_rooms_held 1.0",
        'extender_watch_live{kind="pods"} 1.0',
        'extender_watch_silent_seconds{kind="pods"} 0.5',
        'extender_lists_total{kind="pods"} 2.0',
        'extender_unreadable_total{kind="pods"} 1.0',
        'extender_pods_waiting{reason="not_asked"} 0.0',
        'extender_pods_waiting{reason="no_room"} 3.0',
        'extender_pods_waiting{reason="never_fits"} 0.0',
        'extender_pods_waiting{reason="fits"} 0.0',
        "extender_nodes 0.0",
        "extender_memory_bytes 0.0",
        "extender_memory_taken_bytes 0.0",
    ]
