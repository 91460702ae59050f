"""A real API server, its controllers, kube-scheduler and our extender; nodes have no kubelets, their pods run at once.

Other platforms' controllers join it: a test runs them as programs of their own.
"""

import json
import os
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_device_plugin.model.contract.keys import IDX, NODE_GPUS
from tests import builders, patience
from tests.deploy.manifests import Json, documents
from tests.deploy.test_apply import Kubectl, api_server
from tests.deploy.test_scheduler_manifest import configuration
from tests.docs.pages import DOCS
from tests.ports import free_ports

PLATFORMS = DOCS / "platforms"
SHARES = 8
"""Of each GPU of a node that `Platform.node` makes."""
CONTROLLERS = (
    *("namespace-controller", "job-controller", "deployment-controller", "replicaset-controller"),
    *("garbage-collector-controller", "disruption-controller"),
)
RIGHTS = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
ACCOUNT = "/api/v1/namespaces/gpushare/serviceaccounts/gpu-device-plugin-scheduler"
"""Of our extender."""
UP = {"ready": True, "started": True}


def needed(*names: str) -> list[str]:
    """Return where programs and files of a platform are; skip the test where one is missing."""
    folders = [os.environ.get("KUBE_BIN", ""), *os.environ["PATH"].split(os.pathsep)]
    found = {name: _found(name, folders) for name in names}
    if missing := [name for name, where in found.items() if where is None]:
        pytest.skip(f"needs {', '.join(missing)} in KUBE_BIN or on the PATH (docs/testing.md)")
    return [str(where) for where in found.values()]


def _found(name: str, folders: Sequence[str]) -> str | None:
    return next((where for each in folders if each and os.path.isfile(where := os.path.join(each, name))), None)  # noqa: PTH113, PTH118


@dataclass
class Platform:
    """What a test acts on and looks at, as the administrator."""

    kubectl: Kubectl
    home: Path
    _server: Json = field(repr=False)
    _token: str = field(repr=False)
    address: str = "127.0.0.1"
    """Of every pod that runs."""

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Return the answer of the API server. KeyError: there is no such object."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            self._server["server"] + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self._token}", "Content-Type": kind},
            method=method,
        )
        trust = ssl.create_default_context(cafile=self._server["certificate-authority"])
        try:
            with urllib.request.urlopen(request, context=trust, timeout=60) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            error.close()
            if error.code == 404:
                raise KeyError(said) from None
            raise AssertionError(f"{method} {path}: {error.code} {said}") from None

    def create(self, path: str, body: Json) -> Json:
        made: Json = self.call("POST", f"{path}?fieldValidation=Strict", body)
        return made

    def merge(self, path: str, body: Json) -> Json:
        made: Json = self.call("PATCH", path, body, "application/merge-patch+json")
        return made

    def items(self, path: str) -> list[Json]:
        found: list[Json] = self.call("GET", path)["items"]
        return found

    def pods(self, namespace: str = "default") -> list[Json]:
        return self.items(f"/api/v1/namespaces/{namespace}/pods")

    def apply(self, bodies: Iterable[Json]) -> None:
        """Have objects as they are described; a field that the API server does not know is an error."""
        for body in bodies:
            path = self.until(partial(self._path, body), f"the API server knows the kind {body['kind']}")
            query = "fieldManager=test&force=true&fieldValidation=Strict"
            self.call("PATCH", f"{path}?{query}", body, "application/apply-patch+yaml")

    def _path(self, body: Json) -> str:
        """Return where an object is; empty: its kind is not known yet."""
        root = "/api/v1" if body["apiVersion"] == "v1" else f"/apis/{body['apiVersion']}"
        try:
            known = self.call("GET", root)["resources"]
        except KeyError:
            return ""
        for one in known:
            if one["kind"] == body["kind"] and "/" not in one["name"]:
                namespace = f"/namespaces/{body['metadata'].get('namespace', 'default')}" if one["namespaced"] else ""
                return f"{root}{namespace}/{one['name']}/{body['metadata']['name']}"
        return ""

    def node(self, name: str, *, gpus: int = 4, labels: Json | None = None, **more: Any) -> None:
        """Make a node with GPUs of `SHARES` shares, as its agent and its kubelet would."""
        cards = [
            {
                "uuid": f"GPU-{name}-{at}",
                "index": at,
                "model": "T4",
                "memoryMiB": SHARES * 1024,
                "shares": SHARES,
                "healthy": True,
            }
            for at in range(gpus)
        ]
        facts = json.dumps({"version": 1, "shareMiB": 1024, "policy": "fit", "gpus": cards, "links": []})
        labels = {"gpushare": "true", **(labels or {})}
        body = builders.node(name, mem=gpus * SHARES, count=gpus, labels=labels, annotations={NODE_GPUS: facts})
        self.create("/api/v1/nodes", body)
        self.merge(f"/api/v1/nodes/{name}/status", {"status": body["status"]})
        # The API server has tainted it as not ready, as every new node.
        self.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None, **more}})

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until something is so; the logs of all programs say why it is not."""
        try:
            return patience.until(condition, what, quiet_s=patience.REAL_S, pause_s=0.3)
        except AssertionError as error:
            ends = "\n".join(f"--- {log.name}: {log.read_text()[-2500:]}" for log in sorted(self.home.glob("*.log")))
            raise AssertionError(f"{error}\n{ends}") from None

    @contextmanager
    def running(self, name: str, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program while the block does, in the directory of its log."""
        log = (self.home / f"{name}.log").open("wb")
        with (
            log,
            subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.home, env={**os.environ, **environment}
            ) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(patience.stretched())
                except subprocess.TimeoutExpired:
                    process.kill()

    def place(self, pod: Json) -> tuple[str, str]:
        """Return the node of a pod, and the positions of the GPUs that our extender promised it."""
        return pod["spec"]["nodeName"], pod["metadata"]["annotations"][IDX]


