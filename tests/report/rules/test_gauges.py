"""Each figure of a node, its GPUs and containers, and of a cluster has its name, and one that is unknown no line."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from gpu_device_plugin.metrics import family
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeUse
from gpu_device_plugin.model.contract.nodegpus import NO_GPUS, ListedGpu, NodeGpus
from gpu_device_plugin.model.contract.nodelabels import NodeLimits
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement, LimitStatus
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.model.telemetry import GpuTelemetry, Throttle
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.report.rules.gauges import ExtenderMetrics, NodeMetrics, WaitingReason
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.mig_gpus import MIDDLE, SMALL, in_mig_mode
from tests.nodes import node, uuid
from tests.reports import idle_metrics

GIB = 1 << 30
PART = ContainerUse("shop", "web-0", "main", 0, 4096, 3072, 25, Enforcement.DRIVER, LimitStatus.DIFFERS, 2048)


def lines(shown: NodeMetrics | ExtenderMetrics, *beginnings: str) -> list[str]:
    """Return the lines that begin so, without what they have in common."""
    text = "".join(piece for gauge, values in shown.gauges() for piece in family(gauge, values))
    return [
        line.removeprefix("gpushare_")
        for line in text.splitlines()
        if line.startswith(tuple(f"gpushare_{beginning}" for beginning in beginnings))
    ]


def containers(*parts: ContainerUse) -> list[str]:
    """Return the lines of containers without the labels that say which container on which GPU it is."""
    who = re.compile(rf'(container="main"|gpu="{uuid(0)}"|namespace="shop"|pod="web-0"),?')
    shown = NodeMetrics(node(16), NodeUse("", parts=parts))
    return [who.sub("", line.removeprefix("container_gpu_")) for line in lines(shown, "container_")]


def test_a_container_has_a_line_for_each_figure() -> None:
    assert containers(PART) == [
        "memory_allocated_bytes{} 4.294967296e+09",
        "memory_used_bytes{} 3.221225472e+09",
        "utilization_ratio{} 0.25",
        'memory_limit_bytes{enforcement="driver",state="differs"} 2.147483648e+09',
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (replace(PART, used_mib=0), "memory_used_bytes{} 0.0"),
        (replace(PART, used_mib=None), "memory_used_bytes"),
        (replace(PART, sm_percent=None), "utilization_ratio"),
        (
            replace(PART, found_mib=None, held=LimitStatus.MISSING),
            'limit_bytes{enforcement="driver",state="missing"} 4.294967296e',
        ),
        (replace(PART, found_mib=None, held=None), 'memory_limit_bytes{enforcement="driver",state="unverified"} 4.29'),
        (replace(PART, enforcement=None), "memory_limit_bytes"),
        (ContainerUse("shop", "web-0", "main", 0, 0, 100), "memory_allocated_bytes{} 0.0"),
        (ContainerUse("shop", "web-0", "", 0, 4096, 100), "memory_allocated_bytes"),
    ],
    ids=[
        *("nothing is used", "use unknown", "utilization unknown", "the limit asked for", "not read yet", "no limit"),
        *("given nothing", "of the pod"),
    ],
)
def test_a_figure_that_is_not_known_has_no_line_and_zero_has_one(part: ContainerUse, expected: str) -> None:
    assert any(expected in line for line in containers(part)) is ("{" in expected)


def test_a_gpu_has_a_line_for_each_figure() -> None:
    """GPU 0 gives 3 shares, GPU 1 is given whole, GPU 2 whole by another plugin; 3 is out of order and unread."""
    there = node(16, 16, 16, 16)
    ledger = there.ledger.seen([share_id(uuid(0), n) for n in range(3)]).seen([uuid(1)])
    ledger = ledger.with_held_by_other_resource({uuid(2): "nvidia.com/gpu"})
    there = replace(there, ledger=ledger, blocks={uuid(3): Block("why")})
    use = NodeUse("", {0: GpuUse(2048, 256), 1: GpuUse()})
    limits, inventory = NodeLimits({0: GpuEnforcement(Enforcement.MPS, "why")}), Inventory(driver_version="615.71.09")
    shown = NodeMetrics(there, use, limits, inventory, fenced={uuid(1): 7})
    gpu = there.shares.gpus[0].gpu
    who = f'gpu="{uuid(0)}"'
    info = (
        f'driver="615.71.09",enforcement="mps",gi="",{who},index="0",model="{gpu.product}",parent="",profile="",'
        f'share_bytes="{there.shares.share_mib << 20}"'
    )
    assert [line for line in lines(shown, "gpu_") if who in line] == [
        f"gpu_info{{{info}}} 1.0",
        f"gpu_healthy{{{who}}} 1.0",
        f"gpu_cordoned{{{who}}} 0.0",
        f"gpu_shares{{{who}}} {len(there.shares.gpus[0].shares)}.0",
        f"gpu_shares_allocated{{{who}}} 3.0",
        f"gpu_shares_unhealthy{{{who}}} 0.0",
        f"gpu_shares_fenced{{{who}}} 0.0",
        f"gpu_memory_bytes{{{who}}} 1.7179869184e+10",
        f"gpu_memory_allocated_bytes{{{who}}} 3.221225472e+09",
        f"gpu_memory_used_bytes{{{who}}} 2.147483648e+09",
        f"gpu_memory_unattributed_bytes{{{who}}} 2.68435456e+08",
    ]
    assert lines(shown, "gpus{") == ['gpus{health="healthy"} 3.0', 'gpus{health="unhealthy"} 1.0']
    values = [
        [line.rpartition(" ")[2] for line in lines(shown, f"gpu_{name}{{")]
        for name in ("shares_allocated", "shares_unhealthy", "shares_fenced", "memory_used_bytes")
    ]
    shares = f"{len(there.shares.gpus[0].shares)}.0"
    assert values == [
        ["3.0", shares, "0.0", "0.0"],
        ["0.0", "0.0", "0.0", shares],
        ["0.0", "7.0", "0.0", "0.0"],
        ["2.147483648e+09"],
    ]
    given = [line.rpartition(" ")[2] for line in lines(shown, "gpu_memory_allocated_bytes")]
    assert given[1] == given[2] == lines(shown, "gpu_memory_bytes")[0].rpartition(" ")[2]


def test_a_gpu_has_no_more_allocated_than_memory() -> None:
    """The IDs of a former, smaller share size may still be in use."""
    there = node(4)
    there = there.with_ledger(there.ledger.seen([share_id(uuid(0), n) for n in range(4000)]))
    (given,), (total,) = (lines(NodeMetrics(there), f"gpu_memory_{name}{{") for name in ("allocated_bytes", "bytes"))
    assert given.rpartition(" ")[2] == total.rpartition(" ")[2]


def parted(mode: MigMode, gpus: tuple[Gpu, ...], known: Node | None = None) -> Node:
    shares = (Shares(1024) if known is None else known.shares).with_inventory(Inventory(gpus), mig=mode)
    return replace(known or Node(shares), shares=shares)


def listed(there: Node) -> list[tuple[str, int]]:
    """Return the UUID of each GPU that is shown, with the GiB that are allocated of it."""
    given = lines(NodeMetrics(there), "gpu_memory_allocated_bytes")
    return [(line.split('"')[1], int(float(line.rpartition(" ")[2])) // GIB) for line in given]


def test_instances_are_shown_with_their_gpu_which_is_not_shown_itself() -> None:
    there = parted(MigMode.SHARE, in_mig_mode(0, SMALL, SMALL))
    there = there.with_ledger(there.ledger.seen([share_id("MIG-m1", 0), share_id("MIG-m1", 1)]))
    assert listed(there) == [("MIG-m0", 0), ("MIG-m1", 2)]
    first = lines(NodeMetrics(there), "gpu_info")[0]
    assert 'gi="7",gpu="MIG-m0",index="' in first
    assert 'parent="GPU-m",profile="1g.10gb"' in first


def test_an_instance_that_is_held_whole_is_allocated() -> None:
    there = parted(MigMode.WHOLE, in_mig_mode(0, SMALL, SMALL))
    assert listed(there.with_ledger(there.ledger.seen(["MIG-m0"]))) == [("MIG-m0", 9), ("MIG-m1", 0)]


def test_of_instances_that_exist_no_more_or_are_given_to_nobody_those_in_use_are_shown() -> None:
    """MIG-m0 is destroyed while a container has it; MIG-m1 while nobody does; then the mode is switched off."""
    there = parted(MigMode.WHOLE, in_mig_mode(0, SMALL, SMALL, MIDDLE))
    there = there.with_ledger(there.ledger.seen(["MIG-m0"]))
    card = in_mig_mode(0, SMALL, SMALL, MIDDLE)
    left = parted(MigMode.WHOLE, (card[0], card[3]), there)
    assert [uuid for uuid, _ in listed(left)] == ["MIG-m0", "MIG-m2"]
    assert [uuid for uuid, _ in listed(parted(MigMode.OFF, card, there))] == ["MIG-m0"]


def test_a_node_shows_its_streams_limits_and_daemons() -> None:
    shown = NodeMetrics(
        node(8),
        limit_states={"held": 3, "missing": 0},
        containers_over=2,
        streams={"r": (True, 1.5)},
        mps={"GPU-a": False},
    )
    assert lines(shown, "containers_over", "stream_up", "without", "limit_states", "mps") == [
        "containers_over 2.0",
        'stream_up{resource="r"} 1.0',
        'without_stream_seconds_total{resource="r"} 1.5',
        'limit_states{state="held"} 3.0',
        'limit_states{state="missing"} 0.0',
        'mps_ready{gpu="GPU-a"} 0.0',
    ]


# --- The extender -----------------------------------------------------------------------------------------------------


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


def test_a_card_in_mig_mode_is_shown_with_its_memory() -> None:
    assert lines(NodeMetrics(node(4), inventory=Inventory(in_mig_mode(0, SMALL, SMALL))), "card") == [
        'card_memory_bytes{gpu="GPU-m"} 8.5520809984e+10'
    ]


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


def test_a_container_of_an_idle_pod_has_a_line_that_says_for_how_long() -> None:
    idle = replace(PART, idle_since="2026-11-22T09:56:00Z")
    metrics = NodeMetrics(node(16), NodeUse("2026-11-22T10:56:30Z", parts=(idle,)))
    assert [line.rpartition(" ")[2] for line in lines(metrics, "container_gpu_idle")] == ["3630.0"]
    assert lines(replace(metrics, use=NodeUse("2026-11-22T10:56:30Z", parts=(PART,))), "container_gpu_idle") == []


def test_a_borrower_has_lines_for_what_it_borrows_and_while_it_is_asked() -> None:
    borrower = replace(PART, used_mib=7168, limit_mib=12288, found_mib=None)
    assert containers(borrower)[2] == "memory_borrowed_bytes{} 3.221225472e+09"
    assert 'memory_limit_bytes{enforcement="driver",state="differs"} 1.2884901888e+10' in containers(borrower)
    asked = replace(borrower, asked_at="2026-11-22T09:56:00Z", needed_by="ml/train")
    assert containers(asked)[-1] == "memory_return_asked{} 1.0"
    for parts, short in (((borrower,), "0.0"), ((asked, asked), "1.0")):
        assert lines(NodeMetrics(node(16), NodeUse("", parts=parts)), "pods_short") == [f"pods_short_of_memory {short}"]


def test_a_cordoned_gpu_says_so_and_is_healthy() -> None:
    shown = NodeMetrics(replace(node(16, 16), blocks={uuid(1): Block(new_pods="cordoned by alice")}))
    assert lines(shown, "gpu_cordoned", "gpu_healthy") == [
        f'gpu_healthy{{gpu="{uuid(0)}"}} 1.0',
        f'gpu_healthy{{gpu="{uuid(1)}"}} 1.0',
        f'gpu_cordoned{{gpu="{uuid(0)}"}} 0.0',
        f'gpu_cordoned{{gpu="{uuid(1)}"}} 1.0',
    ]


# --- The condition of GPUs --------------------------------------------------------------------------------------------

TOLD: dict[str, tuple[Any, str]] = {
    "temperature_c": (64, "temperature_celsius{} 64.0"),
    "memory_temperature_c": (71, "memory_temperature_celsius{} 71.0"),
    "slowdown_c": (87, "slowdown_temperature_celsius{} 87.0"),
    "fan_percent": (110, "fan_speed_ratio{} 1.1"),
    "power_mw": (251_500, "power_watts{} 251.5"),
    "power_limit_mw": (400_000, "power_limit_watts{} 400.0"),
    "power_limit_default_mw": (700_000, "power_limit_default_watts{} 700.0"),
    "energy_mj": (7_500, "energy_joules_total{} 7.5"),
    "sm_clock_mhz": (1410, "sm_clock_hertz{} 1.41e+09"),
    "sm_clock_max_mhz": (1980, "sm_clock_max_hertz{} 1.98e+09"),
    "memory_clock_mhz": (1215, "memory_clock_hertz{} 1.215e+09"),
    "memory_clock_max_mhz": (1593, "memory_clock_max_hertz{} 1.593e+09"),
    "persistence": (False, "persistence_mode{} 0.0"),
    "sm_percent": (50, "utilization_ratio{} 0.5"),
    "memory_percent": (25, "memory_busy_ratio{} 0.25"),
    "encoder_percent": (0, "encoder_utilization_ratio{} 0.0"),
    "decoder_percent": (100, "decoder_utilization_ratio{} 1.0"),
    "pcie_generation": (1, "pcie_generation{} 1.0"),
    "pcie_generation_max": (5, "pcie_generation_max{} 5.0"),
    "pcie_width": (8, "pcie_lanes{} 8.0"),
    "pcie_width_max": (16, "pcie_lanes_max{} 16.0"),
    "pcie_replays": (2, "pcie_replays_total{} 2.0"),
    "pcie_sent_bytes": (1 << 30, "pcie_sent_bytes_total{} 1.073741824e+09"),
    "pcie_received_bytes": (3, "pcie_received_bytes_total{} 3.0"),
    "nvlink_errors": (4, "nvlink_errors_total{} 4.0"),
    "ecc_corrected": (5, "ecc_corrected_errors_total{} 5.0"),
    "ecc_uncorrected": (6, "ecc_uncorrected_errors_total{} 6.0"),
    "retired_pages": (7, "retired_pages{} 7.0"),
    "remapped_rows": (8, "remapped_rows{} 8.0"),
    "repair_pending": (True, "memory_repair_pending{} 1.0"),
    "repair_failed": (False, "memory_repair_failed{} 0.0"),
}


def test_what_an_agent_does_not_look_after_has_no_gauges() -> None:
    whole = {gauge.name for gauge, _ in idle_metrics(node(8)).gauges()}
    bare = NodeMetrics(node(8))
    left = {gauge.name for gauge, _ in bare.gauges()}
    assert left < whole
    assert {"gpushare_gpu_shares", "gpushare_stream_up"} <= left
    assert whole - left >= {"gpushare_containers_over", "gpushare_limit_states", "gpushare_mps_ready"}
    assert {"gpushare_gpu_memory_used_bytes", "gpushare_gpu_temperature_celsius"} <= whole - left


def conditions(*told: GpuTelemetry, seen: Node = node(16)) -> list[str]:  # noqa: B008 - frozen
    """Return what the conditions of GPUs add to the lines of a node, without the label of its first GPU."""
    before = {*lines(idle_metrics(seen), "gpu_")}
    added = lines(NodeMetrics(seen, telemetry={each.uuid: each for each in told}), "gpu_")
    return [line.replace(f'gpu="{uuid(0)}"', "").removeprefix("gpu_") for line in added if line not in before]


def test_each_figure_of_a_gpus_condition_has_its_series_in_base_units() -> None:
    assert TOLD.keys() | {"uuid", "throttle"} == {field.name for field in fields(GpuTelemetry)}
    telemetry = replace(GpuTelemetry(uuid(0)), **{name: value for name, (value, _) in TOLD.items()})
    assert conditions(telemetry) == [line for _, line in TOLD.values()]


def test_every_reason_to_slow_a_gpu_has_a_series_once_reasons_are_told() -> None:
    bits = Throttle.HEAT | Throttle.POWER_CAP
    assert conditions(GpuTelemetry(uuid(0), throttle=bits)) == [
        f'throttled{{,reason="{reason}"}} {held}'
        for reason, held in (
            *(("power_cap", 1.0), ("hardware", 0.0), ("sync", 0.0)),
            *(("heat", 1.0), ("hardware_heat", 0.0), ("power_brake", 0.0)),
        )
    ]


def test_what_a_driver_does_not_tell_has_no_series_and_neither_have_gpus_of_others() -> None:
    assert conditions(GpuTelemetry(uuid(0)), GpuTelemetry("GPU-of-another-plugin", temperature_c=40)) == []


def test_the_condition_of_a_gpu_in_mig_mode_has_the_uuid_of_the_gpu_once() -> None:
    gpus = in_mig_mode(0, SMALL, MIDDLE)
    told = GpuTelemetry(gpus[0].uuid, temperature_c=40)
    (line,) = conditions(told, seen=parted(MigMode.SHARE, gpus))
    assert line == f'temperature_celsius{{gpu="{gpus[0].uuid}"}} 40.0'
