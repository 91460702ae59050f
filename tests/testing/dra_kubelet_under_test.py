"""What the conformance suite of DRA needs of a kubelet with its API server, be they our doubles or real ones."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.e2e import archives, real_cluster
from tests.patience import REAL_S, eventually
from tests.testing.dra_kubelet import DraKubelet, Started
from tests.testing.scripted_dra_driver import DEVICE, DRIVER, POOL

Json = dict[str, Any]

_IMAGE = "docker.io/local/test:1"
_NOT_YET_THE_NODES = "no relationship found between node"
"""The API server lets a kubelet read a claim a moment after its pod was bound; the kubelet says so, and tries again."""


class TheDouble:
    """Our doubles, for what a real kubelet and its API server do."""

    def __init__(self, kubelet: DraKubelet, api: ApiServer, node: str) -> None:
        self.kubelet = kubelet
        self.node = node
        self.registry, self.plugins, self.plugins_seen = kubelet.registry, kubelet.plugins, kubelet.plugins
        self.cdi = kubelet.cdi
        self._api = api

    async def create(self, body: Json, status: Json | None = None) -> str:
        uid: str = self._api.add(body | ({"status": status} if status else {}))["metadata"]["uid"]
        return uid

    async def allow(self, claim: str, users: Mapping[str, str]) -> None:
        """Let a claim be reserved for pods: names and UIDs."""
        reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users.items()]
        self._api.patch("resourceclaims", claim, {"status": {"reservedFor": reserved}}, subresource="status")

    async def remove(self, kind: str, name: str) -> None:
        self._api.delete(kind, name)

    async def slices(self) -> list[str]:
        return sorted(found["metadata"]["name"] for found in self._api.all("resourceslices"))

    async def runs(self, pod: str) -> Mapping[str, str]:
        started = Started()

        async def runs() -> bool:
            nonlocal started
            started = await self.kubelet.start_pod(pod)
            return not started.error

        await eventually(runs, f"{pod} runs")
        return started.environ

    async def refusal(self, pod: str) -> str:
        return (await self.kubelet.start_pod(pod)).error

    async def end(self, pod: str) -> None:
        assert await self.kubelet.end_pod(pod) == ""
        self._api.delete("pods", pod)

    async def stays(self, pod: str) -> None:
        """Delete a pod of which the driver says that its claim cannot be unprepared."""
        assert await self.kubelet.end_pod(pod)

    async def tells_health(self) -> bool:
        return True

    async def health(self, pod: str) -> tuple[str, str]:  # noqa: ARG002
        healthy, message = self.kubelet.health.get((POOL, DEVICE), (None, ""))
        return {True: "Healthy", False: "Unhealthy", None: "Unknown"}[healthy], message

    async def stop(self) -> None:
        await self.kubelet.stop()

    async def start(self) -> None:
        await self.kubelet.start()

    async def clear(self) -> None:
        """Everything ends with the doubles."""


class Real:
    """A kubelet, an API server and containerd; nobody schedules. `await up()` starts them, `down` ends them."""

    def __init__(self) -> None:
        self.cluster: real_cluster.RealCluster | None = None
        self.node = real_cluster.NODE
        self.plugins_seen = Path("/var/lib/kubelet/plugins/test")

    @staticmethod
    def missing() -> str:
        """Say why none can be started here; empty if one can."""
        return real_cluster.missing() or real_cluster.missing_cdi()

    @property
    def own(self) -> real_cluster.RealCluster:
        assert self.cluster is not None
        return self.cluster

    @property
    def registry(self) -> Path:
        return self.own.seen("/var/lib/kubelet/plugins_registry")

    @property
    def plugins(self) -> Path:
        return self.own.seen(str(self.plugins_seen))

    @property
    def cdi(self) -> Path:
        return self.own.seen("/run/cdi")

    async def up(self) -> None:
        """Start everything that does not run yet."""
        if self.cluster is not None:
            return
        self.cluster = real_cluster.RealCluster(controllers=False)
        await asyncio.to_thread(self._start)
        for folder in (self.plugins, self.cdi):
            folder.mkdir(parents=True, exist_ok=True)

    def _start(self) -> None:
        own = self.own
        own.__enter__()
        archive = own.home / "image.tar"
        archives.write_pause(archive, real_cluster.PAUSE)
        own.load(archive)
        archives.write_workload(archive, [_IMAGE])
        own.load(archive)
        own.start_kubelet()
        self._kubectl_now("create", "serviceaccount", "default")

    async def down(self) -> None:
        """End everything."""
        if self.cluster is not None:
            await asyncio.to_thread(self.cluster.__exit__)

    async def create(self, body: Json, status: Json | None = None) -> str:
        if body["kind"] == "Pod":
            body = body | {"spec": body["spec"] | {"automountServiceAccountToken": False, "hostNetwork": True}}
            command = ["sh", "-c", "env; echo told; trap 'exit 0' TERM; sleep 2147483647 & wait"]
            for container in body["spec"]["containers"]:
                container |= {"image": _IMAGE, "imagePullPolicy": "Never", "command": command}
            body["spec"]["terminationGracePeriodSeconds"] = 1
        made = json.loads(await self._kubectl("create", "--filename=-", "--output=json", given=json.dumps(body)))
        if status:
            await self._patch_status(body["kind"].lower(), made["metadata"]["name"], status)
        uid: str = made["metadata"]["uid"]
        return uid

    async def allow(self, claim: str, users: Mapping[str, str]) -> None:
        reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in users.items()]
        await self._patch_status("resourceclaim", claim, {"reservedFor": reserved})

    async def remove(self, kind: str, name: str) -> None:
        await self._kubectl("delete", kind, name)

    async def slices(self) -> list[str]:
        return sorted(found["metadata"]["name"] for found in await self._items("resourceslices"))

    async def runs(self, pod: str) -> Mapping[str, str]:
        await self._bind(pod)
        await eventually(lambda: self._is_running(pod), f"{pod} runs", quiet_s=REAL_S, pause_s=0.3)
        lines = (await self._kubectl("logs", pod)).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def refusal(self, pod: str) -> str:
        before = await self._warnings(pod)
        await self._bind(pod)

        async def newer() -> str:
            now = await self._warnings(pod)
            said = (text for text, count in now.items() if count > before.get(text, 0))
            return next((text for text in said if _NOT_YET_THE_NODES not in text), "")

        return await eventually(newer, f"an Event says why {pod} cannot start", quiet_s=REAL_S, pause_s=0.3)

    async def end(self, pod: str) -> None:
        await self._kubectl("delete", "pod", pod, "--timeout=100s")

    async def stays(self, pod: str) -> None:
        await self._kubectl("delete", "pod", pod, "--wait=false")

    async def tells_health(self) -> bool:
        # Of the API server; the kubelet is of the same version. ResourceHealthStatus is on by default from 1.36 on.
        server = json.loads(await self._kubectl("version", "--output=json"))["serverVersion"]
        return (int(server["major"]), int(server["minor"].rstrip("+"))) >= (1, 36)

    async def health(self, pod: str) -> tuple[str, str]:
        status = json.loads(await self._kubectl("get", "pod", pod, "--output=json"))["status"]
        for container in status.get("containerStatuses") or ():
            for resource in container.get("allocatedResourcesStatus") or ():
                for device in resource.get("resources") or ():
                    return device.get("health", ""), device.get("message", "")
        return "Unknown", ""

    async def stop(self) -> None:
        await asyncio.to_thread(self.own.stop_kubelet)

    async def start(self) -> None:
        await asyncio.to_thread(self.own.start_kubelet)

    async def clear(self) -> None:
        for kind in ("pods", "resourceclaims", "resourceslices", "events"):
            await self._kubectl("delete", kind, "--all", "--timeout=100s")
        for path in self.cdi.glob("*.json"):
            path.unlink()

    async def _patch_status(self, kind: str, name: str, status: Json) -> None:
        patch = json.dumps({"status": status})
        await self._kubectl("patch", kind, name, "--subresource=status", "--type=merge", f"--patch={patch}")

    async def _items(self, *words: str) -> list[Json]:
        found: list[Json] = json.loads(await self._kubectl("get", *words, "--output=json"))["items"]
        return found

    async def _is_running(self, pod: str) -> bool:
        found = json.loads(await self._kubectl("get", "pod", pod, "--output=json"))
        return found["status"].get("phase") == "Running" and "told" in await self._kubectl("logs", pod)

    async def _warnings(self, pod: str) -> dict[str, int]:
        """Return how often each warning about a pod was told."""
        found = await self._items("events", f"--field-selector=involvedObject.name={pod},type=Warning")
        return {event["message"]: event.get("count") or 1 for event in found}

    async def _bind(self, pod: str) -> None:
        found = json.loads(await self._kubectl("get", "pod", pod, "--output=json"))
        if found["spec"].get("nodeName"):
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        await self._kubectl("create", "--raw", path, "--filename=-", given=json.dumps(body))

    async def _kubectl(self, *words: str, given: str = "") -> str:
        return await asyncio.to_thread(self._kubectl_now, *words, given=given)

    def _kubectl_now(self, *words: str, given: str = "") -> str:
        done = self.own.on_node(str(self.own.kube / "kubectl"), *words, given=given)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout


def claim_body(name: str) -> Json:
    """Return a claim on any one device."""
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def allocation() -> Json:
    """Return the status of a claim that has the one device."""
    result = {"request": "r", "driver": DRIVER, "pool": POOL, "device": DEVICE}
    return {"allocation": {"devices": {"results": [result]}}}


def pod_body(name: str, *claims: str) -> Json:
    """Return a pod whose one container uses these claims."""
    body = builders.pod(name, builders.container("main"))
    body["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim} for claim in claims]}
    return body


def slice_body(driver: str, node: str) -> Json:
    """Return a ResourceSlice of one node without devices."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": []},
    }
