"""Several extenders, of which one is active, hold room, write it, and see late what others wrote, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_device_plugin.features.capacity.contract import HeldRoom, read_held
from gpu_device_plugin.features.capacity.held_room import Holds
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, ForbiddenError, UnavailableError
from gpu_device_plugin.model.contract.keys import HELD_ROOM
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Owner, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.resources import RESOURCES
from tests.scheduler.contexts import context

SIZE = 8
GPUS = NodeGpus((ListedGpu(0, SIZE), ListedGpu(1, SIZE)), share_mib=1024)
NODES = ("a", "b")
EXTENDERS = 3
LAST_S = 1000.0

which = st.integers(0, 9)
nodes = st.sampled_from(NODES)


@dataclass
class ApiDouble:
    """The annotations of the nodes, and what watches have still to show of them."""

    now: dict[str, tuple[int, str]] = field(default_factory=lambda: dict.fromkeys(NODES, (1, "")))
    trouble: str = ""
    """Of the next request: "lost" is one that is carried out."""
    versions: count[int] = field(default_factory=lambda: count(2))
    to_show: list[deque[tuple[str, int, str]]] = field(default_factory=lambda: [deque() for _ in range(EXTENDERS)])

    async def patch(self, _kind: object, name: str, change: Mapping[str, Any], *, timeout_s: float) -> ApiAnswer:
        assert timeout_s > 0
        trouble, self.trouble = self.trouble, ""
        if trouble in {"refused", "unreachable"}:
            raise self._error(ForbiddenError if trouble == "refused" else UnavailableError)
        self.write(name, change["metadata"]["annotations"][HELD_ROOM] or "")
        if trouble == "lost":
            raise self._error(UnavailableError)
        version, _ = self.now[name]
        body = b'{"metadata": {"name": "%s", "resourceVersion": "%d"}}' % (name.encode(), version)
        return ApiAnswer.to(Call("patch", "nodes", name=name), body)

    def write(self, name: str, text: str) -> None:
        if self.now[name][1] != text:
            self.now[name] = next(self.versions), text
            for each in self.to_show:
                each.append((name, *self.now[name]))

    @staticmethod
    def _error(kind: type[ApiError]) -> ApiError:
        return kind(Call("patch", "nodes"), "no")


def done(work: Coroutine[Any, Any, None]) -> None:
    """Carry out what never has to wait here."""
    try:
        work.send(None)
    except StopIteration:
        return
    except ApiError:
        return
    raise AssertionError(work)


class Extenders(RuleBasedStateMachine):
    """What the active extender believes to hold is what it decided, or what it found when it became active."""

    def __init__(self) -> None:
        super().__init__()
        self.api = ApiDouble()
        self.time_s = 0.0
        self.uids = (f"p{n}" for n in count())
        self.active = 0
        self.fleets = [Fleet(RESOURCES, vanished_grace_s=30) for _ in range(EXTENDERS)]
        self.all = [
            Holds(context(fleet, client=self.api, clock=lambda: self.time_s, wall=lambda: self.time_s))
            for fleet in self.fleets
        ]
        for fleet in self.fleets:
            for name in NODES:
                fleet.put_node(name, GPUS)
        self.held: dict[str, tuple[str, HeldRoom]] = {}
        self.bound: set[str] = set()

    @property
    def holds(self) -> Holds:
        """Of the active extender."""
        return self.all[self.active]

    # What the active extender does

    @rule(node=nodes, gpu=st.sampled_from([0, 1]), shares=st.integers(1, 4))
    def hold(self, node: str, gpu: int, shares: int) -> None:
        """Hold new room."""
        uid = next(self.uids)
        self._hold(node, HeldRoom(uid, "default", f"owner-of-{uid}", ((gpu, shares),), self.time_s + LAST_S))

    @precondition(lambda self: self.held)
    @rule(node=nodes, n=which)
    def hold_elsewhere(self, node: str, n: int) -> None:
        """Hold the room for a pod on perhaps another node."""
        self._hold(node, self._one(n)[1])

    @precondition(lambda self: self.held)
    @rule(n=which)
    def let_go(self, n: int) -> None:
        """Give room back."""
        uid = self._one(n)[1].uid
        del self.held[uid]
        self.holds.let_go(uid)

    @precondition(lambda self: self.held)
    @rule(n=which)
    def bind(self, n: int) -> None:
        """Bind the replacement of a pod in its room, if that is wide enough beside all others that are held."""
        node, room = self._one(n)
        ((_, shares),) = room.shares
        owner = Owner("ReplicaSet", "web", room.owner, "apps/v1")
        pod, asked = (
            Pod(f"new-{room.uid}", "default", "new", owner=owner),
            GpuRequest((Part(Demand(Kind.MEMORY, shares)),)),
        )
        found = self.holds.for_pod(pod, asked, NODES)
        if found is not None:
            assert found[1].name == node
            self.holds.taken(found[0], pod.uid)
            self.bound.add(room.uid)
            del self.held[room.uid]

    @rule(trouble=st.sampled_from(["", "", "refused", "unreachable", "lost"]))
    def write(self, trouble: str) -> None:
        """Write what is held; perhaps one request fails."""
        self.api.trouble = trouble
        done(self.holds.write())
        self.api.trouble = ""

    @rule(by_s=st.sampled_from([1.0, LAST_S / 2, LAST_S]))
    def time_passes(self, by_s: float) -> None:
        """Let the time of some rooms run out."""
        self.time_s += by_s
        for fleet in self.fleets:
            fleet.expire(self.time_s)
        self.holds.expire()
        self.held = {uid: each for uid, each in self.held.items() if each[1].until_s > self.time_s}

    # What others do

    @rule(extender=st.integers(0, EXTENDERS - 1))
    def show(self, extender: int) -> None:
        """Let the watch of an extender show the next state of a node."""
        if self.api.to_show[extender]:
            name, version, text = self.api.to_show[extender].popleft()
            notes = {HELD_ROOM: text} if text else {}
            self.all[extender].put_node(NodeRecord(name, name, str(version), annotations=notes))

    @rule(extender=st.integers(0, EXTENDERS - 1))
    def become_active(self, extender: int) -> None:
        """Let an extender, perhaps the same one again, become the active one: it catches up first."""
        while self.api.to_show[extender]:
            self.show(extender)
        self.active = extender
        self.holds.forget()
        self.holds.expire()
        said = {room.uid: (name, room) for name, (_, text) in self.api.now.items() for room in self._read(text)}
        there = self.holds.rooms
        # What has not been written is lost, and what was not removed in time is still held, on one node alone.
        assert there.keys() <= said.keys()
        missing = {uid for uid in said.keys() - there.keys() if said[uid][1].until_s > self.time_s}
        assert missing <= self.bound
        self.held = dict(there)

    @staticmethod
    def _read(text: str) -> tuple[HeldRoom, ...]:
        return read_held({HELD_ROOM: text})

    # What must be so

    @invariant()
    def the_active_one_holds_what_was_decided(self) -> None:
        """Whatever the watch shows, and whenever."""
        assert {uid: node for uid, (node, _) in self.holds.rooms.items()} == {
            uid: node for uid, (node, _) in self.held.items()
        }

    @invariant()
    def what_is_held_is_not_free(self) -> None:
        """In the fleet of the active one, on every GPU."""
        for name in NODES:
            taken = [0, 0]
            for node, room in self.held.values():
                for gpu, shares in room.shares if node == name else ():
                    taken[gpu] += shares
            free = [room.free for room in self.fleets[self.active].candidates[name].rooms]
            assert free == [max(0, SIZE - each) for each in taken]

    def teardown(self) -> None:
        """In the end every node says what the active extender holds."""
        while self.api.to_show[self.active]:
            self.show(self.active)
        done(self.holds.write())
        for name, (_, text) in self.api.now.items():
            assert {room.uid for room in self._read(text)} == {
                uid for uid, (node, _) in self.held.items() if node == name
            }

    def _hold(self, node: str, room: HeldRoom) -> None:
        self.held[room.uid] = node, room
        self.holds.hold(node, room)

    def _one(self, n: int) -> tuple[str, HeldRoom]:
        return list(self.held.values())[n % len(self.held)]


TestExtenders = Extenders.TestCase
TestExtenders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
