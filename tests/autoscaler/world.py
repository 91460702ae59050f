"""A cluster that the real Cluster Autoscaler resizes: a real control plane, our extender, a double of a cloud."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.kubeapi import shipped
from gpu_device_plugin.features.extender_features import EXTENDER_FEATURES, EXTENDER_SETTINGS
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.scheduler.extender import Extender
from gpu_device_plugin.settings.sources import Sources
from tests import builders
from tests.autoscaler.buffers import CAPACITY_BUFFER
from tests.autoscaler.cloud import Cloud, Group
from tests.autoscaler.kubelets import MERGE, STATUS, Kubelets
from tests.deploy.manifests import documents
from tests.deploy.policies_world import path_of
from tests.deploy.test_scheduler_manifest import ACCOUNT
from tests.kubeconfig import kubeconfig
from tests.kubernetes.conftest import RealServer, processes
from tests.kubernetes.conftest import programs as api_server_programs
from tests.patience import REAL_S, beside, eventually, stretched
from tests.ports import free_port
from tests.scheduler.harness import NODE_GPUS, PREFIX, QUICK, patient

Json = dict[str, Any]

SCHEDULER = "gpushare-scheduler"

_QUICK = {
    "scan-interval": "1s",
    "scale-down-unneeded-time": "5s",
    "scale-down-unready-time": "10s",
    "scale-down-delay-after-add": "3s",
    "scale-down-delay-after-delete": "0s",
    "scale-down-delay-after-failure": "3s",
    "unremovable-node-recheck-timeout": "1s",
    "node-delete-delay-after-taint": "0s",
    "max-graceful-termination-sec": "20",
    "initial-node-group-backoff-duration": "5s",
    "max-node-group-backoff-duration": "5s",
    "max-node-provision-time": "2m",
    "skip-nodes-with-local-storage": "false",
    "max-total-unready-percentage": "100",
    "ok-total-unready-count": "100",
    "kube-client-qps": "500",
    "kube-client-burst": "1000",
}
"""The autoscaler's minutes as seconds."""
UNNEEDED_S = 5.0
WAITS_S = 60.0
"""How long a pod may wait for a node that could come, on a quiet machine."""


def programs() -> Mapping[str, str]:
    """Return where the real programs are; skip the test, naming them, without them."""
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with the programs of Kubernetes and cluster-autoscaler")
    names = ("kube-scheduler", "kube-controller-manager", "cluster-autoscaler")
    path = os.pathsep.join(os.environ.get(name, "") for name in ("KUBE_BIN", "AUTOSCALER_BIN", "PATH"))
    found = {name: shutil.which(name, path=path) for name in names}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        pytest.skip(f"KUBE_BIN, AUTOSCALER_BIN and the PATH lack {', '.join(missing)}")
    return api_server_programs() | {name: str(where) for name, where in found.items()}


@contextmanager
def api_server(folder: Path) -> Iterator[RealServer]:
    """Run an API server in a folder."""
    with processes(folder, api_server_programs()) as server:
        yield server


