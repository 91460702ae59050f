"""Bind: the choice, the claim, the call, and what becomes of the claim when the call goes wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gpu_device_plugin.kubernetes.client.api_client import LATEST_COMMIT_S
from gpu_device_plugin.kubernetes.client.errors import Call, NotFoundError, UnavailableError
from gpu_device_plugin.kubernetes.writers.binder import BindError, InDoubtError, PodRef
from gpu_device_plugin.model.contract.keys import ALLOCATION, IDX
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.cluster_state import Fleet
from tests.names import COUNT, MEM
from tests.patience import eventually
from tests.resources import RESOURCES
from tests.scheduler.contexts import BINPACK, binding_in, context


def wanting(name: str, mem: int = 0, count: int = 0, uid: str = "", node: str = "") -> Pod:
    limits = {key: value for key, value in ((MEM, mem), (COUNT, count)) if value}
    return Pod(
        uid or f"uid-{name}",
        "default",
        name,
        node_name=node,
        containers=(Container("main", ContainerKind.APP, 0, limits),) if limits else (),
    )


def ref(pod: Pod) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


@dataclass
class Api:
    """An API server that does as told, one outcome for each binding."""

    pods: dict[str, Pod] = field(default_factory=dict)
    outcomes: list[Exception] = field(default_factory=list)
    bound: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    holds: asyncio.Event | None = None
    down: bool = False
    reads: int = 0
    claims: dict[str, str] = field(default_factory=dict)
    """The claims that kube-scheduler has made, by pod."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        if self.holds is not None:
            await self.holds.wait()
        if self.outcomes:
            raise self.outcomes.pop(0)
        self.bound.append((pod.name, node, annotations))
        if pod.name in self.pods:
            self.pods[pod.name] = replace(self.pods[pod.name], node_name=node, annotations=annotations)

    async def read(self, namespace: str, name: str) -> Pod:
        call = Call("get", "pods", "", namespace, name)
        self.reads += 1
        if self.down:
            raise UnavailableError(call, "no answer in time")
        if name not in self.pods:
            raise NotFoundError(call, "404 NotFound")
        return self.pods[name]

    async def made_claim(self, namespace: str, name: str) -> str:
        if self.down:
            raise UnavailableError(Call("get", "pods", "", namespace, name), "no answer in time")
        return self.claims.get(name, "")


@dataclass
class Desk:
    fleet: Fleet
    api: Api
    now: float = 1000.0
    caught_up: int = 0
    behind: Exception | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        self.binding = binding_in(
            context(
                self.fleet,
                binder=self.api,
                settings=lambda: replace(BINPACK, bind_timeout_s=self.timeout_s),
                clock=lambda: self.now,
                wall=lambda: 17e-9,
                check_doubts_s=0.001,
            ),
            self.current,
        )

    async def current(self) -> None:
        if self.behind is not None:
            raise self.behind
        self.caught_up += 1

    def pending(self, pod: Pod) -> Pod:
        self.api.pods[pod.name] = pod
        self.fleet.put_pod(pod)
        return pod

    async def bind(self, pod: Pod, node: str = "a") -> str:
        return await self.binding.bind(ref(pod), node)

    async def looked(self) -> None:
        """Wait until the doubts were looked into once more."""
        before = self.api.reads
        await eventually(lambda: self.api.reads >= before + 2)

    def free(self, node: str = "a") -> list[int]:
        return [room.free for room in self.fleet.candidates[node].rooms]


def desk(*sizes: int, share_mib: int = 1024, settle_s: float = 0.0) -> Desk:
    """A cluster of one node "a" with GPUs of these sizes."""
    fleet = Fleet(RESOURCES, vanished_grace_s=30, settle_s=settle_s)
    gpus = tuple(ListedGpu(n, size, f"GPU-{n}") for n, size in enumerate(sizes))
    fleet.put_node("a", NodeGpus(gpus, share_mib))
    return Desk(fleet, Api())


