"""An API server for every test, ours or a real one, and the quick timing that fits a loopback."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpu_device_plugin.kubernetes.client.api_client import Client, Timing
from gpu_device_plugin.kubernetes.client.config import ClusterConfig
from tests import patience
from tests.builders import pod
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.reviews import Account
from tests.ports import free_ports

QUICK = Timing(connect_s=20, request_s=20, watch_s=30, silence_s=30)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    return patience.eventually


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(ClusterConfig(server.url), timing=QUICK) as opened:
        yield opened


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Let something run while the block does."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(work)
        yield
        running.cancel()


@dataclass(frozen=True)
class Api:
    """An API server under test, with an administrator's rights."""

    config: ClusterConfig
    stranger: ClusterConfig
    """An account without any rights."""
    http: aiohttp.ClientSession
    client: Client
    restart: Callable[[], Awaitable[None]]
    """Stops the API server and starts it again, with the same memory and without its history of changes."""

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        config: ClusterConfig | None = None,
    ) -> tuple[int, Any]:
        """Return status and JSON (or text) of the answer to any request, by default an administrator's."""
        config = config or self.config
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {config.token}"}
        tls = config.tls() if config.url.startswith("https:") else True
        async with self.http.request(method, config.url + path, json=body, headers=headers, ssl=tls) as answer:
            return answer.status, await (answer.json() if answer.content_type.endswith("json") else answer.text())


@dataclass(frozen=True)
class RealServer:
    """A kube-apiserver with an etcd of its own."""

    config: ClusterConfig
    stranger: ClusterConfig
    """An account without any rights."""
    restart: Callable[[], None]


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with processes(tmp_path_factory.mktemp("apiserver"), programs()) as server:
        yield server


def programs() -> dict[str, str]:
    """Return where the programs are of which a real API server is made; skip the test without them."""
    path = os.pathsep.join([os.environ.get("KUBE_BIN", ""), os.environ.get("PATH", "")])
    binaries = {name: shutil.which(name, path=path) for name in ("kube-apiserver", "etcd", "openssl")}
    missing = [name for name, found in binaries.items() if not found]
    if missing:
        pytest.skip(f"a real API server needs {', '.join(missing)} in KUBE_BIN or on the PATH")
    return {name: str(found) for name, found in binaries.items()}


class processes:  # noqa: N801 - a context manager
    def __init__(
        self, home: Path, binaries: dict[str, str], authorization: str = "--authorization-mode=RBAC", *more: str
    ) -> None:
        self._home = home
        self._binaries = binaries
        self._flags = (authorization, *more)
        self._running: list[subprocess.Popen[bytes]] = []
        self._api_server: list[str] = []

    def __enter__(self) -> RealServer:
        client_port, peer_port, port = free_ports(3)
        home = self._home
        etcd = f"http://127.0.0.1:{client_port}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._start(
            "etcd", f"--data-dir={home}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )  # fmt: skip
        key = home / "accounts.key"
        subprocess.run([self._binaries["openssl"], "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = home / "tokens.csv"
        tokens.write_text('admin-token,admin,1,"system:masters"\nstranger-token,stranger,2\n')
        self._api_server = [
            "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--secure-port={port}", f"--cert-dir={home}/certificates", f"--token-auth-file={tokens}",
            *self._flags, f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount",
            "--allow-privileged=true",  # as nearly all clusters; the MPS supervisor needs it
        ]  # fmt: skip
        url = f"https://127.0.0.1:{port}"
        certificate = home / "certificates" / "apiserver.crt"
        self._start(*self._api_server)
        self._wait(url, certificate)

        def restart() -> None:
            self._stop(self._running.pop())
            self._start(*self._api_server)
            self._wait(url, certificate)

        return RealServer(
            ClusterConfig(url, ca_file=certificate, token="admin-token"),  # noqa: S106 - of this very process
            ClusterConfig(url, ca_file=certificate, token="stranger-token"),  # noqa: S106
            restart,
        )

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            self._stop(process)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self, name: str, *flags: str) -> None:
        with (self._home / f"{name}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen([self._binaries[name], *flags], stdout=log, stderr=log, cwd=self._home)
            )

    def _wait(self, url: str, certificate: Path) -> None:
        answer = ["curl", "-sf", "--cacert", str(certificate), "-H", "Authorization: Bearer admin-token"]
        for path in ("/readyz", "/api/v1/namespaces/default"):
            patience.until(
                lambda path=path: (  # type: ignore[misc]
                    any(process.poll() is not None for process in self._running)
                    or subprocess.run([*answer, url + path], capture_output=True, check=False).returncode == 0
                ),
                f"the API server starts; see {self._home}",
                quiet_s=patience.REAL_S,
                pause_s=0.1,
            )


# Without KUBE_BIN there is nothing to compare with, which test_api_conformance.py says once.
@pytest.fixture(params=["double", "real"] if os.environ.get("KUBE_BIN") else ["double"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    timing = Timing(watch_s=20)
    async with aiohttp.ClientSession() as http:
        if request.param == "real":
            real: RealServer = request.getfixturevalue("real_server")
            async with Client(real.config, timing=timing) as client:
                yield Api(real.config, real.stranger, http, client, lambda: asyncio.to_thread(real.restart))
        else:
            accounts = {
                "admin-token": Account("admin", "1", ("system:masters",)),
                "stranger-token": Account("stranger", "2"),
                "reader-token": Account("reader", "3", rights={("get", "pods", "kube-public")}),
            }
            async with (
                ApiServer(tokens={"admin-token"}, patience_s=0.1, accounts=accounts) as double,
                ApiServer(allowed=()) as closed,
            ):
                config = ClusterConfig(double.url, token="admin-token")  # noqa: S106

                async def restart() -> None:
                    await double.stop()
                    double.add(pod("between", namespace="elsewhere"))
                    double.store.compact()
                    await double.start()

                async with Client(config, timing=timing) as client:
                    yield Api(config, ClusterConfig(closed.url), http, client, restart)
