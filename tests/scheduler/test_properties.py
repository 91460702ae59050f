"""Whatever happens in a cluster, in whatever order, no GPU is promised twice: the whole extender, and chance."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.nodegpus import NodeGpus
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.testing.cluster.cluster_kinds import StatusError
from tests import builders
from tests.builders import GPU_COUNT, GPU_MEM, container
from tests.cluster_double.troubles import Answer, Hang, Reset, Slow, Trouble
from tests.happenings import CHANCE, Happenings, Life, live, lives
from tests.scheduler.harness import ALLOCATION, HASTY, ExtenderWorld, Running, held, world

Json = dict[str, Any]

NODES = {"a": (4, 3), "b": (4,), "c": (2, 2, 3)}
"""So little that everybody gets in everybody's way. The GPUs of c may change."""
TIMINGS = replace(HASTY, follow=replace(HASTY.follow, check_s=0.05))
"""Lists are made so often that what a watch never told is known soon."""


@dataclass
class Cluster:
    """A cluster over time. Every method is something that happens to it."""

    w: ExtenderWorld
    made: int = 0
    asked: Iterator[int] = field(default_factory=count)
    """Numbers the pods that are only asked about."""
    lagging: bool = False
    left: dict[str, tuple[str, Mapping[int, int]]] = field(default_factory=dict)
    """By uid, node and GPUs of pods that were deleted by force and whose processes go on, as the extender knows."""

    def pods(self, *, bound: bool) -> list[Json]:
        """Return the pods that have not ended, those that wait or those that are on a node."""
        return [
            pod
            for pod in self.w.api.all("pods")
            if pod["status"]["phase"] in {"Pending", "Running"} and bool(pod["spec"].get("nodeName")) is bound
        ]

    # --- Pods

    async def create(self, *pods: Json) -> None:
        for pod in pods:
            self.made += 1
            self.w.pod(f"p{self.made}", *pod["containers"], **pod["rest"])

    async def schedule(self, *pods: Json) -> None:
        """Try every pod that waits. The extender knows as much as it just happens to know."""
        await self.create(*pods)
        async with self.w.scheduler() as scheduler:
            await scheduler.schedule()

    async def run(self, which: int) -> None:
        if bound := self.pods(bound=True):
            self.w.run(bound[which % len(bound)]["metadata"]["name"])

    async def end(self, which: int, how: str) -> None:
        waiting, bound = self.pods(bound=False), self.pods(bound=True)
        there = [*bound, *waiting]
        if not there:
            return
        pod = there[which % len(there)]
        meta, name = pod["metadata"], pod["metadata"]["name"]
        match how:
            case "ends" if pod in bound:
                self.w.end(name)
            case "is finished" if "deletionTimestamp" in meta:
                self.w.finish(name)
            case "is deleted":
                self.w.delete(name)
            case "is forced":
                if pod["status"]["phase"] == "Running" and meta["uid"] in self.w.only.extender.fleet.entries:
                    self.left[meta["uid"]] = pod["spec"]["nodeName"], held(pod, GPU_MEM) + held(pod, GPU_COUNT)
                self.w.force_delete(name)

    async def somebody_binds(self, which: int, node: str) -> None:
        """Another scheduler looks at the sum alone. A promise that the pod made itself would stand: a limit."""
        waiting = [pod for pod in self.pods(bound=False) if ALLOCATION not in pod["metadata"].get("annotations", {})]
        names = {each["metadata"]["name"] for each in self.w.api.all("nodes")}
        if not waiting or node not in names:
            return
        pod = waiting[which % len(waiting)]
        for resource, most in ((GPU_MEM, sum(NODES[node])), (GPU_COUNT, len(NODES[node]))):
            there = [each for each in self.pods(bound=True) if each["spec"]["nodeName"] == node]
            if sum(asked(each, resource) for each in (*there, pod)) > most:
                return
        with suppress(StatusError):
            self.w.api.bind(pod["metadata"]["name"], node)

    async def an_agent_reports(self, which: int) -> None:
        """A pod that somebody else bound turns out to be on the GPUs that had room, or could not be started."""
        unassigned_usage = [pod for pod in self.pods(bound=True) if not held(pod, GPU_MEM) and not held(pod, GPU_COUNT)]
        unassigned_usage = [pod for pod in unassigned_usage if asked(pod, GPU_MEM) or asked(pod, GPU_COUNT)]
        if not unassigned_usage:
            return
        pod = unassigned_usage[which % len(unassigned_usage)]
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        sizes = dict(enumerate(NODES[node]))
        used: Counter[int] = Counter()
        for other in self.pods(bound=True):
            if other["spec"]["nodeName"] == node:
                used += held(other, GPU_MEM) + held(other, GPU_COUNT)
        for there, places in self.left.values():
            used += Counter(places) if there == node else Counter()
        wanted, containers = asked(pod, GPU_MEM), pod["spec"]["containers"]
        at = next((at for at, size in sizes.items() if size - used[at] >= wanted), None)
        simple = len(containers) == 1 and not pod["spec"].get("initContainers") and wanted
        known = node in self.w.only.extender.fleet.candidates  # it may have just been removed, or come back
        # The room that the extender has promised meanwhile is not there either: the kubelet has given its devices out.
        if at is None or not simple or not known or self.w.only.free(node)[at : at + 1] < [0] or self.promised(node):
            self.w.end(name, "Failed")
        else:
            said = json.dumps({"0": {str(at): wanted}})
            self.w.api.patch("pods", name, {"metadata": {"annotations": {ALLOCATION: said}}})

    def promised(self, node: str) -> bool:
        """Whether something on a node is being bound, or has been and nobody knows."""
        return any(entry.claimed and entry.node == node for entry in self.w.only.extender.fleet.entries.values())

    # --- Nodes

    async def a_node_goes(self, name: str) -> None:
        with suppress(StatusError):
            self.w.api.delete("nodes", name)

    async def nodes_come_back(self) -> None:
        there = {node["metadata"]["name"] for node in self.w.api.all("nodes")}
        for name in NODES.keys() - there:
            self.w.node(name, *NODES[name])

    async def cards_change(self, sizes: list[int]) -> None:
        if "c" in {node["metadata"]["name"] for node in self.w.api.all("nodes")}:
            self.w.tell("c", *sizes)

    # --- Trouble

    async def bindings_fail(self, trouble: Trouble, times: int, look: str) -> None:
        """And whoever looks then what became of it may not be told."""
        self.w.bindings_meet(trouble, times)
        if look == "in vain":
            self.w.api.fail(Answer(503), verbs={"get"}, resources={"pods"}, times=times)

    async def watches_miss(self, which: int, how: str, *pods: Json) -> None:
        with self.w.api.watch_gap():
            await self.create(*pods)
            await self.somebody_binds(which, "a")
            await self.end(which, how)

    async def watches_end(self, how: str) -> None:
        match how:
            case "410":
                self.w.api.store.compact()
                self.w.api.reads.close()
            case "reset":
                self.w.api.reset_connections()
            case "closed":
                self.w.api.reads.close()

    async def watches_lag(self) -> None:
        if self.lagging:
            self.w.api.reads.release()
        else:
            self.w.api.reads.hold()
        self.lagging = not self.lagging

    async def the_api_server_restarts(self) -> None:
        await self.w.api.stop()
        await self.w.api.start()

    async def the_extender_restarts(self) -> None:
        """What was deleted by force before, the next one knows nothing of: a limit."""
        self.left.clear()
        await self.w.restart()

    async def a_moment_passes(self) -> None:
        await asyncio.sleep(3 * TIMINGS.tick_s)

    # --- What must be so

    def check(self) -> None:
        self.w.check()
        extender = self.w.running[0].extender
        assert sum(entry.claimed for entry in extender.fleet.entries.values()) <= extender.binding.doubts
        for node, places in self.left.values():
            taken = Counter(places)
            for pod in self.pods(bound=True):
                if pod["spec"]["nodeName"] == node:
                    taken += held(pod, GPU_MEM) + held(pod, GPU_COUNT)
            for at in places if node != "c" else ():
                assert taken[at] <= NODES[node][at], f"GPU {at} of {node} is given before its process ended"

    async def quiet(self) -> None:
        """When all is over, the ledger is what another extender makes of the cluster."""
        self.w.api.heal()
        self.lagging = False
        await self.nodes_come_back()
        other = await self.w.start()
        await self.w.until(lambda: self.ledger(self.w.running[0]) == self.ledger(other))
        fleets = [running.extender.fleet for running in self.w.running]
        await self.w.until(lambda: gpus_known(fleets[0]) == gpus_known(fleets[1]))
        if not any(each.claimed or each.until is not None for each in fleets[0].entries.values()):
            await self.same_answers()
        await self.w.stop(other)

    @staticmethod
    def ledger(running: Running) -> dict[str, Any]:
        """Return who takes what, without claims and without those of whom nobody knows how they ended."""
        entries = running.extender.fleet.entries.values()
        return {each.uid: (each.node, each.usage) for each in entries if not each.claimed and each.until is None}

    async def same_answers(self) -> None:
        """Whoever is asked, the answer is the same, and so it is when it is asked again of another pod like it."""
        names = list(NODES)
        for n, pod in enumerate(PROBES):
            for verb in ("filter", "prioritize"):
                first, second = self.w.running
                answers = []
                for running in (first, second, first):
                    # A pod that comes again is offered other nodes.
                    meta = {"name": f"probe{n}", "namespace": "default", "uid": f"probe{next(self.asked)}"}
                    body = {"Pod": pod | {"metadata": meta}, "Nodes": None, "NodeNames": names}
                    answers.append(await self.w.ask(verb, body, running))
                assert answers[0] == answers[1] == answers[2]

    async def alive(self) -> None:
        """What is free can be had: a pod as large as the largest room on a node gets it."""
        for pod in self.pods(bound=False):
            self.w.force_delete(pod["metadata"]["name"])
        await self.the_extender_restarts()
        for node in ("a", "b"):
            most = max(self.w.only.free(node))
            if most:
                self.w.pod(f"last-{node}", mem=most, spec={"nodeSelector": {"kubernetes.io/hostname": node}})
                found = await self.w.schedule()
                assert found[f"last-{node}"].node == node, found


