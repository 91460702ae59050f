"""The page's server in a cluster, from the settings to a browser with a token."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from gpu_device_plugin.cluster.client.config import ClusterConfig
from gpu_device_plugin.programs.web.web_program import ClusterPage
from gpu_device_plugin.settings.knobs import UsageError
from gpu_device_plugin.settings.sources import Sources
from gpu_device_plugin.settings.web import WebSettings
from tests.patience import eventually, stretched
from tests.programs.web.harness import QUICK

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Reviews:
    """An API server that knows tokens and rights, and has neither nodes nor pods."""

    def __init__(self) -> None:
        self.url = ""
        self.users = {"of-ann": {"username": "ann", "groups": ["dev"], "uid": "1", "extra": {"k": ["v"]}}}
        self.allowed = {("ann", "team")}
        self.asked: list[Any] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer as Kubernetes does."""
        if request.method == "GET":
            if "watch" in request.query:
                response = web.StreamResponse()
                await response.prepare(request)
                await asyncio.Event().wait()
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})
        review = await request.json()
        self.asked.append(review)
        spec = review["spec"]
        if review["kind"] == "TokenReview":
            user = self.users.get(spec["token"])
            status: dict[str, Any] = {"authenticated": True, "user": user} if user else {"error": "unknown"}
        else:
            status = {"allowed": (spec["user"], spec["resourceAttributes"]["namespace"]) in self.allowed}
        return web.json_response({**review, "status": status}, status=201)


@pytest.fixture
async def reviews() -> AsyncIterator[Reviews]:
    found = Reviews()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@asynccontextmanager
async def running(reviews: Reviews, **flags: str) -> AsyncIterator[ClusterPage]:
    settings = Sources(WebSettings, {"http": "127.0.0.1:0", **flags}, {}).read()
    page = ClusterPage(settings, ClusterConfig(reviews.url), timings=QUICK)
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
        return answer.status, await answer.json()


async def test_callers_are_those_of_the_cluster(reviews: Reviews) -> None:
    async with running(reviews) as page:
        status, session = await asked(page, "api/v1/session", "of-ann")
        assert (status, session["mode"], session["user"]) == (200, "cluster", "ann")
        assert (await asked(page, "api/v1/session", "of-nobody")) == (
            401,
            {"error": "Give the token of an account of this cluster.", "login": "token"},
        )
        assert (await asked(page, "api/v1/pods/team/a", "of-ann"))[0] == 502, "there is no such pod here"
        assert (await asked(page, "api/v1/pods/other/a", "of-ann"))[0] == 403
    reviewed = [each["spec"] for each in reviews.asked if each["kind"] == "SubjectAccessReview"]
    assert {json.dumps({key: each[key] for key in ("user", "uid", "groups", "extra")}) for each in reviewed} == {
        '{"user": "ann", "uid": "1", "groups": ["dev"], "extra": {"k": ["v"]}}'
    }
    namespaces = [
        each["resourceAttributes"]["namespace"] for each in reviewed if each["resourceAttributes"]["resource"] == "pods"
    ]
    assert namespaces == ["", "team", "other"]


async def test_answers_about_a_caller_are_remembered_for_a_while(reviews: Reviews) -> None:
    async with running(reviews) as page:
        for _ in range(3):
            await asked(page, "api/v1/pods/other/a", "of-ann")
    assert [each["kind"] for each in reviews.asked].count("TokenReview") == 1
    assert len(reviews.asked) == 4, "the token, nodes, all namespaces, and the one"


async def test_unencrypted_tokens_are_warned_of(reviews: Reviews, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(reviews, http="0.0.0.0:0"):
        assert "tokens of callers cross the network unencrypted" in caplog.text
    caplog.clear()
    async with running(reviews):
        assert "unencrypted" not in caplog.text


async def test_an_address_that_is_taken_is_a_usage_error(reviews: Reviews) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"http: cannot listen on 127.0.0.1:{port}"):
            async with running(reviews, http=f"127.0.0.1:{port}"):
                pass


async def test_the_log_level_changes_at_once(reviews: Reviews) -> None:
    async with running(reviews) as page:
        page.reload(Sources(WebSettings, {"http": "127.0.0.1:0", "log_level": "debug"}, {}).read())
        assert logging.getLogger("gpu_device_plugin").level == logging.DEBUG
        page.keep_settings("it is no YAML")
        assert page.settings.log_level == "debug"


async def test_the_command_runs_until_a_signal(reviews: Reviews) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSHARE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpu_device_plugin", "web", f"--api={reviews.url}", f"--http=127.0.0.1:{port}"),
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