@dataclass
class AutoscaledCluster:
    """What a test acts on and looks at."""

    server: RealServer
    http: aiohttp.ClientSession
    folder: Path
    programs: Mapping[str, str]
    boot_s: float = 0.5
    """From an order to a node that is ready."""
    apart_s: float = 0.0
    """How much later each further node of one order is."""
    agent_s: float = 0.0
    """From then on until its agent has told of its GPUs."""
    taint: str = ""
    """Key of the taint with which a node registers."""
    groups: Sequence[Group] = field(default_factory=lambda: [Group()])
    nodes: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    """As they were last seen."""
    cloud: Cloud = field(init=False)
    kubelets: Kubelets = field(init=False)
    extender: OurExtender = field(init=False)
    _late: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cloud = Cloud(self.groups, self._boot, self._remove)
        self.kubelets = Kubelets(self.ask, self.cloud.group_of, self._late, looked=[self._look])

    def _look(self, nodes: list[Json], pods: list[Json]) -> None:
        self.nodes, self.pods = nodes, pods

    async def ask(
        self, method: str, path: str, body: object = None, content: str = "application/json", *, missing: bool = False
    ) -> Json:
        """Ask as an administrator; `missing`: the object may be gone."""
        config = self.server.config
        headers = {"Authorization": f"Bearer {config.token}", "Content-Type": content}
        async with self.http.request(method, config.url + path, json=body, headers=headers, ssl=config.tls()) as answer:
            # What serves a new kind says that there is no such page, then that its storage begins, until it does.
            said: Json = await answer.json() if answer.content_type == "application/json" else {"": await answer.text()}
            if answer.status >= 400 and not (missing and answer.status in {404, 409, 429}):
                raise AssertionError(f"{method} {path}: {said}")
            return said

    # Nodes

    async def _boot(self, group: Group, name: str, at: int) -> None:
        """Have a machine join as a node, be ready after a while, and have its agent tell of its GPUs after that."""
        node, whole = group.node(name), group.node(name)
        self._late[name] = True
        node["metadata"]["labels"] = {"kubernetes.io/hostname": name, **group.clouds_labels()}
        node["spec"]["providerID"] = f"double://{name}"
        node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        node["metadata"].pop("annotations")
        node["spec"]["taints"] = [{"key": self.taint, "effect": "NoSchedule"}] if self.taint else []
        for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
            for resource in (builders.GPU_MEM, builders.GPU_COUNT):
                del amounts[resource]
        await asyncio.sleep(self.boot_s / 2 + at * self.apart_s)
        await self.ask("POST", "/api/v1/nodes", node)
        await asyncio.sleep(self.boot_s / 2)
        if not self.agent_s:
            await self._tell(name, whole)
        await self._ready(name)
        # What the API server put on it until it is ready; ours removes the other one.
        await self.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": node["spec"]["taints"]}}, MERGE)
        if self.agent_s:
            await asyncio.sleep(self.agent_s)
            if name in self.cloud.instances:
                await self._tell(name, whole)

    async def _ready(self, name: str, since: datetime | None = None) -> None:
        at = (since or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        await self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}}, STATUS)

    async def _tell(self, name: str, node: Json) -> None:
        meta, status = node["metadata"], node["status"]
        amounts = {each: status[each] for each in ("capacity", "allocatable")}
        await self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": amounts}, STATUS, missing=True)
        noted = {"metadata": {"annotations": meta["annotations"], "labels": meta["labels"]}}
        await self.ask("PATCH", f"/api/v1/nodes/{name}", noted, MERGE, missing=True)
        self._late.pop(name)

    async def _remove(self, name: str) -> None:
        await self.ask("DELETE", f"/api/v1/nodes/{name}", missing=True)

    async def grown(self, number: int = 1, *, age_s: float = 0.0, group: str = "") -> list[str]:
        """Have nodes at once, ready for as long as `age_s`: after a minute one is the autoscaler's example."""
        names = self.cloud.start(number, group)
        await self.until(lambda: set(names) <= self.ready_names(), f"{names} are ready")
        for name in names:
            await self._ready(name, datetime.now(UTC) - timedelta(seconds=age_s))
        return names

    def ready_names(self) -> set[str]:
        """Return the nodes whose GPUs can be had, as they were last seen."""
        return {
            node["metadata"]["name"]
            for node in self.nodes
            if NODE_GPUS in node["metadata"].get("annotations", {})
            and any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
        }

    # Pods

    async def pod(self, name: str, more: Json | None = None, /, **amounts: int) -> None:
        """Make a pod without a controller that asks for mem=, or count=; `more`: its annotations, and of its spec."""
        body = _pod(name, amounts)
        body["metadata"]["annotations"] = (more or {}).get("annotations", {})
        body["spec"] |= (more or {}).get("spec", {})
        await self.ask("POST", "/api/v1/namespaces/default/pods", body)

    async def deployment(self, name: str, replicas: int, **amounts: int) -> None:
        """Make a Deployment of such pods."""
        template = _pod(name, amounts)
        template["metadata"] = {"labels": {"app": name}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        body = {"metadata": {"name": name}, "spec": {**spec, "strategy": {"type": "Recreate"}}}
        await self.ask("POST", "/apis/apps/v1/namespaces/default/deployments", body)

    async def scale(self, name: str, replicas: int) -> None:
        """Let a Deployment have so many pods from now on."""
        path = f"/apis/apps/v1/namespaces/default/deployments/{name}/scale"
        await self.ask("PATCH", path, {"spec": {"replicas": replicas}}, MERGE)

    async def delete(self, name: str) -> None:
        await self.ask("DELETE", f"/api/v1/namespaces/default/pods/{name}", missing=True)

    def places(self) -> dict[str, str]:
        """Return the node of every pod of ours by its name, empty for one that waits, as they were last seen."""
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in self.pods if ours(pod) and live(pod)
        }

    def waiting(self) -> list[str]:
        """Return the pods of ours that are nowhere."""
        return sorted(name for name, node in self.places().items() if not node)

    async def placed(self, number: int, *, waiting: int = 0, quiet_s: float = REAL_S) -> None:
        """Wait until there are so many pods of ours, each on a node, beside those that wait."""
        await self.until(
            lambda: len(self.places()) == number + waiting and len(self.waiting()) == waiting,
            f"{number} pods have their place" + (f", and {waiting} wait" if waiting else ""),
            quiet_s=quiet_s,
        )

    async def until(self, condition: Callable[[], Any], what: str = "", *, quiet_s: float = REAL_S) -> None:
        """Wait for what real programs do."""
        try:
            await eventually(condition, what, quiet_s=quiet_s, pause_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self}") from None

    async def loops(self, number: int) -> None:
        """Wait until the autoscaler has looked at the cluster so many times more: about once a second."""
        last = self.cloud.refreshed + number
        await self.until(lambda: self.cloud.refreshed >= last, f"the autoscaler has looked {number} times")

    def __str__(self) -> str:
        nodes = {
            node["metadata"]["name"]: (
                sorted(node["metadata"].get("annotations", {}).keys() - {NODE_GPUS}),
                [taint["key"] for taint in node["spec"].get("taints", ())],
                {key: amount for key, amount in node["status"]["allocatable"].items() if "gpu" in key},
            )
            for node in self.nodes
        }
        return f"nodes {nodes}\npods {self.places()}\norders {self.cloud.calls}\nlogs in {self.folder}"


