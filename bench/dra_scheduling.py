"""The same pods on the same GPUs, by kube-scheduler alone from ResourceSlices, and by way of our extender.

Needs etcd, kube-apiserver, kube-scheduler and kube-controller-manager. Nodes are invented and no kubelet runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from bench.extender import running
from bench.kubeapi import Bound, KubeApi, following
from bench.node_agent import Row
from bench.scheduler import PREFIX
from gpu_device_plugin.features.claims.claim_objects import read_claim
from gpu_device_plugin.features.claims.contract import DRIVER, SHARED_CLASS, WHOLE_CLASS, parse_device_name
from gpu_device_plugin.features.claims.rules.devices import SliceInputs, devices
from gpu_device_plugin.features.claims.rules.pool import contents, writes
from gpu_device_plugin.model.contract.keys import NODE_GPUS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus, write_node_gpus
from gpu_device_plugin.model.gpus import Gpu, Inventory
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.node import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from gpu_device_plugin.features.claims.contract import Claim
    from tests.builders import Json

GPUS, GPU_GIB = 8, 16
KINDS = (1, 2, 4, 8, 16, "whole", "count")
"""What pods ask for, in turn: GiB of a GPU, a GPU by a claim of their own, and one by aliyun.com/gpu-count."""
_MEM, _COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_SCHEDULER = "gpushare-scheduler"
_PATIENCE_S = 60.0
_SAMPLE = 2
"""Percentage of the nodes at which kube-scheduler stops looking for more; never before 100 of them fit."""
_MANIFEST = Path(__file__).parents[1] / "deploy" / "optional" / "dra.yaml"
_RESOURCES = "/apis/resource.k8s.io/v1"
_DEFAULT = "/namespaces/default"


@dataclass(frozen=True, slots=True)
class Given:
    """What the status of all claims says."""

    claims: int
    over: int
    """GPUs of which more is given than they have."""
    both: int
    """GPUs of which a part is given, and the whole."""
    twice: int
    """GPUs that are given whole more than once."""
    shared: int
    whole: int

    @property
    def wrong(self) -> int:
        """GPUs that are given to too many."""
        return self.over + self.both + self.twice


def given(claims: Iterable[Claim]) -> Given:
    """Return what the claims have."""
    parts: dict[str, int] = defaultdict(int)
    wholes: dict[str, int] = defaultdict(int)
    allocated = 0
    for claim in claims:
        devices = claim.devices_of(DRIVER)
        allocated += bool(devices)
        for device in devices:
            uuid = parse_device_name(device.name)
            if not uuid:
                raise ValueError(f"no device of ours is called {device.name}")
            if device.whole:
                wholes[uuid] += 1
            else:
                assert device.memory_mib is not None, f"the allocation of {claim} says nothing of memory"
                parts[uuid] += device.memory_mib
    return Given(
        claims=allocated,
        over=sum(mib > GPU_GIB * 1024 for mib in parts.values()),
        both=len(parts.keys() & wholes.keys()),
        twice=sum(number > 1 for number in wholes.values()),
        shared=len(parts),
        whole=len(wholes),
    )


# --- Objects ----------------------------------------------------------------------------------------------------------


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:04}"


def node_json(number: int, *, claims: bool) -> Json:
    """Return a node as its kubelet describes it, and its agent where that serves the device plugin."""
    name = node_name(number)
    listed = tuple(ListedGpu(at, GPU_GIB, uuid(number, at), "T4", memory_mib=GPU_GIB * 1024) for at in range(GPUS))
    offered = {"cpu": "128", "memory": "1024Gi", "pods": "1000"}
    annotations = {}
    if not claims:
        offered |= {_MEM: str(GPUS * GPU_GIB), _COUNT: str(GPUS)}
        annotations[NODE_GPUS] = write_node_gpus(NodeGpus(listed, share_mib=1024, policy=None))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, "annotations": annotations},
        "spec": {},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def uuid(number: int, at: int) -> str:
    """Return the UUID of a GPU of a node."""
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-{at:012x}"


def slices(number: int) -> Iterator[Json]:
    """Yield the ResourceSlices of a node, as its agent makes them."""
    gpus = tuple(
        Gpu(uuid(number, at), at, "Tesla T4", GPU_GIB * 1024, numa_node=at // 4, pci_bus_id=f"0000:{at + 16:02X}:00.0")
        for at in range(GPUS)
    )
    node = Node(Shares(1024).with_inventory(Inventory(gpus)))
    facts = SliceInputs(tuple(gpu.uuid for gpu in gpus), driver_version="570.86.15")
    for name, spec, _ in writes(node_name(number), contents(devices(node, facts)), ()).put:
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": dict(spec),
        }


def classes() -> Iterator[Json]:
    """Yield the DeviceClasses of our manifests that pods here ask for."""
    for one in yaml.safe_load_all(_MANIFEST.read_text()):
        if one["kind"] == "DeviceClass" and one["metadata"]["name"] in {SHARED_CLASS, WHOLE_CLASS}:
            yield one


def template(kind: int | str) -> Json:
    """Return the ResourceClaimTemplate of a kind of pods."""
    exactly: Json = {"deviceClassName": WHOLE_CLASS if kind == "whole" else SHARED_CLASS}
    if isinstance(kind, int):
        exactly["capacity"] = {"requests": {"memory": f"{kind}Gi"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"gpu-{kind}", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod_json(number: int, *, claims: bool) -> Json:
    """Return a pod; the same number asks for the same in either way."""
    kind = KINDS[number % len(KINDS)]
    amounts = {"cpu": "100m", "memory": "128Mi"}
    spec: Json = {"schedulerName": _SCHEDULER, "terminationGracePeriodSeconds": 0}
    resources: Json = {"requests": amounts, "limits": amounts}
    if kind == "count" or (kind == "whole" and not claims):
        amounts[_COUNT] = "1"
    elif not claims:
        amounts[_MEM] = str(kind)
    else:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"gpu-{kind}"}]
        resources["claims"] = [{"name": "gpu"}]
    spec["containers"] = [{"name": "main", "image": "none", "resources": resources}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number:05}", "namespace": "default"},
        "spec": spec,
    }


# --- The API server ---------------------------------------------------------------------------------------------------


class Calls:
    """Calls to a real API server."""

    def __init__(self, api: KubeApi, http: aiohttp.ClientSession) -> None:
        self._api = api
        self._http = http

    async def create(self, path: str, objects: Iterable[Json]) -> None:
        """Create objects, some at once."""
        limit = asyncio.Semaphore(20)

        async def one(body: Json) -> None:
            async with limit, self._http.post(self._api.url + path, json=body) as answer:
                if answer.status != 201:
                    raise OSError(f"creating {body['kind']} {body['metadata']['name']}: {await answer.text()}")

        await asyncio.gather(*map(one, objects))

    async def items(self, path: str) -> list[Any]:
        """Return all objects of a kind."""
        async with self._http.get(self._api.url + path) as answer:
            found: list[Any] = (await answer.json())["items"]
            return found


@contextlib.asynccontextmanager
async def calls(api: KubeApi) -> AsyncIterator[Calls]:
    """Open connections."""
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    headers = {"Authorization": f"Bearer {api.token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=1 << 24) as http:
        yield Calls(api, http)


# --- The runs ---------------------------------------------------------------------------------------------------------


def rows(nodes: int, pods: int) -> Iterator[Row]:
    """Yield what becomes of the pods, with claims and by way of the extender."""
    yield from by_claims(nodes, pods, "all nodes looked at", 100)
    yield from by_claims(nodes, pods, "a sample of nodes", _SAMPLE)
    yield from by_extender(nodes, pods)


def by_claims(nodes: int, pods: int, what: str, percentage: int) -> Iterator[Row]:
    """Let kube-scheduler allocate claims from ResourceSlices."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, KubeApi(Path(name)) as api:

        async def go() -> tuple[float, int, Bound, list[Claim]]:
            await api.add_nodes([node_json(number, claims=True) for number in range(nodes)])
            async with calls(api) as to:
                await to.create(f"{_RESOURCES}/deviceclasses", classes())
                every = (one for number in range(nodes) for one in slices(number))
                await to.create(f"{_RESOURCES}/resourceslices", every)
                templates = (template(kind) for kind in KINDS if kind != "count")
                await to.create(f"{_RESOURCES}{_DEFAULT}/resourceclaimtemplates", templates)
                wanted = sum("resourceClaims" in pod_json(number, claims=True)["spec"] for number in range(pods))
                with api.claim_controller() as runs:
                    if not runs:
                        raise SystemExit("there is no kube-controller-manager in KUBE_BIN")
                    await to.create(
                        f"/api/v1{_DEFAULT}/pods", (pod_json(number, claims=True) for number in range(pods))
                    )
                    began = changed = time.monotonic()
                    made = 0
                    while made < wanted and time.monotonic() - changed < _PATIENCE_S:
                        before = made
                        # Of the pods, not of the claims: the controller notes a claim on its pod after it made it.
                        found = await to.items(f"/api/v1{_DEFAULT}/pods")
                        made = sum(bool(pod["status"].get("resourceClaimStatuses")) for pod in found)
                        if made > before:
                            changed = time.monotonic()
                        await asyncio.sleep(0.2)
                    took_s = changed - began
                    with api.scheduler("", percentage=percentage) as schedules:
                        if not schedules:
                            raise SystemExit("there is no kube-scheduler in KUBE_BIN")
                        async with following(api) as bound:
                            await bound.all_of(pods)
                        found = await to.items(f"{_RESOURCES}{_DEFAULT}/resourceclaims")
                return took_s, made, bound, [read_claim(json.dumps(each).encode()) for each in found]

        claims_s, made, bound, claims = asyncio.run(go())
    yield Row("claims there once all pods were created", claims_s, "s", note=f"{made} of templates")
    yield _rate(f"pods with claims, {what}", nodes, pods, bound)
    found = given(claims)
    note = f"{found.shared} in parts, {found.whole} whole"
    yield Row("GPUs given to too many claims", found.wrong, "", 0, note)
    assert found.wrong == 0, f"GPUs are given to too many claims: {found}"
    yield Row("claims allocated", found.claims, "", note=f"{found.claims - made} by gpu-count")


def by_extender(nodes: int, pods: int) -> Iterator[Row]:
    """Let kube-scheduler place the same pods by the advice of our extender."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, KubeApi(Path(name)) as api:
        asyncio.run(api.add_nodes([node_json(number, claims=False) for number in range(nodes)]))
        with running(Path(name), str(api.kubeconfig), "--vanished-grace", "0s") as extender:

            async def go() -> Bound:
                async with calls(api) as to:
                    await to.create(f"/api/v1{_DEFAULT}/pods", (pod_json(n, claims=False) for n in range(pods)))
                    with api.scheduler(extender.url + PREFIX):
                        async with following(api) as bound:
                            await bound.all_of(pods)
                        return bound

            bound = asyncio.run(go())
    yield _rate("pods with gpu-mem or gpu-count, by the extender", nodes, pods, bound)


def _rate(what: str, nodes: int, pods: int, bound: Bound) -> Row:
    """Return pods a second, from the first that is bound to the last."""
    return Row(f"{what}, {nodes} nodes", bound.rate, "/s", note=f"{len(bound.at):,} bound of {pods:,}")
