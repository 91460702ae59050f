"""A real API server for the tests that need one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.deploy.policies_world import PolicyWorld
from tests.kubernetes.conftest import real_server  # noqa: F401 - a fixture, asked for by its name below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kubernetes.conftest import RealServer


@pytest.fixture(scope="module")
async def api(request: pytest.FixtureRequest) -> AsyncIterator[PolicyWorld]:
    if not os.environ.get("KUBE_BIN"):
        pytest.skip("set KUBE_BIN to a folder with kube-apiserver and etcd to ask a real API server")
    server: RealServer = request.getfixturevalue("real_server")
    async with aiohttp.ClientSession() as http:
        yield PolicyWorld(server.config, http)
