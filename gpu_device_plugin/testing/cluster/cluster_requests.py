"""The HTTP conventions of Kubernetes: requests, also to pods, and ``Status`` objects."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from gpu_device_plugin.cluster.client.errors import Call
from gpu_device_plugin.testing.cluster.cluster_kinds import CORE_EVENTS, Served, StatusError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.testing.builders import Json


@dataclass(frozen=True, slots=True)
class ApiRequest(Call):
    """A request to the server."""

    params: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def understood(http: web.Request, kinds: Iterable[Served]) -> tuple[Served, ApiRequest]:
    """Parse path and method like Kubernetes, for a server with these kinds, or raise StatusError."""
    group, *parts = ("", *http.path.strip("/").split("/")[1:])
    if http.path.startswith("/apis/"):
        group, *parts = parts
    match parts:
        case [version, "namespaces", namespace, plural, *rest] if len(rest) <= 2:
            pass
        case [version, plural, *rest] if len(rest) <= 2:
            namespace = ""
        case _:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
    name, subresource = [*rest, "", ""][:2]
    served = next((kind for kind in (*kinds, CORE_EVENTS) if (kind.group, kind.plural) == (group, plural)), None)
    known = served is not None and served.version == version and (not subresource or subresource in served.subresources)
    if served is None or not known or (served.namespaced and name and not namespace):
        raise StatusError(404, "NotFound", "the server could not find the requested resource")
    watching = http.query.get("watch", "").lower() in {"1", "true"}
    reading = "get" if name else "watch" if watching else "list"
    verb = reading if http.method == "GET" else _VERBS.get(http.method, "")
    if served is CORE_EVENTS and verb != "list":
        raise StatusError(
            405, "MethodNotAllowed", "this double has Events in the group events.k8s.io for all but lists"
        )
    creating_inside = subresource in {"binding", "eviction"}
    if not verb or (verb != "create" and creating_inside) or (verb in {"update", "patch", "delete"} and not name):
        raise StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    resource = f"{plural}/{subresource}" if subresource else plural
    token = http.headers.get("Authorization", "").removeprefix("Bearer ")
    return served, ApiRequest(verb, resource, group, namespace, name, dict(http.query), token)


def version_of(text: str) -> int:
    """Read a resourceVersion, or raise StatusError."""
    if not (text.isascii() and text.isdigit()):
        raise StatusError(400, "BadRequest", f"Invalid value: {text!r}: resource version must be a number")
    return int(text)


def status_of(error: StatusError) -> Json:
    """Return the ``Status`` object of an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": dict(error.details),
        "code": error.code,
    }


def refusal(error: StatusError, retry_after_s: int | None = None) -> web.Response:
    """Return the answer to a refused request."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(status_of(error), status=error.code, headers=headers)


def reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection by TCP RST, even with unsent data."""
    if isinstance(transport, asyncio.Transport):
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


# --- Requests to pods -------------------------------------------------------------------------------------------------


_KEPT_BACK = frozenset({"authorization", "host", "connection", "content-length", "transfer-encoding"})
"""Headers that do not reach the pod: the API server's handler of authentication removes the token."""


def to_pod(http: web.Request) -> ApiRequest | None:
    """Return a request to a pod in RBAC's terms; None: it is none. Its name keeps the port."""
    match http.path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "pods", name, "proxy", *_]:
            token = http.headers.get("Authorization", "").removeprefix("Bearer ")
            verb = {**_VERBS, "GET": "get", "HEAD": "get"}[http.method]
            return ApiRequest(verb, "pods/proxy", "", namespace, name, dict(http.query), token)
    return None


async def proxied(http: web.Request, pod: Json, name: str, network: Mapping[str, str]) -> web.Response:
    """Return the answer of a pod; `name` perhaps has a port, `network` who answers at which address.

    StatusError: the pod has no address that may be reached, or nobody answers there.
    """
    port = name.partition(":")[2] or "80"
    address = pod.get("status", {}).get("podIP", "")
    if not address or ipaddress.ip_address(address).is_loopback:
        raise StatusError(400, "BadRequest", "address not allowed")
    path = "/" + "/".join(http.path.split("/")[8:])  # with the slash at its end, if there is one, as the real one
    where = network.get(f"{address}:{port}")
    if where is None:
        raise _unreachable(f"dial tcp {address}:{port}: connect: connection refused")
    headers = {key: value for key, value in http.headers.items() if key.lower() not in _KEPT_BACK}
    try:
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                http.method, where + path, params=http.query, headers=headers, allow_redirects=False
            ) as answer,
        ):
            body = await answer.read()
    except aiohttp.ClientConnectorError:
        raise _unreachable(f"dial tcp {address}:{port}: connect: connection refused") from None
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
        raise _unreachable("EOF") from None
    passed = {key: value for key, value in answer.headers.items() if key.lower() not in _KEPT_BACK}
    return web.Response(status=answer.status, body=body, headers=passed)


def _unreachable(why: str) -> StatusError:
    return StatusError(503, "ServiceUnavailable", f"error trying to reach service: {why}")
