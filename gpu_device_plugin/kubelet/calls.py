"""Call the kubelet: register a resource, and list the devices that containers hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from pathlib import Path

import grpc
from grpc import aio

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc, podresources_pb2, podresources_pb2_grpc

_OPTIONS = (
    # Channels to one path share a transport, so a channel to a recreated socket could inherit the dead transport.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", -1),  # PodResources lists 60,000 devices in 3.8 MB, and the default is 4 MiB
)
_ERRNO = " error: "


def channel(socket: Path) -> aio.Channel:
    """Return a new, unshared channel to `socket`, for an ``async with``."""
    return aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def in_short(error: aio.AioRpcError) -> str:
    """Return the server's message, or the operating system's if the connection failed.

    Then grpcio writes ``failed to connect to all addresses; last error: ...: connect failed: addr: unix:/path error:
    Connection refused``; the caller knows the path, and only the end is informative.
    """
    details = error.details() or ""
    if details.startswith("failed to connect") and _ERRNO in details:
        return details.rpartition(_ERRNO)[2]
    return details or str(error.code().name)


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


API_VERSION = "v1beta1"


class NotRegisteredError(Exception):
    """The registration failed; the message gives the reason and the remedy."""


async def register(
    kubelet: Path, endpoint: Path, resource_name: str, options: pb.DevicePluginOptions, timeout_s: float = 15.0
) -> None:
    """Register a resource that is already served.

    Kubelets since about 1.25 dial `endpoint` before they answer (for up to 10 s) and read the options there; older
    ones answer at once and read the options from the request.

    Raises:
        NotRegisteredError: the kubelet refused, or did not answer within `timeout_s` seconds.
    """
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint.name, resource_name=resource_name, options=options
    )
    try:
        async with channel(kubelet) as opened:
            await deviceplugin_pb2_grpc.RegistrationStub(opened).Register(request, timeout=timeout_s)
    except aio.AioRpcError as error:
        raise NotRegisteredError(f"registering {resource_name} at {kubelet}: {_reason(kubelet, error)}") from error


async def options_of(plugin: aio.Channel, timeout_s: float) -> object:
    """Call a device plugin as the kubelet does before it registers it."""
    return await deviceplugin_pb2_grpc.DevicePluginStub(plugin).GetDevicePluginOptions(pb.Empty(), timeout=timeout_s)


async def answers(
    socket: Path, call: Callable[[aio.Channel, float], Awaitable[object]] = options_of, timeout_s: float = 5.0
) -> bool:
    """Return whether a server answers at `socket`, as the kubelet would call it; `call` gets the timeout too."""
    try:
        async with channel(socket) as opened:
            await call(opened, timeout_s)
    except aio.AioRpcError:
        return False
    return True


def _reason(kubelet: Path, error: aio.AioRpcError) -> str:
    details = in_short(error)
    if not kubelet.exists():
        return "the socket does not exist; the kubelet is not running, or uses another device-plugin directory"
    if "Permission denied" in details:
        return "permission denied; on a node with SELinux the agent needs a label that may connect to the kubelet"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return f"no process answers ({details}); the kubelet is not running, or is starting"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "the kubelet accepted the call and did not answer in time"
    return f"the kubelet refused: {details}"
