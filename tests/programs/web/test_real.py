"""The page over a real kubectl and a real API server (KUBE_BIN), with the rights of two accounts."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.kubernetes.objects.decoding import NODES, PODS, ObjectKind
from gpu_device_plugin.programs.web.callers import ReviewedCallers
from tests.builders import GPU_MEM, container, pod
from tests.kubernetes.conftest import RealServer
from tests.patience import REAL_S
from tests.programs.web.harness import Page, Stream, served_by
from tests.programs.web.test_kubeconfig import Command, Home, running

_TOKEN_REVIEWS = ObjectKind("tokenreviews", group="authentication.k8s.io")

pytestmark = pytest.mark.timeout(REAL_S * 3)


@pytest.fixture
def home(tmp_path: Path, real_kubectl: str) -> Home:
    found = Home(tmp_path)
    found.kubectl.parent.mkdir()
    (tmp_path / "tmp").mkdir()
    found.kubectl.symlink_to(real_kubectl)
    return found


def kubeconfig(folder: Path, config: ClusterConfig) -> Path:
    found = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "real",
        "contexts": [{"name": "real", "context": {"cluster": "c", "user": "someone", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": config.url, "certificate-authority": str(config.ca_file)}}],
        "users": [{"name": "someone", "user": {"token": config.token}}],
    }
    found.write_text(json.dumps(document))
    return found


@asynccontextmanager
async def cluster(real: RealServer) -> AsyncIterator[Client]:
    """Have a node with a GPU, and a pod that waits for more than it has."""
    async with Client(real.config) as client:
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}
        await client.create(NODES, body)
        amounts = {GPU_MEM: "15", "aliyun.com/gpu-count": "1"}
        await client.patch(NODES, "gpu-1", {"status": {"capacity": amounts}}, subresource="status")
        waiting = pod("waiting", container(mem=20))
        await client.create(PODS, waiting, namespace="default")
        yield client


@asynccontextmanager
async def live(command: Command) -> AsyncIterator[Stream]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(
            f"{command.url}/api/v1/live",
            headers={"Authorization": f"Bearer {command.token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer,
    ):
        yield Stream(answer.content)


async def test_the_page_over_a_real_cluster(real: RealServer, home: Home, tmp_path: Path) -> None:
    async with cluster(real) as client:
        flag = f"--kubeconfig={kubeconfig(tmp_path, real.config)}"
        async with running(home, "--no-browser", flag) as command, live(command) as stream:
            shown = await stream.until(lambda known: known["waiting"] and known["waiting"][0].get("why"))
            assert sorted(shown["nodes"]) == ["gpu-1"]
            (waits,) = shown["waiting"]
            assert (waits["name"], waits["asks"]) == ("waiting", f"{GPU_MEM}: 20 of one GPU")
            assert shown["read"]["live"] is True
            await a_plan_through_the_proxy(command)
            await client.patch(NODES, "gpu-1", {"spec": {"unschedulable": True}})
            await stream.until(lambda known: known["nodes"]["gpu-1"].get("unschedulable"))

        flag = f"--kubeconfig={kubeconfig(tmp_path, real.stranger)}"
        async with running(home, "--no-browser", flag) as command, live(command) as stream:
            shown = await stream.until(lambda known: len(known["notes"]) == 2)
            assert "the right to list nodes in the whole cluster" in shown["notes"][0].lower()
            assert "the right to list pods in the namespace default" in shown["notes"][1].lower()

        async with served_by(client, callers=ReviewedCallers(client), mode="cluster") as page:
            await tokens_of_the_cluster(page)


async def test_all_tokens_of_an_account_are_one_user(real: RealServer) -> None:
    """Each has a credential ID of its own, which is no part of the identity that is asked about."""
    accounts = ObjectKind("serviceaccounts")
    async with Client(real.config) as client:
        await client.create(accounts, {"metadata": {"name": "looks"}}, namespace="default")
        callers, found = ReviewedCallers(client), []
        for _ in range(2):
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            # As a kind of its own: with a subresource, the client expects the Status that binding and eviction answer.
            made = await client.create(ObjectKind("serviceaccounts/looks/token"), body, namespace="default")
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
            spec = {"token": json.loads(made)["status"]["token"]}
            answer = json.loads(await client.create(_TOKEN_REVIEWS, review | {"spec": spec}))
            assert len(answer["status"]["user"]["extra"]["authentication.kubernetes.io/credential-id"]) == 1
            found.append(await callers.caller(spec["token"]))
        one, other = found
        assert one is not None
        assert one.user == "system:serviceaccount:default:looks"
        assert one == other


async def a_plan_through_the_proxy(command: Command) -> None:
    headers = {"Authorization": f"Bearer {command.token}"}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{command.url}/api/v1/plans/default/waiting", headers=headers) as answer,
    ):
        plan = await answer.json()
    assert (answer.status, plan["verdict"], plan["notes"]) == (
        200,
        "No set of moves was found to make room for default/waiting.",
        [],
    )


async def tokens_of_the_cluster(page: Page) -> None:
    """Admin sees all; the stranger, who is somebody without rights, sees nothing."""
    assert (await page.get("api/v1/session", Authorization="Bearer nobody's"))[0] == 401
    admin, stranger = ({"Authorization": f"Bearer {name}-token"} for name in ("admin", "stranger"))
    assert (await page.get("api/v1/session", **admin))[1]["user"] == "admin"
    assert (await page.get("api/v1/pods/default/waiting", **admin))[0] == 200
    assert (await page.get("api/v1/pods/default/waiting", **stranger))[0] == 403
    status, plan = await page.get("api/v1/plans/default/waiting", **admin)
    assert (status, plan["verdict"], plan["notes"]) == (
        200,
        "No set of moves was found to make room for default/waiting.",
        [],
    )
    assert (await page.get("api/v1/plans/default/waiting", **stranger))[0] == 403
    async with page.live(**stranger) as stream:
        shown = await stream.until(lambda known: "waiting" in known)
    assert (shown["nodes"], shown["waiting"]) == ({}, [])
