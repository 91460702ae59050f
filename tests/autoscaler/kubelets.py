"""Doubles of the kubelets and agents of all nodes: what is bound runs, what is deleted ends, and GPUs are fenced."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gpu_device_plugin.model.contract.keys import ASSIGNED
from tests.autoscaler.cloud import Group
from tests.builders import GPU_COUNT, GPU_MEM
from tests.scheduler.harness import held

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STATUS = "application/strategic-merge-patch+json"


@dataclass
class Kubelets:
    """Looks at all nodes and pods again and again, and does what their kubelets and agents would."""

    ask: Callable[..., Awaitable[Json]]
    group_of: Callable[[str], Group]
    """The group of a node by its name."""
    late: Mapping[str, object]
    """Nodes whose agents have not started yet."""
    pause_s: float = 0.1
    looked: list[Callable[[list[Json], list[Json]], None]] = field(default_factory=list)
    """Called with nodes and pods after each look."""
    _doomed: set[str] = field(default_factory=set)

    async def run(self) -> NoReturn:
        """Go on until cancelled."""
        while True:
            pods = (await self.ask("GET", "/api/v1/pods"))["items"]
            nodes = (await self.ask("GET", "/api/v1/nodes"))["items"]
            for look in self.looked:
                look(nodes, pods)
            names = {node["metadata"]["name"] for node in nodes}
            await asyncio.gather(
                *(self._keep(pod, names) for pod in pods if pod["spec"].get("nodeName")),
                *(self._fence(node, pods) for node in nodes),
            )
            await asyncio.sleep(self.pause_s)

    async def _keep(self, pod: Json, nodes: set[str]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        there = pod["spec"]["nodeName"] in nodes
        if not there or meta["uid"] in self._doomed:
            self._doomed.discard(meta["uid"])
            if there:
                await self.ask("PATCH", f"{path}/status", {"status": _ended(pod)}, STATUS, missing=True)
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            await self.ask("DELETE", path, body, missing=True)
        elif "deletionTimestamp" in meta:
            self._doomed.add(meta["uid"])  # it ends by the next look
        elif pod["status"]["phase"] == "Pending":
            conditions = [{"type": each, "status": "True"} for each in ("Ready", "ContainersReady", "Initialized")]
            status = _status(pod, "Running", {"running": {}}) | {"conditions": conditions}
            await self.ask("PATCH", f"{path}/status", {"status": status}, STATUS, missing=True)
            assigned = {"metadata": {"annotations": {ASSIGNED: "true"}}}
            await self.ask("PATCH", path, assigned, MERGE, missing=True)

    async def _fence(self, node: Json, pods: list[Json]) -> None:
        """Offer no GPU whole of which shares are in use, and no shares of a GPU that is in whole use."""
        name = node["metadata"]["name"]
        if name in self.late:
            return
        shares: Counter[int] = Counter()
        whole: set[int] = set()
        for pod in pods:
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                shares.update(dict(held(pod, GPU_MEM)))
                whole.update(dict(held(pod, GPU_COUNT)))
        group = self.group_of(name)
        offered = {
            GPU_MEM: str((group.gpus - len(whole)) * group.shares),
            GPU_COUNT: str(group.gpus - sum(number > 0 for number in shares.values())),
        }
        if any(node["status"]["allocatable"].get(key) != amount for key, amount in offered.items()):
            status = {"status": {"allocatable": offered}}
            await self.ask("PATCH", f"/api/v1/nodes/{name}/status", status, MERGE, missing=True)


def _status(pod: Json, phase: str, state: Json) -> Json:
    containers = [
        {
            "name": each["name"],
            "ready": phase == "Running",
            "restartCount": 0,
            "image": "",
            "imageID": "",
            "state": state,
        }
        for each in pod["spec"]["containers"]
    ]
    return {"phase": phase, "containerStatuses": containers}


def _ended(pod: Json) -> Json:
    return _status(pod, "Failed", {"terminated": {"exitCode": 0}})
