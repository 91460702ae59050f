"""A cluster in which whatever the documentation tells to do with kubectl can be done, though no container runs.

API server and controllers are Kubernetes' own; the kubelets are hollow, and say of every pod that it runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from gpu_device_plugin.core.contract.keys import NODE_LIMITS
from tests.cluster.conftest import processes
from tests.docs.pages import ROOT
from tests.patience import REAL_S, eventually
from tests.reports import part, written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from tests.cluster.conftest import RealServer

Json = dict[str, Any]

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kubectl", "etcd", "openssl")
NODE = "gpu-1"
_GPU = {"index": 0, "uuid": "GPU-d32d6129", "model": "Tesla T4", "memoryMiB": 15360, "shares": 14, "healthy": True}
_SAID = {"version": 1, "shareMiB": 1024, "policy": "binpack", "driver": "580.95.05", "gpus": [_GPU], "links": []}
_NODES = {NODE: {"gpushare": "true"}, "control": {"node-role.kubernetes.io/control-plane": ""}}
"""By name, with their labels."""
_CONTROLLERS = (
    "daemonset-controller,deployment-controller,replicaset-controller,job-controller,disruption-controller,"
    "garbage-collector-controller,namespace-controller,serviceaccount-controller"
)

_OURS = " ".join(
    f"-f {path.relative_to(ROOT)}"
    for path in [*sorted((ROOT / "deploy").glob("*.yaml")), *sorted((ROOT / "deploy" / "optional").glob("*.yaml"))]
    if path.name != "kube-scheduler-config.yaml"  # a file of kube-scheduler's
)


@dataclass
class Hollow:
    """What a test acts on."""

    home: Path
    """Where commands are run; the repository's folders that they name are there."""
    environ: Mapping[str, str]
    server: RealServer
    http: aiohttp.ClientSession
    logs_port: int

    async def run(self, command: str, given: str = "") -> tuple[int, str]:
        """Do what a line for the shell says; return its exit code and all that it printed."""
        running = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", command),
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed, _ = await running.communicate(given.encode())
        assert running.returncode is not None
        return running.returncode, printed.decode()

    async def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Json]:
        config = self.server.config
        headers = {"Authorization": f"Bearer {config.token}", "Content-Type": kind}
        async with self.http.request(method, config.url + path, json=body, headers=headers, ssl=config.tls()) as answer:
            return answer.status, await answer.json()

    async def restore(self) -> None:
        """Have everything there that the pages speak of, whatever was done before."""
        await self._nodes()
        await self.run(
            "kubectl delete deployments,jobs,pods --all && kubectl delete --ignore-not-found namespace team-a && "
            "kubectl delete --ignore-not-found clusterrolebinding gpushare-viewer"
        )
        printed = ""

        async def applied() -> bool:
            # A namespace that is being removed takes nothing up, and of a new kind of object one hears later.
            nonlocal printed
            code, printed = await self.run(f"kubectl apply -f - {_OURS}", json.dumps(_beside()))
            return code == 0

        await eventually(applied, quiet_s=REAL_S, pause_s=0.5)

    async def _nodes(self) -> None:
        for name, labels in _NODES.items():
            # As the agent reports: the label by which pods select limits, and who uses what.
            note = {"gpu-device-plugin/gpus": json.dumps(_SAID), **written(part("web"))} if name == NODE else {}
            labels = {**labels, NODE_LIMITS: "advisory"} if name == NODE else labels  # noqa: PLW2901
            meta = {"name": name, "labels": labels, "annotations": note}
            await self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta})
            merge = "application/merge-patch+json"
            await self.ask(
                "PATCH",
                f"/api/v1/nodes/{name}",
                {"metadata": meta, "spec": {"unschedulable": None, "taints": None}},
                merge,
            )
            amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
            if name == NODE:
                amounts |= {"aliyun.com/gpu-mem": "14", "aliyun.com/gpu-count": "1"}
            status = {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.logs_port}},
            }
            code, answer = await self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, merge)
            assert code == 200, answer

    async def live(self) -> None:
        """Be scheduler and kubelet for ever: pods are on a node, run, and are gone when they are told to end."""
        while True:
            _, found = await self.ask("GET", "/api/v1/pods")
            for pod in found["items"]:
                await self._step(pod)
            await asyncio.sleep(0.2)  # as a kubelet: now and then

    async def _step(self, pod: Json) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            await self.ask("DELETE", path + "?gracePeriodSeconds=0")
        elif "nodeName" not in spec:
            if meta["name"] != WAITS:
                target = {"apiVersion": "v1", "kind": "Node", "name": _wanted_node(spec)}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
                await self.ask("POST", path + "/binding", binding)
        elif pod["status"].get("phase") == "Pending":
            conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
            containers = [
                {"name": each["name"], "image": each["image"], "imageID": "", "ready": True, "restartCount": 0}
                | {"state": {"running": {"startedAt": meta["creationTimestamp"]}}}
                for each in spec["containers"]
            ]
            status = {"phase": "Running", "conditions": conditions, "containerStatuses": containers}
            await self.ask("PATCH", path + "/status", {"status": status}, "application/merge-patch+json")


