"""What an agent writes on its page of metrics is what the page of the cluster reads."""

from __future__ import annotations

from gpu_device_plugin.core.contract.nodereport import NodeUse, UsedGpu, UsedPart
from gpu_device_plugin.core.contract.scrapeduse import NAMES, scraped_use
from gpu_device_plugin.core.model.limits import Held, Rung
from gpu_device_plugin.core.node.use_series import ContainerSeries, GpuSeries
from gpu_device_plugin.metrics import PrometheusMetrics, State

GIB = 1 << 30
AT = "2026-11-22T21:43:55Z"
HOSTILE = 'evil"} 1\nx{a="\\'
GPU = GpuSeries("GPU-b", "1", HOSTILE, "615.71", "mps", str(GIB), 80 * GIB, 8 * GIB, 5 * GIB, GIB)
CONTAINERS = (
    ContainerSeries("shop", "web-0", "main", "GPU-b", 4 * GIB, 3 * GIB, 4 * GIB, "driver", "held", 0.29),
    ContainerSeries("", "3f0c-uid", "job", "GPU-b", 4 * GIB, None, 4 * GIB, "mps", "unverified"),
    ContainerSeries("lab", "thief", "", "GPU-b", 0, GIB),
)


async def text(state: State) -> str:
    return str((await PrometheusMetrics(lambda: state).page()).body)


async def test_an_agents_page_is_read_as_the_agent_means_it() -> None:
    page = await text(State(memory=(GPU,), containers=CONTAINERS))
    assert scraped_use(page, AT) == NodeUse(
        AT,
        {1: UsedGpu(5120, 1024)},
        (
            UsedPart("", "3f0c-uid", "job", 1, 4096, None, None, Rung.MPS, Held.UNVERIFIED),
            UsedPart("lab", "thief", "", 1, 0, 1024),
            UsedPart("shop", "web-0", "main", 1, 4096, 3072, 29, Rung.DRIVER, Held.HELD, 4096),
        ),
    )
    assert all(f"\n{name}{{" in page for name in NAMES)


async def test_an_agent_that_reads_no_use_has_a_page_without_any() -> None:
    unknown = GpuSeries("GPU-b", "1", "H200", "", "", str(GIB), 80 * GIB, 8 * GIB)
    assert scraped_use(await text(State(memory=(unknown,))), AT) is None
    assert scraped_use(await text(State()), AT) is None
