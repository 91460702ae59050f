"""A node with an API server: pods are bound there by a scheduler, and admitted by the kubelet when the test says so."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from gpu_device_plugin.metrics import PrometheusMetrics
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.node.node_cluster import NodeCluster
from gpu_device_plugin.testing.pod_specs import ContainerSpec, Pod, PodSpec
from tests import builders
from tests.cluster_double.api_server import ApiServer
from tests.names import MEM
from tests.node.harness import NodeWorld, world

NODE = "node"

RIGHTS = {
    ("get", "nodes"),
    ("get", "namespaces"),
    ("patch", "nodes"),
    ("list", "pods"),
    ("watch", "pods"),
    ("patch", "pods"),
    ("create", "events"),
    ("patch", "events"),
}
"""What deploy/daemonset.yaml grants."""


def promise(gpu: int, amount: int = 0) -> dict[str, str]:
    """Return the five annotations of gpushare: all of the pod goes to one GPU."""
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        "ALIYUN_COM_GPU_MEM_POD": str(amount),
        "ALIYUN_COM_GPU_MEM_DEV": "14",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1795169580643598847",
    }


def allocation(*containers: Mapping[int, int]) -> dict[str, str]:
    """Return the annotation that tells for each app container the shares on each GPU."""
    by_index = {str(index): {str(gpu): n for gpu, n in gpus.items()} for index, gpus in enumerate(containers)}
    return {"scheduler.framework.gpushare.allocation": json.dumps(by_index), "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}


def said_of(node: dict[str, Any]) -> dict[str, Any]:
    """Return what an agent has published of its node's GPUs."""
    text = node["metadata"].get("annotations", {}).get("gpu-device-plugin/gpus")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def takes_pods(node: dict[str, Any]) -> bool:
    """Whether the agent has published the GPUs of its node, and that it is there."""
    said = said_of(node)
    return bool(said) and not said.get("away", False)


