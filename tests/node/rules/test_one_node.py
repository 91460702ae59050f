"""One node over time: pods come and go, the kubelet and the agent restart, GPUs break; no device is allocated twice.

The kubelet is a model of the device manager's rules: it chooses at random among the preferred IDs, completes the choice
at random from the others, hands the devices of init containers on, frees the devices of ended pods only, and has two
records of them, neither of which is complete. Up to 1.31 it keeps the pod that it admitted last. The agent has access
to the Kubernetes API, or has none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.promises import Promise
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.model.pods import ContainerKind, Pod
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.admission import Refusal, admit
from gpu_device_plugin.node.rules.advertised_devices import offers
from gpu_device_plugin.node.rules.ended_pods import EndedPods, PodsInApi, pods_in_api
from gpu_device_plugin.node.rules.ledger import SETTLING_S, Ledger, Reading, ReleaseEvidence
from gpu_device_plugin.node.rules.matching import ContainerRequest, Match, Matched, WaitingPod
from gpu_device_plugin.node.rules.node import Block, Node
from gpu_device_plugin.node.rules.preferred_allocation import UNMATCHED, PreferredAllocationRequest
from tests.nodes import node, uuid

MEMORY, COUNT = Kind.MEMORY, Kind.COUNT
APP, INIT = ContainerKind.APP, ContainerKind.INIT
FOREVER = 1e9


@dataclass(frozen=True)
class Asked:
    """A container: its kind and its requests."""

    kind: ContainerKind
    mem: int
    count: int
    several: bool
    """A scheduler promises its memory, on as many GPUs as it likes."""


@dataclass
class Running:
    """A pod in the kubelet's records."""

    uid: str
    """A static pod's has no dashes."""
    name: str
    """Others that come later may have the same one."""
    devices: dict[tuple[int, Kind], set[str]] = field(default_factory=dict)
    """By the number of the container."""
    inits: set[int] = field(default_factory=set)
    promises: dict[int, Promise] = field(default_factory=dict)
    ended: bool = False
    """It is not active any more; its entries in the records wait to be collected."""
    gone: bool = False
    """It is not in the API any more, and the kubelet knows."""

    @property
    def static(self) -> bool:
        return "-" not in self.uid

    def ids(self, *, with_inits: bool = True) -> set[str]:
        return {name for (n, _), some in self.devices.items() if with_inits or n not in self.inits for name in some}


@dataclass
class Agent:
    """The node agent's part: the rules, and their mutable state."""

    node: Node
    policy: str = "binpack"

    def prefer(
        self, kind: Kind, available: Iterable[str], must: Iterable[str], amount: int, whose: Matched
    ) -> list[str]:
        return list(
            PreferredAllocationRequest(self.node, kind, available, must, amount).answer(
                self.node, POLICIES[self.policy], whose
            )
        )

    def allocate(self, kind: Kind, ids: list[str], promise: Promise | None, answered: Callable[[], float]) -> bool:
        if isinstance(admit(self.node, kind, ids, promise), Refusal):
            return False
        self.node = self.node.with_ledger(self.node.ledger.granted(ids, answered()))
        return True