def ours(pod: Json) -> bool:
    """Whether a pod is one that a test made, or its controller."""
    return bool(pod["spec"]["schedulerName"] == SCHEDULER)


def live(pod: Json) -> bool:
    """Whether a pod has neither ended nor been told to."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in {"Succeeded", "Failed"}


def _pod(name: str, amounts: Mapping[str, int]) -> Json:
    made = builders.pod(name, builders.container(mem=amounts.get("mem"), count=amounts.get("count")), grace_s=1)
    made["spec"]["schedulerName"] = SCHEDULER
    return made


# --- The programs -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def process(folder: Path, program: str, *flags: str) -> AsyncIterator[None]:
    """Run a program for the `with` block; its log is in the folder."""
    with (folder / f"{Path(program).name}.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(program, *flags, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        if running.returncode is None:
            running.terminate()
        try:
            async with asyncio.timeout(stretched()):
                await running.wait()
        except TimeoutError:
            running.kill()
            await running.wait()


def scheduler(cluster: AutoscaledCluster, file: Path, extender: str) -> list[str]:
    """Return the flags of kube-scheduler with the configuration that we ship."""
    config = shipped() | {
        "clientConnection": {"kubeconfig": str(file), "qps": 500, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
    }
    config["extenders"][0]["urlPrefix"] = extender + PREFIX
    path = cluster.folder / "scheduler.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return [f"--config={path}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}", "-v=4"]


def controllers(cluster: AutoscaledCluster, file: Path) -> list[str]:
    names = ("deployment", "replicaset", "disruption", "garbage-collector")
    return [
        f"--kubeconfig={file}", f"--controllers={','.join(f'{name}-controller' for name in names)}",
        "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000", "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}", f"--cert-dir={cluster.folder / 'controllers'}",
    ]  # fmt: skip


def autoscaler(cluster: AutoscaledCluster, file: Path, more: Mapping[str, str]) -> list[str]:
    config = cluster.folder / "cloud.json"
    config.write_text(json.dumps({"address": cluster.cloud.address}), encoding="utf-8")
    flags = _QUICK | {
        "kubeconfig": str(file),
        "cloud-provider": "externalgrpc",
        "cloud-config": str(config),
        "leader-elect": "false",
        "address": f"127.0.0.1:{free_port()}",
        "v": "4",
    }
    return [f"--{name}={value}" for name, value in (flags | dict(more)).items()]


class OurExtender:
    """The extender under test, at an address that it keeps when it is started again."""

    def __init__(self, config: ClusterConfig, settings: Mapping[str, str]) -> None:
        self._config = config
        self.address = f"127.0.0.1:{free_port()}"
        self._settings = {"listen": self.address, "http": "127.0.0.1:0", "vanished_grace": "2s", **settings}
        self._task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Start it, and wait until it knows the cluster."""
        running = Extender(
            Sources(EXTENDER_SETTINGS, flags=self._settings, environ={}).read(),
            self._config,
            features=EXTENDER_FEATURES,
            timings=patient(QUICK),
            when_read=lambda: None,
        )
        task = self._task = asyncio.create_task(running.run())
        ready = lambda: "listen" in running.ports and not running.unready()  # noqa: E731
        await eventually(ready, "the extender is ready", quiet_s=REAL_S, running=lambda: [task])

    async def stop(self) -> None:
        """Stop it; an error that ended it before is raised."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def restart(self) -> None:
        """Start one that remembers nothing."""
        await self.stop()
        await self.start()


async def account(cluster: AutoscaledCluster) -> ClusterConfig:
    """Have what the manifests have of accounts, rights and policies; return the access of the extender's account."""
    for manifest in ("daemonset", "scheduler", "optional/capacity"):
        for each in documents(manifest):
            if each["kind"] in {"Namespace", "ServiceAccount", "ClusterRole", "Role", "PriorityClass", "ConfigMap"} or (
                "Binding" in each["kind"] or each["kind"] == "ValidatingAdmissionPolicy"
            ):
                await cluster.ask("POST", path_of(each), each, missing=True)
                if each["metadata"].get("namespace") and ("Role" in each["kind"] or each["kind"] == "ConfigMap"):
                    # Not in a pod, it works in this namespace instead of its own.
                    each["metadata"]["namespace"] = "kube-system"
                    await cluster.ask("POST", path_of(each), each, missing=True)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{ACCOUNT['namespace']}/serviceaccounts/{ACCOUNT['name']}/token"
    token = (await cluster.ask("POST", path, request))["status"]["token"]
    return ClusterConfig(cluster.server.config.url, ca_file=cluster.server.config.ca_file, token=token)


