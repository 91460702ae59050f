"""Each figure of a node and its GPUs has its name, and one that is unknown no line."""

from dataclasses import replace

from gpu_device_plugin.model.contract.node_use import GpuUse, NodeUse
from gpu_device_plugin.model.contract.nodelabels import NodeLimits
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.mig import MigMode
from gpu_device_plugin.model.shares import Shares, share_id
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics
from tests.mig_gpus import MIDDLE, SMALL, in_mig_mode
from tests.nodes import node, uuid
from tests.reports import AgentMetrics, idle_metrics, lines

GIB = 1 << 30


def test_a_gpu_has_a_line_for_each_figure() -> None:
    """GPU 0 gives 3 shares, GPU 1 is given whole, GPU 2 whole by another plugin; 3 is out of order and unread."""
    there = node(16, 16, 16, 16)
    ledger = there.ledger.seen([share_id(uuid(0), n) for n in range(3)]).seen([uuid(1)])
    ledger = ledger.with_held_by_other_resource({uuid(2): "nvidia.com/gpu"})
    there = replace(there, ledger=ledger, blocks={uuid(3): Block("why")})
    use = NodeUse("", {0: GpuUse(2048, 256), 1: GpuUse()})
    limits, inventory = NodeLimits({0: GpuEnforcement(Enforcement.MPS, "why")}), Inventory(driver_version="615.71.09")
    shown = AgentMetrics(NodeMetrics(there, limits, inventory, fenced={uuid(1): 7}), use)
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


def test_a_node_shows_its_streams() -> None:
    assert lines(NodeMetrics(node(8), streams={"r": (True, 1.5)}), "stream_up", "without") == [
        'stream_up{resource="r"} 1.0',
        'without_stream_seconds_total{resource="r"} 1.5',
    ]


def test_a_card_in_mig_mode_is_shown_with_its_memory() -> None:
    assert lines(NodeMetrics(node(4), inventory=Inventory(in_mig_mode(0, SMALL, SMALL))), "card") == [
        'card_memory_bytes{gpu="GPU-m"} 8.5520809984e+10'
    ]


def test_a_cordoned_gpu_says_so_and_is_healthy() -> None:
    shown = NodeMetrics(replace(node(16, 16), blocks={uuid(1): Block(new_pods="cordoned by alice")}))
    assert lines(shown, "gpu_cordoned", "gpu_healthy") == [
        f'gpu_healthy{{gpu="{uuid(0)}"}} 1.0',
        f'gpu_healthy{{gpu="{uuid(1)}"}} 1.0',
        f'gpu_cordoned{{gpu="{uuid(0)}"}} 0.0',
        f'gpu_cordoned{{gpu="{uuid(1)}"}} 1.0',
    ]


def test_what_an_agent_does_not_look_after_has_no_gauges() -> None:
    whole = {gauge.name for gauge, _ in idle_metrics(node(8)).gauges()}
    bare = NodeMetrics(node(8))
    left = {gauge.name for gauge, _ in bare.gauges()}
    assert left < whole
    assert {"gpushare_gpu_shares", "gpushare_stream_up"} <= left
    assert whole - left >= {"gpushare_containers_over", "gpushare_limit_states", "gpushare_mps_ready"}
    assert {"gpushare_gpu_memory_used_bytes", "gpushare_gpu_temperature_celsius"} <= whole - left
