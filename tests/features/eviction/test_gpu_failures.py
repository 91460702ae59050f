"""Pods leave a GPU that failed, one after the other, and the node's condition names it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.eviction.evictor import GpuFailures
from tests.node.cluster_harness import NODE, RIGHTS, Cluster, cluster, promise
from tests.node.harness import T4, pod

ALL = {*RIGHTS, ("create", "pods/eviction"), ("patch", "nodes/status")}


def condition(it: Cluster) -> dict[str, Any]:
    """Return the node's condition; empty if it has none."""
    found = it.api.get("nodes", NODE)["status"]["conditions"]
    return next((dict(one) for one in found if one["type"] == "GPUHealthy"), {})


def going(it: Cluster, names: Iterable[str] = ("one", "two", "far")) -> list[str]:
    there = {found["metadata"]["name"]: found for found in it.api.all("pods")}
    return [name for name in names if name in there and "deletionTimestamp" in there[name]["metadata"]]


FAULT = {**T4, "error": "Unknown Error"}


async def three(it: Cluster) -> None:
    """Run two pods on the first GPU, one of them more important, and one on the second."""
    for name, gpu in (("one", 0), ("two", 0), ("far", 1)):
        await it.run(pod(name, mem=4), promise(gpu, 4))
    await it.assigned("one", "two", "far")


async def test_the_pods_of_a_failed_gpu_go_one_after_the_other() -> None:
    settings: dict[str, Any] = {"on_gpu_failure": "evict", "gpu_failure_grace": "100ms"}
    async with cluster([T4, T4], allowed=ALL, **settings) as it:
        await it.start_agent()
        await three(it)
        it.node.hardware(FAULT, T4)
        await it.node.until(lambda: bool(going(it)))
        (first,) = going(it)
        assert first in {"one", "two"}
        await it.node.rounds(3)
        assert going(it) == [first]
        assert it.node.agent is not None
        it.node.agent.features.of(GpuFailures).again_s = 0.05
        it.api.delete("pods", first)
        await it.node.until(lambda: bool(going(it)))
        (second,) = going(it)
        assert {first, second} == {"one", "two"}
        await it.node.until(lambda: len(it.events("GPUFailureEvicted")) == 2)
        note = it.events("GPUFailureEvicted")[0]["note"]
        assert note.startswith("evicted: GPU 0 has failed, for ")
        assert note.endswith("Unknown Error")


async def test_a_failure_is_only_reported_unless_the_settings_say_otherwise() -> None:
    async with cluster([T4, T4], allowed=ALL, gpu_failure_grace="50ms") as it:
        await it.start_agent()
        await three(it)
        it.node.hardware(FAULT, T4)
        await it.node.until(lambda: bool(it.events("GPUUnhealthy")))
        await it.node.rounds(3)
        assert it.api.count("create", "pods/eviction") == 0


async def test_a_paused_agent_evicts_nobody() -> None:
    settings: dict[str, Any] = {"on_gpu_failure": "evict", "gpu_failure_grace": "1ms"}
    async with cluster([T4, T4], allowed=ALL, **settings) as it:
        agent = await it.node.start_agent()
        await three(it)
        await agent.hardware.pause()
        await it.node.until(lambda: agent.hardware.view.value.state == "paused")
        await it.node.rounds(3)
        assert it.api.count("create", "pods/eviction") == 0


async def test_the_condition_follows_the_gpus() -> None:
    async with cluster([T4, T4], allowed=ALL, node_condition="true") as it:
        await it.start_agent()
        await it.node.until(lambda: condition(it).get("status") == "True")
        assert condition(it)["reason"] == "GPUsHealthy"
        it.node.hardware(FAULT, T4)
        await it.node.until(lambda: condition(it).get("status") == "False")
        assert condition(it)["reason"] == "GPUUnhealthy"
        assert condition(it)["message"].startswith("GPU 0: ")
        assert {one["type"] for one in it.api.get("nodes", NODE)["status"]["conditions"]} == {"Ready", "GPUHealthy"}
        assert it.node.agent is not None
        await it.node.agent.hardware.pause()
        await it.node.until(lambda: condition(it).get("status") == "Unknown")
        assert condition(it)["reason"] == "NotWatched"
        it.node.agent.reload(replace(it.node.agent.settings.value, node_condition=False))
        await it.node.until(lambda: not condition(it))
        assert {one["type"] for one in it.api.get("nodes", NODE)["status"]["conditions"]} == {"Ready"}


async def test_the_condition_is_not_touched_unless_it_is_asked_for() -> None:
    async with cluster([T4, T4]) as it:
        await it.start_agent()
        await it.node.rounds(2)
        assert it.api.count("patch", "nodes/status") == 0


async def test_without_the_right_the_node_tells_what_to_apply() -> None:
    async with cluster([T4, T4], node_condition="true") as it:
        await it.start_agent()
        await it.node.until(lambda: bool(it.events("NodeConditionForbidden")))
        (event,) = it.events("NodeConditionForbidden")
        assert "grant 'patch' on 'nodes/status' to the service account" in event["note"]
        assert "deploy/optional/evict.yaml" in event["note"]


async def test_a_condition_of_an_earlier_agent_goes_where_no_setting_asks_for_it() -> None:
    async with cluster([T4, T4], allowed=ALL) as it:
        there = it.api.get("nodes", NODE)["status"]["conditions"]
        left = [*there, {"type": "GPUHealthy", "status": "True"}]
        it.api.patch("nodes", NODE, {"status": {"conditions": left}}, subresource="status")
        await it.start_agent()
        await it.node.until(lambda: not condition(it))
        assert it.api.get("nodes", NODE)["status"]["conditions"] == there
        for _ in range(2):  # the same wish is no change
            it.cluster.published._show(it.cluster.published._config.value)
        assert it.cluster.published._condition.version == 1


async def test_the_condition_goes_with_the_nodes_label() -> None:
    async with cluster([T4], allowed=ALL, node_labels={"gpushare": "true"}, node_condition="true") as it:
        await it.start_agent()
        await it.node.until(lambda: condition(it).get("status") == "True")
        await it.node.until(it.takes_pods)
        ours = it.cluster
        it.api.patch("nodes", NODE, {"metadata": {"labels": {"gpushare": None}}})
        await it.node.stop_agent()
        await ours.cleanup.run(forgotten_within_s=0)
        assert not condition(it)