@asynccontextmanager
async def settling(d: Desk) -> AsyncIterator[None]:
    task = asyncio.create_task(d.binding.resolve_doubts())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_pod_is_bound_with_its_promise_and_counts_from_then_on() -> None:
    d = desk(8, 8)
    assert await d.bind(d.pending(wanting("p", mem=3))) == ""
    ((name, node, promised),) = d.api.bound
    assert (name, node, promised[IDX], json.loads(promised[ALLOCATION])) == ("p", "a", "0", {"0": {"0": 3}})
    assert d.free() == [5, 8]
    assert not d.fleet.entries["uid-p"].claimed


async def test_pods_that_are_bound_at_once_never_get_the_same_room() -> None:
    """Forty pods of 1 for 32 shares: the API server is slow, so that all are under way together."""
    d = desk(8, 8, 8, 8)
    d.api.holds = asyncio.Event()
    pods = [d.pending(wanting(f"p{n}", mem=1)) for n in range(40)]
    calls = [asyncio.create_task(d.bind(pod)) for pod in pods]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    d.api.holds.set()
    answers = await asyncio.gather(*calls)
    assert answers.count("") == 32
    assert set(answers) == {"", "node a: no GPU has 1 GiB free"}
    assert d.free() == [0, 0, 0, 0]


async def test_a_claim_is_given_back_when_the_pod_was_not_bound() -> None:
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [BindError(ref(pod), "pod default/p was deleted meanwhile")]
    assert await d.bind(pod) == "pod default/p was deleted meanwhile"
    assert d.free() == [8]


async def test_a_binding_in_doubt_keeps_its_claim_until_the_watch_shows_the_pod() -> None:
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "whether it is bound is unknown")]
    assert await d.bind(pod) == "whether it is bound is unknown"
    assert (d.free(), d.binding.doubts) == ([0], 1)
    d.fleet.put_pod(wanting("p", mem=8, node="a"))
    async with settling(d):
        await eventually(lambda: d.binding.doubts == 0)
    assert d.free() == [0]


async def test_a_binding_in_doubt_that_nobody_made_is_given_up_when_it_can_no_longer_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    async with settling(d):
        d.now += LATEST_COMMIT_S - 1
        await d.looked()
        assert d.free() == [0]
        d.api.down = True
        d.now += 1
        await d.looked()
        assert d.free() == [0]
        d.api.down = False
        await eventually(lambda: d.binding.doubts == 0)
    assert d.free() == [8]
    assert "an unanswered binding has not been made" in caplog.text


async def test_a_pod_in_doubt_that_is_gone_counts_as_one_that_vanished() -> None:
    """It may have been bound, and then deleted by force."""
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    del d.api.pods["p"]
    async with settling(d):
        await eventually(lambda: d.binding.doubts == 0)
    assert d.free() == [0]
    d.fleet.expire(d.now + 30)
    assert d.free() == [8]


async def test_a_pod_in_doubt_that_is_being_deleted_gives_its_room_back() -> None:
    """The API server binds no such pod, so that no earlier request can come true. A finalizer keeps it there."""
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    d.api.pods["p"] = replace(pod, deleting=True)
    await d.binding.check_doubts()
    assert (d.free(), d.binding.doubts) == ([8], 0)


