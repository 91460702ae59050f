"""Who waits, and who was served: guessed first, and corrected by the kubelet's checkpoint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.node_pods import NodePods
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.contract.keys import POD_ANNOTATIONS
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.matching import Call, Match
from gpu_device_plugin.node.waiting_pods import WaitingPods
from tests import resources
from tests.builders import container, pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.owned import mirror
from tests.names import MEM
from tests.node.cluster_harness import promise
from tests.nodes import node as gpus
from tests.patience import eventually, patience


@dataclass
class Node:
    """The pods of a node, and a clock that stands still."""

    api: ApiServer
    followed: NodePods
    waiting: WaitingPods = field(init=False)
    now: float = 1000.0

    def __post_init__(self) -> None:
        state = NodeState(gpus(14, 14, 14))
        self.waiting = WaitingPods(self.followed, (resources.MEM,), Metrics(), state, clock=lambda: self.now)

    async def bound(self, name: str, gpu: int, amount: int = 4, *, static: str = "") -> None:
        """Bind a pod with a promise of one GPU; of a static pod with the UID `static` its mirror."""
        body = pod(name, container(mem=amount), node="n", uid=name, phase="Pending", annotations=promise(gpu, amount))
        self.api.add(mirror(body, static) if static else body)
        async with patience(self.followed, self.api):
            async for pods in self.followed.changes.values():
                if name in pods:
                    return

    def ask(self, ids: str, amount: int = 4) -> str:
        """Ask as the kubelet does, serve whoever it seems to be with devices `ids`, and return who that is."""
        match = self.match(amount)
        assert match is not None
        self.waiting.served(match, frozenset({ids}))
        return match.pod.name.removeprefix("default/")

    def match(self, amount: int = 4) -> Match | None:
        """Return who would be asking for so much, if every GPU had room."""
        return self.waiting.find_now(Call(Kind.MEMORY, amount, dict.fromkeys(range(9), 14))).match

    def learn(self, **owners: str) -> None:
        """Read a checkpoint that says which devices each pod has."""
        self.waiting.learn([Allocation(uid, "main", Kind.MEMORY, frozenset({ids})) for uid, ids in owners.items()])

    def left(self) -> dict[str, int]:
        """Return the GPU promised to each waiting pod."""
        return {
            waiting.uid: wanted.promise.shares[0][0]
            for waiting in self.waiting.waiting()
            for wanted in waiting.requests
            if wanted.promise is not None
        }


@asynccontextmanager
async def node(*pods: str) -> AsyncIterator[Node]:
    """Make a node to which these pods are bound, promised GPU 0, 1, 2 and so on."""
    async with ApiServer() as api, Client(ClusterConfig(api.url)) as client:
        followed = NodePods(client, PodReader([MEM], POD_ANNOTATIONS.__contains__), "n")
        task = asyncio.create_task(followed.reflector.run())
        try:
            made = Node(api, followed)
            for gpu, name in enumerate(pods):
                await made.bound(name, gpu)
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_who_was_served_does_not_wait() -> None:
    async with node("a", "b") as there:
        assert there.ask("x") == "a"
        assert there.left() == {"b": 1}
        there.learn(a="x")
        assert there.left() == {"b": 1}
        assert there.waiting.recorded == {("a", "main", Kind.MEMORY): {"x"}}


async def test_of_two_swapped_pods_each_goes_on_with_the_others_promise() -> None:
    async with node("a", "b") as there:
        assert there.ask("x") == "a"
        there.learn(b="x")
        assert there.left() == {"a": 1}
        assert there.ask("y") == "a"
        there.learn(b="x", a="y")
        assert there.left() == {}


async def test_a_pod_that_was_swapped_with_a_static_pod_goes_on_with_the_promise_of_that() -> None:
    """The kubelet's records have its own UID of a static pod, and the API that of its mirror."""
    static = "0123456789abcdef" * 2
    async with node("a") as there:
        await there.bound("s", 1, static=static)
        assert there.ask("x") == "a"
        there.learn(**{static: "x"})
        assert there.left() == {"a": 1}


