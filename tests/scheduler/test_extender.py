"""The extender beside a scheduler: pods go where one GPU has room, whatever they ask and whoever else is there.

E1 to E20 are what goes wrong in gpushare's extender; each has a test that its behaviour would fail.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.scheduler import Capacity
from tests import builders
from tests.builders import container
from tests.cluster_double.troubles import Answer, Slow
from tests.patience import eventually
from tests.scheduler.harness import NODE_GPUS, PREFIX, QUICK, world

IDX, MEM, DEV = (f"ALIYUN_COM_GPU_MEM_{each}" for each in ("IDX", "POD", "DEV"))
ALLOCATION = "scheduler.framework.gpushare.allocation"
SPLIT = "aliyun.com/gpu-count"
OURS = "gpu-device-plugin"


def on(node: str, at: int) -> dict[str, str]:
    """Return the annotation by which a pod chooses one GPU."""
    return {f"{OURS}/use-uuid": f"GPU-{node}-{at}"}


# --- What a pod may ask ----------------------------------------------------------------------------------------------


async def test_a_pod_goes_where_one_gpu_has_room() -> None:
    """A has 5 + 5 free and b 8: a pod of 8 goes to b, though the sum of a would do."""
    async with world() as w:
        w.node("a", 5, 5)
        w.node("b", 8)
        await w.start()
        w.pod("p", mem=8)
        assert (await w.schedule())["p"].node == "b"
        assert w.places("p") == {0: 8}
        assert w.only.free("b") == [0]


@pytest.mark.parametrize(
    ("what", "sizes", "places"),
    [
        ({"mem": 4}, (8,), {0: 4}),
        ({"count": 2}, (8, 4), {0: 8, 1: 4}),
        ({"containers": [container("a", mem=4), container("b", mem=4)]}, (5, 5), {0: 4, 1: 4}),
        ({"containers": [container("a", mem=4), container("b", mem=4)]}, (8, 8), {0: 8}),
        ({"containers": [container("a", mem=4), container("b", count=1)]}, (3, 8), {0: 3, 1: 4}),
        ({"mem": 4, "init": (container("i", mem=8),)}, (4, 8), {1: 8}),
        ({"mem": 4, "init": (container("s", mem=2, sidecar=True),)}, (2, 4), {0: 2, 1: 4}),
        ({"mem": 8, "labels": {SPLIT: "2"}}, (8, 4), {0: 4, 1: 4}),
        ({"containers": [container()], "init": (container("i", mem=3),)}, (3,), {0: 3}),
    ],
    ids=[
        "memory", "two whole GPUs", "containers on two GPUs", "containers on one GPU", "memory and a whole GPU",
        "an init container", "a sidecar", "memory of two GPUs", "an init container alone (E20)",
    ],
)  # fmt: skip
async def test_what_a_pod_asks_it_gets(what: dict[str, Any], sizes: tuple[int, ...], places: Mapping[int, int]) -> None:
    """On these GPUs there is one way only; the scheduler's sum would do on the node beside it as well."""
    async with world() as w:
        w.node("a", *(1 for _ in range(2 * sum(sizes))))
        w.node("b", *sizes)
        await w.start()
        w.pod("p", *what.pop("containers", ()), **what)
        assert (await w.schedule())["p"].node == "b"
        assert w.places("p") == places
        free = [size - places.get(at, 0) for at, size in enumerate(sizes)]
        assert w.only.free("b") == free


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"mem": 9}, "2 the largest GPU has only 8 GiB"),
        ({"mem": 4, "count": 1}, "2 container 'main' requests aliyun.com/gpu-mem and aliyun.com/gpu-count, which are"),
        (
            {"mem": 7, "labels": {SPLIT: "2"}},
            "2 the pod label aliyun.com/gpu-count asks for 2 GPUs, and a gpu-mem of 7",
        ),
        ({"mem": 12, "labels": {SPLIT: "4"}}, "2 fewer than 4 GPUs have 3 GiB"),
        ({"mem": 4, "labels": {SPLIT: "many"}}, "2 the pod label aliyun.com/gpu-count is not a number of GPUs"),
        ({"mem": 4, "annotations": {f"{OURS}/use-model": "H100"}}, "2 the pod's annotations allow none of its GPUs"),
        ({"mem": 4, "annotations": {f"{OURS}/gpu-policy": "best"}}, "2 the annotation gpu-device-plugin/gpu-policy is"),
    ],
    ids=str,
)
async def test_what_no_node_can_ever_give_is_said_so(what: dict[str, Any], message: str) -> None:
    """And no pod is evicted for it, however unimportant."""
    async with world() as w:
        for name in "ab":
            w.node(name, 8, 8)
        await w.start()
        w.pod("low", mem=1)
        await w.schedule()
        w.pod("p", priority=1000, **what)
        found = (await w.schedule())["p"]
        assert found.reason == "Unschedulable"
        assert found.message.startswith(f"0/2 nodes are available: {message}")
        assert found.message.endswith(
            "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
        )


