"""How many GPUs the real kube-scheduler gives out with each policy: ``python -m bench.placement``.

Needs etcd, kube-apiserver and kube-scheduler in KUBE_BIN. With the traces of openb in the folder OPENB a sample of its
nodes gets its pods; otherwise nodes and pods are made up. Pods come one after the other until all GPUs have been asked
for; one that is unschedulable is deleted, and does not come again. No kubelet runs, and none is needed: a pod takes its
place when it is bound. No agent withholds a GPU that is in use as the other resource, so kube-scheduler lets more nodes
pass here than in a cluster. The simulator places the same pods on the same nodes for comparison. There as here pods
without GPUs go where kube-scheduler puts them, unless the extender is asked about every pod.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from bench.extender import running
from bench.kubeapi import KubeApi, binaries, shipped
from bench.node_agent import machine
from bench.openb import TRACE_SHARES, trace
from bench.policies import placed as placed_by
from bench.scheduler import PREFIX
from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.keys import NODE_GPUS, USE_MODEL
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus, write_node_gpus
from gpu_device_plugin.programs.simulate.model import Workload, capacity_of, demand_of, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.builders import Json

_MEM, _COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is placed where."""

    nodes: Sequence[Start]
    workload: Workload
    arrivals: Sequence[int]
    """Pods in the order in which they come, as places in `Workload.kinds`."""
    percentage: int = 100
    """kube-scheduler's `percentageOfNodesToScore`."""

    @property
    def demand(self) -> list[float]:
        """Shares that each arrival asks for."""
        demand = demand_of(self.workload, self.nodes)
        return [demand[kind] for kind in self.arrivals]


def cluster(nodes: int, pods: str, seed: int, percentage: int = 100) -> Cluster:
    """Return the cluster: a sample of openb, or one that is made up."""
    if os.environ.get("OPENB"):
        every, workload = trace(pods)
        chosen = random.Random(seed).sample(every, min(nodes, len(every)))  # noqa: S311 - the same sample every time
    else:
        chosen, workload = _made_up(nodes)
    named = [replace(node, name=f"node-{at:04}") for at, node in enumerate(chosen)]
    return Cluster(named, workload, until(workload, named, seed, 1.0), percentage)


def _made_up(nodes: int) -> tuple[list[Start], Workload]:
    small = NodeType((100,) * 2, ("T4",) * 2, 96_000, 393_216)
    large = NodeType((100,) * 8, ("V100",) * 8, 96_000, 786_432)
    shapes = [large if at % 3 else small for at in range(nodes)]
    starts = [Start.empty("", shape) for shape in shapes]
    kinds = {
        PodKind(25, 1, 4000, 16_384): 20,
        PodKind(50, 1, 8000, 32_768): 20,
        PodKind(81, 1, 8000, 32_768): 15,
        PodKind(0, 1, 8000, 32_768): 30,
        PodKind(0, 4, 32_000, 131_072): 3,
        PodKind(0, 8, 88_000, 262_144): 2,
        PodKind(0, 0, 8000, 32_768): 10,
    }
    pods = [place for place, number in enumerate(kinds.values()) for _ in range(number)]
    return starts, Workload(tuple(kinds), tuple(pods))


def node_json(node: Start) -> Json:
    """Return a node as its agent and its kubelet describe it."""
    gpus = tuple(
        ListedGpu(at, size, f"GPU-{node.name}-{at}", model, memory_mib=size * 1024)
        for at, (size, model) in enumerate(zip(node.shape.sizes, node.shape.models, strict=True))
    )
    offered = {
        "cpu": f"{node.shape.cpu_milli}m",
        "memory": f"{node.shape.memory_mib}Mi",
        "pods": "1000",
        _MEM: str(sum(node.shape.sizes)),
        _COUNT: str(len(node.shape.sizes)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "labels": {"kubernetes.io/hostname": node.name},
            "annotations": {NODE_GPUS: write_node_gpus(NodeGpus(gpus, share_mib=1024, policy=None))},
        },
        "spec": {},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_json(number: int, kind: PodKind, scheduler: str) -> Json:
    """Return a pod of a kind."""
    gpus = {_MEM: str(kind.shares * kind.gpus)} if kind.shares else {_COUNT: str(kind.gpus)} if kind.gpus else {}
    amounts = {"cpu": f"{kind.cpu_milli}m", "memory": f"{kind.memory_mib}Mi", **gpus}
    models = {USE_MODEL: ",".join(kind.selector.use_models)} if kind.selector.choosy else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number:05}", "namespace": "default", "annotations": models},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }


