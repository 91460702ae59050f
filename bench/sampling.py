"""What the real kube-scheduler gains by sampling the nodes, and what it loses: ``python -m bench.sampling``.

Needs etcd, kube-apiserver and kube-scheduler in KUBE_BIN. No kubelet runs, and none is needed: a pod takes its place
when it is bound.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import memory, synthetic
from bench.extender import Extender, counted, load, running, session
from bench.kubeapi import STALLED_S, KubeApi, binaries, following
from bench.node_agent import Row, add_only, machine, show
from bench.scheduler import PREFIX, create, delete
from gpu_device_plugin.metrics import SAMPLE_MISSES
from gpu_device_plugin.model.contract.keys import SPLIT_LABEL
from gpu_device_plugin.model.placing import Placement
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.scheduler.rules.candidate import by_division
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.usage import promise

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import aiohttp

    from tests.builders import Json

BOUND_BAR_S = 30.0
"""For a pod that a node has room for, in a cluster that is nearly full."""
_ROOMY, WANTED = 16, 12
"""Shares of the one GPU in a nearly full cluster that has room, and what a pod asks."""
_LEFT = 2
"""Free shares of every other GPU: together as many as `_ROOMY`."""


# --- Throughput -------------------------------------------------------------------------------------------------------


def throughput(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Have the same pods bound with several percentages, and by kube-scheduler alone; figures are pods a second."""
    for nodes in options.nodes:
        here = folder / str(nodes)
        here.mkdir()
        with KubeApi(here) as api:
            asyncio.run(api.add_nodes([synthetic.new_node(node) for node in range(nodes)]))
            with running(here, str(api.kubeconfig), "--vanished-grace", "0s") as extender:
                for percentage in options.percentages:
                    rate, note = asyncio.run(timed(api, extender, percentage, options.pods))
                    yield Row(f"pods bound, {nodes:,} nodes, {named(percentage)}", rate, "/s", note=note)
                for percentage in options.percentages:
                    rate, note = asyncio.run(timed(api, None, percentage, options.pods))
                    yield Row(
                        f"the same without an extender, {nodes:,} nodes, {named(percentage)}", rate, "/s", note=note
                    )


def named(percentage: int) -> str:
    """Return a percentage of nodes for people."""
    return "adaptive" if percentage == 0 else "all nodes" if percentage == 100 else f"{percentage} % of the nodes"


async def timed(api: KubeApi, extender: Extender | None, percentage: int, number: int) -> tuple[float, str]:
    """Have pods bound that wait when kube-scheduler starts; return how many a second, and a note."""
    label = f"{'extender' if extender else 'alone'}-{percentage}"
    pods = load(number)
    for at, pod in enumerate(pods):
        pod["metadata"]["name"] = f"{label}-{at}"
        pod["metadata"]["labels"][label] = "yes"
    async with session() as http, following(api, label) as bound:
        made = await create(http, api.url, pods, api.token)
        with api.scheduler("" if extender is None else extender.url + PREFIX, percentage=percentage):
            await bound.all_of(1)
            before, first = _cpu_s(api, extender), len(bound.at)
            await bound.all_of(number)
            spent_s = {name: now_s - before[name] for name, now_s in _cpu_s(api, extender).items()}
        await delete(http, api.url, made, api.token)
    each = ", ".join(f"{name} {1000 * spent / max(number - first, 1):.1f}" for name, spent in spent_s.items())
    return bound.rate, f"{len(bound.at)} bound of {number}; ms of CPU for each: {each}"


def _cpu_s(api: KubeApi, extender: Extender | None) -> Mapping[str, float]:
    """Return how many seconds of CPU the programs have used that schedule and bind."""
    pids = {
        "scheduler": [api.pids["kube-scheduler"]],
        **({} if extender is None else {"extender": [extender.pid]}),
        "API server and etcd": [api.pids["kube-apiserver"], api.pids["etcd"]],
    }
    return {name: memory.cpu_s(of) for name, of in pids.items()}


# --- A cluster that is nearly full ------------------------------------------------------------------------------------


