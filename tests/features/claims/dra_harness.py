"""A node that serves ResourceClaims: an API server, an allocator, a kubelet that speaks DRA, and the agent."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.claims.dra_driver import DraDriver
from gpu_device_plugin.features.claims.node import Claims as ClaimsFeature
from gpu_device_plugin.kubelet.rounds import RoundTimings
from tests import builders
from tests.builders import Json
from tests.cluster_double.api_server import ApiServer
from tests.node.cluster_harness import NODE, RIGHTS, Cluster
from tests.node.harness import world
from tests.patience import stretched
from tests.scheduler_double.dra_scheduler import Allocator, exactly
from tests.testing.dra_kubelet import DraKubelet, Started

DRA_RIGHTS = {
    ("get", "resourceclaims"),
    ("list", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    *((verb, "resourceslices") for verb in ("get", "list", "watch", "create", "update", "delete")),
}
"""What deploy/optional/dra.yaml grants besides."""


@dataclass
class Claims(Cluster):
    """What a test acts on and looks at."""

    kubelet: DraKubelet
    scheduler: Allocator

    def launch(self, **changed: str) -> None:
        """Start an agent with quick intervals, and wait for nothing."""
        self.node.settings |= changed
        self.node.launch()
        dra = self.dra
        dra.loop.timings = RoundTimings(
            poll=0.05, stream_grace=stretched(1.0), retry_first=0.05, retry_most=0.05, self_check=0.1, stop=0.2
        )
        dra.retry_s = 0.1
        dra.sweep_s = 3600
        dra.claims.pod_within_s = 0.05
        dra.claims.wait_s = 0.0
        self.cluster.look_s = 0.05
        dra.withdrawn_s, dra.list_s = 0.05, 0.05

    async def start(self, **changed: str) -> None:
        """Start an agent, and wait until claims can get its GPUs."""
        self.launch(**changed)
        await self.serves()

    async def serves(self) -> None:
        """Wait until claims can get the GPUs, as far as kubelet and API server know."""
        dra = self.dra
        await self.node.until(lambda: not dra.unmet() and self.kubelet.reaches(DRIVER))
        await self.node.until(lambda: self.cluster.followed.reflector.synced)

    @property
    def dra(self) -> DraDriver:
        """The driver of the agent."""
        assert self.node.agent is not None
        return self.node.agent.features.of(ClaimsFeature).dra

    def slices(self) -> list[dict[str, Any]]:
        """Return the spec of every slice, by name."""
        return [found["spec"] for found in self.api.all("resourceslices")]

    def devices(self) -> dict[str, dict[str, Any]]:
        """Return every device that is offered, by name, in its order."""
        return {device["name"]: device for spec in self.slices() for device in spec.get("devices") or ()}

    def wish(self, name: str, *wishes: Json, parameters: Any = None, pods: Sequence[str] = ()) -> None:
        """Create a claim, and pods of these names (or of the claim's own) that use it, bound to the node."""
        devices: dict[str, Any] = {
            "requests": [
                {"name": f"r{number}", "exactly": wish}
                for number, wish in enumerate(wishes or (exactly(memory="4Gi"),))
            ]
        }
        if parameters is not None:
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
        self.api.add({"kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": devices}})
        for pod in pods or (name,):
            self.pod(pod, name)

    def pod(self, name: str, *claims: str, container: str = "main") -> None:
        """Create a pod on the node whose one container uses these claims."""
        body = builders.pod(name, builders.container(container), phase="Pending")
        body["spec"]["nodeName"] = NODE
        body["spec"]["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        body["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim} for claim in claims]}
        self.api.add(body)

    def allocate(self, claim: str, *pods: str) -> str:
        """Have the scheduler allocate a claim for pods (or that of its own name); return why it cannot, or nothing."""
        uids = [(pod, self.api.get("pods", pod)["metadata"]["uid"]) for pod in pods or (claim,)]
        return self.scheduler.allocate(claim, NODE, uids)

    async def run_claim(self, name: str, *wishes: Json, parameters: Any = None) -> Started:
        """Create a claim and its pod, have it allocated, and let the kubelet start the pod."""
        self.wish(name, *wishes, parameters=parameters)
        assert self.allocate(name) == ""
        return await self.kubelet.start_pod(name)

    async def end_claim(self, name: str) -> None:
        """Let the pod of a claim be over, and the claim go with it."""
        assert await self.kubelet.end_pod(name) == ""
        self.api.delete("pods", name)
        self.api.delete("resourceclaims", name)

    def dra_files(self) -> list[Path]:
        """Return the agent's files of prepared claims."""
        return sorted((self.kubelet.plugins / DRIVER / "claims").iterdir())

    def status(self, claim: str) -> list[dict[str, Any]]:
        """Return what the status of a claim says of its devices."""
        found: list[dict[str, Any]] = (self.api.get("resourceclaims", claim).get("status") or {}).get("devices") or []
        return found

    def label(self, value: str | None) -> None:
        """Label the node for a way of serving, and let the agent look at once."""
        self.api.patch("nodes", NODE, {"metadata": {"labels": {"gpu-device-plugin/serve": value}}})


@asynccontextmanager
async def claims(
    gpus: str | Sequence[dict[str, Any]] = "fake:2xT4",
    *,
    node_labels: Mapping[str, str] | None = None,
    allowed: Iterable[tuple[str, str]] = frozenset(RIGHTS | DRA_RIGHTS),
    **settings: str,
) -> AsyncIterator[Claims]:
    """Make an API server with one node, and a kubelet on it; the test starts the agent."""
    async with ApiServer(allowed=allowed) as api:
        api.add(builders.node(NODE, labels=node_labels, kubelet="v1.36.0"))
        async with world(gpus) as node:
            root = node.kubelet.pod_resources_socket.parent.parent
            async with DraKubelet(root, api, NODE) as kubelet:
                kubelet.retry_s, kubelet.wipe_s = 0.1, 3600
                node.settings |= {"api": api.url, "node_name": NODE, "serve": "dra", "cdi_dir": str(kubelet.cdi)}
                node.settings |= settings
                yield Claims(node, api, kubelet, Allocator(api, DRIVER))
                await node.stop_agent()
                await asyncio.sleep(0)
