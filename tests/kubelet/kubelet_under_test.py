"""What the conformance suite needs of a kubelet, be it our double or a real one."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc.aio

from gpu_device_plugin.kubelet._proto import podresources_pb2 as v1
from gpu_device_plugin.kubelet._proto.podresources_pb2_grpc import PodResourcesListerStub
from gpu_device_plugin.testing.pod_specs import Pod, PodSpec
from tests.kubelet.gated_kubelet import Kubelet
from tests.patience import eventually

T = TypeVar("T")


class KubeletUnderTest(Protocol):
    """A running kubelet."""

    @property
    def minor(self) -> int:
        """By which of the rules it goes that changed between 1.25 and 1.36."""

    @property
    def device_plugin_dir(self) -> Path: ...

    @property
    def registration_socket(self) -> Path: ...

    @property
    def pod_resources_socket(self) -> Path: ...

    @property
    def checkpoint(self) -> Path: ...

    async def admit(self, spec: PodSpec) -> Pod:
        """Bind a pod to the node; return it once it runs or has failed."""

    async def begin(self, spec: PodSpec) -> str:
        """Bind a pod to the node and do not wait for what comes of it; return its UID."""

    async def look(self, uid: str) -> Pod:
        """Return a pod as it is now."""

    async def delete(self, uid: str) -> None:
        """Remove a pod, and wait until its containers are gone."""

    async def finish(self, uid: str) -> None:
        """Let the containers of a pod end well, and wait until the kubelet knows."""

    async def stop(self) -> None:
        """End the kubelet process; containers keep running."""

    async def start(self) -> None:
        """Start a kubelet process, and wait until it has admitted all pods again."""

    async def died(self) -> bool:
        """Wait a little for the kubelet process to die by itself; say whether it did."""


class TheDouble:
    """Our double, as a kubelet under test."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.minor = kubelet.minor
        self.device_plugin_dir = kubelet.device_plugin_dir
        self.registration_socket = kubelet.registration_socket
        self.pod_resources_socket = kubelet.pod_resources_socket
        self.checkpoint = kubelet.checkpoint
        self._admissions: list[asyncio.Task[Pod]] = []

    async def admit(self, spec: PodSpec) -> Pod:
        if self.kubelet.up:
            self._publish()
        return await self.kubelet.admit(spec)

    async def begin(self, spec: PodSpec) -> str:
        self._admissions.append(asyncio.create_task(self.admit(spec)))
        await eventually(lambda: spec.name in {pod.name for pod in self.kubelet.pods})
        return self.kubelet.pod(spec.name).uid

    async def look(self, uid: str) -> Pod:
        return next(pod for pod in self.kubelet.pods if pod.uid == uid)

    async def delete(self, uid: str) -> None:
        await self.kubelet.delete(await self.look(uid))

    async def finish(self, uid: str) -> None:
        self.kubelet.finish(await self.look(uid))

    async def stop(self) -> None:
        await self.kubelet.stop()

    async def start(self) -> None:
        self.kubelet.node_status.clear()
        await self.kubelet.start(ready=False)
        self._publish()
        await self.kubelet.sources_ready()

    async def died(self) -> bool:
        await asyncio.gather(*self._admissions, return_exceptions=True)
        return not self.kubelet.up

    def _publish(self) -> None:
        # A kubelet without an API server checks pods against the node as it is, not as it was published.
        self.kubelet.publish()


def pod_resources(kubelet: KubeletUnderTest | Kubelet) -> AbstractAsyncContextManager[grpc.aio.Channel]:
    """Open a channel to the kubelet's PodResources service."""
    return grpc.aio.insecure_channel(
        f"unix:{kubelet.pod_resources_socket}", options=[("grpc.use_local_subchannel_pool", 1)]
    )


async def healthy(kubelet: KubeletUnderTest, resource: str) -> set[str]:
    """Ask for the healthy devices of a resource, held or free."""
    async with pod_resources(kubelet) as channel:
        stub: PodResourcesListerStub[Any, Any, Any] = PodResourcesListerStub(channel)
        answer = await stub.GetAllocatableResources(v1.AllocatableResourcesRequest())
        return {device for one in answer.devices if one.resource_name == resource for device in one.device_ids}


async def listed(kubelet: KubeletUnderTest | Kubelet) -> dict[str, dict[str, list[tuple[str, tuple[str, ...]]]]]:
    """Ask for the devices of all pods: by pod and container every entry, as resource and IDs."""
    async with pod_resources(kubelet) as channel:
        stub: PodResourcesListerStub[Any, Any, Any] = PodResourcesListerStub(channel)
        answer = await stub.List(v1.ListPodResourcesRequest())
        return {
            pod.name: {
                container.name: sorted((one.resource_name, tuple(one.device_ids)) for one in container.devices)
                for container in pod.containers
            }
            for pod in answer.pod_resources
        }


def entries(kubelet: KubeletUnderTest, uid: str) -> Iterator[tuple[str, str, set[str]]]:
    """Read the checkpoint's entries for a pod: container, resource, IDs."""
    for entry in json.loads(kubelet.checkpoint.read_bytes())["Data"]["PodDeviceEntries"] or ():
        if entry["PodUID"] == uid:
            yield entry["ContainerName"], entry["ResourceName"], set().union(*entry["DeviceIDs"].values())


def registered(kubelet: KubeletUnderTest) -> dict[str, set[str]]:
    """Read the checkpoint's healthy devices by resource."""
    data = json.loads(kubelet.checkpoint.read_bytes())["Data"]["RegisteredDevices"]
    return {resource: set(ids) for resource, ids in data.items()}
