"""Each figure of a container and of a GPU has its name in the metrics, and one that is not known has no line."""

from __future__ import annotations

from dataclasses import replace

from gpu_device_plugin.core.node.use_series import ContainerSeries, GpuSeries
from gpu_device_plugin.core.telling.exposition import Gauges, family
from gpu_device_plugin.core.telling.node_gauges import container_gauges, gpu_gauges

CONTAINER = ContainerSeries("shop", "web-0", "main", "GPU-a", 4, 3, 2, "driver", "held", 0.25)
GPU = GpuSeries("GPU-a", "0", "Tesla T4", "615.71.09", "mps", "1073741824", 16, 8, 4, 2)


def lines(gauges: Gauges) -> list[str]:
    text = "".join(piece for gauge, values in gauges for piece in family(gauge, values))
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_container_has_a_line_for_each_figure() -> None:
    who = 'container="main",gpu="GPU-a",namespace="shop",pod="web-0"'
    assert lines(container_gauges([CONTAINER])) == [
        f"gpushare_container_gpu_memory_allocated_bytes{{{who}}} 4.0",
        f"gpushare_container_gpu_memory_used_bytes{{{who}}} 3.0",
        f'gpushare_container_gpu_memory_limit_bytes{{{who},rung="driver",state="held"}} 2.0',
        f"gpushare_container_gpu_utilization_ratio{{{who}}} 0.25",
    ]


def test_a_gpu_has_a_line_for_each_figure() -> None:
    info = (
        'driver="615.71.09",gi="",gpu="GPU-a",index="0",model="Tesla T4",parent="",profile="",rung="mps",'
        'share_bytes="1073741824"'
    )
    assert lines(gpu_gauges([GPU])) == [
        f"gpushare_gpu_info{{{info}}} 1.0",
        'gpushare_gpu_memory_bytes{gpu="GPU-a"} 16.0',
        'gpushare_gpu_memory_allocated_bytes{gpu="GPU-a"} 8.0',
        'gpushare_gpu_memory_used_bytes{gpu="GPU-a"} 4.0',
        'gpushare_gpu_memory_unattributed_bytes{gpu="GPU-a"} 2.0',
    ]


def test_an_instance_is_told_with_its_gpu_and_profile() -> None:
    instance = replace(GPU, gpu="MIG-a", parent="GPU-a", profile="1g.10gb", gi="7")
    assert 'gi="7",gpu="MIG-a",index="0"' in lines(gpu_gauges([instance]))[0]
    assert 'parent="GPU-a",profile="1g.10gb"' in lines(gpu_gauges([instance]))[0]
    assert lines(gpu_gauges([instance]))[1] == 'gpushare_gpu_memory_bytes{gpu="MIG-a"} 16.0'


def test_a_figure_that_is_not_known_has_no_line_and_zero_has_one() -> None:
    idle = ContainerSeries("shop", "web-0", "main", "GPU-a", None, 0)
    (line,) = lines(container_gauges([idle]))
    assert line.startswith("gpushare_container_gpu_memory_used_bytes{")
    unread = GpuSeries("GPU-a", "0", "Tesla T4", "", "", "1", 16, 0)
    assert [line.partition("{")[0] for line in lines(gpu_gauges([unread]))] == [
        "gpushare_gpu_info",
        "gpushare_gpu_memory_bytes",
        "gpushare_gpu_memory_allocated_bytes",
    ]
