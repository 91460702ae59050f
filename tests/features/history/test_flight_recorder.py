"""An incident's Event names a record that the agent serves, with what led to it, also after a restart."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from gpu_device_plugin.features.history.contract import (
    LARGEST_INCIDENT,
    Decision,
    GpuHistory,
    Incident,
    IncidentKind,
    IncidentList,
    IncidentProcess,
    NodeHistory,
)
from gpu_device_plugin.features.history.flight_recorder import FlightRecorder
from gpu_device_plugin.features.history.rules.incidents import MOST_INCIDENTS, Trigger
from gpu_device_plugin.features.history.sampling import History
from gpu_device_plugin.model.contract.node_use import ContainerUse, NodeUse
from gpu_device_plugin.model.telemetry import GpuTelemetry
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.agent import NodeAgent
from gpu_device_plugin.node.node_api import Happening
from gpu_device_plugin.testing.pod_specs import Pod
from tests.node.cluster_harness import Cluster, cluster, promise
from tests.node.harness import T4, NodeWorld, pod, world
from tests.patience import eventually
from tests.ports import free_port

T = TypeVar("T")
ID = "5ad9" * 16
MARK = "hunter2"
"""Stands in the environment and on the command line of a process, and nowhere else."""
BUSY = {**T4, "processes": [{"pid": 11, "used": "3GiB", "sm": 40}], "used": "3200MiB"}


@dataclass
class Scene:
    """A node whose agent takes samples often, and its port."""

    node: NodeWorld
    port: int

    @property
    def agent(self) -> NodeAgent:
        assert self.node.agent is not None
        return self.node.agent

    @property
    def recorder(self) -> FlightRecorder:
        return self.agent.features.of(FlightRecorder)

    async def start(self) -> None:
        agent = self.node.launch()
        agent.features.of(History).ring.step_s = 0.05

        async def warm(_groups: Sequence[str]) -> tuple[GpuTelemetry, ...]:
            return tuple(GpuTelemetry(gpu.uuid, temperature_c=88) for gpu in agent.hardware.view.value.inventory.gpus)

        agent.hardware.condition = warm  # type: ignore[method-assign,assignment]
        await self.node.ready()

    async def restart(self) -> None:
        await self.node.stop_agent()
        await self.start()

    async def get(self, path: str) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.read()

    async def read(self, path: str, kind: type[T]) -> T | None:
        status, body = await self.get(path)
        return msgspec.json.decode(body, type=kind) if status == 200 else None

    async def listed(self) -> IncidentList:
        found = await self.read("/incidents/", IncidentList)
        assert found is not None
        return found

    async def record(self, name: str) -> Incident:
        """Wait until a record is written."""
        found = await eventually(lambda: self.read(f"/incidents/{name}", Incident), f"the record {name}")
        assert found is not None
        return found

    def run_process(self, made: Pod) -> None:
        self.node.process(11, made, ID)
        (self.node.proc / "11" / "cmdline").write_text(f"python\0--password={MARK}\0")
        (self.node.proc / "11" / "environ").write_text(f"PASSWORD={MARK}\0")


@asynccontextmanager
async def scene(*gpus: dict[str, Any]) -> AsyncIterator[tuple[Cluster, Scene]]:
    port = free_port()
    async with cluster(gpus or [T4, T4], usage_interval="50ms", http=f"127.0.0.1:{port}") as there:
        its = Scene(there.node, port)
        await its.start()
        await there.node.until(lambda: there.cluster.followed.reflector.synced)
        yield there, its


def incident_of(note: str) -> str:
    _, there, name = note.rpartition(" (incident ")
    assert there
    assert name.endswith(")")
    return name[:-1]


async def told(there: Cluster, reason: str, count: int = 1) -> list[tuple[str, str]]:
    """Wait for so many Events of a reason; return what each is about and the incident that it names."""
    await there.node.until(lambda: len(there.events(reason)) >= count)
    found = [(event["regarding"]["name"], incident_of(event["note"])) for event in there.events(reason)]
    assert len(found) == count
    return found


# --- GPUs -------------------------------------------------------------------------------------------------------------


async def test_the_event_of_an_xid_names_a_record_with_what_led_to_it_that_outlives_the_agent() -> None:
    async with scene(BUSY, T4) as (there, its):
        made = await there.run(pod("web", mem=4), promise(0, 4))
        await there.run(pod("far", mem=4), promise(1, 4))
        await there.assigned("web", "far")
        its.run_process(made)
        ring = its.agent.features.of(History).ring

        def seen() -> bool:
            selection = ring.select(uuids=[there.node.uuids[0]])
            return selection is not None and any(3072 in each.used_mib for each in selection.containers())

        await there.node.until(seen)
        decisions = its.recorder.decisions
        await there.node.until(
            lambda: any("container main of default/web was allocated" in each.text for each in decisions)
        )
        there.node.hardware(BUSY, T4, events=[{"at": "1ms", "gpu": 0, "xid": 31}])
        ((about, name),) = await told(there, "GPUError")
        assert (about, name.endswith("-xid-gpu0")) == ("node", True)
        found = await its.record(name)
        assert (found.summary.kind, found.summary.gpu, found.node) == (IncidentKind.XID, 0, "node")
        assert found.summary.sentence == "GPU 0 reported XID 31: GPU memory page fault"
        ((gpu,), (container,)) = found.history.gpus, found.history.containers
        last_read = next(used for used in reversed(container.used_mib) if used is not None)  # a late reading is unknown
        assert (gpu.gpu, gpu.temperature_c[-1], container.pod, last_read) == (0, 88, "web", 3072)
        assert found.processes == (IncidentProcess(0, 11, "default", "web", "main", 3072, 40),)
        (part,) = found.use.parts
        assert (part.pod, part.granted_mib, part.used_mib, [*found.use.gpus]) == ("web", 4096, 3072, [0])
        texts = [decision.text for decision in found.decisions]
        assert any(text.startswith("container main of default/web was allocated 4 GiB of GPU-") for text in texts)

        listed = await its.listed()
        assert listed == IncidentList((found.summary,))
        (file,) = (there.node.kubelet.device_plugin_dir / "gpushare" / "incidents").iterdir()
        assert MARK not in file.read_text()
        there.node.hardware(BUSY, T4)  # a new agent would hear of the XID again
        await its.restart()
        assert await its.record(name) == found
        assert await its.listed() == listed


async def test_a_failure_is_recorded_beside_its_xid_and_a_storm_of_both_is_not() -> None:
    async with scene() as (there, its):
        storm = [{"at": f"{n}ms", "gpu": 0, "xid": 79} for n in range(1, 200)]
        there.node.hardware(T4, T4, events=storm)
        await there.node.until(lambda: bool(there.events("GPUUnhealthy")))
        await eventually(lambda: _count(its, 2))
        assert {each.kind for each in (await its.listed()).incidents} == {IncidentKind.XID, IncidentKind.GPU_FAILED}
        assert {incident_of(event["note"]) for event in there.events("GPUUnhealthy")} <= {
            each.name for each in (await its.listed()).incidents
        }


async def _count(its: Scene, count: int) -> bool:
    return len((await its.listed()).incidents) == count


async def test_an_agent_without_the_api_records_too_and_a_paused_one_nothing() -> None:
    port = free_port()
    async with world([T4], usage_interval="50ms", http=f"127.0.0.1:{port}") as node:
        its = Scene(node, port)
        await its.start()
        its.agent.toggle_pause()
        await node.until(lambda: bool(its.agent.state.node.blocks))
        its.agent.toggle_pause()
        await node.until(lambda: not its.agent.state.node.blocks)
        node.hardware(T4, events=[{"at": "1ms", "gpu": 0, "xid": 43}])
        await eventually(lambda: _count(its, 1))
        (only,) = (await its.listed()).incidents
        assert only.kind is IncidentKind.XID


# --- Containers -------------------------------------------------------------------------------------------------------


def status(code: int, reason: str, *, again: bool = False) -> dict[str, Any]:
    """Return the status of a container that has just ended and, with `again`, was started again."""
    end = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": rfc3339(time.time() + 1)}}
    running = {"state": {"running": {}}, "lastState": end, "containerID": f"containerd://{ID}"}
    return {"containerStatuses": [{"name": "main", **(running if again else {"state": end})}]}


async def test_containers_on_gpus_that_died_have_records_that_events_on_their_pods_name() -> None:
    async with scene() as (there, its):
        for name in ("fat", "wrong", "well"):
            await there.run(pod(name, mem=4), promise(1, 4))
        there.create(pod("without"))
        await there.bind("without")
        await there.assigned("fat", "wrong", "well")
        for name, code, reason in (("well", 0, "Completed"), ("without", 1, "Error"), ("wrong", 139, "Error")):
            there.api.patch("pods", name, {"status": status(code, reason)}, subresource="status")
        there.api.patch("pods", "fat", {"status": status(137, "OOMKilled", again=True)}, subresource="status")
        by_pod = dict(await told(there, "GPUIncident", 2))
        assert by_pod.keys() == {"fat", "wrong"}
        fat, wrong = [(await its.record(by_pod[name])).summary for name in ("fat", "wrong")]
        assert (fat.kind, fat.namespace, fat.pod, fat.container, fat.gpu) == (
            *(IncidentKind.OUT_OF_MEMORY, "default", "fat", "main"),
            1,
        )
        assert wrong.kind is IncidentKind.CONTAINER_DIED
        assert wrong.sentence == "container main ended with exit code 139 (Error)"
        assert len((await its.listed()).incidents) == 2
        # The next agent records what died in the second in which it starts, or later.
        began_s = time.time()
        await there.node.until(lambda: time.time() > began_s + 2)
        await its.restart()
        await there.node.until(lambda: there.cluster.followed.reflector.synced)
        await there.node.rounds(2)
        assert len((await its.listed()).incidents) == 2


async def test_a_process_that_the_kernel_kills_in_a_container_that_lives_on_has_a_record() -> None:
    async with scene() as (there, its):
        made = await there.run(pod("web", mem=4), promise(0, 4))
        leaf = there.node.cgroups / "kubepods" / f"pod{made.uid}" / ID
        leaf.mkdir(parents=True)
        (leaf / "memory.events").write_text("oom_kill 0\n")
        running = {"name": "main", "state": {"running": {}}, "containerID": f"containerd://{ID}"}
        there.api.patch("pods", "web", {"status": {"containerStatuses": [running]}}, subresource="status")
        await there.node.until(lambda: bool(its.agent.features.of(History)._counters))
        (leaf / "memory.events").write_text("oom_kill 1\n")
        ((about, name),) = await told(there, "GPUIncident")
        found = (await its.record(name)).summary
        assert (about, found.kind) == ("web", IncidentKind.OUT_OF_MEMORY)
        assert found.sentence == "a process of container main was killed for lack of main memory"


# --- Bounds -----------------------------------------------------------------------------------------------------------


async def test_names_of_no_record_are_not_found_and_nothing_else_is_read() -> None:
    async with scene() as (there, its):
        (there.node.kubelet.device_plugin_dir / "gpushare" / "x.json").write_text("{}")
        for name in ("20261128-121216-xid-gpu0", "..%2Fx", "x", "a/b"):
            status, body = await its.get(f"/incidents/{name}")
            assert (status, body.startswith(b"this node has no incident")) == (404, True)


async def test_a_record_is_bounded_however_much_there_is_to_tell() -> None:
    async with scene() as (_, its):
        why, name = "x" * 400, "n" * 253
        parts = tuple(ContainerUse("n" * 63, f"{n:0253}", "c" * 63, 0, 1, n, why=why) for n in range(4096))
        its.recorder._use_now = lambda: NodeUse("now", {}, parts)
        for _ in range(300):
            its.agent.api.happenings.tell(Happening("", why + name))
        its.recorder.decisions.append(Decision("2000-01-01T00:00:00Z", "long ago"))
        trigger = Trigger(IncidentKind.XID, "XID 31", (its.node.uuids[0],))
        name = incident_of(its.recorder.record(trigger))
        found = await its.record(name)
        assert len(msgspec.json.encode(found)) <= LARGEST_INCIDENT
        assert found.use.left_out + len(found.use.parts) == 4096
        assert found.use.parts[-1].used_mib == 4095
        assert {len(decision.text) for decision in found.decisions} == {400}
        assert its.recorder.record(trigger) == f" (incident {name})"


async def test_what_happens_in_one_moment_is_taken_down_once() -> None:
    """All GPUs of a node may fail at once; limits and use of a thousand containers take 40 ms."""
    async with scene() as (_, its):
        recorder, taken = its.recorder, []
        of_now = recorder._use_now

        def use() -> NodeUse:
            taken.append(1)
            return of_now()

        recorder._use_now = use
        names = [
            incident_of(recorder.record(Trigger(IncidentKind.GPU_FAILED, "?", (uuid,)))) for uuid in its.node.uuids
        ]
        assert (len(set(names)), len(taken)) == (2, 1)
        for name in names:
            await its.record(name)
        await eventually(lambda: recorder._storm is None)
        recorder.record(Trigger(IncidentKind.XID, "?", (its.node.uuids[0],)))
        assert len(taken) == 2


async def test_a_gpu_without_history_and_a_report_that_fails_keep_nobody_from_telling() -> None:
    async with scene() as (_, its):
        found = await its.record(incident_of(its.recorder.record(Trigger(IncidentKind.XID, "?", ("GPU-x",)))))
        assert (found.history, found.summary.gpu) == (NodeHistory(found.summary.at, 15.0), None)

        def fail() -> NodeUse:
            raise RuntimeError

        its.recorder._use_now = fail
        for _ in range(2):
            assert its.recorder.record(Trigger(IncidentKind.XID, "?", (its.node.uuids[0],))) == ""


async def test_the_history_is_served_beside_the_use() -> None:
    async with scene() as (there, its):
        await there.run(pod("web", mem=4), promise(0, 4))

        async def remembered() -> NodeHistory | None:
            found = await its.read("/history/namespaces/default", NodeHistory)
            return found if found is not None and found.containers else None

        found = await eventually(remembered, "the pod's history")
        assert found is not None
        assert [(each.pod, each.granted_mib) for each in found.containers] == [("web", 4096)]
        assert [type(gpu) for gpu in found.gpus] == [GpuHistory]
        assert len((await its.listed()).incidents) < MOST_INCIDENTS
        assert (await its.get("/history/gpus/7"))[0] == 404
