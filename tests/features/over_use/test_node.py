"""A pod takes more GPU memory than it was granted: it is told, marked and, where the settings say so, evicted."""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.conflicts.node import ConflictingPlugins
from gpu_device_plugin.features.eviction.evictor import Evictor
from gpu_device_plugin.features.over_use.node import OverUse
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.model.pods import Pod
from tests import builders
from tests.cluster_double.owned import mirror
from tests.cluster_double.troubles import Answer, Hang
from tests.listening import listening
from tests.node.cluster_harness import NODE, RIGHTS, Cluster, cluster, promise
from tests.node.contexts import context, settings
from tests.node.harness import container, gpus_of, pod, world
from tests.node.recorded_api import RecordedApi
from tests.nodes import uuid
from tests.patience import eventually

EVICTING = {*RIGHTS, ("create", "pods/eviction")}
QUICK: dict[str, Any] = {"over_use_grace": "60s", "http": "127.0.0.1:0", "usage_interval": "1h"}
"""The agent reads the use itself once, when it starts; the readings of these tests come later."""
GPU_MIB = 15360
"""Of the T4 of the fake hardware."""


@dataclass
class Scene:
    """A node with two pods of 4 GiB on GPU 0, and readings of their use."""

    it: Cluster
    at: float

    def read(
        self, used: dict[str, int | None], seconds: float = 61, *, total: int | None = None, blind: str = ""
    ) -> None:
        """Publish a reading: MiB used on GPU 0 by each pod."""
        agent = self.it.node.agent
        assert agent is not None
        self.at += seconds
        gpu = self.it.node.uuids[0]
        uses = tuple(AttributedUse(self.uid(name), "main", gpu, 4096, mib) for name, mib in used.items())
        amount = sum(mib or 0 for mib in used.values()) if total is None else total
        agent.features.of(Use).reading.set(
            UseReading(self.at, uses, {gpu: amount, self.it.node.uuids[1]: 0}, blind=blind)
        )

    async def taken(self) -> None:
        """Wait until the agent has acted on the last reading."""
        agent = self.it.node.agent
        assert agent is not None
        await self.it.node.until(lambda: agent.features.of(OverUse)._watch.at == self.at)

    async def shows(self, line: str) -> None:
        """Wait until the metrics have a line: an eviction counts once the API server's answer to it has come."""

        async def there() -> bool:
            return line in await self.it.metrics()

        await eventually(there, line)

    async def exceed(self, used: int = 6120, **others: int) -> None:
        """Have the pod `big` exceed for the grace."""
        for _ in range(2):
            self.read({"big": used, "small": 0, **others})
            await self.taken()

    def uid(self, name: str) -> str:
        return str(self.it.api.get("pods", name)["metadata"]["uid"])

    def told(self, reason: str) -> list[tuple[str, str]]:
        """Return the pod and the note of each Event of one reason."""
        return [(event["regarding"]["name"], event["note"]) for event in self.it.events(reason)]

    def marked(self, name: str = "big") -> str:
        return self.it.annotations(name).get(OVER_USE, "")

    def grace_s(self, name: str = "big") -> int:
        """Return the seconds that a pod which is being deleted has to end."""
        return int(self.it.api.get("pods", name)["metadata"]["deletionGracePeriodSeconds"])

    def going(self, name: str = "big") -> bool:
        return "deletionTimestamp" in self.it.api.get("pods", name)["metadata"]


@asynccontextmanager
async def scene(
    *,
    allowed: Iterable[tuple[str, str]] = EVICTING,
    pods: Iterable[str] = ("big", "small"),
    over_use: str = "report",
    grace_s: int | None = None,
) -> AsyncIterator[Scene]:
    async with cluster(allowed=allowed, over_use=over_use, **QUICK) as it:
        await it.start_agent()
        for name in pods:
            await it.run(pod(name, mem=4), promise(0, 4), grace_s=grace_s)
        await it.assigned(*pods)
        assert it.node.agent is not None
        it.node.agent.features.of(Evictor).first_retry_s = 0.1
        yield Scene(it, time.monotonic() + 3600)


def evictions(outcome: str) -> str:
    return f'gpushare_over_use_evictions_total{{outcome="{outcome}"}}'


async def test_it_is_told_once_and_marked_until_it_is_over() -> None:
    async with scene() as its:
        its.read({"big": 6120, "small": 100})
        await its.taken()
        assert its.told("GPUMemoryExceeded") == []
        for _ in range(3):
            its.read({"big": 6120, "small": 100})
            await its.taken()
        await its.it.node.until(lambda: bool(its.told("GPUMemoryExceeded") and its.marked()))
        note = "container main uses 6,120 MiB of GPU 0, was granted 4,096 MiB, for 61 s; this is only reported"
        assert its.told("GPUMemoryExceeded") == [("big", f"{note} (setting over_use)")]
        assert its.marked().startswith("container main uses 6,120 MiB of GPU 0, was granted 4,096 MiB, since 20")
        assert "gpushare_containers_over 1.0" in await its.it.metrics()
        assert not its.going()
        its.read({"big": 4000, "small": 100})
        await its.it.node.until(lambda: not its.marked())
        assert "gpushare_containers_over 0.0" in await its.it.metrics()
        assert its.marked("small") == ""
        (event,) = its.it.events("GPUMemoryExceeded")
        assert "series" not in event


