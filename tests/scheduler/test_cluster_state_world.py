"""A cluster in which anything happens in any order, and the fleet that follows it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_device_plugin.model.contract.keys import IDX
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.node_evaluator import UNKNOWN, NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit, unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import NOTHING, Usage, promise, usage_of
from tests.resources import COUNT, MEM, RESOURCES
from tests.scores import score

VANISHED_GRACE_S = 30.0
NODES = {
    name: NodeGpus(tuple(ListedGpu(n, size) for n, size in enumerate(sizes)), share_mib=1024)
    for name, sizes in {"a": (8, 8), "b": (4,), "c": (6, 3, 6)}.items()
}
SHAPES: tuple[tuple[tuple[ContainerKind, Resource, int], ...], ...] = (
    ((ContainerKind.APP, MEM, 3),),
    ((ContainerKind.APP, MEM, 6),),
    ((ContainerKind.APP, COUNT, 1),),
    ((ContainerKind.APP, COUNT, 2),),
    ((ContainerKind.APP, MEM, 2), (ContainerKind.APP, MEM, 5)),
    ((ContainerKind.INIT, MEM, 4), (ContainerKind.APP, MEM, 2)),
    ((ContainerKind.SIDECAR, MEM, 1), (ContainerKind.APP, COUNT, 1)),
)
"""What the containers of a pod ask."""


NAMES = st.sampled_from(sorted(NODES))
WHICH = st.integers(0, 9)
SELDOM = st.sampled_from([False, False, False, True])


def overfull(usages: Iterable[Usage], sizes: list[int]) -> bool:
    """Whether a GPU is asked for more than it is."""
    shares = [0] * len(sizes)
    whole = [0] * len(sizes)
    for usage in usages:
        for position, number in usage.shares:
            shares[position] += number
        for position in usage.whole:
            whole[position] += 1
    return any(n > size or taken > 1 or (n and taken) for n, taken, size in zip(shares, whole, sizes, strict=True))


class World(RuleBasedStateMachine):
    """The API server, what of it has not been told yet, the bindings under way, and the fleet.

    Pods are bound by us alone, except where it says otherwise; the binding itself works or not, and its answer comes or
    is lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(RESOURCES, vanished_grace_s=VANISHED_GRACE_S)
        self.evaluator = NodeEvaluator(self.fleet.now)
        self.now = 0.0
        self.numbers = count()
        self.there: dict[str, Pod] = {}
        self.nodes: dict[str, NodeGpus] = {}
        self.untold: deque[tuple[str, Pod]] = deque()
        self.ghosts: list[tuple[float, str, Usage]] = []
        """Processes of pods that were deleted by force: until when they run, on which node, and what they use."""
        self.underway: dict[str, tuple[Pod, bool]] = {}
        """The pod as it is being bound, and whether the API server has done it."""
        for name in NODES:
            self.node_comes_or_goes(name, goes=False)

    def one_of(self, which: int, *, bound: bool) -> Pod | None:
        """One of the pods that are bound, or are not, and have not ended; None if there is none."""
        pods = [pod for pod in self.there.values() if bool(pod.node_name) == bound and not pod.ended]
        return pods[which % len(pods)] if pods else None

    def change(self, pod: Pod) -> None:
        self.there[pod.uid] = pod
        self.untold.append(("put", pod))

    # --- The cluster --------------------------------------------------------------------------------------------------

    @rule(shapes=st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4), told=st.booleans())
    def pods_come(self, shapes: list[tuple[tuple[ContainerKind, Resource, int], ...]], *, told: bool) -> None:
        for shape in shapes:
            uid = f"uid-{next(self.numbers)}"
            containers = tuple(
                Container(f"c{n}", kind, n, {resource.name: amount}) for n, (kind, resource, amount) in enumerate(shape)
            )
            self.change(Pod(uid, "default", uid, containers=containers, priority=len(self.there) % 3))
        if told:
            self.things_are_told(len(self.untold))

    @rule(which=WHICH, phase=st.sampled_from(["Running", "Running", "Succeeded", "Failed"]))
    def pod_goes_on(self, which: int, phase: str) -> None:
        pod = self.one_of(which, bound=True)
        if pod is not None:
            self.change(replace(pod, phase=phase, running=phase == "Running"))

    @rule(which=WHICH, bound=st.booleans(), how=st.sampled_from(["asked", "asked", "asked", "done", "by force"]))
    def pod_is_deleted(self, which: int, how: str, *, bound: bool) -> None:
        pod = self.one_of(which, bound=bound)
        if pod is None:
            return
        if how == "asked" and bound:
            self.change(replace(pod, deleting=True))
            return
        del self.there[pod.uid]
        if how == "by force":
            self.untold.append(("remove", pod))
            if bound and (pod.running or not pod.deleting):
                self.ghosts.append((self.now + VANISHED_GRACE_S, pod.node_name, usage_of(pod, RESOURCES)))
        else:
            self.untold.append(("remove", replace(pod, deleting=True, running=False)))

    @rule(name=NAMES, goes=SELDOM)
    def node_comes_or_goes(self, name: str, *, goes: bool) -> None:
        if goes:
            self.nodes.pop(name, None)
            self.fleet.remove_node(name)
        else:
            self.nodes[name] = NODES[name]
            self.fleet.put_node(name, NODES[name])

    @rule(seconds=st.sampled_from([1.0, 20.0, VANISHED_GRACE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] > self.now]
        self.fleet.expire(self.now)

    # --- What is told -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.untold)
    @rule(number=st.integers(1, 5))
    def things_are_told(self, number: int) -> None:
        for _ in range(min(number, len(self.untold))):
            what, pod = self.untold.popleft()
            if what == "put":
                self.fleet.put_pod(pod)
            else:
                self.fleet.remove_pod(pod, self.now)

    def nodes_are_listed(self, nodes: dict[str, NodeGpus]) -> None:
        for name in self.fleet.candidates.keys() - nodes:
            self.fleet.remove_node(name)
        for name, gpus in nodes.items():
            self.fleet.put_node(name, gpus)

    @rule()
    def everything_is_told_anew(self) -> None:
        """The watch broke, and what happened meanwhile is seen in its result alone."""
        self.untold.clear()
        self.fleet.replace_pods(list(self.there.values()), self.now)
        self.nodes_are_listed(self.nodes)
        before = dict(self.fleet.entries), dict(self.fleet.candidates)
        self.fleet.replace_pods(list(self.there.values()), self.now)
        self.nodes_are_listed(self.nodes)
        assert (dict(self.fleet.entries), dict(self.fleet.candidates)) == before
        assert all(self.fleet.candidates[name] is each for name, each in before[1].items())

    @rule(which=WHICH, bound=st.booleans())
    def something_old_is_told(self, which: int, *, bound: bool) -> None:
        """How a pod was before it was bound, as a list from a server that lags behind has it."""
        pod = self.one_of(which, bound=bound)
        if pod is not None and (not bound or pod.uid in self.fleet.entries):
            taken = self.fleet.entries.get(pod.uid)
            old = replace(pod, node_name="", annotations={}, phase="Pending", running=False, deleting=False)
            self.fleet.put_pod(old)
            assert self.fleet.entries.get(pod.uid) == taken

    # --- Bindings -----------------------------------------------------------------------------------------------------

    @rule(which=WHICH, node=NAMES, policy=st.sampled_from(sorted(POLICIES)))
    def binding_begins(self, which: int, node: str, policy: str) -> None:
        waiting = [
            pod for uid in self.there if (pod := self.fleet.pending.get(uid)) is not None and uid not in self.underway
        ]
        there = self.fleet.candidates.get(node)
        if not waiting or there is None:
            return
        pod = waiting[which % len(waiting)]
        asked = ask(pod, RESOURCES)
        assert isinstance(asked, GpuRequest)
        found = fit(asked, there, policy)
        if isinstance(found, Fit):
            bound = replace(pod, node_name=node, annotations=promise(asked, found.placements, there.gpus, 7))
            self.underway[pod.uid] = bound, False
            self.fleet.claim(bound)

    @precondition(lambda self: self.underway)
    @rule(which=WHICH)
    def binding_is_made(self, which: int) -> None:
        """Not for a pod that is gone, or going, or bound."""
        uid = sorted(self.underway)[which % len(self.underway)]
        bound, made = self.underway[uid]
        pod = self.there.get(uid)
        if not made and pod is not None and not pod.node_name and not pod.deleting:
            self.underway[uid] = bound, True
            self.change(bound)

    @precondition(lambda self: self.underway)
    @rule(which=WHICH, lost=st.booleans())
    def binding_is_answered(self, which: int, *, lost: bool) -> None:
        """Or the answer is lost, and whoever claimed looks for the pod; it may be gone by then, and have been bound."""
        uid = sorted(self.underway)[which % len(self.underway)]
        bound, made = self.underway.pop(uid)
        if made and not lost:
            self.fleet.confirm(uid)
        elif not lost:
            self.fleet.release(uid)
        elif uid not in self.there:
            self.fleet.remove_pod(bound, self.now)
        elif self.there[uid].node_name:
            self.fleet.put_pod(self.there[uid])
        else:
            self.fleet.release(uid)

    # --- Others -------------------------------------------------------------------------------------------------------

    @rule(which=WHICH, node=NAMES, seldom=SELDOM)
    def someone_else_binds(self, which: int, node: str, *, seldom: bool) -> None:
        """A pod about which nothing is under way, and it is told at once; before that nobody could know."""
        pod = self.one_of(which, bound=False)
        if seldom and pod is not None and pod.uid not in self.underway:
            self.change(replace(pod, node_name=node))
            self.things_are_told(len(self.untold))

    @rule(which=WHICH, gpus=st.permutations(range(3)))
    def the_agent_tells_where_it_is(self, which: int, gpus: list[int]) -> None:
        """The kubelet gives a pod that nobody promised anything devices if there are some, or lets it fail."""
        pod = self.one_of(which, bound=True)
        if pod is None or not usage_of(pod, RESOURCES).unplaced:
            return
        uses = {entry.uid: entry.usage for entry in self.fleet.on_node(pod.node_name)} | self.bound(pod.node_name)
        del uses[pod.uid]
        sizes = self.sizes(pod.node_name)
        for gpu in gpus:
            placed = replace(pod, annotations={IDX: str(gpu)})
            use = usage_of(placed, RESOURCES)
            if gpu < len(sizes) and not use.unplaced and not overfull([use, *uses.values()], sizes):
                self.change(placed)
                return
        self.change(replace(pod, phase="Failed"))

    # --- What holds ---------------------------------------------------------------------------------------------------

    def sizes(self, node: str) -> list[int]:
        return [gpu.shares for gpu in NODES[node].gpus]

    def bound(self, node: str) -> dict[str, Usage]:
        """What the pods take that are bound to a node, by uid."""
        return {
            uid: usage_of(pod, RESOURCES) for uid, pod in self.there.items() if pod.node_name == node and not pod.ended
        }

    @invariant()
    def no_gpu_is_promised_twice(self) -> None:
        for name in NODES:
            assert not overfull([entry.usage for entry in self.fleet.on_node(name)], self.sizes(name))

    @invariant()
    def no_gpu_is_used_twice(self) -> None:
        for name in NODES:
            ghosts = [use for _, node, use in self.ghosts if node == name]
            assert not overfull([*self.bound(name).values(), *ghosts], self.sizes(name))

    @invariant()
    def whatever_is_bound_counts(self) -> None:
        for uid, pod in self.there.items():
            if pod.node_name and not pod.ended:
                assert self.fleet.entries[uid].node == pod.node_name

    @invariant()
    def candidates_are_what_the_entries_make_of_the_nodes(self) -> None:
        assert set(self.fleet.candidates) == set(self.nodes)
        by_node = {name: [e.usage for e in self.fleet.entries.values() if e.node == name] for name in self.nodes}
        for name, gpus in self.nodes.items():
            assert self.fleet.candidates[name] == candidate(name, gpus, by_node[name])
            assert sorted(map(repr, by_node[name])) == sorted(repr(entry.usage) for entry in self.fleet.on_node(name))

    @invariant()
    def the_nodes_with_less_important_pods_are_those_of_the_entries(self) -> None:
        for priority in (0, 1, 2):
            below = {entry.node for entry in self.fleet.entries.values() if entry.priority < priority}
            assert self.fleet.nodes_below(priority) == below

    @rule(shape=st.sampled_from(SHAPES), policy=st.sampled_from(sorted(POLICIES)))
    def the_scheduler_asks(self, shape: tuple[tuple[ContainerKind, Resource, int], ...], policy: str) -> None:
        """Whatever came before, it hears what somebody would say who knows the entries and remembers nothing."""
        containers = tuple(
            Container(f"c{n}", kind, n, {resource.name: amount}) for n, (kind, resource, amount) in enumerate(shape)
        )
        asked = ask(Pod("uid", "default", "uid", containers=containers), RESOURCES)
        assert isinstance(asked, GpuRequest)
        names = sorted(NODES)
        by_node = {name: [e.usage for e in self.fleet.entries.values() if e.node == name] for name in self.nodes}
        there = {name: candidate(name, gpus, by_node[name]) for name, gpus in self.nodes.items()}
        assert list(self.evaluator.verdicts(asked, names)) == [
            unfit(asked, there[name]) if name in there else UNKNOWN for name in names
        ]
        assert list(self.evaluator.scores(asked, names, policy, policy)) == [
            score(asked, there[name], policy, policy) if name in there else 0 for name in names
        ]

    def teardown(self) -> None:
        """Once all is told, the fleet is what the cluster is; once all pods are gone, nothing is left of them."""
        self.things_are_told(len(self.untold))
        while self.underway:
            self.binding_is_answered(0, lost=False)
        # A pod that went while it was being bound, and that no event tells of, is missed by the next list.
        self.fleet.replace_pods(tuple(self.there.values()), self.now)
        self.time_passes(VANISHED_GRACE_S)
        bound = {uid: use for name in NODES for uid, use in self.bound(name).items()}
        assert {uid: entry.usage for uid, entry in self.fleet.entries.items()} == bound
        for uid, pod in self.there.items():
            assert (self.fleet.pending.get(uid) == pod) == (not pod.node_name)
            assert usage_of(pod, RESOURCES) != NOTHING
        self.untold.extend(("remove", replace(pod, phase="Failed")) for pod in self.there.values())
        self.there.clear()
        self.things_are_told(len(self.untold))
        assert (self.fleet.candidates.keys(), self.fleet.entries, self.fleet.pending) == (self.nodes.keys(), {}, {})
        self.nodes_are_listed({})
        assert (self.fleet._nodes, self.fleet._expiring) == ({}, set())


World.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestWorld = World.TestCase
