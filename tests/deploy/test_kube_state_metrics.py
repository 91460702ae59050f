"""A real kube-state-metrics on a real API server: our series join with its, by the rules and by the pages' queries.

They need kube-apiserver, etcd, openssl and kube-state-metrics in KUBE_BIN or on the PATH, and Prometheus on the PATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.cluster.client.api_client import Client
from gpu_device_plugin.cluster.objects.decoding import PODS, ObjectKind
from tests.cluster.conftest import processes, programs
from tests.deploy.test_dashboard_live import prometheus
from tests.deploy.test_monitoring import PAGE
from tests.docs.pages import blocks
from tests.kubeconfig import kubeconfig
from tests.patience import REAL_S, eventually
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpu_device_plugin.cluster.client.config import ClusterConfig
    from tests.deploy.test_dashboard_live import Prometheus

Json = dict[str, Any]

pytestmark = pytest.mark.timeout(REAL_S * 3)

GIB = 1 << 30
NAMESPACE = "team-a"
DEPLOYMENTS, REPLICASETS = ObjectKind("deployments", group="apps"), ObjectKind("replicasets", group="apps")
STATEFULSETS, JOBS = ObjectKind("statefulsets", group="apps"), ObjectKind("jobs", group="batch")
USED = {"web-5d9-x": 6, "db-0": 1, "train-1": 3, "alone": 4}
"""GiB that each pod uses of the 4 that it was given."""


def program() -> str:
    path = os.pathsep.join([os.environ.get("KUBE_BIN", ""), os.environ.get("PATH", "")])
    found = shutil.which("kube-state-metrics", path=path)
    if found is None:
        pytest.skip("kube-state-metrics is missing in KUBE_BIN and on the PATH")
    return found


@asynccontextmanager
async def kube_state_metrics(home: Path, config: ClusterConfig) -> AsyncIterator[str]:
    """Run it as its own manifests do, with the label `team` of pods; yield its address."""
    file = kubeconfig(config, home / "kubeconfig")
    port, telemetry = free_ports(2)
    with (home / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program(),
            f"--kubeconfig={file}",
            "--host=127.0.0.1",
            "--telemetry-host=127.0.0.1",
            f"--port={port}",
            f"--telemetry-port={telemetry}",
            "--resources=pods,replicasets",
            "--metric-labels-allowlist=pods=[team]",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        signal_child(process.pid, process.returncode, signal.SIGTERM)
        await process.wait()


async def owned(client: Client, kind: ObjectKind, name: str, owner: Json | None) -> Json:
    """Create a workload, and return the reference to it for what it owns."""
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec: Json = {"selector": {"matchLabels": {"app": name}}, "template": template}
    if kind is JOBS:
        del spec["selector"]
        template["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    what = {DEPLOYMENTS: "Deployment", REPLICASETS: "ReplicaSet", STATEFULSETS: "StatefulSet", JOBS: "Job"}[kind]
    version = f"{kind.group}/v1"
    body: Json = {"apiVersion": version, "kind": what, "spec": spec}
    body["metadata"] = {"name": name, **({"ownerReferences": [owner]} if owner else {})}
    made = json.loads(await client.create(kind, body, namespace=NAMESPACE))
    return {
        "apiVersion": version,
        "kind": what,
        "name": name,
        "uid": made["metadata"]["uid"],
        "controller": True,
    }


async def has_pod(client: Client, name: str, owner: Json | None, *, oom: bool = False) -> None:
    metadata: Json = {"name": name, "labels": {"team": "red"}}
    if owner:
        metadata["ownerReferences"] = [owner]
    spec = {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "x"}]}
    body: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    await client.create(PODS, body, namespace=NAMESPACE)
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:00Z"}}
    state = {"name": "main", "image": "x", "imageID": "x", "ready": True, "restartCount": 1, "started": True}
    state |= {"state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}, **({"lastState": ended} if oom else {})}
    status = {"status": {"phase": "Running", "containerStatuses": [state]}}
    await client.patch(PODS, name, status, namespace=NAMESPACE, subresource="status")


async def workloads(config: ClusterConfig) -> None:
    """Have a pod of a Deployment, of a StatefulSet and of a Job, and one of its own."""
    async with Client(config) as client:
        await client.create(
            ObjectKind("namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        deployment = await owned(client, DEPLOYMENTS, "web", None)
        await has_pod(client, "web-5d9-x", await owned(client, REPLICASETS, "web-5d9", deployment), oom=True)
        await has_pod(client, "db-0", await owned(client, STATEFULSETS, "db", None))
        await has_pod(client, "train-1", await owned(client, JOBS, "train", None))
        await has_pod(client, "alone", None)


@asynccontextmanager
async def agent_page() -> AsyncIterator[str]:
    """Serve the series of these pods' containers, as an agent writes them; yield the address."""
    lines = [f'gpushare_gpu_memory_bytes{{gpu="GPU-0"}} {16 * GIB}']
    for name, used in USED.items():
        labels = f'namespace="{NAMESPACE}",pod="{name}",container="main",gpu="GPU-0"'
        lines += [
            f"gpushare_container_gpu_memory_allocated_bytes{{{labels}}} {4 * GIB}",
            f"gpushare_container_gpu_memory_used_bytes{{{labels}}} {used * GIB}",
        ]
    text = "".join(f"{line}\n" for line in lines)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    (port,) = free_ports(1)
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
async def read(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """Return a Prometheus that reads kube-state-metrics and what an agent says of the same pods."""
    program()
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not on the PATH (Debian's package prometheus has it)")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(processes(tmp_path_factory.mktemp("apiserver"), programs()))
        await workloads(server.config)
        states = await stack.enter_async_context(kube_state_metrics(tmp_path_factory.mktemp("states"), server.config))
        async with aiohttp.ClientSession() as http:

            async def lists() -> bool:
                try:
                    async with http.get(f"http://{states}/metrics") as answer:
                        return (await answer.text()).count("kube_pod_owner{") == len(USED)
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(lists, "kube-state-metrics has read the pods", quiet_s=REAL_S, pause_s=0.2)
        agent = await stack.enter_async_context(agent_page())
        about = {"namespace": "gpushare", "pod": "gpushare-node-x", "container": "agent", "node": "gpu-1"}
        theirs = {
            "job_name": "kube-state-metrics",
            "honor_labels": True,  # as its own documentation says
            "static_configs": [{"targets": [states]}],
        }
        yield await stack.enter_async_context(
            prometheus(tmp_path_factory.mktemp("prometheus"), {agent: about}, [theirs])
        )


async def by(read: Prometheus, expression: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Return the values of an expression in GiB, by labels."""
    found = await read.finds(expression)
    return {tuple(each["metric"].get(name, "") for name in labels): float(each["value"][1]) / GIB for each in found}


async def test_each_pod_has_its_workload(read: Prometheus) -> None:
    """A Deployment's through the ReplicaSet."""

    async def known() -> bool:
        found = await by(read, "pod:gpushare_workload:info", "pod", "workload_kind", "workload")
        return set(found) == {
            ("web-5d9-x", "Deployment", "web"),
            ("db-0", "StatefulSet", "db"),
            ("train-1", "Job", "train"),
            ("alone", "Pod", "alone"),
        }

    await eventually(known, "every pod has its workload", pause_s=0.2)


@pytest.mark.parametrize(
    ("record", "amounts"),
    [
        ("workload:gpushare_gpu_memory_allocated_bytes:sum", {"web": 4, "db": 4, "train": 4, "alone": 4}),
        ("workload:gpushare_gpu_memory_used_bytes:sum", {"web": 6, "db": 1, "train": 3, "alone": 4}),
        ("workload:gpushare_gpu_memory_over_share_bytes:sum", {"web": 2}),
    ],
)
async def test_workloads_have_their_amounts(read: Prometheus, record: str, amounts: dict[str, int]) -> None:
    async def told() -> bool:
        return await by(read, record, "namespace", "workload") == {
            (NAMESPACE, name): amount for name, amount in amounts.items()
        }

    await eventually(told, f"{record} is told", pause_s=0.2)


QUERIES = {
    next(word for word in ("label_team", "clamp_min", "OOMKilled") if word in block.text): block.text
    for block in blocks(PAGE, "promql")
    if "kube_" in block.text
}
"""The queries of docs/operations.md that join with kube-state-metrics, by a word that only one of them has."""


async def test_the_queries_of_the_documentation_find_what_they_say(read: Prometheus) -> None:
    assert await by(read, QUERIES["label_team"], "label_team") == {("red",): 16}
    assert await by(read, QUERIES["clamp_min"], "owner_kind", "owner_name") == {
        ("ReplicaSet", "web-5d9"): 0,
        ("StatefulSet", "db"): 3,
        ("Job", "train"): 1,
        ("", ""): 0,  # older versions write <none>
    }
    assert await by(read, QUERIES["OOMKilled"], "namespace", "pod", "container") == {
        (NAMESPACE, "web-5d9-x", "main"): 4
    }
