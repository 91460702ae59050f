"""Pods are bound, resized and end in any order, extenders die at any moment: no GPU is promised beyond its size."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_device_plugin.features.elastic.scheduler import Patch, Resizes
from gpu_device_plugin.kubernetes.client.api_client import LATEST_COMMIT_S
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, RESIZE_BOUND
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import Usage, promise, usage_of
from tests.resources import MEM, RESOURCES
from tests.scheduler.contexts import context

SIZES = {"a": (8, 6)}
NODES = {
    name: NodeGpus(tuple(ListedGpu(n, size) for n, size in enumerate(sizes)), share_mib=1024)
    for name, sizes in SIZES.items()
}
VANISHED_GRACE_S = 30.0
BOUND = 4
WHICH = st.integers(0, 9)


class Extender:
    """One extender, and the part of the history that it has seen."""

    def __init__(self, world: World) -> None:
        self.fleet = Fleet(RESOURCES, vanished_grace_s=VANISHED_GRACE_S)
        self.resizes = Resizes(context(self.fleet, clock=lambda: world.now))
        self.seen = len(world.history)
        for name, gpus in NODES.items():
            self.fleet.put_node(name, gpus)
        pods = list(world.pods.values())
        self.fleet.replace_pods(pods, world.now)
        self.resizes.kept_pods({pod.uid: pod for pod in pods})


class World(RuleBasedStateMachine):
    """The API server, the agents, the extender that leads, and the requests that are on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = count(1)
        self.pods: dict[str, Pod] = {}
        self.history: list[tuple[str, Pod]] = []
        self.holds: dict[str, int] = {}
        """What the agents hold for the container of each pod."""
        self.seen_by_agent: dict[str, Pod] = {}
        self.unwritten: dict[str, str] = {}
        """What the agents hold and have not written yet, as annotations."""
        self.underway: list[Patch] = []
        self.late: list[tuple[float, Patch]] = []
        """Patches that may still be made, and when we gave up on them."""
        self.leader = Extender(self)
        for mem in (1, 2, 2):
            self.a_pod_is_bound(mem)

    def change(self, pod: Pod) -> Pod:
        pod = replace(pod, resource_version=str(next(self.numbers)))
        self.pods[pod.uid] = pod
        self.history.append(("put", pod))
        return pod

    def running(self, which: int) -> Pod | None:
        pods = [pod for pod in self.pods.values() if not pod.ended]
        return pods[which % len(pods)] if pods else None

    # --- Owners and nodes ---------------------------------------------------------------------------------------------

    @rule(mem=st.sampled_from([1, 3, 0, 0, 0, 0]))
    def a_pod_is_bound(self, mem: int, node: str = "a") -> None:
        if not mem:
            return
        uid = f"uid-{next(self.numbers)}"
        containers = (Container("main", ContainerKind.APP, 0, {MEM.name: mem}),)
        pod = Pod(uid, "default", uid, containers=containers, running=True)
        asked, there = ask(pod, RESOURCES), self.leader.fleet.candidates[node]
        assert isinstance(asked, GpuRequest)
        found = fit(asked, there, "spread")
        if isinstance(found, Fit):
            annotations = promise(asked, found.placements, there.gpus, 7)
            bound = replace(pod, node_name=node, annotations=annotations)
            self.leader.fleet.claim(bound)
            self.change(bound)
            self.leader.fleet.confirm(uid)
            self.holds[uid] = mem

    @rule(which=WHICH, shares=st.integers(0, 6), told=st.booleans())
    def the_owner_wishes(self, which: int, shares: int, *, told: bool) -> None:
        """Often of a pod that has got more before."""
        grown = [pod for pod in self.pods.values() if not pod.ended and usage_of(pod, RESOURCES).growth]
        pod = grown[which % len(grown)] if grown and which % 2 else self.running(which)
        if pod is not None:
            if told:
                self.seen_by_agent[pod.uid] = pod
            annotations = {key: text for key, text in pod.annotations.items() if key != MEMORY_GUARANTEE}
            self.change(replace(pod, annotations=annotations | ({MEMORY_GUARANTEE: str(shares)} if shares else {})))

    @rule(which=WHICH, how=st.sampled_from(["ends", "ends and goes", "is deleted by force", *["stays"] * 3]))
    def a_pod_goes(self, which: int, how: str) -> None:
        pod = self.running(which)
        if pod is None or how == "stays":
            return
        if how != "is deleted by force":
            pod = self.change(replace(pod, phase="Succeeded", running=False))
        if how != "ends":
            del self.pods[pod.uid]
            self.history.append(("remove", pod))
        for known in (self.holds, self.unwritten, self.seen_by_agent):
            known.pop(pod.uid, None)

    # --- Agents -------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 4))
    def the_agent_sees_pods(self, number: int) -> None:
        newest = sorted(
            (pod for pod in self.pods.values() if not pod.ended), key=lambda pod: -int(pod.resource_version)
        )
        self.seen_by_agent.update({pod.uid: pod for pod in newest[:number]})

    @precondition(lambda self: self.seen_by_agent)
    @rule(which=WHICH, writes=st.booleans())
    def an_agent_acts(self, which: int, *, writes: bool = False) -> None:
        """It moves what it holds to the lesser of wish and promise, if its GPU has room, and writes it later."""
        pod = self.seen_by_agent[sorted(self.seen_by_agent)[which % len(self.seen_by_agent)]]
        request, held = pod.containers[0].limits[MEM.name], self.holds[pod.uid]
        wish = int(pod.annotations.get(MEMORY_GUARANTEE, request))
        promised = json.loads(pod.annotations[MEMORY_PROMISED]).get("guarantees", {}).get("main", request)
        target = max(request, min(wish, promised))
        ((position, _),) = usage_of(pod, RESOURCES).requested.shares
        others = sum(
            self.holds[uid]
            for uid, other in self.pods.items()
            if uid in self.holds and uid != pod.uid and other.node_name == pod.node_name and _gpu(other) == position
        )
        if target <= held or others + target <= SIZES[pod.node_name][position]:
            self.holds[pod.uid] = target
        said = {
            "guarantees": {"main": self.holds[pod.uid]} if self.holds[pod.uid] > request else {},
            "wish": pod.annotations.get(MEMORY_GUARANTEE, ""),
        }
        self.unwritten[pod.uid] = json.dumps(said)
        if writes:
            self.an_agent_writes(sorted(self.unwritten).index(pod.uid))

    @precondition(lambda self: self.unwritten)
    @rule(which=WHICH)
    def an_agent_writes(self, which: int) -> None:
        uid = sorted(self.unwritten)[which % len(self.unwritten)]
        text = self.unwritten.pop(uid)
        if uid in self.pods:
            pod = self.pods[uid]
            self.change(replace(pod, annotations={**pod.annotations, MEMORY_HELD: text}))

    # --- The leader ---------------------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 20))
    def the_leader_sees(self, number: int) -> None:
        for what, pod in self.history[self.leader.seen : self.leader.seen + number]:
            if what == "put":
                self.leader.fleet.put_pod(pod, self.now)
                self.leader.resizes.put_pod(pod)
            else:
                self.leader.fleet.remove_pod(pod, self.now)
                self.leader.resizes.remove_pod(pod.uid)
        self.leader.seen = min(len(self.history), self.leader.seen + number)

    @rule()
    def the_leader_lists(self) -> None:
        """Its watch broke."""
        pods = list(self.pods.values())
        self.leader.fleet.replace_pods(pods, self.now)
        self.leader.resizes.kept_pods({pod.uid: pod for pod in pods})
        self.leader.seen = len(self.history)

    @rule(most=st.integers(1, 5), number=st.sampled_from([3, 30, 30]), later=st.booleans())
    def the_leader_decides(self, most: int, number: int = 0, *, later: bool = False) -> None:
        """On what it has seen by now; it catches up before it gives up on a patch."""
        self.it_is(self.now + 1.0 if later else self.now)
        expired = self.leader.resizes.expired()
        self.the_leader_sees(len(self.history) if expired else number)
        self.leader.resizes.give_up(expired)
        for pod in self.leader.resizes.take(most):
            _, patch = self.leader.resizes.decide(pod.uid, {RESIZE_BOUND: str(BOUND)})
            if patch is not None and patch not in self.underway:
                self.underway.append(patch)

    @precondition(lambda self: self.underway)
    @rule(which=WHICH, fate=st.sampled_from(["answered", "answered", "answered", "made", "late", "refused"]))
    def a_patch_arrives(self, which: int, fate: str) -> None:
        patch = self.underway.pop(which % len(self.underway))
        if fate == "late":
            self.late.append((self.now, patch))
        after = self.made(patch) if fate in {"answered", "made"} else None
        if fate in {"made", "late"}:
            self.leader.resizes.failed(patch, certain=False)
        elif after is None:
            self.leader.resizes.failed(patch, certain=True, outdated=fate == "answered")
        else:
            self.leader.resizes.written(patch, after)

    @precondition(lambda self: self.late)
    @rule(which=WHICH)
    def a_late_patch_arrives(self, which: int) -> None:
        self.made(self.late.pop(which % len(self.late))[1])

    def made(self, patch: Patch) -> Pod | None:
        """Let the API server make a patch; None: the pod is newer, or gone."""
        pod = self.pods.get(patch.pod.uid)
        if pod is None or pod.resource_version != patch.pod.resource_version:
            return None
        return self.change(replace(pod, annotations={**pod.annotations, MEMORY_PROMISED: patch.promised}))

    @rule(land=st.booleans())
    def the_leader_dies(self, *, land: bool) -> None:
        """Its requests have been made or are lost before another one leads, which takes a lease's time."""
        for patch in (*self.underway, *(patch for _, patch in self.late)) if land else ():
            self.made(patch)
        self.underway.clear()
        self.late.clear()
        self.leader = Extender(self)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, VANISHED_GRACE_S, 61.0]))
    def time_passes(self, seconds: float) -> None:
        """An agent does not take seconds to write what it has done, nor a request more than a minute."""
        if seconds >= 1:
            while self.unwritten:
                self.an_agent_writes(0)
            self.seen_by_agent = {uid: pod for uid, pod in self.pods.items() if uid in self.seen_by_agent}
        self.it_is(self.now + seconds)
        self.leader.fleet.expire(self.now)

    def it_is(self, now: float) -> None:
        self.now = now
        self.late = [(at, patch) for at, patch in self.late if now - at < LATEST_COMMIT_S]

    # --- What holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def no_gpu_is_promised_beyond_its_size(self) -> None:
        for name in NODES:
            assert_fits(name, [entry.usage for entry in self.leader.fleet.on_node(name)])
            counted = [pod for pod in self.pods.values() if pod.node_name == name and not pod.ended]
            assert_fits(name, [usage_of(pod, RESOURCES) for pod in counted])

    @invariant()
    def no_agent_holds_what_the_fleet_does_not_count(self) -> None:
        """But for what it has taken a moment ago under an earlier promise and not written yet."""
        for uid, shares in self.holds.items():
            if uid not in self.unwritten and uid in self.leader.fleet.entries:
                assert self.leader.fleet.entries[uid].usage.all_shares >= shares

    @invariant()
    def the_namespace_gets_no_more_than_its_bound(self) -> None:
        assert sum(usage_of(pod, RESOURCES).growth for pod in self.pods.values() if not pod.ended) <= BOUND

    @invariant()
    def no_claim_outlives_its_pod(self) -> None:
        assert self.leader.fleet._growing.keys() <= self.leader.fleet.entries.keys()
        assert sum(self.leader.fleet.growth.values()) == sum(
            entry.usage.growth for entry in self.leader.fleet.entries.values()
        )

    def teardown(self) -> None:
        """Once all is told and answered, no claim is left, and every wish is fulfilled or has a reason."""
        while self.underway:
            self.a_patch_arrives(0, "answered")
        self.late.clear()
        for _ in range(8):
            self.time_passes(61.0)
            self.the_leader_sees(len(self.history))
            self.the_leader_decides(100)
            while self.underway:
                self.a_patch_arrives(0, "answered")
            self.the_agent_sees_pods(100)
            for which in range(len(self.seen_by_agent)):
                self.an_agent_acts(which)
        self.time_passes(61.0)
        self.the_leader_sees(len(self.history))
        assert not self.leader.resizes._claims
        assert not self.leader.fleet._growing
        assert {uid: entry.usage for uid, entry in self.leader.fleet.entries.items()} == {
            uid: usage_of(pod, RESOURCES) for uid, pod in self.pods.items() if not pod.ended
        }
        for pod in self.pods.values():
            if not pod.ended:
                self._is_answered(pod)

    def _is_answered(self, pod: Pod) -> None:
        request = pod.containers[0].limits[MEM.name]
        answer = json.loads(pod.annotations[MEMORY_PROMISED])
        wish = int(pod.annotations.get(MEMORY_GUARANTEE, request))
        promised = answer.get("guarantees", {}).get("main", request)
        assert promised == max(request, wish) or (answer["why"] and promised < wish), (pod, answer)
        assert self.holds[pod.uid] == promised, "the agent follows"


def _gpu(pod: Pod) -> int:
    ((position, _),) = usage_of(pod, RESOURCES).requested.shares
    return position


def assert_fits(node: str, usages: Iterable[Usage]) -> None:
    taken: dict[int, int] = defaultdict(int)
    for usage in usages:
        for position, shares in usage.shares:
            taken[position] += shares
    assert all(shares <= SIZES[node][position] for position, shares in taken.items()), (node, dict(taken))


World.TestCase.settings = settings(max_examples=80, stateful_step_count=60)
TestWorld = World.TestCase
