"""Measure how soon the wish for another guarantee is answered, and what wishes cost the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import aiohttp

from bench import synthetic
from bench.extender import asked, cluster, meanwhile, readiness, session
from bench.extender import running as extending
from bench.inside import named
from bench.kubeapi import KubeApi
from bench.node_agent import COUNT, MEMORY, NODE, allocating, first_list, running
from bench.scheduler import PREFIX, Caller, create, schedule
from gpu_device_plugin.model.contract.keys import (
    ASSIGNED,
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_PROMISED,
    NODE_GPUS,
    RESIZE_BOUND,
)
from gpu_device_plugin.model.contract.reservations import read_answer
from tests import builders
from tests.cluster_double.api_server import ApiServer

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.builders import Json

T = TypeVar("T")
Wait: TypeAlias = "Callable[[Callable[[Mapping[str, str]], bool]], asyncio.Future[float]]"
"""Returns the moment from which the annotations of the pod meet a condition."""
_REQUEST, _MORE, _POD = 2, (4, 6, 8, 3), "resized"
"""The shares of a pod, and what its owner wishes in turn."""
_PATIENCE_S = 30.0
WISHES_PER_S = 1000


@dataclass(slots=True)
class Answers:
    """From the owner's wish to what the programs have written on the pod, in seconds."""

    promised: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    lowered: list[float] = field(default_factory=list)
    """Both, of wishes for less: the agent has to settle between them."""


@dataclass(slots=True)
class _Api:
    """What people and the kubelet write through a real API server, or its double."""

    http: aiohttp.ClientSession
    url: str
    token: str

    async def patch(self, path: str, body: Json) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self.http.patch(self.url + path, data=json.dumps(body), headers=self._bearer | headers) as answer:
            assert answer.status == 200, await answer.text()

    async def get(self, path: str) -> Json:
        async with self.http.get(self.url + path, headers=self._bearer) as answer:
            found: Json = await answer.json()
            return found

    @contextlib.asynccontextmanager
    async def annotations(self) -> AsyncIterator[Wait]:
        """Follow the annotations of the one pod."""
        waiting: list[tuple[Callable[[Mapping[str, str]], bool], asyncio.Future[float]]] = []
        newest: dict[str, str] = {}

        def check() -> None:
            for condition, moment in waiting:
                if not moment.done() and condition(newest):
                    moment.set_result(time.monotonic())

        def wait(condition: Callable[[Mapping[str, str]], bool]) -> asyncio.Future[float]:
            waiting.append((condition, asyncio.get_running_loop().create_future()))
            check()
            return waiting[-1][1]

        async def follow() -> None:
            url = f"{self.url}/api/v1/namespaces/default/pods?watch=true"
            timeout = aiohttp.ClientTimeout(total=None)
            async with self.http.get(url, headers=self._bearer, timeout=timeout) as answer:
                async for line in answer.content:
                    newest.clear()
                    newest.update(json.loads(line)["object"]["metadata"].get("annotations", {}))
                    check()

        task = asyncio.create_task(follow(), name="follow the pod")
        try:
            yield wait
        finally:
            task.cancel()

    @property
    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


async def answers(root: Path, times: int, *, real: bool) -> Answers:
    """Have the wish of one pod change again and again, which extender and agent answer."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        server: KubeApi | ApiServer
        node, label = builders.node(NODE, mem=14, count=1), {"metadata": {"labels": {RESIZE_BOUND: "100"}}}
        api = _Api(await enter(session()), "", "")
        if real:
            server = await enter(entered(KubeApi(root)))
            api.url, api.token, where = server.url, server.token, str(server.kubeconfig)
            await server.add_nodes([node])
        else:
            server = await enter(ApiServer())
            api.url = where = server.url
            server.add(node)
            server.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
        await api.patch("/api/v1/namespaces/default", label)
        agent = await enter(entered(running(root / "node", "--api", where, "--node-name", NODE, gpus="fake:1xT4")))
        for _ in range(100):
            if NODE_GPUS in (await api.get(f"/api/v1/nodes/{NODE}"))["metadata"].get("annotations", {}):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)  # until the agent has said that its kubelet accepts pods
        extender = await enter(entered(extending(root, where)))
        pod = builders.pod(_POD, builders.container(mem=_REQUEST))
        pod["spec"] |= {"schedulerName": "gpushare-scheduler", "terminationGracePeriodSeconds": 0}
        (made,) = await create(api.http, api.url, [pod], api.token)
        if isinstance(server, KubeApi):
            await enter(entered(server.scheduler(extender.url + PREFIX)))
        else:
            await asyncio.sleep(0.5)
            outcome = await schedule(api.http, extender.url, [made], iter([[NODE]]))
            assert outcome.bound, outcome
        wait = await enter(api.annotations())
        await _in_time(wait(lambda found: MEMORY_PROMISED in found))
        await asyncio.sleep(0.5)  # until the agent knows the pod
        ids = first_list(agent)[1][:_REQUEST]
        await asyncio.to_thread(agent.mem.call, "Allocate", allocating(ids))
        agent.kubelet.hold(made["metadata"]["uid"], MEMORY, ids)
        agent.kubelet.write_checkpoint([MEMORY, COUNT])
        status = {
            "name": "main",
            "image": "",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {}},
        }
        path = f"/api/v1/namespaces/default/pods/{_POD}"
        await api.patch(f"{path}/status", {"status": {"phase": "Running", "containerStatuses": [status]}})
        await _in_time(wait(lambda found: found.get(ASSIGNED) == "true"))
        return await _resized(api, path, wait, times)


@contextlib.asynccontextmanager
async def entered(context: contextlib.AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context that blocks, while others run."""
    with contextlib.ExitStack() as stack:
        value = await asyncio.to_thread(stack.enter_context, context)
        try:
            yield value
        finally:
            await asyncio.to_thread(stack.close)


