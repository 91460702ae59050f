"""The extender's answers without HTTP, from a process that follows the synthetic cluster as the real one does.

``python -m bench.inside API NODES CALLS PERCENTAGE`` prints what it measured, as JSON; all times in ms.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from bench import hostile, synthetic
from bench.policies import nodes_to_find
from bench.scheduler import arguments
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.writers.binder import PodRef
from gpu_device_plugin.lifetime import collect_rarely
from gpu_device_plugin.metrics import PrometheusMetrics
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.scheduler.rules.fitting import fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import usage_of
from gpu_device_plugin.settings.sources import Sources
from tests.scheduler.contexts import binding_in

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from gpu_device_plugin.kubernetes.writers.binder import Binder
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.scheduler.rules.candidate import Candidate

CHANGES = 10
"""Pods that end or come between two calls."""


def named(names: list[str], percentage: int) -> Iterator[list[str]]:
    """Yield the nodes that kube-scheduler names for one pod after the other: so many in a hundred, in turn."""
    most = nodes_to_find(len(names), percentage)
    first = 0
    while True:
        yield (names[first:] + names[:first])[:most]
        first = (first + most) % len(names)


class _Nowhere:
    """An API server that agrees to everything, and takes no time for it."""

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        assert pod.uid
        assert node
        assert annotations


async def _current() -> None:
    return


async def measure(api: str, nodes: int, calls: int, percentage: int) -> dict[str, Any]:
    """Return the times of each verb, and what was asked each time."""
    settings = Sources(EXTENDER_SETTINGS, {"http": "off", "listen": "127.0.0.1:0"}, {}).read()
    extender = Extender(settings, ClusterConfig(api), features=EXTENDER_FEATURES, when_read=collect_rarely())
    running = asyncio.create_task(extender.run(), name="extender")
    verbs, fleet = extender.verbs, extender.fleet
    names, rng = [synthetic.node_name(node) for node in range(nodes)], random.Random(0)  # noqa: S311 - repeatable
    asked = named(names, percentage)
    probe = arguments(synthetic.new_pod(0, "gpu-mem 1"), names[:1])
    while b"read yet" in verbs.filter(probe):
        assert not running.done(), running
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    found: dict[str, list[Any]] = {"shape": []}
    async with aiohttp.ClientSession() as http:
        for number, verb in enumerate(verb for verb in ("filter", "prioritize") for _ in range(calls)):
            await http.post(f"{api}/bench/churn?count={CHANGES}")
            await asyncio.sleep(0.01)  # until the watch has told
            shape = rng.choice(list(synthetic.SHAPES))
            pod = synthetic.new_pod(10**9 + number, shape)
            # prioritize as for a pod with preferences, and room everywhere
            _timed(getattr(verbs, verb), arguments(pod, next(asked)), found, verb)
            found["shape"].append(shape)
    found["hostile"] = [took for what in hostile.PODS for took in _hostile(extender, what, names)]
    await asyncio.sleep(0.1)
    found["bind"] = [took async for took in _binds(extender, names, calls)]
    metrics = PrometheusMetrics(lambda: extender.state().gauges())
    found["page"] = [took for _ in range(20) for took in pieces(metrics.page())]
    running.cancel()
    return {**found, "pods": len(fleet.entries)}


def pieces(page: Coroutine[Any, Any, object]) -> Iterator[float]:
    """Write a page of metrics; yield the CPU time of each piece after which others may run, in ms."""
    going = True
    while going:
        began = time.thread_time()
        try:
            page.send(None)
        except StopIteration:
            going = False
        yield (time.thread_time() - began) * 1000


def _timed(verb: Callable[[bytes], bytes], body: bytes, found: dict[str, list[Any]], name: str) -> bytes:
    """Keep the time that one call took, and the time of it in which the processor was ours."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    answer = verb(body)
    found.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    found.setdefault(f"{name} cpu", []).append((time.thread_time() - began_cpu) * 1000)
    return answer


_VICTIMS = 500
"""Of so many nodes kube-scheduler names victims: of a tenth of 5,000."""


def _hostile(extender: Extender, what: str, names: list[str]) -> Iterator[tuple[float, str, str]]:
    """Yield the CPU time that each decision on a hostile pod takes, with its name and the pod's."""
    verbs, fleet = extender.verbs, extender.fleet
    pod = hostile.PODS[what]
    important = {**pod, "spec": {**pod["spec"], "priority": 1000}}
    victims = {
        name: {"Pods": [{"UID": entry.uid} for entry in fleet.on_node(name)[:2]], "NumPDBViolations": 0}
        for name in names[:_VICTIMS]
    }
    preemption = json.dumps({"Pod": important, "NodeNameToMetaVictims": victims}).encode()
    raw = json.dumps(pod).encode()
    bodies = {"filter": arguments(pod, names), "prioritize": arguments(pod, names), "preempt": preemption}
    steps: dict[str, Callable[[], object]] = {
        **{name: partial(getattr(verbs, name), body) for name, body in bodies.items()},
        "usage of": lambda: usage_of(extender.follower._pod_reader.read(raw)[0], extender.settings.offered),
        "place of": lambda: _placed(extender, extender.follower._pod_reader.read(raw)[0], fleet.candidates[names[0]]),
    }
    for name, step in steps.items():
        began = time.thread_time()
        step()
        yield (time.thread_time() - began) * 1000, name, what


def _placed(extender: Extender, pod: Pod, node: Candidate) -> None:
    """Decide as bind does."""
    asked = ask(pod, extender.settings.offered)
    if isinstance(asked, GpuRequest):
        fit(asked, node, "binpack")


async def _binds(extender: Extender, names: list[str], calls: int) -> Any:
    """Yield how long it takes from the scheduler's call until the API server is called."""
    fleet = extender.fleet
    settings = replace(extender.settings, gpu_policy="binpack", bind_timeout_s=4.0)
    parts = replace(extender._context, binder=cast("Binder", _Nowhere()), settings=lambda: settings)
    binding = binding_in(parts, _current)
    rng = random.Random(1)  # noqa: S311 - repeatable
    for number in range(calls):
        shape = rng.choice(list(synthetic.SHAPES))
        raw = json.dumps(synthetic.new_pod(2 * 10**9 + number, shape)).encode()
        answer = json.loads(extender.verbs.filter(arguments(json.loads(raw), names)))
        if not answer["NodeNames"]:
            continue
        pod = extender.follower._pod_reader.read(raw)[0]
        fleet.put_pod(pod)
        ref, node = PodRef(pod.namespace, pod.name, pod.uid), rng.choice(answer["NodeNames"])
        began = time.perf_counter()
        said = await binding.bind(ref, node)
        yield (time.perf_counter() - began) * 1000
        assert not said, said


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], *map(int, sys.argv[2:])))))
