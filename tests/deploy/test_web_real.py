"""The page with the rights of deploy/optional/web.yaml at a real API server (KUBE_BIN): who sees what."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from gpu_device_plugin import cli
from gpu_device_plugin.cluster.client.config import ClusterConfig
from gpu_device_plugin.core.contract.keys import ALLOCATION
from gpu_device_plugin.programs.web.web_program import ClusterPage
from gpu_device_plugin.settings.sources import Texts
from gpu_device_plugin.settings.web import WebSettings
from gpu_device_plugin.testing.builders import container, node, pod
from tests.cluster.conftest import processes, programs
from tests.cluster.test_proxy_conformance import own_address
from tests.deploy.manifests import Json, documents, the
from tests.patience import REAL_S, eventually
from tests.programs.web.harness import QUICK, Stream
from tests.programs.web.test_figures import LABELS, page
from tests.programs.web.test_figures import QUICK as FAST
from tests.programs.web.test_kubeconfig import running as command_running
from tests.programs.web.test_real import home, kubeconfig  # noqa: F401 - one is a fixture, asked for by name
from tests.programs.web.test_real import live as command_live

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.cluster.conftest import RealServer
    from tests.programs.web.test_kubeconfig import Home

pytestmark = pytest.mark.timeout(REAL_S * 3)

RBAC = "rbac.authorization.k8s.io/v1"
PLURALS = {"NetworkPolicy": "networkpolicies"}
CLUSTERED = {"Namespace", "Node", "ClusterRole", "ClusterRoleBinding"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver and etcd to serve the page at a real API server")
    with processes(tmp_path_factory.mktemp("apiserver"), programs()) as server:
        yield server


@dataclass
class Cluster:
    """A real API server with the manifest in it."""

    config: ClusterConfig
    http: aiohttp.ClientSession

    async def make(self, body: Json, *, subresource: str = "", method: str = "POST") -> Json:
        """Create an object, or change a subresource of one; what Kubernetes does not know is refused."""
        group, meta = body["apiVersion"], body["metadata"]
        plural = PLURALS.get(body["kind"], f"{body['kind'].lower()}s")
        namespace = "" if body["kind"] in CLUSTERED else f"/namespaces/{meta.get('namespace', 'default')}"
        path = f"/{'apis' if '/' in group else 'api'}/{group}{namespace}/{plural}"
        path += f"/{meta['name']}/{subresource}" if subresource else ""
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.config.token}", "Content-Type": content}
        url = f"{self.config.url}{path}?fieldValidation=Strict"
        async with self.http.request(
            method, url, data=json.dumps(body), headers=headers, ssl=self.config.tls()
        ) as answer:
            made: Json = await answer.json()
            assert answer.status < 300, made
            return made

    async def token(self, name: str, namespace: str = "default") -> str:
        """Return a token of a service account, as kubectl create token makes it."""
        metadata = {"name": name, "namespace": namespace}
        path = f"{self.config.url}/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": metadata, "spec": {}}
        headers = {"Authorization": f"Bearer {self.config.token}"}
        async with self.http.post(path, json=body, headers=headers, ssl=self.config.tls()) as answer:
            made: Json = await answer.json()
            assert answer.status == 201, made
            return str(made["status"]["token"])

    async def account(self, name: str) -> str:
        """Make a service account in the namespace default; return a token of it."""
        metadata = {"name": name, "namespace": "default"}
        await self.make({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        return await self.token(name)

    async def allow(self, name: str, verb: str, resource: str, namespace: str = "") -> None:
        """Give an account a right, in one namespace or everywhere."""
        role = "Role" if namespace else "ClusterRole"
        meta = {"name": f"{name}-{namespace or 'all'}", **({"namespace": namespace} if namespace else {})}
        rules = [{"apiGroups": [""], "resources": [resource], "verbs": [verb]}]
        await self.make({"apiVersion": RBAC, "kind": role, "metadata": meta, "rules": rules})
        await self.bind(name, role, meta["name"], namespace)

    async def bind(self, name: str, role: str, role_name: str, namespace: str = "") -> None:
        binding = "RoleBinding" if namespace else "ClusterRoleBinding"
        meta = {"name": f"{name}-{role_name}", **({"namespace": namespace} if namespace else {})}
        body = {
            "apiVersion": RBAC,
            "kind": binding,
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }
        await self.make(body)

    async def run(self, body: Json, status: Json) -> None:
        await self.make(body)
        await self.make({**body, "status": status}, subresource="status", method="PATCH")


@asynccontextmanager
async def agent_page(text: str) -> AsyncIterator[tuple[str, int]]:
    """Serve what an agent tells where API servers proxy to."""
    address = own_address()
    if not address:
        pytest.skip("this machine has no address but loopback, to which API servers do not proxy")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/use", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0).start()
        yield address, runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def live(port: int, token: str) -> AsyncIterator[Stream]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(
            f"http://127.0.0.1:{port}/api/v1/live",
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
        yield Stream(answer.content)


async def furnish(cluster: Cluster, address: str, port: int) -> None:
    """Install the page, a node with two pods, and an agent at this address."""
    for name in ("gpushare", "team-a"):
        await cluster.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for each in (*documents("optional/web"), *documents("viewer")):
        await cluster.make(each)
    shared = node("gpu-1", mem=30, count=2)
    shared["metadata"].pop("uid", None)
    await cluster.run(shared, shared["status"])
    annotations = {ALLOCATION: json.dumps({"0": {"0": 5}})}
    for name, namespace in (("a", "default"), ("b", "team-a")):
        made = pod(name, container(mem=5), namespace=namespace, node="gpu-1", annotations=annotations)
        await cluster.run(made, {"phase": "Running"})
    agent = pod("agent-1", node="gpu-1", namespace="gpushare", labels=LABELS)
    agent["spec"]["containers"][0]["ports"] = [{"name": "http", "containerPort": port}]
    await cluster.run(agent, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})


@dataclass
class Served:
    """The page, and tokens of accounts that look at it."""

    cluster: Cluster
    port: int
    viewer: str
    tenant: str
    nobody: str

    async def get(self, path: str, token: str) -> tuple[int, Json]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.cluster.http.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def served(real: RealServer) -> AsyncIterator[Served]:
    async with aiohttp.ClientSession() as http, agent_page(page(3000)) as (address, port):
        cluster = Cluster(real.config, http)
        await furnish(cluster, address, port)
        tokens = [await cluster.account(name) for name in ("viewer", "tenant", "nobody")]
        await cluster.bind("viewer", "ClusterRole", "gpushare-viewer")
        await cluster.allow("tenant", "list", "nodes")
        await cluster.allow("tenant", "get", "pods", "team-a")
        own = await cluster.token("gpushare-web", "gpushare")

        deployment = the("Deployment", "optional/web")
        (program,) = deployment["spec"]["template"]["spec"]["containers"]
        sources = cli.sources_of(WebSettings, cli.parse([*program["args"], "--http=127.0.0.1:0"]), {})
        server = ClusterPage(
            sources.read(texts=Texts()),
            ClusterConfig(real.config.url, ca_file=real.config.ca_file, token=own),
            agents_in="gpushare",
            figures_timing=FAST,
            timings=QUICK,
        )
        running = asyncio.create_task(server.run())
        try:
            await eventually(lambda: server.port or running.done(), quiet_s=REAL_S)
            assert not running.done(), running.exception()
            yield Served(cluster, server.port, *tokens)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def test_the_manifests_rights_are_enough_and_each_sees_what_his_own_allow(
    served: Served,
    home: Home,  # noqa: F811 - a fixture
    tmp_path: Path,
) -> None:
    async with live(served.port, served.viewer) as stream:
        known = await stream.until(lambda known: known["nodes"]["gpu-1"].get("use", {}).get("live"))
        pods = known["nodes"]["gpu-1"]["gpus"][0]["pods"]
        assert {(each["namespace"], each["name"]): each.get("usedMiB") for each in pods} == {
            ("default", "a"): 3000,
            ("team-a", "b"): None,
        }
        await stream.until(lambda known: known["figures"] == {"source": "agents"})
        assert known["notes"] == []
    async with live(served.port, served.tenant) as stream:
        known = await stream.until(lambda known: known["nodes"])
        pods = known["nodes"]["gpu-1"]["gpus"][0]["pods"]
        assert sorted((each.get("namespace", ""), each.get("name", "")) for each in pods) == [("", ""), ("team-a", "b")]
    async with live(served.port, served.nobody) as stream:
        known = await stream.until(lambda known: known["read"]["live"])
        assert (known["nodes"], known["alone"], known["waiting"]) == ({}, [], [])
        assert any("no right to list nodes" in note for note in known["notes"])

    status, found = await served.get("pods/team-a/b", served.viewer)
    assert (status, found["name"], found.get("notes", [])) == (200, "b", [])
    assert (await served.get("pods/team-a/b", served.tenant))[0] == 200
    assert (await served.get("pods/default/a", served.tenant))[0] == 403
    assert (await served.get("session", "nonsense"))[0] == 401

    # The same figures on somebody's own machine, over a real kubectl proxy.
    flag = f"--kubeconfig={kubeconfig(tmp_path, served.cluster.config)}"
    async with command_running(home, "--no-browser", flag) as command, command_live(command) as stream:
        known = await stream.until(lambda known: known["nodes"]["gpu-1"].get("use", {}).get("live"))
        assert {each.get("usedMiB") for each in known["nodes"]["gpu-1"]["gpus"][0]["pods"]} == {3000, None}
