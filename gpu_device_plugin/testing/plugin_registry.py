"""The kubelet double's Registration service, and its registered device plugins."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import DevicePluginOptions, Empty
from gpu_device_plugin.kubelet._proto.deviceplugin_pb2_grpc import RegistrationServicer
from gpu_device_plugin.testing.device_manager import AdmissionError
from gpu_device_plugin.testing.gate import RefusedError
from gpu_device_plugin.testing.plugin_client import PluginClient, Stream

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from gpu_device_plugin.kubelet._proto.deviceplugin_pb2 import RegisterRequest
    from gpu_device_plugin.testing.device_manager import DeviceManager
    from gpu_device_plugin.testing.gate import Gate
    from gpu_device_plugin.testing.plugin_client import Dialling

API_VERSION = "v1beta1"

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_extended_resource_name(name: str) -> bool:
    """Return whether a plugin may register this name (IsExtendedResourceName in pkg/apis/core/v1/helper)."""
    domain, slash, rest = name.partition("/")
    return (
        bool(slash)
        and "kubernetes.io/" not in name
        and not name.startswith("requests.")
        # The name is checked with "requests." before it, as quotas write it.
        and len("requests." + domain) <= 253
        and len(rest) <= 63
        and _DOMAIN.fullmatch(domain) is not None
        and _NAME.fullmatch(rest) is not None
    )


@dataclass(slots=True)
class Registration:
    """One Register call and its outcome."""

    resource: str
    endpoint: str
    version: str
    options: DevicePluginOptions
    """The options of the request; kubelets since 1.25 ignore them."""
    error: str | None = None
    accepted: bool = False


class PluginRegistry(RegistrationServicer):
    """The registration server of one kubelet process."""

    def __init__(
        self,
        directory: Path,
        manager: DeviceManager,
        *,
        gate: Gate,
        dialling: Dialling,
        registrations: list[Registration],
        streams: list[Stream],
    ) -> None:
        """Serve `directory`; `registrations` and `streams` record calls over all processes of a kubelet."""
        self._directory = directory
        self._manager = manager
        self._gate = gate
        self._dialling = dialling
        self._registrations = registrations
        self._streams = streams
        self._clients: dict[str, PluginClient] = {}
        self._connections: set[PluginClient] = set()
        """Every open connection. A plugin that was replaced keeps talking, and its connection is never closed."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def Register(
        self, request: RegisterRequest, context: grpc.aio.ServicerContext[RegisterRequest, Empty]
    ) -> Empty:
        """Register a plugin after dialing back (kubelets before 1.25 answer first and dial then)."""
        registration = Registration(request.resource_name, request.endpoint, request.version, request.options)
        self._registrations.append(registration)
        try:
            await self._gate.passed()
            self._validate(request)
            if self._manager.version.asks_options:
                await self._connect(request.resource_name, request.endpoint)
            else:
                self._spawn(self._connect_later(request, registration), f"dialling {request.endpoint}")
        except (RefusedError, AdmissionError) as error:
            registration.error = str(error)
            # A plain error in a Go handler reaches the client as Unknown.
            code = error.code if isinstance(error, RefusedError) else grpc.StatusCode.UNKNOWN
            await context.abort(code, registration.error)
        registration.accepted = True
        return Empty()

    def drop_streams(self, resource: str | None = None) -> None:
        """Cut the ListAndWatch streams of `resource`, or of all, as a lost connection would."""
        for client in self._connections:
            if resource in {None, client.resource}:
                client.hang_up()

    async def close(self) -> None:
        """Close every connection at once, without changes to the device manager: the process is ending."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for client in {*self._connections, *self._clients.values()}:  # the latter may still be dialling
            await client.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _validate(self, request: RegisterRequest) -> None:
        if request.version != API_VERSION:
            raise AdmissionError(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{API_VERSION}"]'
            )
        if not is_extended_resource_name(request.resource_name):
            raise AdmissionError(f'the ResourceName "{request.resource_name}" is invalid')

    async def _connect_later(self, request: RegisterRequest, registration: Registration) -> None:
        try:
            await self._connect(request.resource_name, request.endpoint, request.options)
        except AdmissionError as error:
            registration.error = str(error)

    async def _connect(self, resource: str, endpoint: str, options: DevicePluginOptions | None = None) -> None:
        socket = self._directory / endpoint
        authority = "localhost" if self._manager.version.dials_as_localhost else str(socket)
        client = PluginClient(resource, socket, authority, self._dialling)
        self._clients[resource] = client
        try:
            await client.dial()
            self._manager.connected(resource, client, await client.options() if options is None else options)
        except BaseException:
            # By name, so the client of a working plugin is forgotten too, and the end of its stream goes unnoticed.
            self._clients.pop(resource, None)
            await client.close()
            raise
        self._connections.add(client)
        self._spawn(self._follow(client, endpoint), f"the list of {resource} from {endpoint}")

    async def _follow(self, client: PluginClient, endpoint: str) -> None:
        stream = Stream(client.resource, endpoint)
        self._streams.append(stream)
        await client.follow(stream, partial(self._manager.update, client.resource))
        current = self._clients.get(client.resource)
        if current is client or (current is not None and self._manager.version.old_stream_ends_new_plugin):
            del self._clients[client.resource]
            self._manager.disconnected(client.resource)
            self._connections.discard(current)
            await current.close()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        # A failed task is kept, so that `close` raises its error.
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)
