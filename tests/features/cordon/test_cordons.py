"""A GPU that is put aside gets no new container; what runs there stays, and a restart or an outage changes nothing."""

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.cordon.node import KEPT_FOR_S, Cordons
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ConflictError
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind
from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
from gpu_device_plugin.model.contract.cordons import Cordon, read_cordons, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.node.node_api import NodeApi
from tests.cluster_double.api_server import ApiServer
from tests.names import COUNT, MEM
from tests.node.cluster_harness import NODE, RIGHTS, Cluster, cluster, promise
from tests.node.contexts import context, settings
from tests.node.harness import pod

WHY = Cordon("alice", "2026-11-28T18:00:00Z", "a fan is loud")


def put_aside(it: Cluster, *uuids: str) -> None:
    text = write_cordons(dict.fromkeys(uuids, WHY))
    it.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: text}}})


async def start(it: Cluster) -> None:
    it.node.launch()
    it.cluster.look_s = 0.05
    await it.node.ready()
    await it.node.until(lambda: it.cluster.followed.reflector.synced)


def on_first(it: Cluster) -> dict[str, str]:
    """Return the health of the IDs of the first GPU."""
    (gpu, *_) = it.node.uuids
    newest = it.node.lists(MEM)[-1]
    return {name: health for name, health in newest.items() if name.startswith(gpu)}


async def test_no_new_pod_gets_a_cordoned_gpu_and_what_runs_there_stays() -> None:
    async with cluster(http="127.0.0.1:0") as it:
        await start(it)
        free = it.node.healthy(MEM)
        runs = await it.run(pod("runs", mem=4), promise(0, 4))
        await it.assigned("runs")
        put_aside(it, it.node.uuids[0])
        await it.node.healthy_is(MEM, free // 2 + 4)
        assert {name for name, health in on_first(it).items() if health == "Healthy"} == set(
            runs.containers[0].devices[MEM]
        )
        await it.node.healthy_is(COUNT, 1)
        promised = await it.run(pod("promised", mem=4), promise(0, 4))
        assert it.positions(promised) == {1: 4}
        await it.node.until(lambda: len(it.events("GPUCordoned")) == 1)
        (event,) = it.events("GPUCordoned")
        assert event["note"].startswith("GPU 0 (")
        assert event["note"].endswith("because: a fan is loud.")
        assert f'gpushare_gpu_cordoned{{gpu="{it.node.uuids[0]}"}} 1.0' in await it.metrics()
        await it.node.until(lambda: [gpu.get("cordoned") for gpu in it.said_of_node()["gpus"]] == [True, None])
        put_aside(it)
        await it.node.healthy_is(MEM, free)
        await it.node.until(lambda: not any("cordoned" in gpu for gpu in it.said_of_node()["gpus"]))
        await it.node.until(lambda: len(it.events("GPUUncordoned")) == 1)
        third = await it.run(pod("third", mem=4), promise(0, 4))
        assert it.positions(third) == {0: 4}


async def test_a_cordon_outlives_the_agent_and_an_outage_of_the_api() -> None:
    async with cluster() as it:
        await start(it)
        free = it.node.healthy(MEM)
        put_aside(it, it.node.uuids[0])
        await it.node.healthy_is(MEM, free // 2)
        await it.node.stop_agent()
        await it.node.start_agent(api="http://127.0.0.1:9")
        assert it.node.healthy(MEM) == free // 2
        await it.node.stop_agent()
        put_aside(it)
        it.node.settings["api"] = it.api.url
        await start(it)
        await it.node.healthy_is(MEM, free)
        assert len(it.events("GPUCordoned")) == 1


async def test_a_damaged_annotation_leaves_the_cordons_as_they_were() -> None:
    async with cluster() as it:
        await start(it)
        free = it.node.healthy(MEM)
        put_aside(it, it.node.uuids[0])
        await it.node.healthy_is(MEM, free // 2)
        it.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: "{"}}})
        agent = it.node.agent
        assert agent is not None
        await it.node.until(lambda: (seen := agent.api.node.value) is not None and seen.annotations[CORDONS] == "{")
        assert it.node.healthy(MEM) == free // 2
        put_aside(it)
        await it.node.healthy_is(MEM, free)


# --- By the agent itself ----------------------------------------------------------------------------------------------


def failing(uuid: str) -> dict[str, GpuTelemetry]:
    return {uuid: GpuTelemetry(uuid, repair_failed=True)}


def auto(it: Cluster, now: list[float]) -> Cordons:
    """Return the feature without its agent's own readings."""
    agent = it.node.agent
    assert agent is not None
    by = Cordons(
        context(settings=agent.settings, config=agent.config, reached_cluster=agent.api, reports=agent.reports)
    )
    by.clock = lambda: now[0]
    return by