class _Kubelets(threading.Thread):
    """Lets bound pods run, and removes those that are told to end, until `stop` is set."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(name="kubelets", daemon=True)
        self._platform = platform
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.3):
            for pod in self._platform.items("/api/v1/pods"):
                if pod["spec"].get("nodeName"):
                    self._look_after(pod)

    def _look_after(self, pod: Json) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        try:
            if "deletionTimestamp" in pod["metadata"]:
                self._platform.merge(f"{path}/status", {"status": {"phase": "Succeeded"}})
                self._platform.call("DELETE", f"{path}?gracePeriodSeconds=0")
            elif pod["status"].get("phase") == "Pending":
                address = self._platform.address
                ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready", "ContainersReady")]
                since = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
                containers = [
                    {
                        "name": each["name"],
                        "image": each["image"],
                        "imageID": "",
                        "restartCount": 0,
                        **UP,
                        "state": since,
                    }
                    for each in pod["spec"]["containers"]
                ]
                status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
                status["containerStatuses"] = containers
                self._platform.merge(f"{path}/status", {"status": status})
        except KeyError:
            pass  # it is gone already


@contextmanager
def platform(home: Path) -> Iterator[Platform]:
    """Run a cluster of real programs with our policies in force; skip the test where one is missing."""
    (scheduler,) = needed("kube-scheduler")
    verbs, http = free_ports(2)
    with ExitStack() as stack:
        # The API server calls webhooks where EndpointSlices say, as no kube-proxy runs.
        kubectl = stack.enter_context(api_server(home, *CONTROLLERS, flags=["--enable-aggregator-routing=true"]))
        config = json.loads(kubectl.kubeconfig.read_text(encoding="utf-8"))
        made = Platform(kubectl, home, config["clusters"][0]["cluster"], config["users"][0]["user"]["token"])
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        made.create("/apis/node.k8s.io/v1/runtimeclasses", {**runtime, "handler": "nvidia"})
        for path in ("policies", "optional/mutating-policy"):
            made.apply(documents(path))
        # Our policies let nobody else say which GPU a pod has.
        made.apply(each for name in ("daemonset", "scheduler") for each in documents(name) if each["kind"] in RIGHTS)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = made.call("POST", f"{ACCOUNT}/token", request)["status"]["token"]
        account = home / "account.kubeconfig"
        account.write_text(json.dumps({**config, "users": [{"name": "u", "user": {"token": token}}]}), encoding="utf-8")
        ours = ("--listen", f"127.0.0.1:{verbs}", "--http", f"127.0.0.1:{http}", "--api", str(account))
        stack.enter_context(made.running("extender", sys.executable, "-m", "gpu_device_plugin", "extender", *ours))
        told = configuration()
        told["leaderElection"] = {"leaderElect": False}
        told["clientConnection"] = {"kubeconfig": str(kubectl.kubeconfig)}
        told["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{verbs}/gpushare-scheduler"
        file = home / "scheduler.yaml"
        file.write_text(yaml.safe_dump(told), encoding="utf-8")
        stack.enter_context(made.running("scheduler", scheduler, f"--config={file}", "--secure-port=0"))
        kubelets = _Kubelets(made)
        kubelets.start()
        try:
            yield made
        finally:
            kubelets.stop.set()
            kubelets.join()
