"""One node over time, as in `test_one_node`: guarantees grow and shrink, and the agent may end at every step."""

from collections.abc import Mapping
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from gpu_device_plugin.features.elastic.contract import Allowance, PodGuarantees
from gpu_device_plugin.features.elastic.rules.reservations import elastics, fitting, owned, resize, taken_over
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED
from gpu_device_plugin.model.contract.reservations import Answer, write_answer
from gpu_device_plugin.model.pods import Container, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.ledger import ContainerKey, Reservation
from tests.node.rules.test_one_node import APP, CONTAINERS, INIT, Asked, OneNode, Running

STEPS = ("before", "shrunk", "saved", "grown", "answered")
"""Of one round of the agent; it may be killed after each."""
SEEDED = st.integers(0, 1 << 32).map(Random)
"""Draws that do not tend to the simplest."""


class GrowingNode(OneNode):
    """Owners wish what they like, and write what they like in the names of others."""

    @initialize(gib=st.lists(st.integers(6, 12), min_size=1, max_size=2), keeps=st.booleans(), api=st.booleans())
    def begin(self, gib: list[int], *, keeps: bool, api: bool) -> None:
        """The GPUs are large enough that pods leave some room."""
        OneNode.begin(self, gib, "binpack", keeps=keeps, lists_terminal=False, api=api, version_known=True)
        self.saved: Mapping[ContainerKey, Reservation] = {}
        """The file of the agent."""
        self.entries: tuple[Allocation, ...] = ()
        """The checkpoint as the agent read it last."""
        self.annotations: dict[str, dict[str, str]] = {}
        self.answered: dict[ContainerKey, int] = {}
        """What pods show that they are guaranteed beyond their requests, as long as their owners want it."""

    @rule(asked=CONTAINERS, random=SEEDED)
    def admit(self, asked: list[Asked], random: Random) -> None:
        """Of a machine with as many rules each is rare: something happens with guarantees whenever a pod comes."""
        OneNode.admit(self, asked, random)
        for _ in range(3):
            if self.kubelet.pods:
                self.an_owner_writes(random)
            self.the_agent_settles(random)
        if random.random() < 0.5:  # before the kubelet has the lists that fence more
            OneNode.admit(self, asked, random)
            self.the_guarantees_on_a_gpu_never_exceed_it()

    # --- owners

    @precondition(lambda self: self.kubelet.pods)
    @rule(random=SEEDED)
    def an_owner_writes(self, random: Random) -> None:
        pod = random.choice([*self.kubelet.pods.values()])
        names = [f"c{number}" for number, _ in pod.devices]
        largest = max((len(ids) for ids in pod.devices.values()), default=1)
        wish = str(max(1, largest + random.randint(-1, 4)))
        written = {MEMORY_GUARANTEE: wish}
        for key in (MEMORY_PROMISED, MEMORY_HELD):
            if random.random() < 0.3:
                written[key] = write_answer(Answer(dict.fromkeys(names, largest + random.randint(0, 4)), wish))
        self.annotations[pod.uid] = written
        parsed = PodGuarantees.of(self.described(pod))
        for (number, kind), ids in pod.devices.items():
            place = pod.uid, f"c{number}"
            if kind is Kind.MEMORY and place in self.answered:
                self.answered[place] = min(self.answered[place], parsed.size(place[1], 0, len(ids)).beyond)

    def described(self, pod: Running) -> Pod:
        numbers = sorted({number for number, _ in pod.devices})
        containers = tuple(Container(f"c{n}", INIT if n in pod.inits else APP, n) for n in numbers)
        return Pod(pod.uid, "default", pod.name, annotations=self.annotations.get(pod.uid, {}), containers=containers)

    # --- the agent

    @rule()
    def read_who_has_what(self) -> None:
        """The same reading of the checkpoint tells the ledger which IDs are in use."""
        self.read_the_checkpoint()
        self.entries = self.kubelet.holds

    @rule(random=SEEDED)
    def the_agent_settles(self, random: Random) -> None:
        """Sometimes the API shows no pod, and what the agent has read of the checkpoint may be old."""
        until = random.choice((*STEPS, "answered", "answered"))
        bound, away = random.choice((2, 9)), random.random() < 0.2
        if random.random() < 0.8:
            self.read_who_has_what()
        if not self.agent.node.ledger.certain or (until != "answered" and self.lingering):
            return  # it waits for the checkpoint; as in `restart_the_agent`
        self.become(owned(self.agent.node.ledger.reservations, self.entries))
        pods = [] if away else [self.described(pod) for pod in self.kubelet.pods.values() if not pod.ended]
        wishes = {pod.kubelet_uid: PodGuarantees.of(pod) for pod in pods}
        found = [each for some in elastics(self.entries, wishes, self.agent.node).values() for each in some]
        decided = resize(self.agent.node, found, ({}, 0), {"default": Allowance("default", bound)})[0]
        before = self.agent.node.ledger.reservations
        for step in STEPS[: STEPS.index(until) + 1]:
            if step == "shrunk":
                lower = (key for key in before if key in decided)
                self.become({key: min(before[key], decided[key], key=lambda g: g.shares) for key in lower})
            elif step == "saved":
                self.saved = decided
            elif step == "grown":
                self.become(decided)
            elif step == "answered":
                for each in found:
                    reservation = self.agent.node.ledger.reservations.get(each.key)
                    self.answered[each.key] = 0 if reservation is None else reservation.shares
        if until != "answered":
            self.restart_the_agent(readable=True)

    def become(self, reservations: Mapping[ContainerKey, Reservation]) -> None:
        there = self.agent.node
        self.agent.node = there.with_ledger(there.ledger.with_reservations(reservations))

    @precondition(lambda self: not self.lingering)
    @rule(readable=st.booleans())
    def restart_the_agent(self, *, readable: bool) -> None:
        """It has its file beside the kubelet's records. Until the checkpoint can be read, all of the file counts."""
        OneNode.restart_the_agent(self, readable=readable)
        self.become(self.saved)
        if readable:
            self.take_over()

    @precondition(lambda self: not self.agent.node.ledger.certain)
    @rule()
    def the_checkpoint_can_be_read_again(self) -> None:
        OneNode.the_checkpoint_can_be_read_again(self)
        self.take_over()

    def take_over(self) -> None:
        self.entries = self.kubelet.holds
        self.become(taken_over(self.agent.node.ledger.reservations, self.entries))
        self.become(fitting(self.agent.node))

    # --- what always holds

    @precondition(lambda self: not self.lingering)
    @rule()
    def quiet(self) -> None:
        """The agent takes its file over as soon as the checkpoint can be read."""
        certain = self.agent.node.ledger.certain
        OneNode.quiet(self)
        if not certain:
            self.take_over()

    @precondition(lambda self: not self.lingering)
    @rule()
    def nothing_outlives_its_pod(self) -> None:
        self.quiet()
        self.read_who_has_what()
        self.become(owned(self.agent.node.ledger.reservations, self.entries))
        kept = {pod.uid for pod in self.kubelet.pods.values()}
        assert {uid for uid, _ in self.agent.node.ledger.reservations} <= kept

    @invariant()
    def the_guarantees_on_a_gpu_never_exceed_it(self) -> None:
        """What the kubelet has allocated, and what has grown."""
        there = self.agent.node
        if not there.ledger.certain:
            return
        given = {name for pod in self.kubelet.pods.values() if not pod.ended for name in pod.ids()}
        for shared in there.shares.gpus:
            count = sum(parse_id(name) in {(shared.gpu.uuid, n) for n in range(len(shared.shares))} for name in given)
            reservation = sum(g.shares for g in there.ledger.reservations.values() if g.uuid == shared.gpu.uuid)
            assert there.use(shared).reserved == reservation
            assert count + reservation <= len(shared.shares)

    @invariant()
    def what_a_pod_shows_is_held(self) -> None:
        """Whatever happened to the agent since, as long as the pod runs and its owner wants it."""
        running = {pod.uid for pod in self.kubelet.pods.values() if not pod.ended}
        reservations = self.agent.node.ledger.reservations
        for key, shares in self.answered.items():
            if key[0] in running and shares:
                assert reservations[key].shares >= shares

    @invariant()
    def every_growth_belongs_to_ids_in_use(self) -> None:
        ledger = self.agent.node.ledger
        assert not ledger.certain or all(
            reservation.own <= ledger.id_states.keys() for reservation in ledger.reservations.values()
        )


TestGrowingNode = GrowingNode.TestCase
TestGrowingNode.settings = settings(max_examples=150, stateful_step_count=40)
