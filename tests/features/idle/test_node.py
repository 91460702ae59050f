"""A pod leaves its GPU idle: it is told, marked, and unmarked once it uses the GPU again."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.idle.node import Idle
from gpu_device_plugin.features.use.node import Use, UseReports
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.contract.keys import IDLE_SINCE
from gpu_device_plugin.model.contract.node_use import read_node_use
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.settings.knobs import SettingsError
from tests.features.use.test_use_report import ID, using
from tests.node.cluster_harness import NODE, cluster, promise
from tests.node.contexts import context, settings
from tests.node.harness import pod
from tests.node.recorded_api import RecordedApi
from tests.nodes import uuid

POD = Pod("u", "default", "web", phase="Running")
HOLDING = ContainerGpus("u", "main", {uuid(0): 4096}, pod=POD)
OLD = "2026-01-02T03:04:05Z"


class Scene:
    """An agent's part, and readings of one pod at monotonic seconds."""

    def __init__(self, *pods: Pod, **changed: str) -> None:
        self.api = RecordedApi(*pods)
        self.settings = Observable(settings(**{"idle_after": "60s", **changed}))
        node = context(settings=self.settings, api=self.api)
        self.use = Use(node)
        node.features.add(self.use)
        self.idle = Idle(node)

    def read(self, at: float, percent: int | None = 0, used: int = 500) -> None:
        use = AttributedUse("u", "main", uuid(0), 4096, used, percent, HOLDING, POD)
        self.idle.act_on(UseReading(at, (use,)))

    def marked(self) -> list[str | None]:
        return [annotations[IDLE_SINCE] for _, annotations in self.api.annotated]


def test_an_idle_pod_is_told_once_and_marked_with_one_time() -> None:
    its = Scene(POD)
    its.read(1000)
    its.read(1059)
    assert (its.api.pod_events, its.marked(), its.use.idle.value) == ([], [], {})
    its.read(1061)
    ((uid, reason, note, action),) = its.api.pod_events
    assert (uid, reason, action) == ("u", "GPUIdle", "Observe")
    assert note == (
        "has left its GPUs idle for 61 s: its use of the multiprocessors is at most 1 %, and its memory does not grow"
    )
    (since,) = its.marked()
    assert since is not None
    assert epoch_s(since) is not None
    assert its.use.idle.value == {"u": since}
    its.api.known["u"] = replace(POD, annotations={IDLE_SINCE: since})
    its.read(1076)
    assert (len(its.api.pod_events), its.marked()) == (1, [since])


def test_use_removes_the_mark_and_idleness_is_told_anew() -> None:
    its = Scene(POD)
    its.read(1000)
    its.read(1060)
    its.api.known["u"] = replace(POD, annotations={IDLE_SINCE: its.use.idle.value["u"]})
    its.read(1075, percent=2)
    assert (its.marked()[-1], its.use.idle.value) == (None, {})
    its.api.known["u"] = POD
    its.read(1090)
    its.read(1150)
    assert [reason for _, reason, *_ in its.api.pod_events] == ["GPUIdle", "GPUIdle"]


def test_a_new_agent_removes_what_its_predecessor_wrote() -> None:
    """Nobody saw whether the pod used its GPU in between."""
    its = Scene(
        replace(POD, annotations={IDLE_SINCE: OLD}), Pod("gone", "default", "job", annotations={IDLE_SINCE: OLD})
    )
    its.read(1000)
    assert sorted(its.api.annotated) == [("gone", {IDLE_SINCE: None}), ("u", {IDLE_SINCE: None})]
    over = Scene(replace(POD, phase="Succeeded", annotations={IDLE_SINCE: OLD}))
    over.read(1000)
    assert over.marked() == []


def test_a_reading_that_is_not_newer_is_ignored_and_the_settings_hold_at_once() -> None:
    its = Scene(POD, idle_below="50")
    its.read(1000, percent=40)
    its.read(1060, percent=50)
    assert its.marked() != []
    its.settings.set(settings(idle_after="0s"))
    its.read(1060)
    assert its.use.idle.value != {}
    its.read(1075)
    assert its.use.idle.value == {}


def test_a_pod_that_is_gone_is_forgotten() -> None:
    its = Scene(POD)
    its.read(1000)
    its.read(1060)
    its.api.known.clear()
    its.read(1075)
    assert its.use.idle.value == {}


def test_idleness_needs_readings_of_use() -> None:
    with pytest.raises(SettingsError, match="usage_interval=0s leaves unread"):
        settings(idle_after="60s", usage_interval="0s")


async def test_from_the_driver_to_the_pod_and_back() -> None:
    """A process without work, from NVML's figures to the annotation, the Event and the node's report."""
    at_work: dict[str, Any] = {"pid": 11, "used": "3GiB", "sm": 40}
    async with cluster([{"model": "T4"}]) as there:
        there.node.settings |= {"usage_interval": "50ms", "http": "127.0.0.1:0", "idle_after": "200ms"}
        reports = there.node.launch().features.of(UseReports)
        reports.soon_s = reports.seldom_s = 0.05
        await there.node.ready()
        made = await there.run(pod("web", mem=4), promise(0, 4))
        there.node.process(11, made, ID)

        def marked() -> str:
            return there.annotations("web").get(IDLE_SINCE, "")

        def reported() -> list[str]:
            text = there.api.get("nodes", NODE)["metadata"]["annotations"].get("gpu-device-plugin/use", "")
            return [part.idle_since for part in read_node_use(text).parts] if text else []

        there.node.hardware(using(at_work, used="3200MiB"))
        await there.node.until(lambda: not marked())
        there.node.hardware(using(at_work | {"sm": 0}, used="3200MiB"))
        await there.node.until(lambda: bool(marked()) and reported() == [marked()])
        await there.node.until(lambda: bool(there.events("GPUIdle")))
        assert {event["type"] for event in there.events("GPUIdle")} == {"Normal"}
        there.node.hardware(using(at_work, used="3200MiB"))
        await there.node.until(lambda: not marked() and reported() == [""])
        there.node.hardware(using(at_work | {"sm": None}, used="3200MiB"))
        readings = there.node.agent.features.of(Use).reading if there.node.agent is not None else None
        assert readings is not None
        for _ in range(10):
            await readings.after(readings.version)
        assert marked() == ""