class Kubelet:
    """The device manager's rules."""

    def __init__(self, agent: Agent, *, keeps: bool, lists_terminal: bool) -> None:
        self.agent = agent
        self.keeps = keeps
        """The pod admitted last counts as active."""
        self.lists_terminal = lists_terminal
        self.pods: dict[int, Running] = {}
        self.healthy: dict[Kind, set[str]] = {MEMORY: set(), COUNT: set()}
        self.checkpoint: Mapping[str, frozenset[str]] = {}
        self.holds: tuple[Allocation, ...] = ()
        """The same, by container."""
        self.written = 0
        self.process = 0
        self.last: int | None = None
        self.forgetful = False
        """Just restarted: it knows some of its pods at the most."""
        self.found: set[int] = set()
        self.take()

    def allocated(self) -> set[str]:
        return set().union(*(pod.ids() for pod in self.pods.values()))

    def collect(self) -> None:
        """Forget the devices of pods that have ended."""
        if not self.forgetful:
            kept = self.last if self.keeps else None
            self.pods = {uid: pod for uid, pod in self.pods.items() if not pod.ended or uid == kept}

    def write(self) -> None:
        self.checkpoint = {pod.uid: frozenset(pod.ids()) for pod in self.pods.values() if pod.devices}
        self.holds = tuple(
            Allocation(pod.uid, f"c{number}", kind, frozenset(ids))
            for pod in self.pods.values()
            for (number, kind), ids in pod.devices.items()
        )
        self.written += 1

    def restart(self) -> None:
        self.process += 1
        self.last, self.forgetful, self.found = None, True, set()

    def listed(self) -> dict[str, frozenset[str]]:
        """PodResources.List: without ordinary init containers, and without most pods for a while after a restart."""
        self.collect()
        return {
            pod.name: frozenset(pod.ids(with_inits=False))
            for uid, pod in self.pods.items()
            if self.names(pod) and (not self.forgetful or uid in self.found)
        }

    def names(self, pod: Running) -> bool:
        """Whether PodResources names this pod."""
        return not pod.gone and (self.lists_terminal or not pod.ended)

    def take(self) -> None:
        """Receive both lists of devices."""
        for kind in OF_GPUS:
            lists = offers(self.agent.node, (kind, ""))
            self.healthy[kind] = {name for offer in lists for name, good in offer.devices((kind, "")) if good}
        self.write()

    def admit(self, uid: int, asked: list[Asked], random: Random, answered: Callable[[], float]) -> None:
        """Allocate for each container of a pod; after a failure its devices stay in the records for a while.
        `answered` is called between the agent's answer and the entry in the records; it returns the time.
        """
        taken = {other.name for other in self.pods.values() if not other.gone}
        name = next(f"default/p{n}" for n in range(len(taken) + 1) if f"default/p{n}" not in taken)
        made = str(UUID(int=uid))
        pod = self.pods[uid] = Running(made.replace("-", "") if random.random() < 0.2 else made, name)
        self.last = uid
        self.found.add(uid)
        reusable: dict[Kind, set[str]] = {MEMORY: set(), COUNT: set()}
        for number, container in enumerate(asked):
            if container.kind is INIT:
                pod.inits.add(number)
            for kind in random.sample(OF_GPUS, 2):
                amount = container.mem if kind is MEMORY else container.count
                promised = container.several and kind is MEMORY
                if not amount:
                    continue
                found = self._allocate(kind, amount, reusable[kind], random, answered, promised=promised)
                if found is None:
                    pod.ended = True
                    return
                chosen, promise = found
                pod.devices[number, kind] = chosen
                if promise is not None:
                    pod.promises[number] = promise
                reusable[kind] = reusable[kind] | chosen if container.kind is INIT else reusable[kind] - chosen
                self.write()

    def _allocate(
        self,
        kind: Kind,
        amount: int,
        reusable: set[str],
        random: Random,
        answered: Callable[[], float],
        *,
        promised: bool,
    ) -> tuple[set[str], Promise | None] | None:
        self.collect()
        chosen = set(random.sample(sorted(reusable), min(amount, len(reusable))))
        needed = amount - len(chosen)
        available = self.healthy[kind] - self.allocated()
        if needed > len(available):
            return None
        promise = self._promise(amount, random) if promised else None
        if needed:
            whose = UNMATCHED
            if promise is not None:
                wanted = ContainerRequest("c", kind, amount, promise=promise)
                whose = Matched(Match(WaitingPod("u", "default/a", (wanted,)), wanted), {})
            preferred = set(self.agent.prefer(kind, available | chosen, chosen, amount, whose)) & available
            first = random.sample(sorted(preferred), min(needed, len(preferred)))
            rest = random.sample(sorted(available - set(first)), needed - len(first))
            chosen |= {*first, *rest}
        given = self.agent.allocate(kind, random.sample(sorted(chosen), len(chosen)), promise, answered)
        return (chosen, promise) if given else None

    def _promise(self, amount: int, random: Random) -> Promise:
        """Promise any shares of any GPUs: a scheduler need not be right."""
        names = [name for shared in self.agent.node.shares.gpus for name in shared.shares]
        on = self.agent.node.shares.spread(random.sample(names, min(amount, len(names))))
        return Promise(tuple(sorted(on.items())))


