"""Keep device plugins registered: each resource has a socket of its own, and registers itself with the kubelet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.kubelet import sockets
from gpu_device_plugin.kubelet._proto import deviceplugin_pb2_grpc
from gpu_device_plugin.kubelet.calls import NotRegisteredError, options_of, register
from gpu_device_plugin.kubelet.rounds import (
    OnEvent,
    RegistrationEvent,
    RegistrationOverError,
    RegistrationRounds,
    RoundTimings,
)
from gpu_device_plugin.kubelet.servicer import PluginServicer
from gpu_device_plugin.model.resources import Resource


@dataclass(slots=True)
class _Outage:
    """How long the kubelet has not listened to a resource, in seconds."""

    total: float = 0.0
    since: float | None = None

    def streams_changed(self, streams: int) -> None:
        now = time.monotonic()
        if streams == 0 and self.since is None:
            self.since = now
        elif streams and self.since is not None:
            self.total += now - self.since
            self.since = None

    def seconds(self) -> float:
        return self.total + (0.0 if self.since is None else time.monotonic() - self.since)


class RegistrationLoop(RegistrationRounds):
    """Serves all resources of a node, with one registration after another.

    Probes and metrics read `unmet`, `registrations` and `outages`.
    """

    def __init__(
        self,
        directory: Path,
        resources: Callable[[], Sequence[Resource]],
        servicer: Callable[[Resource], PluginServicer],
        prepare: Callable[[], Awaitable[None]],
        on_event: OnEvent,
        *,
        timings: RoundTimings | None = None,
    ) -> None:
        """Serve `resources` in `directory`, the kubelet's; more may come later, see `serve_more`, and none goes.

        `servicer` makes a new servicer of a resource for every registration. `prepare` runs before each: no resource
        is registered then, so the kubelet cannot allocate through us, and its records are complete. `on_event` is
        called with every event and its details, for the log.
        """
        super().__init__(directory, on_event, timings or RoundTimings())
        self._wanted = resources
        self._resources: Sequence[Resource] = ()
        self._servicer = servicer
        self._more = asyncio.Event()
        self._retry_now = asyncio.Event()
        """An attempt to register may succeed now."""
        self._prepare = prepare
        self._rounds = 0
        self._kubelet = directory / sockets.KUBELET_SOCKET
        self._kubelet_was: sockets.Identity | None = None
        self.registrations: dict[str, int] = {}
        """How often each resource was registered."""
        self._outages: dict[str, _Outage] = {}
        self._servicers: dict[str, PluginServicer] = {}
        """Those of the present round, or the last one."""
        self._take_over_resources()

    def outages(self) -> dict[str, tuple[bool, float]]:
        """Return for each resource whether the kubelet listens, and the total seconds in which it did not."""
        return {name: (outage.since is None, outage.seconds()) for name, outage in self._outages.items()}

    def serve_more(self) -> None:
        """Serve and register the resources that have come since, without a new registration of the others."""
        self._more.set()

    def _take_over_resources(self) -> Sequence[Resource]:
        """Take over the resources to serve; return those that have come since."""
        new = [resource for resource in self._wanted() if resource.name not in self.registrations]
        for resource in new:
            self.registrations[resource.name] = 0
            self._outages[resource.name] = _Outage(since=time.monotonic())
        self._resources = (*self._resources, *new)
        return new

    @property
    def listener(self) -> int | None:
        """A number for the kubelet process that listens to every resource; None while there is none.

        It identifies one kubelet process: a process that ends closes its streams, and no other process opens streams in
        the same round.
        """
        return None if self.unmet() else self._rounds

    def unmet(self) -> tuple[str, ...]:
        """Return the reasons why this node cannot serve pods yet, as sentences; empty if it can."""
        listened = {one.name: self._servicers[one.name].streams for one in self._served}
        missing = [] if self._obstacle is None else [f"the device-plugin directory {self._directory} is missing"]
        for name in (resource.name for resource in self._resources):
            if name not in listened or not listened[name].expected:
                missing.append(f"{name} is not registered with the kubelet")
            elif listened[name].deserted:
                missing.append(f"the kubelet does not listen to {name}")
        return tuple(missing)

    async def _begin(self) -> None:
        self._rounds += 1
        await self._prepare()
        self._more.clear()
        self._retry_now.clear()
        self._take_over_resources()
        for resource in self._resources:
            await self._serve_resource(resource)
        self._kubelet_was = sockets.identity(self._kubelet)

    async def _serve_resource(self, resource: Resource) -> None:
        kind, profile = resource.listing
        socket = sockets.new_socket(self._directory, f"{kind}-{profile}" if profile else kind)
        servicer = self._servicer(resource)
        servicer.streams.changed = self._outages[resource.name].streams_changed
        self._servicers[resource.name] = servicer
        add_to = partial(deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server, servicer)
        await self._serve(resource.name, socket, add_to, options_of, servicer.streams)

    async def _register(self) -> NoReturn:
        while True:
            await self._register_all()
            await self._more.wait()
            self._more.clear()
            for resource in self._take_over_resources():
                await self._serve_resource(resource)

    async def _register_all(self) -> None:
        await self._check()  # kubelets before 1.25 accept a registration without dialing the plugin first
        wait, complaint, name = self.timings.retry_first, "", ""
        while True:
            try:
                for served in self._served:
                    servicer = self._servicers[served.name]
                    if not servicer.streams.expected:
                        name = served.name
                        await register(self._kubelet, served.socket, name, servicer.options)
                        servicer.streams.expected = True  # the kubelet never dials again by itself
                        self.registrations[name] += 1
                        self._on_event(RegistrationEvent.REGISTERED, {"resource": name})
            except NotRegisteredError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._on_event(RegistrationEvent.NOT_REGISTERED, {"resource": name, "why": complaint})
                await wait_within(wait, self._retry_now.wait())
                self._retry_now.clear()
                wait = min(wait * 2, self.timings.retry_most)
            else:
                return

    def _check_for_changes(self) -> None:
        was, now = self._kubelet_was, sockets.identity(self._kubelet)
        if now is not None and was is not None and now != was:
            raise RegistrationOverError("the kubelet was restarted")
        if was is None and now is not None:
            self._retry_now.set()
        self._kubelet_was = now or was
