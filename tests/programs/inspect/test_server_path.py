"""Clusters whose API has a path on its server, as behind Rancher and other gateways, over any version of kubectl."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gpu_device_plugin.kubernetes.kubeconfigs import parsed
from gpu_device_plugin.kubernetes.kubectl import Selected, reaching, selected
from gpu_device_plugin.kubernetes.objects.decoding import NODES
from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.patience import REAL_S, eventually
from tests.programs.inspect.test_inspect_program import World, gpu, node, pod, world  # noqa: F401 - a fixture
from tests.programs.web.test_kubeconfig import Home, home, running, session  # noqa: F401 - a fixture

PATH = "/k8s/clusters/c-m%20x"
DIRECT, BEHIND = "https://10.0.0.1:6443", f"https://rancher.example:8443{PATH}/"


def config() -> bytes:
    """A configuration of kubectl with two clusters, of which the second has the path `PATH`."""
    there = {"server": BEHIND}
    return json.dumps(
        {
            "current-context": "gateway",
            "contexts": [
                {"name": "direct", "context": {"cluster": "a", "user": "ann", "namespace": "team"}},
                {"name": "gateway", "context": {"cluster": "b", "user": "bob"}},
            ],
            "clusters": [
                {"name": "a", "cluster": {"server": DIRECT}},
                {"name": "b", "cluster": there},
            ],
        }
    ).encode()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), Selected("gateway", "bob", "", PATH, BEHIND)),
        (("--context=direct",), Selected("direct", "ann", "team", "", DIRECT)),
        (("--context=direct", "--cluster=b", "--user=eve"), Selected("direct", "eve", "team", PATH, BEHIND)),
        (
            ("--server=http://[::1]:80//a/./b/",),
            Selected("gateway", "bob", "", "/a/b", "http://[::1]:80//a/./b/"),
        ),
        (("--server=https://x/a", "--server=https://x"), Selected("gateway", "bob", "", "", "https://x")),
        (("--context=absent",), Selected("absent")),
        (("--as=eve",), Selected("gateway", "eve", "", PATH, BEHIND)),
        # http is meant, and no path is allowed
        (("--server=localhost:8080",), Selected("gateway", "bob", "", "", "localhost:8080")),
        (("--server=http://[",), Selected("gateway", "bob", "", "", "http://[")),
    ],
)
def test_the_path_of_the_server_that_flags_and_configuration_select_is_known(
    flags: tuple[str, ...], expected: Selected
) -> None:
    assert selected(parsed(config()), flags) == expected


@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", b'{"contexts": null, "clusters": null}', b'{"contexts": 1}'])
def test_without_a_configuration_nothing_is_selected(text: bytes) -> None:
    assert selected(parsed(text), ()) == Selected()


def test_every_command_reads_the_cluster_behind_a_path(
    world: World,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    world.has(node("node-a", gpu(0)), pod("web-0", 5, on="node-a", idx=0))
    world.has(server=f"https://rancher.example{PATH}/")
    for words in (
        (),
        ("node-a",),
        ("-n", "default"),
        ("why", "web-0"),
        ("cordon", "node-a", "0"),
        ("uncordon", "node-a", "0"),
    ):
        assert world.inspect(*words) == 0, words
    assert world.inspect("doctor") in {0, 3, 4}
    assert "not find the requested resource" not in capsys.readouterr().err


@dataclass
class Gateway:
    """A server that has the API of a cluster at a path, and of another one at its root."""

    url: str
    api: ApiServer
    outside: list[str]
    """What was asked for at the root."""


@asynccontextmanager
async def gateway() -> AsyncIterator[Gateway]:
    async with ApiServer() as api, aiohttp.ClientSession() as session:
        api.add(builders.node("behind", mem=28, count=2, labels={"gpushare": "true"}))
        api.add(builders.pod("waiting", builders.container(mem=4)))
        outside: list[str] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            if not request.rel_url.raw_path.startswith(f"{PATH}/"):
                outside.append(request.path)
                raise web.HTTPNotFound
            kept = {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
            url = api.url + request.path_qs.removeprefix(PATH)
            async with session.request(request.method, url, data=await request.read(), headers=kept) as inner:
                response = web.StreamResponse(
                    status=inner.status, headers={"Content-Type": inner.headers["Content-Type"]}
                )
                await response.prepare(request)
                async for chunk in inner.content.iter_any():
                    await response.write(chunk)
                return response

        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            yield Gateway(f"http://127.0.0.1:{port}{PATH}", api, outside)
        finally:
            await runner.cleanup()


async def test_the_page_reads_the_cluster_behind_a_path(home: Home) -> None:  # noqa: F811
    async with gateway() as there:
        home.write(server=there.url)
        async with running(home, "--no-browser") as command:
            assert (await session(command))["mode"] == "kubeconfig"
            await eventually(lambda: there.api.count("watch", "nodes"))
        assert there.outside == []


@pytest.mark.timeout(REAL_S)
async def test_a_real_kubectl_reads_the_cluster_behind_a_path(real_kubectl: str, tmp_path: Path) -> None:
    """Whatever its version: 1.27 to 1.33 leave out the path, later ones put it before what is asked for."""
    async with gateway() as there:
        file = tmp_path / "kubeconfig"
        file.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "x",
                    "contexts": [{"name": "x", "context": {"cluster": "c"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"{there.url}/"}}],
                }
            )
        )
        async with reaching((f"--kubeconfig={file}",), real_kubectl) as access:
            nodes = await access.items(NODES)
        assert b"behind" in bytes(nodes[0])
        # GKE's kubectl asks for the version first, to choose one of its own kind.
        assert set(there.outside) <= {"/version"}