async def lasts(by: Cordons, now: list[float], telemetry: dict[str, GpuTelemetry]) -> None:
    for _ in range(2):
        await by.act_on(telemetry)
        now[0] += KEPT_FOR_S
    await by.act_on(telemetry)


def cordons(it: Cluster) -> dict[str, Cordon]:
    text = it.api.get("nodes", NODE)["metadata"]["annotations"].get(CORDONS)
    return {} if text is None else dict(read_cordons(text))


async def test_a_lasting_fault_that_was_chosen_puts_the_gpu_aside_once() -> None:
    async with cluster(cordon_on="memory-not-repaired") as it:
        await start(it)
        first, second = it.node.uuids
        put_aside(it, second)
        now = [0.0]
        by = auto(it, now)
        await lasts(by, now, failing(first))
        found = cordons(it)
        assert found[second] == WHY
        assert (found[first].by, found[first].why) == (
            "gpu-device-plugin",
            "memory-not-repaired: a repair of its memory failed",
        )
        await it.node.healthy_is(MEM, 0)
        put_aside(it)
        await it.node.until(lambda: it.events("GPUUncordoned") != [])
        await lasts(by, now, failing(first))
        assert cordons(it) == {}


async def test_a_fault_that_was_not_chosen_and_a_gpu_that_is_not_shared_change_nothing() -> None:
    async with cluster(cordon_on="slowed-by-heat") as it:
        await start(it)
        now = [0.0]
        by = auto(it, now)
        await lasts(by, now, failing(it.node.uuids[0]))
        await lasts(by, now, {"GPU-x": GpuTelemetry("GPU-x", throttle=0x20)})
        assert cordons(it) == {}


class Overtaken(Client):
    """Reaches the API server just after somebody else has changed the node; for ever, or so many times."""

    api: ApiServer
    times = 1

    async def patch(self, kind: ObjectKind, name: str, body: Mapping[str, Any], **more: Any) -> ApiAnswer:
        if self.times:
            self.times -= 1
            cordons = write_cordons({f"GPU-{self.times}": WHY})
            self.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: cordons}}})
        return await super().patch(kind, name, body, **more)


@pytest.mark.parametrize(("times", "kept"), [(1, {"GPU-0", "GPU-a"}), (9, set())])
async def test_a_cordon_is_added_to_those_that_others_write_meanwhile(times: int, kept: set[str]) -> None:
    async with cluster() as it, Overtaken(ClusterConfig(it.api.url)) as client:
        client.api, client.times = it.api, times
        own = OwnNode(client, NODE)
        if kept:
            assert CORDONS in (await own.change_cordons(lambda now: {"GPU-a": WHY, **now})).annotations
            assert cordons(it).keys() == kept
            assert await own.change_cordons(lambda now: {"GPU-a": Cordon("bob"), **now}) == await own.read()
            assert cordons(it)["GPU-a"] == WHY
        else:
            with pytest.raises(ConflictError):
                await own.change_cordons(lambda now: {"GPU-a": WHY, **now})
            assert "GPU-a" not in cordons(it)


@pytest.mark.parametrize("trouble", ["forbidden", "damaged"])
async def test_a_cordon_that_cannot_be_written_is_tried_again(trouble: str) -> None:
    allowed: Iterable[tuple[str, str]] = RIGHTS - {("patch", "nodes")} if trouble == "forbidden" else RIGHTS
    async with cluster(allowed=allowed, cordon_on="memory-not-repaired") as it:
        await start(it)
        if trouble == "damaged":
            it.api.patch("nodes", NODE, {"metadata": {"annotations": {CORDONS: "{"}}})
        now = [0.0]
        by = auto(it, now)
        await lasts(by, now, failing(it.node.uuids[0]))
        assert by._faults.due(now[0])


async def test_without_the_api_nothing_is_put_aside_and_readings_are_followed() -> None:
    conditions: Observable[Any] = Observable(failing("GPU-a"))
    given = Observable(settings(cordon_on="memory-not-repaired"))
    config: Any = Observable(SimpleNamespace(cordons={}, shares=SimpleNamespace(gpus=())))
    now = [0.0]
    history: Any = SimpleNamespace(get=lambda _: SimpleNamespace(telemetry=conditions))
    reports = SimpleNamespace(name_of=str)
    by = Cordons(context(settings=given, config=config, features=history, reports=reports, reached_cluster=NodeApi()))
    by.clock = lambda: now[0]
    await lasts(by, now, failing("GPU-a"))
    assert json.dumps(dict(by._faults.due(now[0])))