@dataclass
class Cluster:
    """What a test acts on and looks at."""

    node: NodeWorld
    api: ApiServer

    async def start_agent(self, **changed: str) -> None:
        """Start an agent, and wait until the kubelet and the API's watch are there."""
        await self.node.start_agent(**changed)
        await self.node.until(lambda: self.cluster.followed.reflector.synced)

    @property
    def cluster(self) -> NodeCluster:
        """The part of the agent that speaks to the API."""
        assert self.node.agent is not None
        assert self.node.agent.cluster is not None
        return self.node.agent.cluster

    def create(
        self,
        spec: PodSpec,
        *,
        created: str = "",
        annotations: Mapping[str, str] | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Create a pod that no scheduler has seen yet."""
        init = [c for c in spec.containers if c.kind is not ContainerKind.APP]
        self.api.add(
            builders.pod(
                spec.name,
                *(_container(c) for c in spec.containers if c.kind is ContainerKind.APP),
                init=tuple(_container(c) for c in init),
                created=created,
                annotations=annotations,
                grace_s=grace_s,
                phase="Pending",
            )
        )

    async def bind(self, name: str, promised: Mapping[str, str] | None = None) -> None:
        """Bind a pod to the node with a promise, and wait until the agent has seen it."""
        self.api.bind(name, NODE, promised)
        await self.seen(name)

    async def seen(self, name: str) -> None:
        """Wait until the agent knows everything that the API knows of a pod."""
        meta = self.api.get("pods", name)["metadata"]
        await self.node.until(
            lambda: (
                (pod := self.cluster.followed.pods.get(meta["uid"])) is not None
                and pod.phase == self.api.get("pods", name)["status"]["phase"]
                and pod.deleting == ("deletionTimestamp" in meta)
            )
        )

    async def schedule(
        self,
        spec: PodSpec,
        promised: Mapping[str, str] | None = None,
        *,
        created: str = "",
        grace_s: int | None = None,
    ) -> PodSpec:
        """Create a pod and bind it; return it with its UID, to be admitted by the kubelet."""
        self.create(spec, created=created, grace_s=grace_s)
        await self.bind(spec.name, promised)
        return self.known(spec)

    def known(self, spec: PodSpec) -> PodSpec:
        """Return a pod with the UID that the API gave it."""
        return replace(spec, uid=self.api.get("pods", spec.name)["metadata"]["uid"])

    async def admit(self, spec: PodSpec) -> Pod:
        """Have the kubelet admit a pod and report what became of it."""
        made = await self.node.kubelet.admit(spec)
        self.report(made)
        return made

    async def run(self, spec: PodSpec, promised: Mapping[str, str] | None = None, *, grace_s: int | None = None) -> Pod:
        """Create, bind and admit a pod."""
        return await self.admit(await self.schedule(spec, promised, grace_s=grace_s))

    def report(self, made: Pod) -> None:
        """Write a pod's phase into the API, as the kubelet does."""
        self.api.patch("pods", made.name, {"status": {"phase": made.phase}}, subresource="status")

    def annotations(self, name: str) -> dict[str, str]:
        """Return what stands on a pod."""
        found: dict[str, str] = self.api.get("pods", name)["metadata"].get("annotations", {})
        return found

    def told(self, name: str) -> dict[int, int]:
        """Return what the annotations of a pod tell of its GPUs, read as gpushare's tools do: the list comes first."""
        found = self.annotations(name)
        gpus: dict[int, int] = {}
        for each in json.loads(found.get("scheduler.framework.gpushare.allocation", "{}")).values():
            for gpu, amount in each.items():
                gpus[int(gpu)] = gpus.get(int(gpu), 0) + amount
        return gpus or {int(found["ALIYUN_COM_GPU_MEM_IDX"]): int(found["ALIYUN_COM_GPU_MEM_POD"])}

    def said_of_node(self) -> dict[str, Any]:
        """Return what the agent has published of its GPUs."""
        return said_of(self.api.get("nodes", NODE))

    def takes_pods(self) -> bool:
        """Whether the agent has published its GPUs, and that it is there."""
        return takes_pods(self.api.get("nodes", NODE))

    def labels(self) -> dict[str, str]:
        """Return the labels of the node that are the agent's."""
        every = self.api.get("nodes", NODE)["metadata"].get("labels", {})
        return {key.partition("/")[2]: value for key, value in every.items() if key.startswith("gpu-device-plugin/")}

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Return the Events of one reason."""
        return [event for event in self.api.all("events") if event["reason"] == reason]

    async def metrics(self) -> str:
        """Return what the agent shows to Prometheus; it has to have an address for that."""
        assert self.node.agent is not None
        metrics = self.node.agent.metrics
        assert isinstance(metrics, PrometheusMetrics)
        return str((await metrics.page()).body)

    async def assigned(self, *names: str) -> None:
        """Wait until pods are marked as served."""
        await self.node.until(
            lambda: all(self.annotations(name).get("ALIYUN_COM_GPU_MEM_ASSIGNED") == "true" for name in names)
        )

    def positions(self, made: Pod, container: str | None = None, resource: str = MEM) -> dict[int, int]:
        """Return how many devices a pod, or one container of it, has on each GPU of the node."""
        assert self.node.agent is not None
        by_uuid = {shared.gpu.uuid: shared.position for shared in self.node.agent.state.node.shares.gpus}
        found: dict[int, int] = {}
        for each in made.containers:
            if container in {None, each.name}:
                for device in each.devices.get(resource, ()):
                    gpu = by_uuid[device.partition("::")[0]]
                    found[gpu] = found.get(gpu, 0) + 1
        return found


@asynccontextmanager
async def cluster(
    gpus: str | Sequence[dict[str, Any]] = "fake:2xT4",
    *,
    node_labels: Mapping[str, str] | None = None,
    allowed: Iterable[tuple[str, str]] = RIGHTS,
    node_name: str = NODE,
    version: tuple[int, int] = (1, 36),
    **settings: str,
) -> AsyncIterator[Cluster]:
    """Make an API server with one node, whose agent is started by the test."""
    async with ApiServer(allowed=allowed) as api:
        api.add(builders.node(NODE, labels=node_labels, kubelet="v{}.{}.0".format(*version)))
        async with world(gpus, version=version) as node:
            node.settings |= {"api": api.url, "node_name": node_name, **settings}
            yield Cluster(node, api)


def _container(spec: ContainerSpec) -> builders.Json:
    limits = {name: str(amount) for name, amount in spec.limits.items()}
    return builders.container(spec.name, limits=limits, sidecar=spec.kind is ContainerKind.SIDECAR)