async def test_a_trespasser_is_told_by_that_name() -> None:
    async with scene() as its:
        agent = its.it.node.agent
        assert agent is not None
        for at in (its.at + 1, its.at + 62):
            use = AttributedUse(its.uid("small"), "main", its.it.node.uuids[1], 0, 900)
            agent.features.of(Use).reading.set(UseReading(at, (use,), {its.it.node.uuids[1]: 900}))
            await its.it.node.until(lambda at=at: agent.features.of(OverUse)._watch.at == at)  # type: ignore[misc]
        await its.it.node.until(lambda: bool(its.told("GPUTrespass")))
        (told,) = its.told("GPUTrespass")
        assert told[1].startswith("container main uses 900 MiB of GPU 1, was not assigned that GPU, for 61 s")


async def test_it_is_evicted_where_the_settings_say_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with scene(over_use="evict") as its:
        await its.exceed()
        await its.it.node.until(its.going)
        await its.it.node.until(lambda: bool(its.told("GPUMemoryEvicted")))
        ((name, note),) = its.told("GPUMemoryEvicted")
        why, incident = note.split(" (incident ")
        assert (name, why) == ("big", "evicted: container main uses 6,120 MiB of GPU 0, was granted 4,096 MiB")
        assert incident.endswith("-over-use-eviction-gpu0)")
        for _ in range(3):  # while it ends, it still exceeds
            its.read({"big": 6120, "small": 9000})
            await its.taken()
        assert its.it.api.count("create", "pods/eviction") == 1
        assert not its.going("small")
        its.it.api.delete("pods", "big")
        await its.it.node.until(lambda: "GPU audit: evicted" in caplog.messages)
        await its.it.node.until(lambda: "big" not in [found.name for found in its.it.cluster.pods.values()])
        its.read({"small": 9000})
        await its.it.node.until(lambda: its.going("small"))
        await its.shows(f"{evictions('evicted')} 2.0")


@pytest.mark.parametrize(("own_s", "expected_s"), [(10**9, 60), (5, 5)])
async def test_an_evicted_pod_has_no_more_time_to_end_than_the_settings_say_or_it_asked_for(
    own_s: int, expected_s: int
) -> None:
    async with scene(over_use="evict", grace_s=own_s) as its:
        await its.exceed()
        await its.it.node.until(its.going)
        assert its.grace_s() == expected_s


async def test_a_pod_whose_owner_deletes_it_with_years_to_end_is_evicted() -> None:
    """Its GPU would be busy for as long, and no other pod there would be evicted."""
    async with scene(over_use="evict") as its:
        its.it.api.delete("pods", "big", grace_s=10**9)
        await its.it.seen("big")
        await its.exceed()
        await its.it.node.until(lambda: its.grace_s() == 60)
        for _ in range(3):
            its.read({"big": 6120, "small": 0})
            await its.taken()
        assert its.it.api.count("create", "pods/eviction") == 1


async def test_a_forged_mirror_pod_protects_no_pod_from_eviction() -> None:
    """An accomplice says that it is the mirror of the pod that takes too much."""
    async with scene(over_use="evict") as its:
        its.it.api.add(mirror(builders.pod("accomplice", node=NODE), its.uid("big")))
        await its.it.seen("accomplice")
        await its.exceed()
        await its.it.node.until(its.going)
        assert [name for name, _ in its.told("GPUMemoryExceeded")] == ["big"]


async def test_when_short_it_goes_only_while_others_lack_their_part() -> None:
    async with scene(over_use="evict-when-short") as its:
        await its.exceed()
        its.read({"big": 6120, "small": 0}, total=GPU_MIB - 4096 - 500)
        await its.taken()
        assert its.it.api.count("create", "pods/eviction") == 0
        its.read({"big": 6120, "small": 0}, total=GPU_MIB - 3000)
        await its.it.node.until(its.going)


async def test_a_budget_is_respected_and_told() -> None:
    async with scene(over_use="evict") as its:
        its.it.api.add(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "all", "namespace": "default"},
                "spec": {"minAvailable": 2, "selector": {}},
                "status": {"observedGeneration": 1, "disruptionsAllowed": 0},
            }
        )
        await its.exceed()
        await its.it.node.until(lambda: bool(its.told("GPUEvictionBlocked")))
        assert not its.going()
        await its.shows(f"{evictions('blocked')} 1.0")
        its.it.api.patch("poddisruptionbudgets", "all", {"status": {"disruptionsAllowed": 1}}, subresource="status")
        assert its.it.node.agent is not None
        evictor = its.it.node.agent.features.of(Evictor)
        await its.it.node.until(lambda: not evictor.put_off)
        its.read({"big": 6120, "small": 0})
        await its.it.node.until(its.going)