async def test_a_static_pod_that_was_swapped_goes_on_with_the_others_promise() -> None:
    static = "0123456789abcdef" * 2
    async with node() as there:
        await there.bound("s", 0, static=static)
        await there.bound("b", 1)
        assert there.ask("x") == "s"
        there.learn(b="x")
        assert there.left() == {static: 1}


async def test_a_chain_of_swaps_leaves_the_promise_that_nobody_used() -> None:
    """What a was promised went to c, and what b was promised to d: GPUs 0 and 1 are used, 2 and 3 are left."""
    async with node("a", "b", "c", "d") as there:
        assert [there.ask("x"), there.ask("y")] == ["a", "b"]
        there.learn(c="x", d="y")
        assert there.left() == {"a": 2, "b": 3}


async def test_a_ring_of_three_learned_at_once_leaves_the_promise_that_nobody_used() -> None:
    """a's went to b, and b's to c: GPUs 0 and 1 are used. Left is a, and what c was promised."""
    async with node("a", "b", "c") as there:
        assert [there.ask("x"), there.ask("y")] == ["a", "b"]
        there.learn(b="x", c="y")
        assert there.left() == {"a": 2}


async def test_a_chain_that_the_checkpoint_does_not_show_to_its_end_yet_is_kept() -> None:
    async with node("a", "b", "c") as there:
        assert [there.ask("x"), there.ask("y")] == ["a", "b"]
        there.learn(b="x")
        assert there.left() == {"c": 2}  # a is still believed to have what b has
        there.learn(b="x", c="y")
        assert there.left() == {"a": 2}


async def test_a_swapped_promise_that_is_swapped_again_is_not_lost() -> None:
    async with node("a", "b", "c") as there:
        assert there.ask("x") == "a"
        there.learn(b="x")
        assert there.left() == {"a": 1, "c": 2}
        assert there.ask("y") == "a"
        there.learn(b="x", c="y")
        assert there.left() == {"a": 2}


async def test_an_init_container_whose_devices_are_used_again_is_one_owner() -> None:
    """The checkpoint shows the same devices for both containers of b."""
    async with node("a") as there:
        there.api.add(
            pod("b", container(mem=4), init=(container("init", mem=4),), node="n", uid="b", annotations=promise(1, 4))
        )
        await there.bound("c", 2)
        assert [there.ask("x"), there.ask("x")] == ["a", "b"]
        there.waiting.learn([Allocation("b", name, Kind.MEMORY, frozenset({"x"})) for name in ("init", "main")])
        assert there.left() == {"a": 1, "c": 2}


async def test_who_is_in_no_checkpoint_waits_again_once_the_kubelet_has_had_its_time() -> None:
    """The kubelet died before it wrote down what it was given."""
    async with node("a", "b") as there:
        assert there.ask("x") == "a"
        there.now += 9
        there.learn()
        assert there.left() == {"b": 1}
        there.now += 2
        there.learn()
        assert there.left() == {"a": 0, "b": 1}


async def test_a_refused_pod_waits_no_more() -> None:
    async with node("a", "b") as there:
        match = there.match()
        assert match is not None
        there.waiting.refused(match)
        assert there.left() == {"b": 1}
        there.learn()
        assert there.left() == {"b": 1}


async def test_nothing_is_remembered_of_pods_that_are_gone() -> None:
    async with node("a", "b", "c", "d") as there:
        assert there.ask("x") == "a"
        there.learn(b="x")
        refused = there.match()
        assert refused is not None
        there.waiting.refused(refused)
        for name in "abcd":
            there.api.delete("pods", name)
        async with patience(there.followed):
            async for pods in there.followed.changes.values():
                if not pods:
                    break
        there.learn()
        assert repr(there.waiting) == "<WaitingPods: 0 containers served, 0 guesses, 0 swapped, 0 refused>"


async def test_while_the_api_server_is_away_one_call_waits_and_the_next_ones_do_not() -> None:
    async with node() as there:
        await there.api.stop()
        await eventually(lambda: there.followed.reflector.problem)
        nobody = Call(Kind.MEMORY, 4, {0: 14})
        assert (await there.waiting.find(nobody)).match is None
        with pytest.raises(StopIteration):  # it ends without having waited for anything
            there.waiting.find(nobody).send(None)
        await there.api.start()
        await there.bound("a", 0)
        assert (await there.waiting.find(nobody)).match is not None