async def test_a_gpu_that_was_had_whole_is_had_whole_again_at_once_and_shared_after_a_pause() -> None:
    """Its node's agent needs a moment to offer it the other way; the pod that it is for is asked about only once."""
    async with world(timings=replace(QUICK, settle_s=3600)) as w:
        w.node("a", 8)
        await w.start()
        w.pod("first", count=1)
        await w.schedule()
        w.end("first")
        w.pod("second", count=1)
        assert (await w.schedule())["second"].node == "a"
    async with world(timings=replace(QUICK, settle_s=0.3)) as w:
        w.node("a", 8)
        await w.start()
        w.pod("whole", count=1)
        await w.schedule()
        ended = time.monotonic()
        w.end("whole")
        w.pod("share", mem=1)
        assert (await w.schedule())["share"].node == "a"
        assert time.monotonic() - ended >= 0.3
        await w.until(lambda: "whole" not in {entry.name for entry in w.only.extender.fleet.entries.values()})


# --- Choosing --------------------------------------------------------------------------------------------------------


async def test_a_pod_may_choose_gpus_by_model_and_by_uuid() -> None:
    async with world() as w:
        w.node("a", 8, 8, models={0: "NVIDIA A100-SXM4-80GB", 1: "Tesla T4"})
        w.node("b", 8, model="NVIDIA A10")
        await w.start()
        w.pod("use", mem=1, annotations={f"{OURS}/use-model": "a100, h100"})
        w.pod("avoid", mem=1, annotations={f"{OURS}/avoid-model": "T4, A10"})
        w.pod("ten", mem=1, annotations={f"{OURS}/use-model": "A10"})
        w.pod("uuid", mem=1, annotations=on("a", 1))
        w.pod("not", mem=1, annotations={f"{OURS}/avoid-uuid": "GPU-a-0,GPU-b-0"})
        found = await w.schedule()
        places = {name: (found[name].node, *w.places(name)) for name in found}
        assert places == {"use": ("a", 0), "avoid": ("a", 0), "ten": ("b", 0), "uuid": ("a", 1), "not": ("a", 1)}


@pytest.mark.parametrize(
    ("settings", "labels", "annotations", "free"),
    [
        ({}, {}, {}, [6, 8]),
        ({"gpu_policy": "spread"}, {}, {}, [7, 7]),
        ({}, {"ack.node.gpu.placement": "spread"}, {}, [7, 7]),
        ({"gpu_policy": "spread"}, {"ack.node.gpu.placement": "binpack"}, {}, [6, 8]),
        ({}, {"ack.node.gpu.placement": "binpack"}, {f"{OURS}/gpu-policy": "spread"}, [7, 7]),
        ({}, {"ack.node.gpu.placement": "nonsense"}, {}, [6, 8]),
    ],
    ids=["default", "setting", "label", "label before setting", "annotation before label", "a label that is none"],
)
async def test_which_gpu_of_a_node_is_a_matter_of_policy(
    settings: dict[str, str], labels: dict[str, str], annotations: dict[str, str], free: list[int]
) -> None:
    """Two pods of 1 on two GPUs of 8: on one of them, or on one each."""
    async with world(settings) as w:
        w.node("a", 8, 8, labels=labels)
        await w.start()
        for name in "pq":
            w.pod(name, mem=1, annotations=annotations)
        await w.schedule()
        assert w.only.free("a") == free