DEMANDS = [(1, 0), (2, 0), (3, 0), (4, 0), (0, 1), (0, 1), (0, 2), (1, 1)]
"""Shares and whole GPUs of one container."""
CONTAINERS = st.lists(
    st.builds(
        lambda kind, demand, several: Asked(kind, demand[0], demand[1], several),
        st.sampled_from([APP, APP, INIT, ContainerKind.SIDECAR]),
        st.sampled_from(DEMANDS),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=3,
)
RANDOMS = st.randoms(use_true_random=False)


class OneNode(RuleBasedStateMachine):
    """Everything that can happen on a node."""

    @initialize(
        gib=st.lists(st.integers(2, 5), min_size=1, max_size=3),
        policy=st.sampled_from(sorted(POLICIES)),
        keeps=st.booleans(),
        lists_terminal=st.booleans(),
        api=st.booleans(),
        version_known=st.booleans(),
    )
    def begin(
        self, gib: list[int], policy: str, *, keeps: bool, lists_terminal: bool, api: bool, version_known: bool
    ) -> None:
        self.agent = Agent(node(*gib), policy)
        self.kubelet = Kubelet(self.agent, keeps=keeps, lists_terminal=lists_terminal)
        self.api = api
        self.version = ("v1.31.14" if keeps else "v1.36.2") if version_known else ""
        self.mirror: tuple[Pod, ...] = ()
        """The pods as the API's watch has shown them last."""
        self.ended_pods, self.listed_by = EndedPods(), 0
        self.clock = 1000.0
        self.uid = 0
        self.lingering: dict[int, Running] = {}
        """Force-deleted pods whose processes still run."""
        self.looking: tuple[dict[str, frozenset[str]], float, int, int] | None = None
        """A List, the time of the call, the checkpoint at that time, and the process that answered."""
        self.read_the_gpus()

    def now(self) -> float:
        self.clock += 0.001
        return self.clock

    # --- pods

    @rule(asked=CONTAINERS, random=RANDOMS)
    def admit(self, asked: list[Asked], random: Random) -> None:
        self.uid += 1
        self.kubelet.admit(self.uid, asked, random, self.now)

    @rule(asked=CONTAINERS, random=RANDOMS)
    def admit_while_the_agent_looks(self, asked: list[Asked], random: Random) -> None:
        """List and a checkpoint come between our answer to Allocate and the entry in the kubelet's records."""
        kubelet, between = self.kubelet, list[ReleaseEvidence]()

        def look() -> float:
            at = self.now()
            recorded = {pod.uid: frozenset(pod.ids()) for pod in kubelet.pods.values()}
            between.append(self.evidence(self.listed(), self.now(), recorded))
            return at

        self.uid += 1
        kubelet.admit(self.uid, asked, random, look)
        for evidence in between:
            self.reconcile(evidence)

    @precondition(lambda self: self.kubelet.pods)
    @rule(random=RANDOMS, deleted=st.booleans())
    def end(self, random: Random, *, deleted: bool) -> None:
        pod = self.kubelet.pods[random.choice(sorted(self.kubelet.pods))]
        pod.ended = True
        pod.gone = pod.gone or deleted

    @precondition(lambda self: self.kubelet.pods)
    @rule(random=RANDOMS)
    def delete_by_force(self, random: Random) -> None:
        """The kubelet forgets the pod at once; its processes run on."""
        uid = random.choice(sorted(self.kubelet.pods))
        pod = self.kubelet.pods[uid]
        if not pod.ended:
            self.lingering[uid] = replace(pod)
        pod.ended = pod.gone = True
        self.kubelet.collect()

    @precondition(lambda self: any(pod.static and pod.gone for pod in self.kubelet.pods.values()))
    @rule(random=RANDOMS)
    def a_static_pod_is_put_back(self, random: Random) -> None:
        """It has the same UID, and its entries in the records are its own again: the agent is not called."""
        kubelet = self.kubelet
        uid = random.choice([uid for uid, pod in kubelet.pods.items() if pod.static and pod.gone])
        if uid not in self.lingering:
            kubelet.pods[uid].ended = kubelet.pods[uid].gone = False
            kubelet.last = uid
            kubelet.found.add(uid)

    @rule()
    def the_watch_tells_of_the_pods(self) -> None:
        self.mirror = tuple(
            Pod(
                uid=f"mirror-of-{pod.uid}" if pod.static else pod.uid,
                namespace="default",
                name=pod.name.partition("/")[2],
                phase="Succeeded" if pod.ended else "Running",
                static_uid=pod.uid if pod.static else "",
            )
            for pod in self.kubelet.pods.values()
            if not pod.gone
        )

    @precondition(lambda self: self.lingering)
    @rule()
    def processes_end(self) -> None:
        self.lingering.popitem()

    # --- the agent

    @rule()
    def send_the_lists(self) -> None:
        self.kubelet.take()

    @rule()
    def ask_what_is_listed(self) -> None:
        self.looking = (self.listed(), self.now(), self.kubelet.written, self.kubelet.process)

    @rule()
    def read_the_checkpoint(self) -> None:
        over = self.ended_pods.over if self.listed_by == self.kubelet.process else frozenset()
        ids = frozenset().union(*(ids for uid, ids in self.kubelet.checkpoint.items() if uid not in over))
        there = self.agent.node
        self.agent.node = there.with_ledger(there.ledger.seen(ids))

    @precondition(lambda self: self.looking is not None and self.kubelet.written > self.looking[2])
    @rule()
    def read_a_checkpoint_written_since(self) -> None:
        assert self.looking is not None
        listed, began, _, process = self.looking
        self.looking = None
        if process == self.kubelet.process:
            self.reconcile(self.evidence(listed, began, self.kubelet.checkpoint))

    @rule()
    def read_both_records(self) -> None:
        listed, began = self.listed(), self.now()
        self.kubelet.take()
        self.reconcile(self.evidence(listed, began, self.kubelet.checkpoint))
        self.kubelet.take()

    def in_api(self) -> PodsInApi | None:
        return pods_in_api(self.mirror, self.version) if self.api else PodsInApi()

    def listed(self) -> dict[str, frozenset[str]]:
        """Call List, and remember the pods that it names, as long as the same process answers."""
        kubelet, recorded, in_api = self.kubelet, self.kubelet.checkpoint, self.in_api()
        before = self.ended_pods if self.listed_by == kubelet.process else EndedPods()
        self.listed_by = kubelet.process
        listed = kubelet.listed()
        self.ended_pods = EndedPods() if in_api is None else before.after(recorded, listed, in_api)
        return listed

    def evidence(
        self, listed: Mapping[str, frozenset[str]], began: float, recorded: Mapping[str, frozenset[str]]
    ) -> ReleaseEvidence:
        in_api = self.in_api()
        stale = frozenset() if in_api is None else self.ended_pods.stale(recorded, listed, in_api)
        # Where the kubelet itself frees the devices of ended pods, the API adds nothing.
        assert self.kubelet.keeps or self.kubelet.forgetful or not stale
        return ReleaseEvidence(frozenset().union(*listed.values()), began, frozenset().union(*recorded.values()), stale)

    def reconcile(self, evidence: ReleaseEvidence) -> None:
        """By readings that may be old."""
        there = self.agent.node
        ledger = there.ledger.reconciled(evidence, self.readings, self.now(), FOREVER)
        self.agent.node = there.with_ledger(ledger)

    @rule()
    def read_the_gpus(self) -> None:
        """NVML sees the processes of every pod that runs, known to the kubelet or not."""
        using, began = [parse_id(name)[0] for pod in self.in_use() for name in pod.ids()], self.now()
        there = self.agent.node
        self.readings = {shared.gpu.uuid: Reading(using.count(shared.gpu.uuid), began) for shared in there.shares.gpus}
        self.agent.node = there.with_ledger(there.ledger.released(self.readings, self.now(), FOREVER))

    def in_use(self) -> list[Running]:
        return [*self.lingering.values(), *(pod for pod in self.kubelet.pods.values() if not pod.ended)]

    @precondition(lambda self: not self.lingering)
    @rule(readable=st.booleans())
    def restart_the_agent(self, *, readable: bool) -> None:
        """It knows only the kubelet's records: first the checkpoint, then List."""
        ledger = Ledger().seen((), certain=readable)
        if readable:
            ledger = ledger.seen(frozenset().union(*self.kubelet.checkpoint.values()))
        listed = frozenset().union(*self.kubelet.listed().values())
        self.agent.node = self.agent.node.with_ledger(ledger.seen(listed))
        self.looking, self.ended_pods = None, EndedPods()

    @precondition(lambda self: not self.agent.node.ledger.certain)
    @rule()
    def the_checkpoint_can_be_read_again(self) -> None:
        ledger = self.agent.node.ledger.seen(frozenset().union(*self.kubelet.checkpoint.values()), certain=True)
        self.agent.node = self.agent.node.with_ledger(ledger)

    # --- the world

    @rule()
    def the_kubelet_restarts(self) -> None:
        """All it knows at first is its checkpoint, and it lists nothing for a while."""
        self.kubelet.restart()

    @precondition(lambda self: self.kubelet.forgetful)
    @rule(some=st.sets(st.integers(1, 40)), every=st.booleans())
    def the_kubelet_finds_pods_again(self, some: set[int], *, every: bool) -> None:
        """It admits them again one by one, and knows only at the end that there are no more."""
        self.kubelet.found |= some
        self.kubelet.forgetful = not every

    @rule(position=st.integers(0, 2), broken=st.booleans())
    def a_gpu_breaks_or_recovers(self, position: int, *, broken: bool) -> None:
        blocks = {name: block for name, block in self.agent.node.blocks.items() if name != uuid(position)}
        if broken:
            blocks[uuid(position)] = Block("it fell off the bus")
        self.agent.node = replace(self.agent.node, blocks=blocks)

    @rule(seconds=st.sampled_from((1.0, SETTLING_S)))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    @precondition(lambda self: not self.lingering)
    @rule()
    def quiet(self) -> None:
        """Without events for a while, the ledger equals the kubelet's records, and the lists follow from it."""
        self.clock += SETTLING_S
        self.kubelet.forgetful = False
        self.looking = None
        self.the_watch_tells_of_the_pods()
        self.read_the_checkpoint()
        there = self.agent.node
        self.agent.node = there.with_ledger(there.ledger.seen((), certain=True))
        self.read_both_records()
        self.read_the_gpus()
        known = {pod.uid: pod for pod in self.kubelet.pods.values()}
        in_api = self.in_api()
        over = {
            uid
            for uid, pod in known.items()
            if (not self.kubelet.names(pod) and uid in self.ended_pods.names)
            or (in_api is not None and uid in in_api.ended)
            if not pod.static
        }
        kept = set().union(*(pod.ids() for uid, pod in known.items() if uid not in over))
        assert self.agent.node.ledger.id_states.keys() == kept

    # --- invariants

    @invariant()
    def no_share_is_given_twice(self) -> None:
        taken = [name for pod in self.kubelet.pods.values() for name in pod.ids()]
        assert len(taken) == len(set(taken))

    @invariant()
    def no_container_is_spread_over_gpus_unless_that_was_promised(self) -> None:
        """They may be others than the promised ones if their number and the shares of each are the same."""
        for pod in self.in_use():
            for (number, kind), some in pod.devices.items():
                on = self.agent.node.shares.spread(some)
                promise = pod.promises.get(number)
                promised = promise is not None and promise.shares == tuple(sorted(on.items()))
                as_many = promise is not None and promise.split(len(some)) == len(on) and len(set(on.values())) == 1
                assert kind is COUNT or len(on) == 1 or promised or as_many

    @invariant()
    def no_gpu_is_used_whole_and_in_shares(self) -> None:
        """Nor do processes of pods that the kubelet has forgotten."""
        used: dict[Kind, set[str]] = {MEMORY: set(), COUNT: set()}
        for pod in self.in_use():
            for (_, kind), some in pod.devices.items():
                used[kind] |= {parse_id(name)[0] for name in some}
        assert not used[MEMORY] & used[COUNT]

    @invariant()
    def everything_in_use_is_in_the_ledger(self) -> None:
        ledger = self.agent.node.ledger
        if ledger.certain:
            assert ledger.id_states.keys() >= set().union(*(p.ids() for p in self.kubelet.pods.values() if not p.ended))


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(max_examples=100, stateful_step_count=40)
