"""Forward requests to pods, like the subresource ``pods/proxy`` of the API server."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from gpu_device_plugin.testing.cluster.cluster_requests import ApiRequest
from gpu_device_plugin.testing.cluster.cluster_served import StatusError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.testing.builders import Json

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_KEPT_BACK = frozenset({"authorization", "host", "connection", "content-length", "transfer-encoding"})
"""Headers that do not reach the pod: the API server's handler of authentication removes the token."""


def to_pod(http: web.Request) -> ApiRequest | None:
    """Return a request to a pod in RBAC's terms; None: it is none. Its name keeps the port."""
    match http.path.strip("/").split("/"):
        case ["api", "v1", "namespaces", namespace, "pods", name, "proxy", *_]:
            token = http.headers.get("Authorization", "").removeprefix("Bearer ")
            return ApiRequest(_VERBS[http.method], "pods/proxy", "", namespace, name, dict(http.query), token)
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
