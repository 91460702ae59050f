"""Room that is held for replacements of pods: in the fleet, on the nodes, and in what the watch shows of them late."""

from collections import UserDict
from collections.abc import AsyncIterator, ValuesView
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from gpu_device_plugin.features.capacity.contract import HeldRoom, write_held
from gpu_device_plugin.features.capacity.held_room import Holds
from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.client.errors import ForbiddenError, UnavailableError
from gpu_device_plugin.model.contract.keys import ALLOCATION, HELD_ROOM
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Owner, Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.builders import node as node_of
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.troubles import Answer
from tests.resources import RESOURCES
from tests.scheduler.contexts import context

GPUS = NodeGpus((ListedGpu(0, 8), ListedGpu(1, 8)), share_mib=1024)
WEB = Owner("ReplicaSet", "web", "uid-web", "apps/v1")
NODES = ("a", "b")
FOUR = GpuRequest((Part(Demand(Kind.MEMORY, 4)),))


def room(uid: str = "p", gpu: int = 0, shares: int = 4, until_s: float = 100.0) -> HeldRoom:
    return HeldRoom(uid, "default", WEB.uid, ((gpu, shares),), until_s)


def pod(uid: str = "p-2", owner: Owner | None = WEB, namespace: str = "default") -> Pod:
    return Pod(uid, namespace, uid, owner=owner)


@dataclass
class Here:
    """Two nodes with two GPUs of 8, and what an extender holds there; its clock stands."""

    api: ApiServer
    fleet: Fleet
    holds: Holds
    now: float = 0.0

    def free(self, node: str = "a") -> list[int]:
        return [each.free for each in self.fleet.candidates[node].rooms]

    def watch(self, node: str = "a", *, version: int | None = None, text: str | None = None) -> None:
        """Show a node as it is, or as it was."""
        meta = self.api.get("nodes", node)["metadata"]
        said = meta.get("annotations", {}).get(HELD_ROOM, "") if text is None else text
        notes = {HELD_ROOM: said} if said else {}
        newest = int(meta["resourceVersion"])
        self.holds.put_node(NodeRecord(node, meta["uid"], str(version or newest), annotations=notes))

    def written(self, node: str = "a") -> str:
        return str(self.api.get("nodes", node)["metadata"].get("annotations", {}).get(HELD_ROOM, ""))


@asynccontextmanager
async def here() -> AsyncIterator[Here]:
    async with ApiServer() as api:
        fleet = Fleet(RESOURCES, vanished_grace_s=30)
        for name in ("a", "b"):
            api.add(node_of(name))
            fleet.put_node(name, GPUS)
        async with Client(ClusterConfig(api.url), timing=Timing(connect_s=20, request_s=20)) as client:
            holds = Holds(context(fleet, client=client, clock=lambda: found.now, wall=lambda: found.now))
            found = Here(api, fleet, holds)
            yield found


async def test_held_room_is_free_for_a_pod_of_its_controller_alone() -> None:
    async with here() as h:
        h.holds.hold("a", room())
        assert h.free() == [4, 8]
        found = h.holds.for_pod(pod(), FOUR, NODES)
        assert found is not None
        assert [each.free for each in found[1].rooms] == [4, 0]
        for other in (
            pod("p"),  # the pod itself has its place
            pod(owner=None),
            pod(owner=Owner("ReplicaSet", "web", "uid-other", "apps/v1")),
            pod(namespace="kube-system"),
        ):
            assert h.holds.for_pod(other, FOUR, NODES) is None
        assert h.holds.for_pod(pod(), GpuRequest((Part(Demand(Kind.MEMORY, 5)),)), NODES) is None, (
            "its template has changed"
        )
        assert h.holds.for_pod(pod(), GpuRequest((Part(Demand(Kind.COUNT, 1)),)), NODES) is None


async def test_of_several_rooms_a_pod_gets_one_that_it_may_go_to_and_first_that_of_a_pod_which_has_gone() -> None:
    async with here() as h:
        h.fleet.put_pod(bound("p"))
        h.holds.hold("a", room("p", gpu=1))
        h.holds.hold("b", room("gone"))
        for nodes, name in ((NODES, "b"), (("b",), "b"), (("a",), "a")):
            found = h.holds.for_pod(pod("p-2"), FOUR, nodes)
            assert found is not None
            assert found[1].name == name
        assert h.holds.for_pod(pod(), FOUR, ("c",)) is None


async def test_one_room_serves_one_pod() -> None:
    """Of two that were bound at the same time both were told of the same room, or one was bound elsewhere."""
    async with here() as h:
        for uid, at in (("p", 0), ("q", 1), ("r", 1)):
            h.holds.hold("b", replace(room(uid, gpu=at), since_s=10.0))
        for uid in ("p-2", "q-2"):
            h.fleet.put_pod(bound(uid))
            h.holds.taken("held/p", uid)
        for _ in range(3):
            h.holds.release()
            assert len(h.holds.rooms) == 1, "p-2 has taken a room already, and q-2 takes one"
        h.fleet.put_pod(bound("r-2"))
        h.holds.release()
        assert not h.holds.rooms


