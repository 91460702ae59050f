"""A binding that was not answered may still be made: whatever a retry meets, nobody else gets its room meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.api_client import LATEST_COMMIT_S, Client
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError, error_from
from gpu_device_plugin.kubernetes.objects.decoding import PodReader
from gpu_device_plugin.kubernetes.writers.binder import Binder, BinderTiming, PodRef
from gpu_device_plugin.model.contract.keys import POD_ANNOTATIONS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.testing.cluster.cluster_kinds import PODS, StatusError
from gpu_device_plugin.testing.cluster.cluster_store import Change
from tests import builders
from tests.builders import GPU_COUNT, GPU_MEM, Json, container
from tests.cluster_double.store import Store
from tests.cluster_double.troubles import Answer, Late
from tests.resources import RESOURCES
from tests.scheduler.contexts import binding_in, context
from tests.scheduler.harness import HASTY, held, world

OFTEN = 1000

# --- The whole extender, its API server and its scheduler -------------------------------------------------------------

REFUSALS = [401, 403, 422, 429, 500, 503, 504]


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_request_that_is_carried_out_late_finds_its_room_though_a_retry_was_refused(code: int) -> None:
    """Bind 1 gets no answer, the retry is refused, another pod asks for the same GPU, and then bind 1 is made."""
    async with world(timings=HASTY) as w:
        w.node("a", 8)
        await w.start()
        w.pod("first", mem=8)
        w.pod("second", mem=8)
        await w.seen()
        w.bindings_meet(Late(), times=OFTEN)
        assert "unknown" in await w.bind("first", "a")
        w.api.heal()
        w.bindings_meet(Answer(code))
        assert str(code) in await w.bind("first", "a")
        w.api.heal()
        assert await w.bind("second", "a") == "node a: no GPU has 8 GiB free"
        await w.api.carry_out()
        await w.seen()
        w.check()
        assert (w.where("first"), w.where("second")) == ("a", "")
        await w.until(lambda: w.only.extender.binding.doubts == 0)
        assert w.only.free("a") == [0]


# --- Every order of events --------------------------------------------------------------------------------------------

SIZES = {"a": (8,), "b": (8,)}
VANISHED_GRACE_S = 30.0
NAMES = ("p", "q")
FATES = ("made", "made at once", "made, unanswered", "late", "lost", "429", "403", "not sent")
Key = tuple[str, str]


@dataclass
class Wire:
    """The way to an API server: what becomes of each binding is ordered, and so is when a late one is carried out."""

    store: Store
    clock: Clock
    fates: list[str] = field(default_factory=list)
    """Of the next bindings; then all are made."""
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing is answered before it is set."""
    down: bool = False
    """Nothing can be read."""
    overtaken: bool = False
    """While the next answer to a reader is on its way, two seconds pass, and the first late binding is made."""
    sent: list[tuple[Key, Json]] = field(default_factory=list)
    """Bindings that wait for their answers."""
    late: list[tuple[float, Key, Json]] = field(default_factory=list)
    """Those that their client gave up, and when; the API server still works on them."""

    async def create(self, _kind: Any, body: Json, *, namespace: str, name: str, **_rest: Any) -> bytes:
        call, key = Call("create", "pods/binding", "", namespace, name), (namespace, name)
        fate = self.fates.pop(0) if self.fates else "made"
        if fate in {"made at once", "made, unanswered"}:
            self._bind(call, key, body)
        self.sent.append((key, body))
        await self.waits.wait()
        self.sent.remove((key, body))
        match fate:
            case "made":
                self._bind(call, key, body)
            case "429" | "403":
                raise error_from(call, b"", status=int(fate))
            case "not sent":
                raise UnavailableError(call, "connection refused", sent=False)
            case "late":
                self.late.append((self.clock.now, key, body))
        if fate in {"made", "made at once"}:
            return b'{"status": "Success"}'
        raise UnavailableError(call, "no answer in time")

    def _bind(self, call: Call, key: Key, body: Json) -> None:
        try:
            self.store.bind(key, body)
        except StatusError as error:
            raise error_from(call, b"", status=error.code) from error

    async def get(self, _kind: Any, name: str, *, namespace: str, **_rest: Any) -> ApiAnswer:
        call = Call("get", "pods", "", namespace, name)
        if self.down:
            raise UnavailableError(call, "no answer in time")
        try:
            found = json.dumps(self.store.get(PODS, (namespace, name))).encode()
        except StatusError as error:
            raise error_from(call, b"", status=error.code) from error
        if self.overtaken:
            self.overtaken = False
            self.carry_out(0)
            self.clock.now += 2
        return ApiAnswer.to(call, found)

    def carry_out(self, which: int) -> None:
        """Make a binding that its client gave up, if the API server still works on it."""
        late = [one for one in self.late if self.clock.now - one[0] < LATEST_COMMIT_S]
        if late:
            self.late.remove(late[which % len(late)])
            _, key, body = late[which % len(late)]
            with suppress(StatusError):  # nobody is there to be told
                self.store.bind(key, body)