# --- The real scheduler ----------------------------------------------------------------------------------------------


class Pods:
    """Creates pods one after the other, and waits for the scheduler's word on each."""

    def __init__(self, api: KubeApi, http: aiohttp.ClientSession, scheduler: str) -> None:
        self._api = api
        self._http = http
        self._scheduler = scheduler
        self._headers = {"Authorization": f"Bearer {api.token}"}
        self._outcomes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def watch(self) -> None:
        """Follow the pods until cancelled."""
        url = f"{self._api.url}/api/v1/namespaces/default/pods?watch=true"
        while True:
            async with self._http.get(url, headers=self._headers, timeout=aiohttp.ClientTimeout(total=None)) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] in {"ADDED", "MODIFIED"}:
                        await self._outcomes.put(_outcome(event["object"]))

    async def place(self, number: int, kind: PodKind, *, only_shares: bool = False) -> str:
        """Create a pod; return its node, or an empty text where it is unschedulable, in which case it is gone again."""
        asked = replace(kind, shares=TRACE_SHARES) if only_shares and kind.gpus and not kind.shares else kind
        pod = pod_json(number, asked, self._scheduler)
        name = pod["metadata"]["name"]
        path = f"{self._api.url}/api/v1/namespaces/default/pods"
        async with self._http.post(path, json=pod, headers=self._headers) as answer:
            if answer.status != 201:
                raise OSError(f"creating a pod: {await answer.text()}")
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                found, where = await self._outcomes.get()
                if found == name and where:
                    break
        if where == _NOWHERE:
            await self.delete(name)
            return ""
        return where

    async def delete(self, name: str) -> None:
        """Delete a pod, at once."""
        path = f"{self._api.url}/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0"
        async with self._http.delete(path, headers=self._headers) as answer:
            await answer.read()


_NOWHERE = "-"


def _outcome(pod: Mapping[str, Any]) -> tuple[str, str]:
    conditions = pod.get("status", {}).get("conditions", ())
    # Another reason is an error of the scheduler, which tries again.
    refused = any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)
    return pod["metadata"]["name"], pod["spec"].get("nodeName") or (_NOWHERE if refused else "")


async def placed(api: KubeApi, there: Cluster, scheduler: str, ledger: Ledger | None = None) -> list[bool]:
    """Let all pods come, and return which of them found room; with a ledger, all GPUs are asked for in shares."""
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 24) as http:
        pods = Pods(api, http, scheduler)
        following = asyncio.create_task(pods.watch())
        found = []
        try:
            for number, place in enumerate(there.arrivals):
                kind = there.workload.kinds[place]
                where = await pods.place(number, kind, only_shares=ledger is not None)
                took = bool(where) and (ledger is None or ledger.take(where, kind))
                if where and not took:
                    await pods.delete(f"pod-{number:05}")
                found.append(took)
        finally:
            following.cancel()
    return found


class Ledger:
    """What nodes have free where nobody but kube-scheduler places pods: a pod takes the fullest GPU with room."""

    def __init__(self, nodes: Sequence[Start]) -> None:
        self._nodes = {node.name: (node.shape, list(node.shape.sizes)) for node in nodes}

    def take(self, name: str, kind: PodKind) -> bool:
        """Return whether a pod finds room on its node, and take it."""
        shape, frees = self._nodes[name]
        fitting = [
            at
            for at, free in enumerate(frees)
            if (free >= kind.shares if kind.shares else free == shape.sizes[at])
            and (kind.selector.allow_model(shape.models[at]))
        ]
        if len(fitting) < kind.gpus:
            return False
        for at in sorted(fitting, key=lambda at: frees[at])[: kind.gpus]:
            frees[at] -= kind.shares or frees[at]
        return True


# --- The runs --------------------------------------------------------------------------------------------------------