WAITS = "waiting"
"""The name of a pod that is never placed."""


def _wanted_node(spec: Json) -> str:
    """Return the node that a DaemonSet's pod is for, else the one with GPUs for pods that want some."""
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in terms.get("nodeSelectorTerms", ()):
        for field in term.get("matchFields", ()):
            return str(field["values"][0])
    return NODE if spec["schedulerName"] == "gpushare-scheduler" else "control"


def _beside() -> Json:
    """Return what is there besides our manifests: the runtime class, a pod that waits, and gpushare's own parts."""
    container = {"name": "main", "image": "example.com/app:1"}
    asking = {**container, "resources": {"limits": {"aliyun.com/gpu-mem": 8}}}
    template = {"metadata": {"labels": {"app": "gpushare"}}, "spec": {"containers": [container]}}
    workload = {"selector": {"matchLabels": {"app": "gpushare"}}, "template": template}
    rbac = "rbac.authorization.k8s.io/v1"
    old = [("gpushare-device-plugin", "DaemonSet", "gpushare-device-plugin-ds")]
    old += [("gpushare-schd-extender", "Deployment", "gpushare-schd-extender")]
    items: list[Json] = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpushare"}},
        _object("coordination.k8s.io/v1", "Lease", "gpushare-scheduler", "gpushare"),
        _of_the_operator("PodMonitor"),
        _of_the_operator("PrometheusRule"),
        _object("v1", "Pod", WAITS, "default", spec={"schedulerName": "gpushare-scheduler", "containers": [asking]}),
        _object("v1", "Service", "gpushare-schd-extender", spec={"ports": [{"port": 12345}]}),
    ]
    for account, kind, name in old:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
        items += [
            _object("apps/v1", kind, name, spec=workload),
            _object("v1", "ServiceAccount", account),
            _object(rbac, "ClusterRole", account, "", rules=[]),
            _object(rbac, "ClusterRoleBinding", account, "", roleRef=reference),
        ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _of_the_operator(kind: str) -> Json:
    """Return as much of a kind of the Prometheus Operator as an object of it needs to be accepted."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def _object(version: str, kind: str, name: str, namespace: str = "kube-system", **more: object) -> Json:
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **where}, **more}


async def _log(_: web.Request) -> web.Response:
    return web.Response(text="a line of a container\n")


@asynccontextmanager
async def hollow_cluster(home: Path, programs: Mapping[str, str]) -> AsyncIterator[Hollow]:
    """Start it, in a folder of its own, of these programs."""
    with processes(home, dict(programs)) as server:
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(server)), encoding="utf-8")
        work = home / "checkout"
        work.mkdir()
        for name in ("deploy", "docs"):
            (work / name).symlink_to(ROOT / name)
        path = (str(Path(programs["kubectl"]).parent), str(Path(sys.executable).parent), os.environ["PATH"])
        environ = {**os.environ, "PATH": os.pathsep.join(path), "KUBECONFIG": str(kubeconfig)}
        async with aiohttp.ClientSession() as http:
            kubelet = web.Application()
            kubelet.router.add_get("/containerLogs/{path:.*}", _log)
            runner = web.AppRunner(kubelet)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_certificate(home, programs["openssl"]))
            await site.start()
            cluster = Hollow(work, environ, server, http, runner.addresses[0][1])
            with _controllers(programs["kube-controller-manager"], kubeconfig):
                living = asyncio.create_task(cluster.live(), name="hollow kubelets")
                try:
                    yield cluster
                finally:
                    living.cancel()
                    with suppress(asyncio.CancelledError):
                        await living
                    await runner.cleanup()


@contextmanager
def _controllers(program: str, kubeconfig: Path) -> Iterator[None]:
    flags = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", f"--controllers={_CONTROLLERS}", "--secure-port=0")
    with kubeconfig.with_name("controllers.log").open("wb") as log:
        running = subprocess.Popen([program, *flags], stdout=log, stderr=log)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def _certificate(home: Path, openssl: str) -> ssl.SSLContext:
    """Return what a kubelet shows; the API server, which was given no authority for it, takes any."""
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet"]
    files = ["-keyout", str(home / "kubelet.key"), "-out", str(home / "kubelet.crt")]
    subprocess.run([*made, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(home / "kubelet.crt", home / "kubelet.key")
    return context


def _kubeconfig(server: RealServer) -> Json:
    cluster = {"server": server.config.url, "certificate-authority": str(server.config.ca_file)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "hollow", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": server.config.token}}],
        "contexts": [{"name": "hollow", "context": {"cluster": "hollow", "user": "admin"}}],
        "current-context": "hollow",
    }
