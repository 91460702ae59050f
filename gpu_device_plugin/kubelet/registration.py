"""Register a resource with the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from grpc import aio

from gpu_device_plugin.kubelet._proto import deviceplugin_pb2 as pb
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.calls import channel, in_short

if TYPE_CHECKING:
    from pathlib import Path

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


async def answers(socket: Path, timeout_s: float = 5.0) -> bool:
    """Return whether a plugin answers at `socket`, as the kubelet would call it."""
    try:
        async with channel(socket) as opened:
            await deviceplugin_pb2_grpc.DevicePluginStub(opened).GetDevicePluginOptions(pb.Empty(), timeout=timeout_s)
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
