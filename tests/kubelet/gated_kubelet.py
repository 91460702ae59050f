"""A kubelet double that a test can hold up, and that refuses calls or loses connections where a test says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from gpu_device_plugin.testing.kubelet import kubelet_double
from gpu_device_plugin.testing.kubelet.kubelet_services import RpcStatusError

if TYPE_CHECKING:
    from pathlib import Path


class Gate:
    """Every call passes through it. Starts open; belongs to one event loop, like the doubles that own it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._refusal: RpcStatusError | None = None
        self._refusals_left: float = 0
        self._reached = asyncio.Event()
        self.waiting = 0
        """The number of calls that wait at the closed gate."""

    def __repr__(self) -> str:
        state = "open" if self._open.is_set() else f"held, {self.waiting} waiting"
        return f"<Gate {state}{', refusing' if self._refusals_left else ''}>"

    def hold(self) -> None:
        """Let calls hang from now on, until `release` or until their callers give up."""
        self._open.clear()
        self._reached.clear()

    async def reached(self) -> None:
        """Wait until a call has reached the gate that `hold` closed."""
        await self._reached.wait()

    def release(self) -> None:
        """Open the gate, also for the waiting calls; forget refusals."""
        self._refusals_left = 0
        self._open.set()

    def refuse(
        self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, times: float = float("inf")
    ) -> None:
        """Answer the next `times` calls with this status."""
        self._refusal, self._refusals_left = RpcStatusError(code, details), times

    async def passed(self) -> None:
        """Wait until the gate is open. RpcStatusError: the call is refused."""
        if not self._open.is_set():
            self.waiting += 1
            self._reached.set()
            try:
                await self._open.wait()
            finally:
                self.waiting -= 1
        if self._refusal is not None and self._refusals_left:
            self._refusals_left -= 1
            raise self._refusal


class Kubelet(kubelet_double.Kubelet):
    """The kubelet double with a gate before each of its steps."""

    def __init__(self, root: Path, **more: Any) -> None:
        super().__init__(root, **more)
        self.register_gate = Gate()
        """Every Register call passes here: hold it, or refuse."""
        self.pod_resources_gate = Gate()
        """Every PodResources call passes here. The real one refuses above 100 a second: RESOURCE_EXHAUSTED,
        `rejected by rate limit`."""
        self.start_gate = Gate()
        """Every start of a container passes here before the kubelet looks up what its devices bring: hold it. The real
        one makes the pod's sandbox and pulls the image meanwhile, and goes on when the pod is deleted by force."""

    async def before_register(self) -> None:
        await self.register_gate.passed()

    async def before_pod_resources(self) -> None:
        await self.pod_resources_gate.passed()

    async def before_start(self) -> None:
        await self.start_gate.passed()

    def drop_streams(self, resource: str | None = None) -> None:
        """Lose the connections over which the plugins of `resource`, or all plugins, send their lists."""
        for client in self._require().registry.connections:
            if resource in {None, client.resource}:
                client.hang_up()