def allocated(there: Cluster, accepted: Sequence[bool]) -> float:
    """Return the part of all shares that the accepted pods have, in percent."""
    given = sum(shares for shares, took in zip(there.demand, accepted, strict=True) if took)
    return 100 * given / capacity_of(there.nodes)


def with_extender(there: Cluster, policy: str, *, every: bool = False) -> str:
    """Place all pods with our extender; return a line of the table."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, KubeApi(Path(name)) as api:
        asyncio.run(api.add_nodes([node_json(node) for node in there.nodes]))
        flags = ("--node-policy", policy, "--gpu-policy", policy, "--vanished-grace", "0s")
        with running(Path(name), str(api.kubeconfig), *flags) as extender:
            began = time.monotonic()
            with api.scheduler(extender.url + PREFIX, every=every, percentage=there.percentage) as runs:
                if not runs:
                    raise SystemExit("there is no kube-scheduler in KUBE_BIN")
                accepted = asyncio.run(placed(api, there, "gpushare-scheduler"))
    what = f"kube-scheduler, extender with {policy}{', for every pod' if every else ''}"
    return _row(what, there, accepted, time.monotonic() - began)


def alone(there: Cluster) -> str:
    """Place all pods with kube-scheduler alone, most allocated nodes first; return a line of the table.

    It knows sums only, and two resources for one GPU would not exclude each other: pods ask for shares here, also for
    whole GPUs. A pod for which no GPU of its node has room counts as rejected; an agent would refuse it.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name, KubeApi(Path(name)) as api:
        asyncio.run(api.add_nodes([node_json(node) for node in there.nodes]))
        began = time.monotonic()
        with api.scheduler("", binpack=(_MEM,), percentage=there.percentage) as runs:
            if not runs:
                raise SystemExit("there is no kube-scheduler in KUBE_BIN")
            accepted = asyncio.run(placed(api, there, "gpushare-scheduler", Ledger(there.nodes)))
    return _row("kube-scheduler alone, MostAllocated", there, accepted, time.monotonic() - began)


def simulated(there: Cluster, policy: str, seed: int, *, every: bool = False) -> str:
    """Place all pods in the simulator; return a line of the table."""
    outcome, missed = placed_by(
        policy, there.nodes, there.workload, there.arrivals, seed,
        cold=policy == "fit", others_apart=not every, percentage=there.percentage,
    )  # fmt: skip
    what = f"simulator, {policy}{', for every pod' if every else ''}, {sum(missed)} outside the sample"
    return _row(what, there, outcome.accepted, outcome.cpu_s)


def _row(what: str, there: Cluster, accepted: Sequence[bool], took_s: float) -> str:
    rejected = len(accepted) - sum(accepted)
    return f"| {what} | {allocated(there, accepted):.2f} % | {rejected} | {took_s:.0f} s |"


def rows(there: Cluster, seed: int) -> Iterator[str]:
    """Yield the lines of the table."""
    for every in (False, True):
        yield simulated(there, "fit", seed, every=every)
        yield with_extender(there, "fit", every=every)
    yield simulated(there, "binpack", seed)
    yield with_extender(there, "binpack")
    yield alone(there)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="nodes, of openb a sample")
    parser.add_argument("--trace", default="default", help="list of pods, as in openb_pod_list_TRACE.csv")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the order of pods")
    parser.add_argument(
        "--percentage-of-nodes-to-score",
        type=int,
        default=shipped()["percentageOfNodesToScore"],
        help="of kube-scheduler; 0: its adaptive default, 100: all nodes [as shipped]",
    )
    options = parser.parse_args(argv)
    if not binaries():
        raise SystemExit("set KUBE_BIN to a folder with etcd, kube-apiserver and kube-scheduler")
    there = cluster(options.nodes, options.trace, options.seed, options.percentage_of_nodes_to_score)
    gpus = sum(len(node.shape.sizes) for node in there.nodes)
    print(machine(f"{len(there.nodes)} nodes, {gpus} GPUs, {len(there.arrivals):,} pods") + "\n")
    print("| | GPU allocated | rejected pods | took |\n|---|---|---|---|", flush=True)
    for row in rows(there, options.seed):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
