"""Ask the kubelet which devices its containers hold, over the PodResources socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc import aio

from gpu_device_plugin.kubelet._proto import podresources_pb2, podresources_pb2_grpc
from gpu_device_plugin.kubelet.calls import channel, in_short

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


class PodResourcesUnavailableError(Exception):
    """The kubelet did not answer; the message says what was tried and what came of it."""


async def listed_pods(socket: Path, resources: Collection[str], timeout_s: float = 2.0) -> Mapping[str, frozenset[str]]:
    """Return every pod that the kubelet lists, by namespace/name, and which devices of `resources` it has.

    Ordinary init containers are never listed, and for about a second after a kubelet restart nothing is; an answer
    adds to what is known and takes nothing away.

    Raises:
        PodResourcesUnavailableError: no answer within `timeout_s` seconds, or an error.
    """
    try:
        async with channel(socket) as opened:
            lister = podresources_pb2_grpc.PodResourcesListerStub(opened)
            pods = await lister.List(podresources_pb2.ListPodResourcesRequest(), timeout=timeout_s)
    except aio.AioRpcError as error:
        raise PodResourcesUnavailableError(
            f"asking the kubelet at {socket} for the devices in use: {in_short(error)}"
        ) from error
    found: dict[str, frozenset[str]] = {}
    for pod in pods.pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        # Two of one name: one has ended, and its successor is there already.
        found[name] = found.get(name, frozenset()).union(
            device
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name in resources
            for device in devices.device_ids
        )
    return found