@pytest.mark.parametrize(
    ("settings", "annotations", "nodes"),
    [
        ({}, {}, {"a"}),
        ({"node_policy": "spread"}, {}, {"a", "b"}),
        ({"node_policy": "spread"}, {f"{OURS}/node-policy": "binpack"}, {"a"}),
        ({}, {f"{OURS}/node-policy": "spread"}, {"a", "b"}),
    ],
    ids=["default", "setting", "annotation packs", "annotation spreads"],
)
async def test_which_node_is_a_matter_of_policy(
    settings: dict[str, str], annotations: dict[str, str], nodes: set[str]
) -> None:
    """One after the other, since who is being bound while the next one is scored counts only once he is claimed."""
    async with world(settings) as w:
        for name in "ab":
            w.node(name, 8, 8)
        await w.start()
        for name in "pq":
            w.pod(name, mem=4, annotations=annotations)
            await w.schedule()
        assert {w.where(name) for name in "pq"} == nodes


async def test_the_form_with_whole_nodes_is_answered_in_that_form() -> None:
    async with world() as w:
        w.node("a", 5, 5)
        w.node("b", 8)
        w.node("c", 9)
        await w.start()
        w.pod("p", mem=8)
        w.pod("q", mem=8)
        found = await w.schedule(node_cache_capable=False)
        assert sorted(found[name].node for name in "pq") == ["b", "c"]


# --- Who counts, and for how long ------------------------------------------------------------------------------------


async def test_e3_a_namesake_is_another_pod() -> None:
    """Deleted by force and made anew under its name: the old one counts for its grace, the new one besides."""
    async with world(vanished_grace="20ms") as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=5)
        await w.schedule()
        w.run("p")
        await w.seen()
        w.force_delete("p")
        w.pod("p", mem=3)
        found = await w.schedule()
        assert found["p"].node == "a"
        await w.until(lambda: w.only.free("a") == [5])
        w.end("p")
        await w.seen()
        assert w.only.free("a") == [8]


async def test_e4_a_pod_that_is_deleted_while_it_is_bound_leaks_nothing() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.bindings_meet(Slow(0.5))
        w.pod("p", mem=8)
        async with w.scheduler() as scheduler:
            attempt = asyncio.create_task(scheduler.schedule())
            await w.until(lambda: w.api.count("create", "pods/binding") == 1)
            w.force_delete("p")
            found = (await attempt)["p"]
        assert found.message == "pod default/p was deleted meanwhile"
        await w.seen()
        assert w.only.free("a") == [8]


async def test_e5_more_taken_than_there_is_leaves_nothing_free() -> None:
    """20 taken of what turns out to be 15: not even 1 fits, and certainly not 15."""
    async with world() as w:
        w.node("a", 20)
        w.node("b", 1)
        await w.start()
        w.pod("there", mem=20)
        await w.schedule()
        w.tell("a", 15)
        await w.seen()
        assert w.only.free("a") == [0]
        for mem in (1, 15):
            assert (await w.filter(builders.pod("p", container(mem=mem), uid="u"), "a"))["NodeNames"] == []
        w.pod("p", mem=15)
        assert await w.bind("p", "a") == "node a: no GPU has 15 GiB free"


async def test_e6_a_pod_that_is_being_deleted_counts_until_its_containers_have_ended() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=8)
        await w.schedule()
        w.run("p")
        w.delete("p")
        await w.seen()
        assert w.only.free("a") == [0]
        w.end("p", "Failed")
        await w.seen()
        assert w.only.free("a") == [8]


