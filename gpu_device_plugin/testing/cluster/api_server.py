"""An API server for the demo and for tests: real HTTP, and real conflicts.

It keeps the objects by the rules in `cluster_kinds` and serves them as Kubernetes does: list and watch with selectors,
bookmarks and 410; patches; bindings; evictions; ``Status`` objects for errors.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import aiohttp
from aiohttp import web

from gpu_device_plugin.testing.cluster.cluster_kinds import (
    CORE_EVENTS,
    KINDS,
    PODS,
    ApiRequest,
    Json,
    Served,
    StatusError,
)
from gpu_device_plugin.testing.cluster.cluster_reads import Reads
from gpu_device_plugin.testing.cluster.cluster_store import Store, merge

if TYPE_CHECKING:
    import ssl


# --- The HTTP conventions of Kubernetes -------------------------------------------------------------------------------

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


def refusal(error: StatusError, retry_after_s: int | None = None) -> web.Response:
    """Return the answer to a refused request."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(error.status, status=error.code, headers=headers)


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


SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


# --- The server -------------------------------------------------------------------------------------------------------


class ApiServer:
    """One API server on a loopback port; use it in an ``async with``, in one event loop.

    Its memory outlives `stop` and `start`, as etcd's does, and its port stays the same.
    """

    kinds: ClassVar[tuple[Served, ...]] = KINDS
    """The kinds of objects that it keeps."""
    patches: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {
        "application/merge-patch+json": merge,
    }
    """What applies a patch to an object, by its content type."""

    tls: ssl.SSLContext | None = None
    """Serve https with this context."""

    def __init__(self) -> None:
        """Prepare a server."""
        self.store = Store(self.kinds)
        self.requests: list[ApiRequest] = []
        """All requests so far, including refused ones."""
        self.network: dict[str, str] = {}
        """The addresses of pods, like ``10.0.0.1:9445``, with the base URLs of the servers that stand for them."""
        self.reads = Reads(lambda: self.store)
        """The lists and watches."""
        self._runner: web.AppRunner | None = None
        self._port = 0

    def __repr__(self) -> str:
        return f"<ApiServer {self.url}: {self.store!r}, {self.reads.watches} watches>"

    # Lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The address of the server; valid after `start`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port as before."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self.tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop: open connections break, and new ones are refused."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    # Changes by other clients: kubelets, controllers and people

    def add(self, body: Json) -> Json:
        """Create a pod or a node exactly as given, including uid and status."""
        served = next(kind for kind in self.kinds if kind.kind == body["kind"])
        return self.store.create(served, body["metadata"].get("namespace", ""), body, as_given=True)

    def get(self, plural: str, name: str, namespace: str = "default") -> Json:
        """Return an object."""
        served = self._kind(plural)
        return self.store.get(served, served.key(namespace, name))

    def all(self, plural: str) -> list[Json]:
        """Return all objects of a kind, by namespace and name."""
        return [found for _, found in sorted(self.store.state().objects[self._kind(plural)].items())]

    def patch(self, plural: str, name: str, patch: Json, namespace: str = "default", subresource: str = "") -> Json:
        """Change an object by a merge patch."""
        served = self._kind(plural)
        key = served.key(namespace, name)
        return self.store.change(served, key, lambda found: merge(found, patch), subresource=subresource)

    def delete(self, plural: str, name: str, namespace: str = "default", grace_s: int | None = 0) -> None:
        """Delete an object; `grace_s` None uses the pod's own grace period."""
        served = self._kind(plural)
        self.store.delete(served, served.key(namespace, name), grace_s=grace_s)

    def count(self, verb: str, resource: str) -> int:
        """Return the number of requests with this verb and resource."""
        return sum((request.verb, request.resource) == (verb, resource) for request in self.requests)

    def _kind(self, plural: str) -> Served:
        return next(kind for kind in self.kinds if kind.plural == plural)

    # HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(http)
        except StatusError as error:
            return refusal(error)
        except json.JSONDecodeError as error:
            return refusal(StatusError(400, "BadRequest", f"error decoding the body: {error}"))

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        if (page := await self._beside_objects(http)) is not None:
            return page
        if (request := to_pod(http)) is not None:
            return await self._execute(http, request, partial(self._proxy, http, request))
        served, request = understood(http, self.kinds)
        do: Callable[..., Awaitable[web.StreamResponse]] = getattr(self, f"_do_{request.verb}")
        return await self._execute(http, request, partial(do, http, served, request))

    async def _beside_objects(self, http: web.Request) -> web.StreamResponse | None:
        """Answer requests about the server itself; None if the request is about an object."""
        if http.path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        if http.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        return None

    async def _execute(
        self,
        http: web.Request,
        request: ApiRequest,
        do: Callable[[], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Record a request, and answer it."""
        self.requests.append(request)
        return await do()

    async def _proxy(self, http: web.Request, request: ApiRequest) -> web.Response:
        pod_name = request.name.partition(":")[0]
        found = self.store.get(PODS, (request.namespace, pod_name))
        return await proxied(http, found, request.name, self.network)

    async def _body(self, http: web.Request) -> Any:
        """Return a whole object, as the server reads it."""
        return await http.json()

    async def _do_get(self, _http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return web.json_response(self.store.get(served, served.key(request.namespace, request.name)))

    async def _do_create(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        body, key = await self._body(http), (request.namespace, request.name)
        if request.resource == "pods/binding":
            self.store.bind(key, body)
        elif request.resource == "pods/eviction":
            self.store.evict(key, body)
        else:
            keep = request.params.get("dryRun") != "All"
            return web.json_response(self.store.create(served, request.namespace, body, keep=keep), status=201)
        return web.json_response({**SUCCESS, "code": 201}, status=201)

    async def _do_patch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        apply = self.patches.get(http.content_type)
        if apply is None:
            raise StatusError(415, "UnsupportedMediaType", f"the body was in an unknown format: {http.content_type}")
        patch = await http.json()
        return self._changed(served, request, lambda found: apply(found, patch))

    def _changed(self, served: Served, request: ApiRequest, apply: Callable[[Json], Json]) -> web.Response:
        key, subresource = served.key(request.namespace, request.name), request.resource.partition("/")[2]
        return web.json_response(self.store.change(served, key, apply, subresource=subresource))

    async def _do_list(self, _http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return web.json_response(await self.reads.list(served, request))

    async def _do_watch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return await self.reads.watch(http, served, request)
