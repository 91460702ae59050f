"""A real API server for the tests that need one."""

import os
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.deploy.policies_world import PolicyWorld
from tests.kubernetes.conftest import (
    RealServer,
    real_server,  # noqa: F401 - a fixture, asked for by its name below
)


@pytest.fixture(scope="module")
async def api(request: pytest.FixtureRequest) -> AsyncIterator[PolicyWorld]:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver and etcd to ask a real API server")
    server: RealServer = request.getfixturevalue("real_server")
    async with aiohttp.ClientSession() as http:
        yield PolicyWorld(server.config, http)