async def test_e8_an_annotation_alone_is_never_believed() -> None:
    """How much comes from the request: a pod that says it takes nothing takes what it asked, one that asked nothing
    takes nothing, whatever it says, and one that waits does not choose its own place by a promise to itself."""
    async with world() as w:
        w.node("a", 8, 8)
        w.pod("modest", mem=6, node="a", annotations={IDX: "0", MEM: "0", DEV: "8"})
        w.pod("boaster", node="a", annotations={IDX: "1", MEM: "8", DEV: "8", ALLOCATION: '{"0":{"1":8}}'})
        await w.start()
        assert w.only.free("a") == [2, 8]
        w.pod("chooser", mem=3, annotations={IDX: "0", MEM: "3", ALLOCATION: '{"0":{"0":3}}'})
        assert (await w.schedule())["chooser"].node == "a"
        assert (w.places("chooser"), w.annotations("chooser")[IDX]) == ({1: 3}, "1")
        assert w.only.free("a") == [2, 5]


@pytest.mark.parametrize(
    "forged",
    [
        {ALLOCATION: "junk"},
        {ALLOCATION: '{"0":{"0":99}}', IDX: "-1"},
        {f"{OURS}/init-allocation": "junk"},
        {IDX: "junk"},
        {IDX: "7", MEM: "junk", DEV: "junk"},
        dict.fromkeys((IDX, ALLOCATION, f"{OURS}/init-allocation", MEM, DEV), "junk"),
    ],
    ids=str,
)
async def test_e8_junk_that_stands_on_a_pod_is_overwritten(forged: dict[str, str]) -> None:
    """Pods count where they were promised their place, and nowhere else."""
    async with world() as w:
        w.node("a", 8, 8, 8, 8)
        await w.start()
        w.pod("p", mem=3, annotations=forged)
        w.pod("two", container("x", mem=8), container("y", mem=8), annotations=forged)
        w.pod("init", container(), init=(container("i", mem=5),), annotations=forged)
        await w.schedule()
        assert w.only.free("a") == [0, 0, 0, 8]


@pytest.mark.parametrize("said", ["junk", '{"0":{"0":99}}', '{"0":{"-1":6}}', "[]", '{"0":{"0":"6"}}{'], ids=str)
async def test_e8_a_bound_pod_whose_annotation_makes_no_sense_counts_on_every_gpu(said: str) -> None:
    """It asked for 6, and may be anywhere."""
    async with world() as w:
        w.node("a", 8, 8)
        w.pod("p", mem=6, node="a", annotations={ALLOCATION: said})
        await w.start()
        assert w.only.free("a") == [2, 2]


async def test_e8_a_promise_that_makes_no_sense_is_counted_once_however_often_it_is_read() -> None:
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=4, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "x"})
        await w.seen()
        for change in (w.run, w.run, w.end):
            change("p")
            await w.seen()
        assert "gpushare_malformed_annotations_total 1.0" in await w.metrics()


async def test_e9_a_pod_that_somebody_else_bound_counts_on_every_gpu_until_its_node_says_where_it_is() -> None:
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("theirs", mem=3, node="a")
        await w.seen()
        assert w.only.free("a") == [5, 5]
        _, shown = await w.inspect("a")
        assert [pod["name"] for pod in shown["nodes"][0]["unplaced"]] == ["theirs"]
        w.api.patch("pods", "theirs", {"metadata": {"annotations": {ALLOCATION: '{"0":{"1":3}}'}}})
        await w.seen()
        assert w.only.free("a") == [8, 5]


async def test_a_pod_that_turns_out_to_be_elsewhere_is_noticed() -> None:
    """The kubelet may swap pods that are equal to it; the agent then says where they really are."""
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=3)
        await w.schedule()
        w.api.patch("pods", "p", {"metadata": {"annotations": {ALLOCATION: '{"0":{"1":3}}', IDX: "1"}}})
        await w.seen()
        assert w.only.free("a") == [8, 5]
        assert 'gpushare_extender_drift_total{kind="moved"} 1.0' in await w.metrics()
        assert any("a pod holds other GPUs than the ledger recorded" in line for line in w.logs)