def nearly_full(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Have pods bound that few nodes have room for, though the sums of all nodes suffice; the figure is the slowest."""
    for nodes, roomy in {min(options.nodes): 20, max(options.nodes): 5}.items():
        here = folder / f"full-{nodes}"
        here.mkdir()
        with KubeApi(here) as api:
            asyncio.run(api.add_nodes([synthetic.new_node(node) for node in range(nodes)]))
            asyncio.run(fill(api, nodes, roomy))
            with running(here, str(api.kubeconfig), "--vanished-grace", "0s") as extender:
                for percentage in options.percentages:
                    if percentage != 100:
                        yield asyncio.run(last(api, extender, percentage, nodes, roomy))


async def fill(api: KubeApi, nodes: int, roomy: int) -> None:
    """Fill all nodes with pods that kube-scheduler may evict; one GPU of some nodes keeps room for one pod."""
    headers = {"Authorization": f"Bearer {api.token}"}
    low = {"metadata": {"name": "low"}, "value": -10, "preemptionPolicy": "Never"}
    full, open_ = filler(synthetic.GPUS), filler(synthetic.GPUS - 1)
    with_room = set(range(0, nodes, nodes // roomy)[:roomy])
    pods = []
    for node in range(nodes):
        amount, labels, annotations = open_ if node in with_room else full
        pods.append(pod_json(f"filler-{node}", amount, labels, annotations))
        pods[-1]["spec"] |= {"nodeName": synthetic.node_name(node), "priorityClassName": "low"}
    async with session() as http:
        async with http.post(f"{api.url}/apis/scheduling.k8s.io/v1/priorityclasses", json=low, headers=headers) as made:
            if made.status not in {201, 409}:
                raise OSError(f"creating a priority class: {await made.text()}")
        await create(http, api.url, pods, api.token)


def filler(gpus: int) -> tuple[int, Mapping[str, str], Mapping[str, str]]:
    """Return amount, labels and annotations of a pod that leaves `_LEFT` shares on each of some GPUs."""
    each = synthetic.SHARES - _LEFT
    labels, amount = {SPLIT_LABEL: str(gpus)}, each * gpus
    containers = (Container("main-0", ContainerKind.APP, 0, {synthetic.MEMORY: amount}),)
    asked = ask(Pod("", "", "", labels=labels, containers=containers), synthetic.RESOURCES)
    assert isinstance(asked, GpuRequest)
    (part,) = asked.parts
    placements = [Placement(part.demand, tuple((position, each) for position in range(gpus)))]
    gpus_of_node = by_division(synthetic.GPUS * synthetic.SHARES, synthetic.GPUS)
    return amount, labels, promise(asked, placements, gpus_of_node, 1)


def pod_json(name: str, amount: int, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Json:
    amounts = {synthetic.MEMORY: str(amount)}
    meta = {
        "name": name,
        "namespace": synthetic.NAMESPACE,
        "labels": dict(labels),
        "annotations": dict(annotations or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "schedulerName": "gpushare-scheduler",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main-0", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }


async def last(api: KubeApi, extender: Extender, percentage: int, nodes: int, number: int) -> Row:
    """Have as many pods bound as there is room for; the figure is the time until the last one is, in seconds."""
    label = f"last-{percentage}"
    pods = [pod_json(f"{label}-{at}", WANTED, {label: "yes"}) for at in range(number)]
    before = counted(extender, SAMPLE_MISSES.name)
    first = pod_json(f"{label}-first", 1, {f"{label}-first": "yes"})
    async with session() as http, following(api, f"{label}-first") as begun, following(api, label) as bound:
        with api.scheduler(extender.url + PREFIX, percentage=percentage):
            # Once a pod that fits everywhere is bound, kube-scheduler has read the cluster.
            await create(http, api.url, [first], api.token)
            await begun.all_of(1)
            await delete(http, api.url, [first], api.token)
            began = time.monotonic()
            made = await create(http, api.url, pods, api.token)
            await bound.all_of(number)
        evicted = nodes - len(await _fillers(http, api))
        await delete(http, api.url, made, api.token)
    took_s = max(bound.at.values(), default=began + STALLED_S) - began
    note = (
        f"{len(bound.at)} bound of {number}, {counted(extender, SAMPLE_MISSES.name) - before} misses, {evicted} evicted"
    )
    return Row(f"the last room found, {nodes:,} nodes, {named(percentage)}", took_s, "s", BOUND_BAR_S, note)


async def _fillers(http: aiohttp.ClientSession, api: KubeApi) -> Sequence[Json]:
    url = f"{api.url}/api/v1/namespaces/{synthetic.NAMESPACE}/pods?labelSelector={SPLIT_LABEL}"
    async with http.get(url, headers={"Authorization": f"Bearer {api.token}"}) as answer:
        found: Sequence[Json] = [
            pod for pod in (await answer.json())["items"] if "deletionTimestamp" not in pod["metadata"]
        ]
        return found


PARTS = {"throughput": throughput, "nearly-full": nearly_full}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table. The exit code says nothing of the verdicts: machines differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000], help="sizes of the cluster")
    parser.add_argument("--percentages", type=int, nargs="+", default=[100, 0, 2], help="percentageOfNodesToScore")
    parser.add_argument("--pods", type=int, default=600, help="pods to schedule")
    add_only(parser, PARTS)
    options = parser.parse_args(argv)
    if not binaries():
        print("set KUBE_BIN to a folder with etcd, kube-apiserver and kube-scheduler")
        return 0
    print(machine(f"{synthetic.GPUS} GPUs of {synthetic.SHARES} GiB a node") + "\n")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        show(row for part in options.only for row in PARTS[part](Path(name), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