@dataclass
class Clock:
    now: float = 1000.0


class Cluster:
    """A cluster over time. Every method is something that happens to it."""

    def __init__(self) -> None:
        self.clock, self.store = Clock(), Store()
        self.wire = Wire(self.store, self.clock)
        self.wire.waits.set()
        self.reader = PodReader([GPU_MEM, GPU_COUNT], POD_ANNOTATIONS.__contains__)
        self.fleet = Fleet(RESOURCES, vanished_grace_s=VANISHED_GRACE_S)
        for node, sizes in SIZES.items():
            gpus = tuple(ListedGpu(at, size, f"GPU-{node}-{at}") for at, size in enumerate(sizes))
            self.fleet.put_node(node, NodeGpus(gpus, 1024))
        binder = Binder(cast("Client", self.wire), self.reader, timing=lambda: BinderTiming(pause_s=0))
        self.binding = binding_in(
            context(self.fleet, binder=binder, clock=lambda: self.clock.now, wall=lambda: 17e-9), self.current
        )
        self.told = 0
        self.calls: set[asyncio.Task[str]] = set()
        self.running: list[tuple[float, str, Counter[int]]] = []
        """Until when the containers of a pod that was deleted by force may run, and where."""
        self.made = 0

    async def current(self) -> None:
        """The extender binds all the time: it follows by its watch alone."""

    async def pod(self, name: str) -> None:
        if ("default", name) not in self.store.state().objects[PODS]:
            self.made += 1
            self.store.create(
                PODS, "default", builders.pod(name, container(mem=8), uid=f"{name}{self.made}"), as_given=True
            )

    async def bind(self, name: str, node: str, fate: str, then: str = "in vain") -> None:
        """The scheduler has a pod bound; it may be one that is gone, or that was bound by now.

        The binder looks "in vain" what became of its request, or sees it; and its further attempts meet `then`.
        """
        uids = [f"{name}{number}" for number in range(1, self.made + 1)]
        uid = next(filter(self.fleet.pending.get, uids), f"{name}{self.made}")
        self.wire.fates, self.wire.down = [fate, then, then], then == "in vain"
        self.calls.add(asyncio.create_task(self.binding.bind(PodRef("default", name, uid), node)))
        for _ in range(30):
            await asyncio.sleep(0)

    async def answers_wait(self) -> None:
        self.wire.waits.clear()

    async def answers_come(self) -> None:
        self.wire.waits.set()
        if self.calls:
            await asyncio.wait(self.calls)
            for call in self.calls:
                call.result()
        self.calls.clear()

    async def carry_out(self, which: int) -> None:
        self.wire.carry_out(which)

    async def watch(self) -> None:
        version = self.store.version
        for change in self.store.changes_after(self.told, version):
            self._tell(change)
        self.told = version

    def _tell(self, change: Change) -> None:
        body = change.after or change.before
        assert body is not None
        pod = self.reader.read(json.dumps(body).encode())[0]
        if change.after is None:
            self.fleet.remove_pod(pod, self.clock.now)
        else:
            self.fleet.put_pod(pod, self.clock.now)

    async def look(self, how: str) -> None:
        self.wire.down, self.wire.overtaken = how == "in vain", how == "overtaken"
        await self.binding.check_doubts()
        self.wire.overtaken = False

    async def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self.fleet.expire(self.clock.now)

    async def force_delete(self, name: str) -> None:
        pod = self.store.state().objects[PODS].get(("default", name))
        if pod is not None:
            if node := pod["spec"].get("nodeName"):
                self.running.append((self.clock.now + VANISHED_GRACE_S, node, held(pod, GPU_MEM)))
            self.store.delete(PODS, ("default", name), grace_s=0)

    async def somebody_binds(self, name: str) -> None:
        """To a node without GPUs: another scheduler may do as it likes."""
        pod = self.store.state().objects[PODS].get(("default", name))
        if pod is not None and not pod["spec"].get("nodeName"):
            self.store.bind(("default", name), {"metadata": {"name": name}, "target": {"name": "elsewhere"}})

    def check(self) -> None:
        """No GPU has more on it than it has, by what stands on the pods, by what runs, and by what may yet be made."""
        taken = {node: Counter[int]() for node in (*SIZES, "elsewhere")}
        may_come = [(key, body) for at, key, body in self.wire.late if self.clock.now - at < LATEST_COMMIT_S]
        for here, pod in self.store.state().objects[PODS].items():
            if node := pod["spec"].get("nodeName"):
                taken[node] += held(pod, GPU_MEM)
                continue
            worst = {node: Counter[int]() for node in SIZES}
            for key, body in (*may_come, *self.wire.sent):
                if key == here and body["metadata"]["uid"] == pod["metadata"]["uid"]:
                    promised = {**pod, "metadata": {**pod["metadata"], **body["metadata"]}}
                    worst[body["target"]["name"]] |= held(promised, GPU_MEM)
            for node, shares in worst.items():
                taken[node] += shares
        for until, node, shares in self.running:
            if self.clock.now < until:
                taken[node] += shares
        for node, sizes in SIZES.items():
            for at, size in enumerate(sizes):
                assert taken[node][at] <= size, f"of {size} shares of GPU {at} of {node}, {taken[node][at]} are taken"

    async def settles(self) -> None:
        """When all is answered and known, and no request is left, nothing is kept for nothing."""
        await self.answers_come()
        self.wire.fates = []
        await self.time_passes(LATEST_COMMIT_S)
        await self.watch()
        await self.look("answered")
        await self.time_passes(VANISHED_GRACE_S)
        assert self.binding.doubts == 0
        counted = {uid for uid, entry in self.fleet.entries.items()}
        bound = {p["metadata"]["uid"] for p in self.store.state().objects[PODS].values() if p["spec"].get("nodeName")}
        assert counted == bound