# --- Nodes -----------------------------------------------------------------------------------------------------------


async def test_e7_other_gpus_are_seen_when_their_node_tells_of_them() -> None:
    """Two of 8, then four of 8, then the same in shares of half the size, then one is out of service."""
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        w.pod("p", mem=8)
        await w.schedule()
        w.tell("a", 8, 8, 8, 8)
        await w.seen()
        assert w.only.free("a") == [0, 8, 8, 8]
        w.tell("a", 16, 16, share_mib=512)
        await w.seen()
        assert w.only.free("a") == [8, 16]
        w.tell("a", 8, 8, unhealthy={1: "XID 79"})
        w.pod("q", mem=9)
        w.pod("r", mem=1)
        found = await w.schedule()
        assert found["q"].message.startswith("0/1 nodes are available: 1 Insufficient")
        # One GPU is full and the other out of service; to evict the pod there would help.
        assert "1 no GPU has 1 GiB free" in found["r"].message


async def test_e10_pods_of_a_node_that_is_gone_do_no_harm_and_count_when_it_comes_back() -> None:
    async with world() as w:
        w.node("a", 8)
        w.pod("lost", mem=5, node="gone", annotations={ALLOCATION: '{"0":{"0":5}}'})
        await w.start()
        w.pod("p", mem=8)
        assert (await w.schedule())["p"].node == "a"
        w.node("gone", 8)
        await w.seen()
        assert w.only.free("gone") == [3]


async def test_e11_only_the_gpu_that_is_out_of_service_is_left_out() -> None:
    async with world() as w:
        w.node("a", 8, 8, 8, 8, unhealthy={1: "XID 79", 3: "lost"})
        await w.start()
        for n in range(5):
            w.pod(f"p{n}", mem=5)
        found = await w.schedule()
        assert sorted(at for n in range(5) if found[f"p{n}"].node for at in w.places(f"p{n}")) == [0, 2]


@pytest.mark.parametrize("said", ["", "junk", "[]", '{"version":2}', '{"version":1,"gpus":[{"index":"x"}]}'], ids=str)
async def test_a_node_whose_annotation_cannot_be_read_is_left_out_and_says_why(said: str) -> None:
    async with world() as w:
        w.api.add(builders.node("a", mem=8, count=1, annotations={NODE_GPUS: said}))
        w.node("b", 8)
        await w.start()
        for name in "pq":
            w.pod(name, mem=8)
        found = await w.schedule()
        assert [found[name].node for name in "pq"] == ["b", ""]
        assert "the node's annotation gpu-device-plugin/gpus" in found["q"].message


async def test_nodes_of_the_original_plugin_are_shared_out_evenly() -> None:
    """30 shares on 2 GPUs are 15 each, and whole GPUs it gives out none."""
    async with world() as w:
        w.api.add(builders.node("a", mem=30, count=2))
        w.api.add(builders.node("cpu"))
        await w.start()
        w.pod("p", mem=15)
        w.pod("q", mem=10)
        w.pod("r", mem=6)
        w.pod("whole", count=1)
        found = await w.schedule()
        assert [found[name].node for name in ("p", "q", "r", "whole")] == ["a", "a", "", ""]
        assert [w.annotations(name)[IDX] for name in "pq"] == ["0", "1"]
        assert [w.annotations("p")[key] for key in (MEM, DEV)] == ["15", "15"]
        assert "1 its device plugin does not allocate whole GPUs" in found["whole"].message


# --- Binding ---------------------------------------------------------------------------------------------------------


