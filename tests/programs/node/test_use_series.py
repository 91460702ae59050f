"""The agent's page of metrics follows a pod: it starts, uses memory, exceeds, ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.metrics import PrometheusMetrics
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests.patience import eventually
from tests.programs.node.cluster_harness import cluster
from tests.programs.node.harness import pod, world
from tests.promtool import complaints, needs_promtool

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.agent import NodeAgent
    from tests.programs.node.cluster_harness import Cluster

T4 = {"model": "T4"}
ID = "5ad9" * 16
OTHER_ID = "17f0" * 16
GIB = 1 << 30
QUICK = {"usage_interval": "50ms", "http": "127.0.0.1:0"}
CONTAINER = "gpushare_container_gpu_"

Page = dict[str, dict[str, float]]
"""Values by labels, as they are written, by metric."""


async def read(agent: NodeAgent | None) -> Page:
    assert agent is not None
    assert isinstance(agent.metrics, PrometheusMetrics)
    found: Page = {}
    lines = [line for line in str((await agent.metrics.page()).body).splitlines() if not line.startswith("#")]
    for line in lines:
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        assert match is not None, line
        assert match[2] not in found.setdefault(match[1], {}), line
        found[match[1]][match[2]] = float(match[3])
    return found


async def shows(there: Cluster, metric: str, expected: dict[str, float]) -> Page:
    """Wait until a metric has exactly these values; return the page."""

    async def page() -> Page | None:
        found = await read(there.node.agent)
        return found if found.get(metric, {}) == expected else None

    found = await eventually(page, f"{metric} is {expected}")
    assert found is not None
    return found


def using(*processes: dict[str, Any], used: str) -> dict[str, Any]:
    return {**T4, "processes": list(processes), "used": used}


async def test_the_page_follows_a_pod_from_its_start_to_its_end() -> None:
    async with cluster([T4]) as there:
        await there.start_agent(**QUICK)
        (gpu,) = there.node.uuids
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        on = f'gpu="{gpu}"'
        page = await read(there.node.agent)
        assert page["gpushare_gpu_memory_allocated_bytes"] == {on: 0.0}
        assert f"{CONTAINER}memory_allocated_bytes" not in page

        made = await there.run(pod("web", mem=4))
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {who: 4 * GIB})
        assert page["gpushare_gpu_memory_allocated_bytes"] == {on: 4 * GIB}
        limit = {f'{who},rung="advisory",state="unverified"': 4 * GIB}
        assert page[f"{CONTAINER}memory_limit_bytes"] == limit

        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB", "sm": 40}, used="3200MiB"))
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert page[f"{CONTAINER}utilization_ratio"] == {who: 0.4}
        assert page["gpushare_gpu_memory_used_bytes"] == {on: 3200 << 20}
        assert page["gpushare_gpu_memory_unattributed_bytes"] == {on: 128 << 20}

        there.node.hardware(using({"pid": 11, "used": "6GiB", "sm": 40}, used="6GiB"))
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {who: 6 * GIB})
        assert page[f"{CONTAINER}memory_allocated_bytes"] == {who: 4 * GIB}

        there.report(there.node.kubelet.finish(made))
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {})
        assert [name for name in page if name.startswith(CONTAINER)] == []


async def test_a_pod_on_a_gpu_that_it_was_not_given_is_shown_while_it_is_there() -> None:
    async with cluster([T4]) as there:
        await there.start_agent(**QUICK)
        (gpu,) = there.node.uuids
        stranger = await there.run(pod("stranger"))
        there.node.process(11, stranger, OTHER_ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        who = f'container="",gpu="{gpu}",namespace="default",pod="stranger"'
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert page[f"{CONTAINER}memory_allocated_bytes"] == {who: 0.0}
        there.api.delete("pods", "stranger")
        there.node.hardware(using(used="0"))
        await shows(there, f"{CONTAINER}memory_allocated_bytes", {})


async def test_while_the_use_is_not_read_only_the_allocation_is_shown() -> None:
    async with cluster([T4]) as there:
        await there.start_agent(**QUICK)
        assert there.node.agent is not None
        made = await there.run(pod("web", mem=4))
        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB"}, used="3GiB"))
        (gpu,) = there.node.uuids
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        off = {**there.node.settings, "usage_interval": "0s"}
        there.node.agent.reload(Sources(NodeSettings, flags=off, environ={}).read())
        page = await shows(there, f"{CONTAINER}memory_used_bytes", {})
        assert page[f"{CONTAINER}memory_allocated_bytes"] == {who: 4 * GIB}
        assert "gpushare_gpu_memory_used_bytes" not in page


async def test_a_blind_agent_shows_the_use_of_gpus_and_of_no_container() -> None:
    async with cluster([using(used="3GiB")]) as there:
        await there.start_agent(**QUICK)
        (gpu,) = there.node.uuids
        await there.run(pod("web", mem=4))
        await shows(there, "gpushare_gpu_memory_used_bytes", {f'gpu="{gpu}"': 3 * GIB})
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        page = await shows(there, f"{CONTAINER}memory_allocated_bytes", {who: 4 * GIB})
        assert f"{CONTAINER}memory_used_bytes" not in page


async def test_without_the_api_pods_are_called_by_their_uid() -> None:
    async with world([T4]) as there:
        agent = await there.start_agent(**QUICK)
        made = await there.kubelet.admit(pod("web", mem=4))
        (gpu,) = there.uuids
        who = f'container="main",gpu="{gpu}",namespace="",pod="{made.uid}"'

        async def shown() -> bool:
            return (await read(agent)).get(f"{CONTAINER}memory_allocated_bytes") == {who: 4 * GIB}

        await eventually(shown)


@needs_promtool
async def test_promtool_has_nothing_against_the_page_of_a_node_in_use() -> None:
    async with cluster([T4]) as there:
        await there.start_agent(**QUICK)
        made = await there.run(pod("web", mem=4))
        there.node.process(11, made, ID)
        there.node.hardware(using({"pid": 11, "used": "3GiB", "sm": 40}, used="3200MiB"))
        (gpu,) = there.node.uuids
        who = f'container="main",gpu="{gpu}",namespace="default",pod="web"'
        await shows(there, f"{CONTAINER}memory_used_bytes", {who: 3 * GIB})
        assert complaints(await there.metrics()) == ""
