"""A real kube-apiserver with an etcd of its own, and a kube-scheduler, where KUBE_BIN or the PATH has them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import yaml

from gpu_device_plugin.aio.waiting import wait_within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from tests.builders import Json

_MANIFEST = Path(__file__).parents[1] / "deploy" / "scheduler.yaml"
STALLED_S = 60.0
"""After so long without a binding no further one is waited for."""
_NEEDED = ("etcd", "kube-apiserver", "openssl")


def binaries() -> Mapping[str, str]:
    """Return where the programs are; nothing if one is missing."""
    found = {name: where for name in _NEEDED if (where := _which(name)) is not None}
    return found if len(found) == len(_NEEDED) else {}


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("KUBE_BIN", ""), os.environ.get("PATH", "")]))


def shipped() -> Json:
    """Return the configuration of kube-scheduler in deploy/scheduler.yaml."""
    texts = [made["data"].get("config.yaml") for made in yaml.safe_load_all(_MANIFEST.read_text()) if "data" in made]
    configuration: Json
    (configuration,) = map(yaml.safe_load, filter(None, texts))
    return configuration


class KubeApi:
    """One API server on a loopback port; use it in a ``with``."""

    def __init__(self, folder: Path) -> None:
        """Keep everything in `folder`."""
        self._folder = folder
        self._stack = ExitStack()
        self.pids: dict[str, int] = {}
        """Of its programs that run, and the latest of those that do not any more."""
        self.url = ""
        self.token = "bench-token"  # noqa: S105 - of this very process
        self.kubeconfig = folder / "kubeconfig"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def add_nodes(self, nodes: Sequence[Json], *, at_once: int = 8) -> None:
        """Create nodes."""
        limit = asyncio.Semaphore(at_once)
        headers = {"Authorization": f"Bearer {self.token}"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False), headers=headers) as http:

            async def add(node: Json) -> None:
                async with limit, http.post(f"{self.url}/api/v1/nodes", json=node) as answer:
                    if answer.status != 201:
                        raise OSError(f"creating a node: {await answer.text()}")

            await asyncio.gather(*map(add, nodes))

    @contextlib.contextmanager
    def scheduler(
        self,
        extender: str,
        *,
        binpack: Sequence[str] = (),
        every: bool = False,
        percentage: int | None = None,
    ) -> Iterator[bool]:
        """Let kube-scheduler schedule; False if there is no kube-scheduler.

        Args:
            extender: URL of the extender; empty: none.
            every: the extender is asked about every pod, also about those without GPUs.
            percentage: of the nodes to score; None: as it is shipped.
            binpack: resources by which the fullest nodes are preferred, beside CPU and memory.
        """
        program = _which("kube-scheduler")
        if program is None:
            yield False
            return
        configuration = shipped()
        # More calls than by default: those of the scheduler itself are not what is measured.
        configuration["clientConnection"] = {"kubeconfig": str(self.kubeconfig), "qps": 5000, "burst": 5000}
        configuration["leaderElection"] = {"leaderElect": False}
        (profile,) = configuration["profiles"]
        if binpack:
            resources = [{"name": name, "weight": 1} for name in ("cpu", "memory", *binpack)]
            strategy = {"type": "MostAllocated", "resources": resources}
            profile["pluginConfig"] = [{"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}]
        if percentage is not None:
            configuration["percentageOfNodesToScore"] = percentage
        if extender:
            configuration["extenders"][0]["urlPrefix"] = extender
            if every:
                del configuration["extenders"][0]["managedResources"]
        else:
            del configuration["extenders"]
        path = self._folder / "scheduler.json"
        path.write_text(json.dumps(configuration))
        (port,) = free_ports(1)
        with ExitStack() as stack:
            self._run(stack, program, f"--config={path}", f"--secure-port={port}", "--bind-address=127.0.0.1")
            yield True

    @contextlib.contextmanager
    def claim_controller(self) -> Iterator[bool]:
        """Let kube-controller-manager make ResourceClaims of their templates; False if there is none."""
        program = _which("kube-controller-manager")
        if program is None:
            yield False
            return
        (port,) = free_ports(1)
        with ExitStack() as stack:
            self._run(
                stack, program, f"--kubeconfig={self.kubeconfig}", "--controllers=resourceclaim-controller",
                "--leader-elect=false", "--kube-api-qps=5000", "--kube-api-burst=5000", "--bind-address=127.0.0.1",
                f"--secure-port={port}", f"--cert-dir={self._folder / 'controller'}",
            )  # fmt: skip
            yield True

    def _start(self, stack: ExitStack) -> None:
        client, peer, port = free_ports(3)
        programs, folder = binaries(), self._folder
        etcd, among = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        self.url = f"https://127.0.0.1:{port}"
        key, tokens = folder / "accounts.key", folder / "tokens.csv"
        subprocess.run([programs["openssl"], "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens.write_text(f'{self.token},bench,1,"system:masters"\n')
        self._run(
            stack, programs["etcd"], f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={among}", f"--initial-cluster=default={among}",
            f"--initial-advertise-peer-urls={among}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._run(
            stack, programs["kube-apiserver"], f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}",
            f"--token-auth-file={tokens}", "--authorization-mode=RBAC", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
            # The second one would keep pods from nodes that have no kubelet.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        self._write_kubeconfig()
        self._wait()

    def _run(self, stack: ExitStack, program: str, *flags: str) -> None:
        log = stack.enter_context((self._folder / f"{Path(program).name}.log").open("wb"))
        process = subprocess.Popen([program, *flags], stdout=log, stderr=log, cwd=self._folder)
        self.pids[Path(program).name] = process.pid
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _write_kubeconfig(self) -> None:
        authority = self._folder / "certificates" / "apiserver.crt"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "bench",
                    "clusters": [
                        {"name": "bench", "cluster": {"server": self.url, "certificate-authority": str(authority)}}
                    ],
                    "users": [{"name": "bench", "user": {"token": self.token}}],
                    "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
                }
            )
        )
        self.kubeconfig.chmod(0o600)

    def _wait(self) -> None:
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        for path in ("/readyz", "/api/v1/namespaces/default"):
            request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})  # noqa: S310 - our own address
            for _ in range(600):
                with contextlib.suppress(OSError), urllib.request.urlopen(request, context=trusting, timeout=5):  # noqa: S310
                    break
                time.sleep(0.1)
            else:
                log = (self._folder / "kube-apiserver.log").read_text(errors="replace")
                raise SystemExit(f"the API server did not start:\n{log[-2000:]}")


@dataclass(slots=True)
class Bound:
    """When pods were bound."""

    at: dict[str, float] = field(default_factory=dict)
    """By name, monotonic seconds."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def all_of(self, number: int) -> None:
        """Return once so many are bound, or none has been for a while."""
        while len(self.at) < number:
            self.changed.clear()
            if not await wait_within(STALLED_S, self.changed.wait()):
                return

    @property
    def rate(self) -> float:
        """Pods a second, from the first that was bound to the last."""
        return (len(self.at) - 1) / max(max(self.at.values()) - min(self.at.values()), 1e-9) if self.at else 0.0


@contextlib.asynccontextmanager
async def following(api: KubeApi, label: str = "") -> AsyncIterator[Bound]:
    """Follow the pods with a label, or all; yield what is known of them."""
    bound = Bound()
    url = f"{api.url}/api/v1/namespaces/default/pods?watch=true&labelSelector={label}"
    headers = {"Authorization": f"Bearer {api.token}"}

    async def follow() -> None:
        connector = aiohttp.TCPConnector(ssl=False)
        async with (
            aiohttp.ClientSession(connector=connector, read_bufsize=1 << 24) as http,
            http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as answer,
        ):
            async for line in answer.content:
                _note(bound, json.loads(line)["object"])

    task = asyncio.create_task(follow(), name="follow pods")
    try:
        yield bound
    finally:
        task.cancel()


def _note(bound: Bound, pod: Any) -> None:
    name = pod["metadata"]["name"]
    if pod["spec"].get("nodeName") and name not in bound.at:
        bound.at[name] = time.monotonic()
        bound.changed.set()


def free_ports(number: int) -> list[int]:
    """Return TCP ports of this machine that nobody listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