async def test_room_that_is_given_back_is_given_back_on_its_node_whoever_had_held_it() -> None:
    async with here() as h:
        h.api.patch(
            "nodes", "b", {"metadata": {"annotations": {HELD_ROOM: write_held([replace(room(), since_s=10.0)])}}}
        )
        h.watch("b")
        h.fleet.put_pod(bound())
        h.holds.release()
        await h.holds.write()
        assert not h.written("b")
        assert not h.holds.was_taken("p"), "the pod is bound on another node"


async def test_room_that_the_fleet_counts_no_longer_is_none() -> None:
    """The time of the fleet is looked at more often than that of the holds, and by extenders that are not active."""
    async with here() as h:
        h.holds.hold("a", room(until_s=100))
        h.now = 100
        h.fleet.expire(h.now)
        assert h.holds.for_pod(pod(), FOUR, NODES) is None
        h.holds.expire()
        assert not h.holds.rooms
        h.watch("b", text=write_held([room(until_s=99)]))
        assert h.free("b") == [8, 8], "nor does that which a node says of the past"
        assert h.holds.for_pod(pod(), FOUR, NODES) is None
        h.holds.expire()
        assert not h.holds.rooms


async def test_an_older_state_of_a_node_drops_nothing_that_was_written_since() -> None:
    async with here() as h:
        old = int(h.api.get("nodes", "a")["metadata"]["resourceVersion"])
        h.holds.hold("a", room())
        h.watch("a", version=old, text="")
        assert h.free() == [4, 8], "it is not written yet"
        await h.holds.write()
        h.watch("a", version=old, text="")
        assert h.free() == [4, 8], "what is shown is older than what is written"
        h.watch()
        assert h.free() == [4, 8]
        h.api.patch("nodes", "a", {"metadata": {"annotations": {HELD_ROOM: None}}})
        h.watch()
        assert h.free() == [8, 8], "somebody has removed it"


async def test_an_older_state_of_a_node_brings_nothing_back_that_was_given_back() -> None:
    async with here() as h:
        h.holds.hold("a", room())
        await h.holds.write()
        version, text = int(h.api.get("nodes", "a")["metadata"]["resourceVersion"]), h.written()
        h.holds.let_go("p")
        h.watch("a", version=version, text=text)
        assert h.free() == [8, 8]
        await h.holds.write()
        h.watch("a", version=version, text=text)
        assert h.free() == [8, 8]
        assert not h.written()


async def test_room_that_moves_to_another_node_is_on_one_of_them_alone() -> None:
    async with here() as h:
        h.holds.hold("a", room())
        await h.holds.write()
        h.holds.hold("b", room(gpu=1))
        assert (h.free("a"), h.free("b")) == ([8, 8], [8, 4])
        h.watch("a")
        assert (h.free("a"), h.free("b")) == ([8, 8], [8, 4])
        await h.holds.write()
        assert not h.written("a")
        assert h.written("b")


async def test_what_another_extender_has_written_meanwhile_is_not_overwritten() -> None:
    """This one has not written everything when another becomes active, holds other room, and stops."""
    theirs = write_held([room("q", gpu=1)])
    async with here() as h:
        h.holds.hold("a", room())
        await h.holds.write()
        h.holds.hold("a", room("r", shares=2))
        h.api.patch("nodes", "a", {"metadata": {"annotations": {HELD_ROOM: theirs}}})
        h.watch()
        h.holds.forget()
        assert list(h.holds.rooms) == ["q"]
        assert h.free() == [8, 4]
        await h.holds.write()
        assert h.written() == theirs


async def test_room_that_is_taken_does_not_come_back_with_a_new_term() -> None:
    """The replacement was bound before this extender had noticed that it is the active one."""
    async with here() as h:
        h.api.patch("nodes", "a", {"metadata": {"annotations": {HELD_ROOM: write_held([room()])}}})
        h.watch()
        found = h.holds.for_pod(pod(), FOUR, NODES)
        assert found is not None
        h.holds.taken(found[0], "p-2")
        h.holds.forget()
        assert h.holds.was_taken("p")
        assert h.free() == [8, 8]
        await h.holds.write()
        assert not h.written()


async def test_one_node_that_cannot_be_written_keeps_no_other_from_it() -> None:
    async with here() as h:
        h.holds.hold("a", room())
        h.holds.hold("b", room("q"))
        h.api.fail(Answer(503), verbs={"patch"}, times=1)
        with pytest.raises(UnavailableError):
            await h.holds.write()
        assert [bool(h.written("a")), bool(h.written("b"))].count(True) == 1
        await h.holds.write()
        assert h.written("a")
        assert h.written("b")