def gpus_known(fleet: Fleet) -> dict[str, NodeGpus]:
    """Return what a fleet knows of its nodes' GPUs, by node."""
    return {name: there.gpus for name, there in fleet.candidates.items()}


def asked(pod: Json, resource: str) -> int:
    """Return what a pod asks of a resource, init containers besides: as much as it may take, or more."""
    every = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    return sum(int(each.get("resources", {}).get("limits", {}).get(resource, 0)) for each in every)


# --- What may happen --------------------------------------------------------------------------------------------------

Amount = tuple[int | None, int | None]
"""How much memory, and how many GPUs."""
AMOUNTS: st.SearchStrategy[Amount] = st.sampled_from(
    [(mem, None) for mem in (1, 1, 1, 2, 2, 3, 4)] + [(None, count) for count in (1, 1, 2)] + [(None, None)]
)


def asking(name: str, amount: Amount, *, sidecar: bool = False) -> Json:
    mem, count = amount
    return container(name, mem=mem, count=count, sidecar=sidecar)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """Draw what a pod consists of."""
    apps = [asking(f"c{n}", draw(AMOUNTS)) for n in range(draw(st.sampled_from([1, 1, 1, 2])))]
    init = [
        asking(f"i{n}", draw(AMOUNTS), sidecar=draw(st.booleans()))
        for n in range(draw(st.sampled_from([0, 0, 0, 1, 2])))
    ]
    labels = draw(st.sampled_from([{}, {}, {}, {}, {"aliyun.com/gpu-count": "2"}]))
    annotations = draw(
        st.sampled_from([{}, {}, {}, {"gpu-device-plugin/gpu-policy": "spread"}, {ALLOCATION: '{"0":{"0":4}}'}])
    )
    rest = {"init": tuple(init), "labels": labels, "annotations": annotations}
    return {"containers": apps, "rest": rest | {"priority": draw(st.sampled_from([0, 0, 0, 100, 1000]))}}


