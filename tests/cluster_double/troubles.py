"""The troubles that the API server double has where a test says so, and the requests that they match."""

import asyncio
import math
import socket
import struct
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web

from gpu_device_plugin.testing.cluster.api_server import refusal
from gpu_device_plugin.testing.cluster.cluster_kinds import ApiRequest, StatusError


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with an error."""

    code: int
    retry_after_s: int | None = None
    reason: str = ""
    message: str = "trouble, as ordered"
    causes: tuple[str, ...] = ()
    done: bool = False
    """The request is executed nevertheless."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Accept the request and never answer; with `done`, execute it."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection; with `done`, after executing the request."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait, then execute the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer 200 with a body that no API server sends, like a proxy."""

    body: bytes = b"<html>sign in, please</html>"


@dataclass(frozen=True, slots=True)
class Late:
    """Accept the request and never answer; `ApiServer.carry_out` executes it later.

    An API server continues a request that its client has given up, for up to 60 s by default.
    """


Trouble: TypeAlias = Answer | Hang | Reset | Slow | Garbage | Late


@dataclass(eq=False, slots=True)
class Fault:
    """A trouble that ends after `times` matching requests; infinite by default. It spares the first `spared`."""

    trouble: Trouble
    verbs: frozenset[str]
    resources: frozenset[str]
    tokens: frozenset[str] = frozenset()
    times: float = math.inf
    spared: int = 0
    happened: int = 0

    def strikes(self, request: ApiRequest) -> bool:
        """Return whether this request matches, and count it."""
        hit = (
            self.happened < self.times
            and (not self.verbs or request.verb in self.verbs)
            and (not self.resources or request.resource in self.resources)
            and (not self.tokens or request.token in self.tokens)
        )
        if hit and self.spared:
            self.spared -= 1
            return False
        self.happened += hit
        return hit


async def suffered(trouble: Trouble | None, content_type: str = "application/json") -> web.Response | None:
    """Let a trouble happen that every kind of request can have; None: the request is executed nevertheless."""
    match trouble:
        case Answer(code, retry_after_s, reason, message, causes):
            details = {"causes": [{"reason": cause} for cause in causes]}
            return refusal(StatusError(code, reason, message, details), retry_after_s)
        case Hang():
            await asyncio.Event().wait()
        case Slow(seconds):
            await asyncio.sleep(seconds)
        case Garbage(body):
            return web.Response(body=body, content_type=content_type)
    return None


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection by TCP RST, even with unsent data."""
    if isinstance(transport, asyncio.Transport):
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