async def test_where_nothing_was_written_a_missing_right_matters_not() -> None:
    async with here() as h:
        h.api.fail(Answer(403), verbs={"patch"})
        h.holds.hold("a", room())
        with pytest.raises(ForbiddenError):
            await h.holds.write("a")
        h.holds.let_go("p")
        await h.holds.write()
        await h.holds.write()
        assert h.api.count("patch", "nodes") == 2


async def test_a_node_that_is_gone_holds_nothing_and_is_not_written() -> None:
    async with here() as h:
        h.holds.hold("a", room())
        h.api.delete("nodes", "a")
        await h.holds.write()
        h.holds.remove_node("a")
        h.fleet.remove_node("a")
        assert not h.holds.rooms
        assert h.holds.for_pod(pod(), FOUR, NODES) is None
        await h.holds.write()
        assert h.api.count("patch", "nodes") == 1


def bound(uid: str = "p-2", *, owner: Owner | None = WEB, created: str = "1970-01-01T00:00:10Z") -> Pod:
    """Return a pod of 4 on GPU 0 of node a."""
    wants = Container("main", ContainerKind.APP, 0, {RESOURCES[0].name: 4})
    notes = {ALLOCATION: '{"0": {"0": 4}}'}
    made = Pod(uid, "default", uid, "a", owner=owner, created=created, annotations=notes, containers=(wants,))
    return replace(made, phase="Running", running=True)


@pytest.mark.parametrize("owner", [WEB, Owner("ReplicaSet", "web", "uid-other", "apps/v1")], ids=["its", "another"])
async def test_room_whose_replacement_is_bound_is_given_back_whoever_bound_it(owner: Owner) -> None:
    """It was held in second 10. The extender that bound the pod ended before it had written that on the node."""
    async with here() as h:
        text = write_held([replace(room(), since_s=10.9)])
        h.api.patch("nodes", "a", {"metadata": {"annotations": {HELD_ROOM: text}}})
        h.watch()
        h.fleet.put_pod(bound(owner=owner))
        h.holds.forget()
        assert h.free() == [0, 8]
        h.holds.release()
        assert h.holds.was_taken("p") == (owner is WEB)
        assert h.free() == [4 if owner is WEB else 0, 8]
        await h.holds.write()
        assert bool(h.written()) == (owner is not WEB)


async def test_a_pod_of_the_controller_that_was_there_before_takes_no_room() -> None:
    async with here() as h:
        h.fleet.put_pod(bound("sibling", created="1970-01-01T00:00:09Z"))
        h.holds.hold("a", replace(room(), since_s=10.0))
        h.holds.release()
        assert h.free() == [0, 8]


async def test_room_that_no_pod_waits_for_is_given_back_30_s_after_its_pod_has_gone() -> None:
    async with here() as h:
        leaving = bound("p", created="1970-01-01T00:00:00Z")
        h.fleet.put_pod(leaving)
        h.holds.hold("a", replace(room(gpu=1, until_s=4000), since_s=0.0))
        for h.now in (0, 600):
            h.holds.release()
            assert h.free() == [4, 4], "its pod takes long to end"
        h.fleet.remove_pod(leaving, h.now)
        h.holds.release()
        for h.now in (629, 700):
            h.fleet.pending = {"w": pod("w")} if h.now == 629 else {}
            h.holds.release()
            assert h.free()[1] == 4, "one waited meanwhile"
        h.now = 729
        h.holds.release()
        assert h.free()[1] == 4
        h.now = 730
        h.holds.release()
        assert h.free()[1] == 8
        assert not h.holds.was_taken("p")


async def test_the_rooms_are_looked_through_as_often_however_many_nodes_have_some() -> None:
    """An autoscaler may drain hundreds of nodes at once, and the scheduler's calls wait meanwhile."""

    class Rooms(UserDict[str, tuple[str, HeldRoom]]):
        looks = 0

        def values(self) -> ValuesView[tuple[str, HeldRoom]]:
            self.looks += 1
            return super().values()

    looks = []
    for number in (1, 100):
        async with here() as h:
            for n in range(number):
                h.fleet.put_node(f"n{n}", GPUS)
                h.holds.hold(f"n{n}", room(f"p{n}"))
            rooms = Rooms(h.holds.rooms)
            h.holds.rooms = rooms  # type: ignore[assignment]
            h.holds.release()
            looks.append(rooms.looks)
    assert looks[0] == looks[1]


async def test_room_that_the_next_leader_could_not_read_is_not_held() -> None:
    """The owner of a pod chooses the UID of its controller, and a node may have hundreds of pods."""
    async with here() as h:
        assert not h.holds.hold("a", replace(room(), owner="x" * 254))
        assert h.free() == [8, 8]
        held = [h.holds.hold("a", HeldRoom(f"p{n}", "default", "u" * 36, ((0, 1),), 100.0, 0.0)) for n in range(1000)]
        assert held.index(False) > 300
        await h.holds.write()
        here_ = dict(h.holds.rooms)
        h.watch()
        h.holds.forget()
        assert h.holds.rooms == here_