@pytest.mark.parametrize("trouble", [Answer(503), Hang(done=True)], ids=["refused", "done, but the answer is lost"])
async def test_an_api_that_is_away_meanwhile_is_asked_again(trouble: Any) -> None:
    async with scene(over_use="evict") as its:
        fault = its.it.api.fail(trouble, resources=["pods/eviction"], times=1)
        its.it.cluster.evict_within_s = 0.2
        await its.exceed()
        await its.it.node.until(lambda: fault.happened == 1)
        assert its.it.node.agent is not None
        evictor = its.it.node.agent.features.of(Evictor)
        await its.it.node.until(lambda: "1 refused" in repr(evictor) and not evictor.put_off)
        its.read({"big": 6120, "small": 0})
        await its.it.node.until(its.going)


async def test_without_the_right_the_node_tells_what_to_apply() -> None:
    async with scene(allowed=RIGHTS, over_use="evict") as its:
        await its.exceed()
        await its.it.node.until(lambda: bool(its.told("GPUEvictionForbidden")))
        ((about, note),) = its.told("GPUEvictionForbidden")
        assert about == "node"
        assert "deploy/optional/evict.yaml" in note
        assert "grant 'create' on 'pods/eviction' to the service account" in note


@pytest.mark.parametrize(
    ("readings", "events", "removed"),
    [
        ([(100, 6120, ""), (150, 6120, "")], [], False),  # the next readings may confirm it
        ([(100, 6120, ""), (150, 4000, "")], [], True),
        ([(100, 4000, "")], [], True),
        ([(100, None, "hostPID is off"), (159, None, "hostPID is off")], [], False),
        ([(100, None, "hostPID is off"), (160, None, "hostPID is off")], [], True),
        ([(100, 6120, ""), (160, 6120, "")], ["GPUMemoryExceeded"], False),
    ],
)
def test_a_new_agent_begins_the_grace_anew_and_removes_what_no_longer_holds(
    readings: list[tuple[float, int | None, str]], events: list[str], *, removed: bool
) -> None:
    api = RecordedApi(Pod("u", "default", "big", annotations={OVER_USE: "it did"}))
    there = context(settings=Observable(settings(over_use_grace="60s")), api=api)
    there.features.add(Use(there))
    over_use = OverUse(there)
    for at, used, blind in readings:
        use = AttributedUse("u", "main", uuid(0), 4096, used)
        over_use.act_on(UseReading(at, (use,), {uuid(0): used}, blind=blind))
    assert [reason for _, reason, *_ in api.pod_events] == events
    assert (("u", {OVER_USE: None}) in api.annotated) is removed


async def test_beside_another_plugin_an_over_use_is_told_and_nobody_is_evicted() -> None:
    async with scene(over_use="evict") as its:
        agent = its.it.node.agent
        assert agent is not None
        with listening(its.it.node.kubelet.device_plugin_dir / "nvidia-gpu.sock"):
            await its.exceed()
            await its.it.node.until(lambda: bool(its.told("GPUMemoryExceeded")))
            ((_, note),) = its.told("GPUMemoryExceeded")
            assert note.endswith("no pod is evicted while another plugin hands out GPUs of this node")
            assert its.it.api.count("create", "pods/eviction") == 0
        agent.features.of(ConflictingPlugins).look_s = 0.0
        its.read({"big": 6120, "small": 0})
        await its.it.node.until(its.going)


async def test_settings_that_change_take_effect_with_the_next_reading() -> None:
    async with scene() as its:
        await its.exceed()
        await its.it.node.until(lambda: bool(its.marked()))
        its.it.node.reload(over_use="evict")
        its.read({"big": 6120, "small": 0})
        await its.it.node.until(its.going)
        await its.it.node.until(lambda: len(its.told("GPUMemoryExceeded")) == 2)
        outlooks = {note.rpartition("; ")[2] for _, note in its.told("GPUMemoryExceeded")}
        assert outlooks == {"this is only reported (setting over_use)", "the pod is evicted, one pod per GPU at a time"}


async def test_without_the_api_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with world(over_use="evict", over_use_grace="60s", usage_interval="1h") as there:
        agent = await there.start_agent()
        made = await there.kubelet.admit(pod("big", container("main", mem=4)))
        (gpu,) = gpus_of(made)
        later = time.monotonic() + 3600
        for at in (later, later + 61):
            agent.features.of(Use).reading.set(
                UseReading(at, (AttributedUse(made.uid, "main", gpu, 4096, 6120),), {gpu: 6120})
            )
            await there.until(lambda at=at: agent.features.of(OverUse)._watch.at == at)  # type: ignore[misc]
        assert len(agent.features.of(OverUse).excesses) == 1
        assert any("uses 6,120 MiB of GPU" in message for message in caplog.messages)
        assert any("it is not known in the API" in message for message in caplog.messages)
