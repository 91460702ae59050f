"""The page's server in a cluster, from the settings to a browser with a token."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from gpu_device_plugin.programs.web.web_program import ClusterPage
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.settings.web import WebSettings
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.reviews import Account
from tests.patience import eventually, stretched
from tests.programs.web.harness import in_words


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(accounts={"of-ann": Account("ann", rights={("get", "pods", "team")})}) as server:
        yield server


@asynccontextmanager
async def running(api: ApiServer, **flags: str) -> AsyncIterator[ClusterPage]:
    settings = Sources(WebSettings, {"http": "127.0.0.1:0", **flags}, {}).read()
    page = ClusterPage(settings, ClusterConfig(api.url))
    task = asyncio.create_task(page.run())
    await eventually(lambda: page.port or task.done())
    if task.done():
        task.result()
    yield page
    task.cancel()
    await asyncio.wait({task})


async def asked(page: ClusterPage, path: str, token: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http,
        http.get(f"http://127.0.0.1:{page.port}/{path}") as answer,
    ):
        return answer.status, in_words(await answer.json())


async def test_callers_are_those_of_the_cluster(api: ApiServer) -> None:
    async with running(api) as page:
        status, session = await asked(page, "api/v1/session", "of-ann")
        assert (status, session["mode"], session["user"]) == (200, "cluster", "ann")
        assert (await asked(page, "api/v1/session", "of-nobody")) == (
            401,
            {"error": "Give the token of an account of this cluster.", "login": "token"},
        )
        assert (await asked(page, "api/v1/pods/team/a", "of-ann"))[0] == 404, "there is no such pod"
        assert (await asked(page, "api/v1/pods/other/a", "of-ann"))[0] == 403


async def test_unencrypted_tokens_are_warned_of(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(api, http="0.0.0.0:0"):
        assert "tokens of callers cross the network unencrypted" in caplog.text
    caplog.clear()
    async with running(api):
        assert "unencrypted" not in caplog.text


async def test_an_address_that_is_taken_is_a_usage_error(api: ApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"http: cannot listen on 127.0.0.1:{port}"):
            async with running(api, http=f"127.0.0.1:{port}"):
                pass


async def test_the_log_level_changes_at_once(api: ApiServer) -> None:
    async with running(api) as page:
        page.reload(Sources(WebSettings, {"http": "127.0.0.1:0", "log_level": "debug"}, {}).read())
        assert logging.getLogger("gpu_device_plugin").level == logging.DEBUG
        page.keep_settings("it is no YAML")
        assert page.settings.log_level == "debug"


async def test_the_command_runs_until_a_signal(api: ApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_device_plugin", "web", f"--api={api.url}", f"--http=127.0.0.1:{port}"),
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        async with aiohttp.ClientSession() as http:

            async def ready() -> bool:
                try:
                    async with http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(ready, "it is ready")
        process.terminate()
        async with asyncio.timeout(stretched()):
            _, said = await process.communicate()
        assert process.returncode == 0, said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