BUFFERS = {"capacity-buffer-controller-enabled": "true", "capacity-buffer-pod-injection-enabled": "true"}


@asynccontextmanager
async def autoscaled(
    folder: Path, *, buffers: bool = False, extender: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[AutoscaledCluster]:
    """Run a cluster without nodes whose group the autoscaler resizes.

    Args:
        folder: for logs and files.
        buffers: whether it serves CapacityBuffers, and its autoscaler heeds them.
        extender: settings of our extender.
        more: fields of the cluster, or flags of the autoscaler with dashes.
    """
    flags = {name: more.pop(name) for name in list(more) if "-" in name}
    found = programs()
    async with AsyncExitStack() as stack:
        server = await asyncio.to_thread(stack.enter_context, api_server(folder))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        cluster = AutoscaledCluster(server, http, folder, found, **more)
        if buffers:
            await cluster.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CAPACITY_BUFFER)
            served = "/apis/autoscaling.x-k8s.io/v1beta1/capacitybuffers"
            await eventually(lambda: _served(cluster, served), "CapacityBuffers are served")
        ours = cluster.extender = OurExtender(await account(cluster), extender or {})
        await ours.start()
        stack.push_async_callback(ours.stop)
        await stack.enter_async_context(cluster.cloud.serving())
        await stack.enter_async_context(beside(cluster.kubelets.run()))
        file = kubeconfig(server.config, folder / "kubeconfig")
        flags |= BUFFERS if buffers else {}
        for name, given in {
            "kube-scheduler": scheduler(cluster, file, f"http://{ours.address}"),
            "kube-controller-manager": controllers(cluster, file),
            "cluster-autoscaler": autoscaler(cluster, file, flags),
        }.items():
            await stack.enter_async_context(process(folder, found[name], *given))
        yield cluster


async def _served(cluster: AutoscaledCluster, path: str) -> bool:
    return "items" in await cluster.ask("GET", path, missing=True)
