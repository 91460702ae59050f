"""List the devices that containers hold, over the kubelet's PodResources socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc import aio

from gpu_device_plugin.kubelet._proto import podresources_pb2, podresources_pb2_grpc
from gpu_device_plugin.kubelet.calls import channel, in_short

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path


class PodResourcesUnavailableError(Exception):
    """The kubelet did not answer; the message names the call and its error."""


async def listed_pods(socket: Path, resources: Container[str], timeout_s: float = 2.0) -> Mapping[str, frozenset[str]]:
    """Return every pod that the kubelet lists, by namespace/name, with its devices of `resources`.

    The kubelet never lists ordinary init containers, and lists nothing for about a second after its restart: a listed
    device is in use, but an unlisted one is not proven free.

    Raises:
        PodResourcesUnavailableError: the call failed, or got no answer within `timeout_s`.
    """
    found: dict[str, frozenset[str]] = {}
    for pod in (await _list(socket, timeout_s)).pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        # Two pods of one name: one has ended, and its successor already exists.
        found[name] = found.get(name, frozenset()).union(
            device
            for container in pod.containers
            for devices in container.devices
            if devices.resource_name in resources
            for device in devices.device_ids
        )
    return found


async def listed_claims(socket: Path, driver: str, timeout_s: float = 2.0) -> frozenset[tuple[str, str]]:
    """Return namespace and name of every claim with a device of `driver` that a listed container uses.

    Raises:
        PodResourcesUnavailableError: the call failed, or got no answer within `timeout_s`.
    """
    return frozenset(
        (claim.claim_namespace, claim.claim_name)
        for pod in (await _list(socket, timeout_s)).pod_resources
        for container in pod.containers
        for claim in container.dynamic_resources
        if any(device.driver_name == driver for device in claim.claim_resources)
    )


async def _list(socket: Path, timeout_s: float) -> podresources_pb2.ListPodResourcesResponse:
    try:
        async with channel(socket) as opened:
            lister = podresources_pb2_grpc.PodResourcesListerStub(opened)
            return await lister.List(podresources_pb2.ListPodResourcesRequest(), timeout=timeout_s)
    except aio.AioRpcError as error:
        raise PodResourcesUnavailableError(
            f"asking the kubelet at {socket} for the devices in use: {in_short(error)}"
        ) from error