async def test_a_promise_in_doubt_is_not_repeated_when_its_room_was_given_back() -> None:
    """The pod was seen bound and ended, another one has its GPU, and the API server's memory is put back."""
    d = desk(8)
    pod, other = d.pending(wanting("p", mem=8)), d.pending(wanting("other", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    d.fleet.put_pod(replace(pod, node_name="a", phase="Succeeded"))
    assert await d.bind(other) == ""
    d.pending(pod)
    for _ in range(2):
        assert await d.bind(pod) == "node a: no GPU has 8 GiB free"


async def test_a_pod_in_doubt_is_bound_anew_with_the_same_promise() -> None:
    """The first request may still take effect; then it is all one which of the two did."""
    d = desk(8, 8)
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    assert await d.bind(pod) == ""
    assert (d.binding.doubts, d.free(), d.api.bound[0][2][IDX]) == (0, [0, 8], "0")


async def test_a_pod_in_doubt_is_not_bound_to_another_node() -> None:
    """The first request may still take effect, and its room is kept."""
    d = desk(8)
    d.fleet.put_node("b", NodeGpus((ListedGpu(0, 8),)))
    pod = d.pending(wanting("p", mem=8))
    d.api.outcomes = [InDoubtError(ref(pod), "unknown")]
    assert await d.bind(pod) == "unknown"
    assert "may still be bound to node a" in await d.bind(pod, "b")
    assert (d.free("a"), d.free("b"), d.api.bound) == ([0], [8], [])


async def test_a_call_that_takes_too_long_leaves_the_claim_in_doubt() -> None:
    """The request may have been sent; the scheduler has given up on it in any case."""
    d = desk(8)
    d.api.holds = asyncio.Event()
    d.timeout_s = 0.01
    assert await d.bind(d.pending(wanting("p", mem=8))) == "the API server did not answer within 0.01 s"
    assert (d.free(), d.binding.doubts) == ([0], 1)


async def test_a_second_call_for_a_pod_waits_for_the_first() -> None:
    """The scheduler had no answer in time and asks again; one binding is made, and both calls are told so."""
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    d.api.holds = asyncio.Event()
    first = asyncio.create_task(d.bind(pod))
    await asyncio.sleep(0)
    second = asyncio.create_task(d.bind(pod))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    d.api.holds.set()
    assert (await first, await second) == ("", "")
    assert len(d.api.bound) == 1


async def test_a_binding_that_stands_already_is_a_success() -> None:
    """E19: our answer was lost, the scheduler asks again, and the watch has shown the pod bound meanwhile."""
    d = desk(8)
    pod = d.pending(wanting("p", mem=8))
    assert await d.bind(pod) == ""
    d.fleet.put_pod(d.api.pods["p"])
    assert await d.bind(pod) == ""
    assert len(d.api.bound) == 1


async def test_a_pod_that_is_elsewhere_is_not_bound_again() -> None:
    d = desk(8)
    pod = wanting("p", mem=8)
    d.api.pods["p"] = wanting("p", mem=8, node="b")
    assert await d.bind(pod) == "pod default/p is already bound to node b"
    assert d.api.bound == []


async def test_a_pod_bound_by_somebody_else_to_the_same_node_has_no_promise_of_ours() -> None:
    d = desk(8)
    there = wanting("p", mem=8, node="a")
    d.fleet.put_pod(there)
    d.api.pods["p"] = there
    assert await d.bind(there) == "pod default/p is already bound to node a"


async def test_a_pod_that_the_watch_has_not_shown_is_looked_up() -> None:
    d = desk(8)
    d.api.pods["p"] = wanting("p", mem=2)
    assert await d.bind(wanting("p", mem=2)) == ""
    assert d.free() == [6]


async def test_another_pod_of_the_same_name_is_not_bound_in_its_place() -> None:
    d = desk(8)
    d.pending(wanting("p", mem=2, uid="new"))
    assert "another pod now has its name" in await d.binding.bind(PodRef("default", "p", "old"), "a")
    assert d.free() == [8]


async def test_what_cannot_be_placed_is_said_and_reserves_nothing() -> None:
    d = desk(8)
    assert await d.bind(d.pending(wanting("large", mem=9))) == "node a: the largest GPU has only 8 GiB"
    assert await d.bind(d.pending(wanting("lost", mem=1)), "b") == "node b is not known to the GPU scheduler"
    assert "request one of them" in await d.bind(d.pending(wanting("both", mem=1, count=1)))
    assert "404" in await d.bind(wanting("nobody", mem=1))
    assert d.free() == [8]
    assert d.api.bound == []


async def test_a_pod_that_asks_for_nothing_is_bound_without_a_promise() -> None:
    d = desk(8)
    assert await d.bind(d.pending(wanting("p")), "a") == ""
    assert d.api.bound == [("p", "a", {})]


async def test_nothing_is_bound_by_an_extender_that_does_not_know_what_others_did() -> None:
    """It may have been a standby, whose watch is a moment late."""
    d = desk(8)
    d.behind = TimeoutError("not all pods are known as of now")
    assert await d.bind(d.pending(wanting("p", mem=1))) == "not all pods are known as of now"
    assert d.api.bound == []


# --- A GPU that a moment ago was in use for the other resource --------------------------------------------------------


def closing(*sizes: int, settle_s: float) -> Desk:
    """GPU 0 of node "a" was in whole use until now."""
    d = desk(*sizes, settle_s=settle_s)
    whole = replace(wanting("whole", count=1, node="a"), annotations={ALLOCATION: '{"0":{"0":1}}'})
    d.fleet.put_pod(whole)
    d.fleet.put_pod(replace(whole, phase="Succeeded"), d.now)
    return d


async def test_a_pod_waits_for_the_gpu_that_it_fits_on_only_when_that_opens() -> None:
    d = closing(8, 2, settle_s=0.05)
    pod = d.pending(wanting("p", mem=8))
    task = asyncio.create_task(d.bind(pod))
    await eventually(lambda: d.free() == [0, 2])
    assert d.api.bound == []
    assert await task == ""
    assert [name for name, _, _ in d.api.bound] == ["p"]


async def test_a_pod_takes_another_gpu_rather_than_wait() -> None:
    d = closing(4, 8, settle_s=3600)
    assert await d.bind(d.pending(wanting("p", mem=2))) == ""
    assert d.api.bound[0][2][ALLOCATION] == '{"0":{"1":2}}'


async def test_a_pod_that_waited_for_too_long_gives_its_gpu_back() -> None:
    d = closing(8, settle_s=3600)
    d.timeout_s = 0.05
    assert "within 0.05 s" in await d.bind(d.pending(wanting("p", mem=8)))
    assert (d.free(), d.api.bound, d.binding.doubts) == ([8], [], 0)


# --- Nodes that serve claims ------------------------------------------------------------------------------------------


def serving_claims(*sizes: int) -> Desk:
    """A cluster of one node "a" whose GPUs kube-scheduler allocates."""
    d = desk(*sizes)
    d.fleet.put_node("a", replace(d.fleet.candidates["a"].gpus, claims=True, problem=BY_CLAIMS))
    return d


async def test_where_kube_scheduler_has_allocated_a_pod_is_bound_without_promise_and_claims_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    d = serving_claims(8, 8)
    d.api.claims = {"p": "p-extended-resources-x7"}
    pod = d.pending(wanting("p", count=1))
    assert await d.bind(pod) == ""
    assert d.api.bound == [("p", "a", {})]
    assert (dict(d.fleet.entries), d.free()) == ({}, [8, 8])
    (line,) = [record for record in caplog.records if record.message == "bound"]
    assert line.__dict__["claim"] == "p-extended-resources-x7"
    d.fleet.put_pod(wanting("p", count=1, node="a"))  # the watch shows it
    assert d.free() == [8, 8]
    assert await d.bind(pod) == ""  # kube-scheduler got no answer
    assert len(d.api.bound) == 1


async def test_a_pod_without_a_claim_is_not_bound_to_a_node_that_serves_claims() -> None:
    """The node has changed over since kube-scheduler counted its GPUs: its kubelet would reject the pod for good."""
    d = serving_claims(8)
    assert await d.bind(d.pending(wanting("p", count=1))) == (
        "node a: its GPUs are allocated through ResourceClaims (DRA), and kube-scheduler has made no claim of the "
        "pod's limits; "
        "kube-scheduler chooses a node again"
    )
    assert (d.api.bound, d.free()) == ([], [8])


async def test_a_binding_without_promise_that_fails_says_why_and_leaves_nothing_behind() -> None:
    d = serving_claims(8)
    d.api.claims = {"p": "x"}
    pod = d.pending(wanting("p", count=1))
    d.api.outcomes = [InDoubtError(ref(pod), "whether it is bound is unknown"), BindError(ref(pod), "it was deleted")]
    assert await d.bind(pod) == "whether it is bound is unknown"
    assert await d.bind(pod) == "it was deleted"
    d.api.down = True
    assert await d.bind(pod) == "get pods default/p: no answer in time"
    assert (d.binding.doubts, dict(d.fleet.entries), d.free()) == (0, {}, [8])
