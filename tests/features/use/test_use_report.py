"""A pod's use is reported, from the driver's processes to the pod's name: on its node, and in the metrics."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.features.use.node import UseReports
from gpu_device_plugin.features.use.rules.process_use import NOT_READ, WITHOUT_HOST_PID
from gpu_device_plugin.metrics import PrometheusMetrics
from gpu_device_plugin.model.contract.keys import NODE_USE
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeUse, read_node_use
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.settings.sources import Sources
from tests.node.cluster_harness import NODE, Cluster, cluster
from tests.node.harness import pod, world
from tests.patience import eventually
from tests.promtool import complaints, needs_promtool

T4 = {"model": "T4"}
ID = "5ad9" * 16
GIB = 1 << 30
QUICK = {"usage_interval": "50ms", "http": "127.0.0.1:0"}
CONTAINER = "gpushare_container_gpu_"

Page = dict[str, dict[str, float]]
"""Values by labels, as they are written, by metric."""


async def read(agent: NodeAgent | None) -> Page:
    """Return the metrics; no series may be there twice."""
    assert agent is not None
    assert isinstance(agent.metrics, PrometheusMetrics)
    shown: Page = {}
    for line in str((await agent.metrics.page()).body).splitlines():
        if not line.startswith("#"):
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            assert match is not None, line
            assert match[2] not in shown.setdefault(match[1], {}), line
            shown[match[1]][match[2]] = float(match[3])
    return shown


async def shows(there: Cluster, metric: str, expected: dict[str, float]) -> Page:
    """Wait until a metric has exactly these values; return the page."""

    async def page() -> Page | None:
        shown = await read(there.node.agent)
        return shown if shown.get(metric, {}) == expected else None

    shown = await eventually(page, f"{metric} is {expected}")
    assert shown is not None
    return shown


async def written(there: Cluster, *expected: ContainerUse) -> NodeUse:
    """Wait until the node's annotation has exactly these containers; return it."""

    def use() -> NodeUse | None:
        text = there.api.get("nodes", NODE)["metadata"].get("annotations", {}).get(NODE_USE)
        use = None if text is None else read_node_use(text)
        return use if use is not None and use.parts == expected else None

    return await eventually(use, f"the annotation has {expected}") or NodeUse("")


def using(*processes: dict[str, Any], used: str) -> dict[str, Any]:
    return {**T4, "processes": list(processes), "used": used}


@asynccontextmanager
async def reporting(gpu: dict[str, Any] = T4) -> AsyncIterator[tuple[Cluster, str]]:
    """Run an agent that reads and writes often; yield the UUID of its GPU, too."""
    async with cluster([gpu]) as there:
        there.node.settings |= QUICK
        reports = there.node.launch().features.of(UseReports)
        reports.soon_s = reports.seldom_s = 0.05
        await there.node.ready()
        yield there, there.node.uuids[0]


WEB = ContainerUse("default", "web", "main", 0, 4096, enforcement=Enforcement.ADVISORY)


async def test_a_pod_is_reported_from_its_start_to_its_end() -> None:
    async with reporting() as (there, gpu):
        who, on = f'container="main",gpu="{gpu}",namespace="default",pod="web"', f'gpu="{gpu}"'
        page = await read(there.node.agent)
        assert page["gpushare_gpu_memory_allocated_bytes"] == {on: 0.0}
        assert f"{CONTAINER}memory_allocated_bytes" not in page

        made = await there.run(pod("web", mem=4))
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {who: 4 * GIB})
        assert page["gpushare_gpu_memory_allocated_bytes"] == {on: 4 * GIB}
        limit = f'{who},state="unverified"'.replace(",gpu=", ',enforcement="advisory",gpu=')
        assert page[f"{CONTAINER}memory_limit_bytes"] == {limit: 4 * GIB}

        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB", "sm": 40}, used="3200MiB"))
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert page[f"{CONTAINER}utilization_ratio"] == {who: 0.4}
        assert page["gpushare_gpu_memory_used_bytes"] == {on: 3200 << 20}
        assert page["gpushare_gpu_memory_unattributed_bytes"] == {on: 128 << 20}
        use = await written(there, ContainerUse("default", "web", "main", 0, 4096, 3072, 40, Enforcement.ADVISORY))
        assert (use.gpus, use.blind) == ({0: GpuUse(3200, 128)}, "")

        there.report(there.node.kubelet.finish(made))
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {})
        assert [name for name in page if name.startswith(CONTAINER)] == []


async def test_a_pod_on_a_gpu_that_it_was_not_given_is_reported_while_it_is_there() -> None:
    async with reporting() as (there, gpu):
        stranger = await there.run(pod("stranger"))
        there.node.process(11, stranger, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        who = f'container="",gpu="{gpu}",namespace="default",pod="stranger"'
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert page[f"{CONTAINER}memory_allocated_bytes"] == {who: 0.0}
        await written(there, ContainerUse("default", "stranger", "", 0, 0, 3072))
        there.api.delete("pods", "stranger")
        there.node.hardware(using(used="0"))
        await shows(there, f"{CONTAINER}memory_allocated_bytes", {})


async def test_a_blind_agent_and_one_that_does_not_read_say_so_and_show_the_allocation() -> None:
    async with reporting(using(used="3GiB")) as (there, gpu):
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        await there.run(pod("web", mem=4))
        await shows(there, "gpushare_gpu_memory_used_bytes", {f'gpu="{gpu}"': 3 * GIB})
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {who: 4 * GIB})
        assert f"{CONTAINER}memory_used_bytes" not in page
        assert (await written(there, WEB)).blind == WITHOUT_HOST_PID
        assert there.node.agent is not None
        off = {**there.node.settings, "usage_interval": "0s"}
        there.node.agent.reload(Sources(NODE_SETTINGS, flags=off, environ={}).read())
        page = await shows(there, "gpushare_gpu_memory_used_bytes", {})
        assert page[f"{CONTAINER}memory_allocated_bytes"] == {who: 4 * GIB}
        await there.node.until(
            lambda: there.node.agent is not None and there.node.agent.features.of(UseReports).now().blind == NOT_READ
        )


async def test_without_the_api_pods_are_called_by_their_uid() -> None:
    async with world([T4]) as there:
        agent = await there.start_agent(**QUICK)
        made = await there.kubelet.admit(pod("web", mem=4))
        there.process(11, made, ID)
        there.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        part = ContainerUse("", made.uid, "main", 0, 4096, 3072, enforcement=Enforcement.ADVISORY)
        await there.until(lambda: agent.features.of(UseReports).now().parts == (part,))


@needs_promtool
async def test_promtool_has_nothing_against_the_metrics_of_a_node_in_use() -> None:
    async with reporting() as (there, gpu):
        made = await there.run(pod("web", mem=4))
        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB", "sm": 40}, used="3200MiB"))
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert complaints(await there.metrics()) == ""
