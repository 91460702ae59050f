"""`plan --apply` with the scheduler extender that moves the pods, a scheduler, and a controller that replaces them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from gpu_device_plugin.features.capacity.commands import Mover, plan_moves
from gpu_device_plugin.features.cordon.commands import cordon, uncordon
from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.model.contract.keys import ALLOCATION, MOVE_REFUSED, MOVE_TO
from gpu_device_plugin.programs.inspect.arguments import parse
from tests.builders import container, pod
from tests.cluster_double.owned import owned, workload
from tests.patience import stretched
from tests.reporting import COMMANDS
from tests.resources import RESOURCES
from tests.scheduler.harness import QUICK, RIGHTS, ExtenderWorld, world

GRANTED = {("patch", "nodes"), ("create", "pods/eviction")}
"""What deploy/optional/capacity.yaml grants beside what is for autoscalers."""


NODE_B = "gpu-pool-1-4c7f2b9e-xk2lp.europe-west4-b.c.project-one.internal"
"""The value of MOVE_TO with such a name is longer than a word."""


@asynccontextmanager
async def two_nodes(granted: Iterable[tuple[str, str]] = GRANTED) -> AsyncIterator[ExtenderWorld]:
    """Each of two GPUs of 15 has a pod of 6, one of which a controller made; and a pod waits for 12."""
    async with world(allowed={*RIGHTS, *granted}, timings=replace(QUICK, capacity_s=0.02)) as w:
        owner = w.api.add(workload("web", kind="ReplicaSet"))
        for name in ("node-a", NODE_B):
            w.node(name, 15)
        there = {ALLOCATION: '{"0":{"0":6}}'}
        w.api.add(owned(pod("web-0", container(mem=6), node="node-a", annotations=there), owner))
        w.api.add(pod("bare", container(mem=6), node=NODE_B, annotations=there))
        for name in ("web-0", "bare"):
            w.run(name)
        w.pod("want", mem=12)
        await w.start()
        yield w
        await w.seen()
        w.check()


async def replace_evicted(w: ExtenderWorld) -> None:
    """End evicted pods as the kubelet does, make others in their place, and have them scheduled; for ever."""
    made = 0
    while True:
        for each in w.api.all("pods"):
            if each["metadata"].get("deletionTimestamp"):
                w.finish(each["metadata"]["name"])
                made += 1
                new = pod(f"web-new-{made}", container(mem=6))
                new["metadata"]["ownerReferences"] = each["metadata"]["ownerReferences"]
                w.api.add(new)
                await w.schedule()
        await asyncio.sleep(0.01)


def wait(monkeypatch: pytest.MonkeyPatch, answer_s: float) -> None:
    for name, time_s in {"answer_s": answer_s, "replaced_s": stretched(20), "every_s": 0.02}.items():
        monkeypatch.setattr(Mover, name, time_s)


async def applied(w: ExtenderWorld, monkeypatch: pytest.MonkeyPatch, answer_s: float) -> tuple[list[str], int]:
    """Return what the command says, and its exit code."""
    wait(monkeypatch, answer_s)
    arguments = parse("kubectl inspect gpushare", ["plan", "--for", "want", "--apply", "--yes"], COMMANDS)
    arguments.parts = REPORT
    controller = asyncio.create_task(replace_evicted(w))
    try:
        async with Client(ClusterConfig(w.api.url)) as client:
            lines, code = await plan_moves(arguments, Access(client), RESOURCES)
    finally:
        controller.cancel()
        with suppress(asyncio.CancelledError):
            await controller
    return list(map(str, lines)), code


async def test_the_extender_moves_the_pod_and_the_other_finds_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_nodes() as w:
        assert await applied(w, monkeypatch, stretched(20)) == (["Done: 1 move."], 0)
        assert (w.where("web-new-1"), w.places("web-new-1")) == (NODE_B, {0: 6})
        await w.schedule()
        assert w.where("want") == "node-a"


async def test_a_cordoned_gpu_is_drained_and_takes_pods_again_once_it_is_uncordoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_nodes({*GRANTED, ("get", "nodes")}) as w:
        wait(monkeypatch, stretched(20))
        words = ["cordon", "node-a", "0", "--drain", "--yes", "--reason", "a fan is loud"]
        arguments = parse("kubectl inspect gpushare", words, COMMANDS)
        arguments.parts = REPORT
        controller = asyncio.create_task(replace_evicted(w))
        async with Client(ClusterConfig(w.api.url)) as client:
            lines, code = await cordon(arguments, Access(client), RESOURCES)
        controller.cancel()
        with suppress(asyncio.CancelledError):
            await controller
        assert (list(map(str, lines)), code) == (["Done: 1 move."], 0)
        assert (w.where("web-new-1"), w.places("web-new-1")) == (NODE_B, {0: 6})
        await w.schedule()
        assert not w.where("want")
        arguments = parse("kubectl inspect gpushare", ["uncordon", "node-a", "0"], COMMANDS)
        arguments.parts = REPORT
        async with Client(ClusterConfig(w.api.url)) as client:
            _, code = await uncordon(arguments, Access(client), RESOURCES)
        await w.seen()
        await w.schedule()
        assert (code, w.where("want")) == (0, "node-a")


async def test_without_its_rights_the_pod_stays_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_nodes(granted=()) as w:
        lines, code = await applied(w, monkeypatch, stretched(20))
        assert code == 1
        assert lines[0].startswith("Stopped: the scheduler extender does not move default/web-0: ")
        assert "deploy/optional/capacity.yaml" in lines[0]
        assert w.where("web-0") == "node-a"
        assert MOVE_TO not in w.annotations("web-0")
        assert MOVE_REFUSED in w.annotations("web-0")


async def test_where_no_extender_runs_the_wish_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_nodes() as w:
        await w.stop()
        lines, code = await applied(w, monkeypatch, 0.1)
        assert (code, lines[0].partition(" within")[0]) == (1, "Stopped: no scheduler extender moved default/web-0")
        assert w.annotations("web-0").keys().isdisjoint({MOVE_TO, MOVE_REFUSED})
