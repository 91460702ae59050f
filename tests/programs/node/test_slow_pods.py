"""What slows a pod is injected into fake GPUs, and found in the history that a real agent serves."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.aio.http import Page, Request
from gpu_device_plugin.core.contract.history import NodeHistory
from gpu_device_plugin.core.report.why.slowness import slowness
from tests.programs.node.cluster_harness import cluster
from tests.programs.node.harness import pod

if TYPE_CHECKING:
    from gpu_device_plugin.programs.node.agent import NodeAgent
    from tests.programs.node.cluster_harness import Cluster

TRAIN, OTHER = {"pid": 11, "used": "4GiB", "sm": 70}, {"pid": 12, "used": "2GiB", "sm": 0}
SLOW_CLOCK: dict[str, Any] = {"sm_clock": 700, "sm_clock_max": 1590}
CAUSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("slowed-by-heat", {"throttle": ["heat"], "temperature": 91, **SLOW_CLOCK}),
    ("slowed-by-heat", {"throttle": ["hardware-heat", "hardware"], **SLOW_CLOCK}),
    ("slowed-by-power-cap", {"throttle": ["power-cap"], **SLOW_CLOCK}),
    ("slowed-by-power-brake", {"throttle": ["power-brake", "hardware"], **SLOW_CLOCK}),
    ("slowed-by-hardware", {"throttle": ["hardware"], **SLOW_CLOCK}),
    ("slowed-by-sync", {"throttle": ["sync"], **SLOW_CLOCK}),
    ("clocks-low", {"processes": [{**TRAIN, "sm": 95}, OTHER], "throttle": [], **SLOW_CLOCK}),
    ("neighbours-busy", {"processes": [{**TRAIN, "sm": 30}, {**OTHER, "sm": 68}], "sm": 98}),
    ("memory-full", {"processes": [TRAIN, {**OTHER, "used": "11GiB"}]}),
    ("gpu-degraded", {"ecc": 2}),
    ("gpu-degraded", {"remap": "pending"}),
    ("gpu-degraded", {"remap": "failed"}),
)
"""What a driver tells of a GPU, and the verdict on the pod that trains there. PCIe and CPU need times that are real."""
HEALTHY: tuple[dict[str, Any], ...] = (
    {},
    {"processes": [{**TRAIN, "sm": 0}, {**OTHER, "sm": 99}], "throttle": ["power-cap"]},
    {"processes": [{**TRAIN, "sm": 99}, OTHER], "throttle": ["power-cap"], "sm_clock": 1300, "sm_clock_max": 1590},
)


async def judged(there: Cluster, agent: NodeAgent, now: list[float], condition: dict[str, Any]) -> list[str]:
    """Let a GPU be so for three minutes of the agent's clock, an hour after the last time; return the verdicts."""
    now[0] += 7200
    there.node.hardware({"model": "T4", "processes": [TRAIN, OTHER], **condition})
    processes = condition.get("processes", [TRAIN, OTHER])
    want = {
        name: (int(each["used"].removesuffix("GiB")) << 10, each["sm"])
        for name, each in zip(("train", "other"), processes, strict=True)
    }
    reading = agent.use_watch.reading
    while {
        use.pod.name: (use.used_mib, use.sm_percent) for use in reading.value.containers if use.pod is not None
    } != want:
        before = reading.value
        agent.use_watch.look()
        await there.node.until(lambda before=before: reading.value is not before)  # type: ignore[misc]
    for _ in range(14):
        now[0] += 15
        reading.set(replace(reading.value, at=now[0]))
        await agent.history.sample()
    (route,) = agent.history.routes
    page = await route.answer(Request("/history/gpus/0", "gpus/0"))
    assert isinstance(page, Page)
    history = msgspec.json.decode(page.body, type=NodeHistory)
    return [finding.code for finding in slowness([history], "default", "train", time.time())]


async def test_each_cause_has_its_verdict_and_healthy_pods_have_none() -> None:
    async with cluster([{"model": "T4"}]) as there:
        there.node.settings |= {"usage_interval": "1h", "http": "127.0.0.1:0"}
        agent, now = there.node.launch(), [time.monotonic()]
        agent.history.clock = lambda: now[0]
        await there.node.ready()
        for pid, (name, shares) in ((11, ("train", 7)), (12, ("other", 4))):
            there.node.process(pid, await there.run(pod(name, mem=shares)), f"{pid:064}")
        for code, condition in CAUSES:
            assert (await judged(there, agent, now, condition))[0] == code
        for condition in HEALTHY:
            assert (await judged(there, agent, now, condition))[0] == "nothing-slows-it"