async def test_e12_forty_pods_to_one_node_are_bound_side_by_side_and_none_is_refused() -> None:
    """Each binding takes a moment; the next pods are filtered while their predecessors are being bound."""
    async with world() as w:
        w.node("a", *[8] * 5)
        await w.start()
        w.bindings_meet(Slow(0.05))
        for n in range(40):
            w.pod(f"p{n:02}", mem=1)
        found = await w.schedule()
        assert {each.node for each in found.values()} == {"a"}
        assert w.only.free("a") == [0] * 5


async def test_e19_a_pod_that_could_not_be_bound_has_nothing_written_on_it_and_takes_nothing() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.bindings_meet(Answer(403, reason="Forbidden", message="no"), times=1)
        w.pod("p", mem=8)
        found = (await w.schedule())["p"]
        assert (found.reason, w.annotations("p"), w.only.free("a")) == ("SchedulerError", {}, [8])
        assert found.message.startswith("pod default/p was not bound")
        assert (await w.schedule())["p"].node == "a"


async def test_e14_why_a_pod_is_not_bound_stands_in_an_answer_of_success_without_the_pod() -> None:
    async with world() as w:
        w.node("a", 8)
        await w.start()
        w.pod("p", mem=9)
        assert await w.bind("p", "a") == "node a: the largest GPU has only 8 GiB"
        body = {"PodName": "nobody", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
        error = (await w.ask("bind", body))["Error"]
        assert "nobody" in error
        assert "404" in error or "not found" in error


async def test_whoever_waits_gets_his_turn_when_others_end() -> None:
    """60 pods of 1 to 8 for three GPUs of 8, in a scheduler that goes on by itself; each ends when it is bound."""
    async with world() as w:
        w.node("a", 8, 8)
        w.node("b", 8)
        await w.start()
        names = [f"p{n:02}" for n in range(60)]
        for n, name in enumerate(names):
            w.pod(name, mem=n * 5 % 8 + 1)
        async with w.scheduler() as scheduler:
            running = asyncio.create_task(scheduler.run())
            waiting = set(names)

            def all_were_bound() -> bool:
                w.check()
                for name in [name for name in waiting if w.where(name)]:
                    w.end(name)
                    waiting.remove(name)
                return not waiting

            await eventually(all_were_bound, running=lambda: [running])
            running.cancel()
            await asyncio.wait({running})
        await w.seen()
        assert (w.only.free("a"), w.only.free("b")) == ([8, 8], [8])


# --- Preemption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capable", [True, False], ids=["uids", "whole pods"])
async def test_e18_room_is_made_on_one_gpu_not_in_the_sum(*, capable: bool) -> None:
    """On two GPUs of 8 there are 4 + 4 each. The scheduler would evict the two youngest, one of each GPU, and the pod
    of 8 would fit on neither. Two of one GPU go instead, and the others stay."""
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        for name, at, created in (("p", 0, 1), ("q", 1, 2), ("r", 0, 3), ("s", 1, 4)):
            w.pod(name, mem=4, annotations=on("a", at), created=f"2026-01-01T00:00:0{created}Z")
        await w.schedule()
        for name in "pqrs":
            w.run(name)
        w.pod("high", mem=8, priority=1000)
        found = (await w.schedule(node_cache_capable=capable))["high"]
        assert found.message == "0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem."
        leaving = [name for name in "pqrs" if "deletionTimestamp" in w.get(name)["metadata"]]
        assert leaving in (["p", "r"], ["q", "s"])
        # They count until they have ended.
        for name in leaving:
            assert (await w.schedule())["high"].node == ""
            w.finish(name)
        assert (await w.schedule())["high"].node == "a"
        assert list(w.places("high").values()) == [8]


async def test_e18_nobody_is_evicted_where_it_would_not_help() -> None:
    """A GPU of 8 has an important pod of 1 on each; for a pod of 8 nobody has to go in vain."""
    async with world() as w:
        w.node("a", 8, 8)
        await w.start()
        for at in range(2):
            w.pod(f"important{at}", mem=1, priority=2000, annotations=on("a", at))
            w.pod(f"low{at}", mem=7, annotations=on("a", at))
        await w.schedule()
        w.pod("high", mem=8, priority=1000)
        found = (await w.schedule())["high"]
        assert found.message.endswith("preemption: no candidate node for preemption")
        assert not [pod for pod in w.api.all("pods") if "deletionTimestamp" in pod["metadata"]]


# --- Looking ---------------------------------------------------------------------------------------------------------


async def test_e13_inspecting_a_node_that_is_not_there_is_answered() -> None:
    async with world() as w:
        w.node("a", 8)
        w.node("b", 8)
        await w.start()
        error = "no node of this name is known to the GPU scheduler"
        assert await w.inspect("nobody") == (404, {"nodes": [], "error": error})
        w.api.delete("nodes", "b")
        await w.seen()
        _, shown = await w.inspect()
        assert [node["name"] for node in shown["nodes"]] == ["a"]


async def test_e1_e2_a_storm_of_deletions_while_people_look_harms_nobody() -> None:
    """400 pods of 1 on 50 GPUs of 8 go at once, while all is looked at and pods are being bound."""
    async with world() as w:
        w.node("a", *[8] * 50)
        for n in range(400):
            w.pod(f"p{n}", mem=1, node="a", annotations={ALLOCATION: json.dumps({"0": {str(n // 8): 1}})})
        await w.start()
        # A list that it may read to catch up shows of a pod that is gone by then not that it had ended before.
        await w.until(lambda: w.only.extender.features.of(Capacity)._term is not None)
        assert w.only.free("a") == [0] * 50

        async def look() -> None:
            for _ in range(20):
                assert (await w.inspect())[0] == 200

        async def remove() -> None:
            for n in range(400):
                w.end(f"p{n}")
                w.force_delete(f"p{n}")
                if n % 20 == 0:
                    await asyncio.sleep(0)

        looking = [asyncio.create_task(look()) for _ in range(3)]
        await remove()
        w.pod("p", mem=8)
        assert (await w.schedule())["p"].node == "a"
        await asyncio.gather(*looking)
        await w.seen()
        assert sum(w.only.free("a")) == 392


async def test_e15_nothing_of_a_pods_environment_gets_into_a_log_or_an_answer() -> None:
    """Every pod here knows a secret, and at the end of every test the log is searched for it; so are answers here."""
    async with world(log_level="debug") as w:
        w.node("a", 8)
        await w.start()
        pod = w.pod("p", mem=9)
        await w.seen()
        answers = [await w.filter(pod, "a", "nowhere"), await w.bind("p", "a"), await w.inspect()]
        broken = json.dumps({"Pod": pod, "NodeNames": ["a"]})[:-20]
        async with w.http.post(f"{w.only.url}{PREFIX}/filter", data=broken) as answer:
            answers.append(await answer.text())
        assert "hunter2" not in str(answers)


# --- Nodes that serve claims ------------------------------------------------------------------------------------------


async def test_a_pod_whose_gpus_kube_scheduler_has_allocated_is_bound_as_it_is() -> None:
    """Node a serves limits and node b claims: nothing of the pod is written, and nothing of b is counted."""
    async with world() as w:
        w.node("a", 8)
        w.node("b", 8, claims=True)
        await w.start()
        pod = w.pod("p", count=1)
        assert (await w.filter(pod, "b"))["NodeNames"] == ["b"]
        assert "kube-scheduler has made no claim of the pod's limits" in await w.bind("p", "b")
        made = {"resourceClaimName": "p-extended-resources-x7", "requestMappings": []}
        w.api.patch("pods", "p", {"status": {"extendedResourceClaimStatus": made}}, subresource="status")
        assert await w.bind("p", "b") == ""
        assert (w.where("p"), w.annotations("p")) == ("b", {})
        await w.seen()
        assert (w.only.free("a"), w.only.free("b")) == ([8], [8])
        page = await w.metrics()
        assert "gpushare_extender_nodes 1.0" in page
        assert 'gpushare_extender_node_memory_bytes{node="a"}' in page
        assert 'node="b"' not in page