PROBED: list[list[Amount]] = [
    [(1, None)],
    [(3, None)],
    [(None, 1)],
    [(2, None), (2, None)],
    [(None, 1), (1, None)],
]
PROBES = [builders.pod("probe", *(asking(f"c{n}", amount) for n, amount in enumerate(several))) for several in PROBED]
TROUBLE = st.sampled_from(
    [Reset(), Reset(done=True), Hang(), Hang(done=True), Answer(500), Answer(500, done=True), Answer(403), Answer(429)]
    + [Slow(0.05)] * 4
)
WHICH = st.integers(0, 100)
ENDS = st.sampled_from(["ends", "is deleted", "is finished", "is finished", "is forced"])
HAPPENINGS: Happenings = {
    "schedule": (14, st.lists(pods(), min_size=1, max_size=4)),
    "create": (2, st.lists(pods(), min_size=1, max_size=2)),
    "run": (8, st.tuples(WHICH)),
    "end": (10, st.tuples(WHICH, ENDS)),
    "somebody_binds": (2, st.tuples(WHICH, st.sampled_from(list(NODES)))),
    "an_agent_reports": (2, st.tuples(WHICH)),
    "a_node_goes": (1, st.tuples(st.sampled_from(list(NODES)))),
    "nodes_come_back": (1, st.just(())),
    "cards_change": (1, st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=3))),
    "bindings_fail": (4, st.tuples(TROUBLE, st.integers(1, 4), st.sampled_from(["well", "well", "in vain"]))),
    "watches_miss": (2, st.tuples(WHICH, ENDS, pods())),
    "watches_end": (2, st.tuples(st.sampled_from(["410", "reset", "closed"]))),
    "watches_lag": (2, st.just(())),
    "the_api_server_restarts": (1, st.just(())),
    "the_extender_restarts": (2, st.just(())),
    "a_moment_passes": (3, st.just(())),
    "quiet": (1, st.just(())),
}


@CHANCE
@given(
    life=lives(HAPPENINGS, 30),
    node_policy=st.sampled_from(["binpack", "spread"]),
    gpu_policy=st.sampled_from(["binpack", "spread"]),
)
async def test_whatever_happens_no_gpu_is_promised_twice(life: Life, node_policy: str, gpu_policy: str) -> None:
    async with world(timings=TIMINGS, node_policy=node_policy, gpu_policy=gpu_policy) as w:
        cluster = Cluster(w)
        await cluster.nodes_come_back()
        await w.start()
        await live(cluster, life)
        await cluster.quiet()
        cluster.check()
        await cluster.alive()