async def _in_time(moment: asyncio.Future[float]) -> float:
    async with asyncio.timeout(_PATIENCE_S):
        return await moment


async def _resized(api: _Api, path: str, wait: Wait, times: int) -> Answers:
    found, rng, before = Answers(), random.Random(0), _REQUEST  # noqa: S311 - repeatable
    for number in range(times):
        wish = _MORE[number % len(_MORE)]

        def says(annotations: Mapping[str, str], key: str, wish: int = wish) -> bool:
            answer = read_answer(annotations, key)
            return answer.guarantees == {"main": wish} and answer.wish == str(wish)

        await asyncio.sleep(2.5 + rng.random())  # all is quiet
        began = time.monotonic()
        await api.patch(path, {"metadata": {"annotations": {MEMORY_GUARANTEE: str(wish)}}})
        promised, held = wait(lambda a: says(a, MEMORY_PROMISED)), wait(lambda a: says(a, MEMORY_HELD))
        moments = await _in_time(promised), await _in_time(held)
        if wish < before:
            found.lowered.append(max(moments) - began)
        else:
            found.promised.append(moments[0] - began)
            found.held.append(moments[1] - began)
        before = wish
    return found


# --- Many wishes ------------------------------------------------------------------------------------------------------


def wishing(api: str, counted: list[tuple[int, float]]) -> contextlib.AbstractContextManager[None]:
    """Let the owner of one pod change its wish a thousand times a second for as long as the block runs.

    Afterwards `counted` has how often it did so in how many seconds.
    """

    def go(done: threading.Event) -> None:
        caller = Caller(api)
        began, number = time.monotonic(), 0
        while not done.wait(max(0.0, began + number / WISHES_PER_S - time.monotonic())):
            caller.post(f"/bench/wish?count={WISHES_PER_S // 20}")
            number += WISHES_PER_S // 20
        counted.append((number, time.monotonic() - began))
        caller.close()

    return meanwhile(go)


@dataclass(frozen=True, slots=True)
class Beside:
    """What an extender does beside a pod whose wish changes all the time."""

    quiet_ms: Sequence[float]
    """Times of filter, and while the wish changes."""
    filter_ms: Sequence[float]
    promised_s: Sequence[float]
    """From the wish of another pod to the promise."""
    wishes_per_s: float


def beside(folder: Path, nodes: int, calls: int, times: int) -> Beside:
    """Measure filter without and with wishes, in turn, and promises to other pods."""
    folder.mkdir(parents=True)
    with cluster(nodes) as api, extending(folder, api) as extender:
        assert not readiness(extender.probes)
        names = named([synthetic.node_name(node) for node in range(nodes)], 100)
        quiet, busy = list[float](), list[float]()
        promised, counted = list[float](), list[tuple[int, float]]()
        for _ in range(4):
            quiet += asked(extender, api, names, calls // 4, churn=False)["filter"]
            with wishing(api, counted):
                busy += asked(extender, api, names, calls // 4, churn=False)["filter"]
                promised += _promises(api, times // 4, len(promised))
        return Beside(quiet, busy, promised, sum(n for n, _ in counted) / sum(took for _, took in counted))


def _promises(api: str, times: int, first: int) -> Iterator[float]:
    world = Caller(api)
    for number in range(first, first + times):
        yield json.loads(world.post(f"/bench/resize?number={number}")[1])["seconds"]
    world.close()
