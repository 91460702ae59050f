"""One connection from a kubelet to a device plugin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateRequest,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
    Empty,
    PreferredAllocationRequest,
    PreStartContainerRequest,
)
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import DevicePluginStub

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import ListAndWatchResponse

T = TypeVar("T")


class AdmissionError(Exception):
    """The reason why a container does not get its devices, or why a plugin is not registered."""


_RECEIVE_LIMIT = 4 * 1024 * 1024
"""The largest message that is read, bytes; the default of Go's gRPC, which no kubelet changes."""
_PRE_START_TIMEOUT_S = 30


def go_text(error: grpc.aio.AioRpcError) -> str:
    """Format a call's error like Go, as it appears in the message of a refused pod."""
    name = error.code().name
    code = "Canceled" if name == "CANCELLED" else "".join(word.capitalize() for word in name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"


class PluginClient:
    """Calls a plugin over its socket. Every failed call raises AdmissionError."""

    def __init__(self, resource: str, socket: Path, authority: str = "localhost") -> None:
        self.resource = resource
        self._channel = grpc.aio.insecure_channel(
            f"unix:{socket}",
            options=[
                ("grpc.default_authority", authority),
                ("grpc.max_receive_message_length", _RECEIVE_LIMIT),
                # A restarted plugin with the same socket name must not get the connection of its predecessor.
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._stub: DevicePluginStub[Any, Any, Any, Any, Any] = DevicePluginStub(self._channel)
        self.lists: Any = None
        """The call of ListAndWatch, once there is one."""

    async def dial(self, timeout_s: float) -> None:
        """Connect, with retries until the timeout. AdmissionError: no plugin answered."""
        if not await wait_within(timeout_s, self._channel.channel_ready()):
            raise AdmissionError("failed to dial device plugin: context deadline exceeded")

    async def options(self) -> DevicePluginOptions:
        """Call GetDevicePluginOptions, which names the optional calls that the plugin needs."""
        try:
            return await self._call(self._stub.GetDevicePluginOptions, Empty())
        except AdmissionError as error:
            raise AdmissionError(f"failed to get device plugin options: {error}") from error

    async def follow(self, believe: Callable[[ListAndWatchResponse], None]) -> str | None:
        """Pass every list of the plugin to `believe`; return what ended the stream, None if the kubelet closed it."""
        self.lists = self._stub.ListAndWatch(Empty())
        try:
            async for answer in self.lists:
                believe(answer)
        except grpc.aio.AioRpcError as error:
            return go_text(error)
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            return None
        return "EOF"

    async def close(self) -> None:
        """Close the connection and all its calls."""
        await self._channel.close()

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]:
        """Call GetPreferredAllocation for one container."""
        request = ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        answer = await self._call(
            self._stub.GetPreferredAllocation, PreferredAllocationRequest(container_requests=[request])
        )
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: list[str]) -> AllocateResponse:
        """Call Allocate for one container."""
        request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])
        return await self._call(self._stub.Allocate, request)

    async def pre_start(self, ids: list[str]) -> None:
        """Call PreStartContainer, the only call with a timeout."""
        request = PreStartContainerRequest(devices_ids=ids)
        await self._call(self._stub.PreStartContainer, request, timeout_s=_PRE_START_TIMEOUT_S)

    async def _call(self, method: Callable[..., Awaitable[T]], request: Any, timeout_s: float | None = None) -> T:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise AdmissionError(go_text(error)) from error
        except grpc.aio.UsageError as error:  # the channel was closed before the call
            raise AdmissionError("rpc error: code = Canceled desc = grpc: the client connection is closing") from error
        except asyncio.CancelledError as error:
            # When a channel is closed during a call, grpcio raises CancelledError in the caller.
            if _task_is_cancelled():
                raise
            raise AdmissionError("rpc error: code = Canceled desc = grpc: the client connection is closing") from error


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