P, Q = "p", "q"
names, nodes = st.sampled_from(NAMES), st.sampled_from(sorted(SIZES))
STEP = st.one_of(
    st.tuples(st.just("bind"), names, nodes, st.sampled_from(FATES), st.sampled_from((*FATES, "in vain", "in vain"))),
    st.tuples(st.just("bind"), names, st.just("a"), st.sampled_from(FATES)),
    st.tuples(st.just("carry_out"), st.integers(0, 3)),
    st.tuples(st.just("watch")),
    st.tuples(st.just("look"), st.sampled_from(("answered", "overtaken", "in vain"))),
    st.tuples(st.just("time_passes"), st.sampled_from((1.0, 31.0, 59.0))),
    st.tuples(st.just("force_delete"), names),
    st.tuples(st.just("pod"), names),
    st.tuples(st.just("somebody_binds"), names),
    st.tuples(st.just("answers_wait")),
    st.tuples(st.just("answers_come")),
)
LATE, RIVAL = ("bind", P, "a", "late"), ("bind", Q, "a", "made")


@settings(max_examples=120, deadline=None, phases=(Phase.explicit, Phase.generate, Phase.shrink))
@given(st.lists(STEP, min_size=3, max_size=16))
@example([LATE, ("bind", P, "a", "429"), RIVAL])
@example([LATE, ("bind", P, "a", "not sent"), RIVAL])
@example([LATE, ("bind", P, "b", "made"), RIVAL])
@example([LATE, ("time_passes", 59.0), ("look", "overtaken"), RIVAL])
@example([LATE, ("time_passes", 31.0), LATE, ("time_passes", 31.0), ("look", "answered"), RIVAL])
@example([LATE, ("time_passes", 59.0), ("bind", P, "a", "403"), ("time_passes", 1.0), ("look", "answered"), RIVAL])
@example([LATE, ("time_passes", 61.0), ("answers_wait",), ("bind", P, "a", "made"), ("look", "answered"), RIVAL])
@example(
    [("answers_wait",), ("bind", P, "a", "made, unanswered", "late"), ("force_delete", P), ("answers_come",), RIVAL]
)
@example([LATE, ("carry_out", 0), ("force_delete", P), ("bind", P, "a", "made"), RIVAL])
@example([LATE, ("carry_out", 0), ("force_delete", P), ("pod", P), ("look", "answered"), RIVAL])
def test_no_order_of_lost_late_and_refused_bindings_gives_a_gpu_twice(steps: list[tuple[Any, ...]]) -> None:
    """Two pods that want a whole GPU each; watch, looks, time, deletions and late commits come at any moment between.

    The examples are the shortest ways into each mistake that was made here, or could be.
    """

    async def happens() -> None:
        cluster = Cluster()
        for name in NAMES:
            await cluster.pod(name)
        await cluster.watch()
        for what, *args in steps:
            await getattr(cluster, what)(*args)
            cluster.check()
        await cluster.settles()
        cluster.check()

    asyncio.run(happens())
