"""An API server for the demo and for tests: real HTTP, and real conflicts.

It keeps the objects by the rules in `cluster_kinds` and serves them as Kubernetes does: list and watch with selectors,
pages, bookmarks and 410; patches; bindings; evictions; ``Status`` objects for errors.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from aiohttp import web

from gpu_device_plugin.testing.cluster.cluster_kinds import KINDS, PODS, Served, StatusError
from gpu_device_plugin.testing.cluster.cluster_reads import Reads
from gpu_device_plugin.testing.cluster.cluster_requests import (
    ApiRequest,
    proxied,
    refusal,
    reset,
    to_pod,
    understood,
)
from gpu_device_plugin.testing.cluster.cluster_store import Store, merge, strategic_merge

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from gpu_device_plugin.testing.builders import Json
    from gpu_device_plugin.testing.cluster.cluster_store import Key

_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class ApiServer:
    """One API server on a loopback port; use it in an ``async with``, in one event loop.

    Its memory outlives `stop` and `start`, as etcd's does, and its port stays the same.
    """

    kinds: ClassVar[tuple[Served, ...]] = KINDS
    """The kinds of objects that it keeps."""
    patches: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {
        "application/merge-patch+json": merge,
        "application/strategic-merge-patch+json": strategic_merge,
    }
    """What applies a patch to an object, by its content type."""

    def __init__(self, *, bookmark_s: float = 60.0, patience_s: float = 3.0, tls: ssl.SSLContext | None = None) -> None:
        """Prepare a server.

        Args:
            bookmark_s: time between bookmarks in a watch, in seconds.
            patience_s: how long a list waits for a version that does not exist yet, in seconds.
            tls: serve https with this context.
        """
        self.store = Store(self.kinds)
        self.requests: list[ApiRequest] = []
        """All requests so far, including refused ones."""
        self.network: dict[str, str] = {}
        """The addresses of pods, like ``10.0.0.1:9445``, with the base URLs of the servers that stand for them."""
        self.reads = Reads(lambda: self.store, bookmark_s, patience_s)
        """The lists and watches, and the watch cache, which can lag."""
        self._tls = tls
        self._connections: set[asyncio.Transport] = set()
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
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port as before."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop: open connections break, and new ones are refused."""
        self.reset_connections()
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

    def bind(self, name: str, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod of the default namespace to a node, as a scheduler does."""
        binding = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "target": {"name": node}}
        self.store.bind(("default", name), binding)

    def delete(self, plural: str, name: str, namespace: str = "default", grace_s: int | None = 0) -> None:
        """Delete an object; `grace_s` None uses the pod's own grace period."""
        served = self._kind(plural)
        self.store.delete(served, served.key(namespace, name), grace_s=grace_s)

    def count(self, verb: str, resource: str) -> int:
        """Return the number of requests with this verb and resource."""
        return sum((request.verb, request.resource) == (verb, resource) for request in self.requests)

    def reset_connections(self) -> None:
        """Reset every connection with a pending request or a watch, by TCP RST."""
        for transport in tuple(self._connections):
            reset(transport)

    def _kind(self, plural: str) -> Served:
        return next(kind for kind in self.kinds if kind.plural == plural)

    # HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        transport = http.transport
        if transport is not None:
            self._connections.add(transport)
        try:
            return await self._answer(http)
        except StatusError as error:
            return refusal(error)
        except json.JSONDecodeError as error:
            return refusal(StatusError(400, "BadRequest", f"error decoding the body: {error}"))
        finally:
            if transport is not None:
                self._connections.discard(transport)

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

    def _ask_policies(self, served: Served, before: Json, after: Json) -> None:
        """Refuse a change that is valid, but not admitted."""

    def _disrupt(self, key: Key, found: Json) -> None:
        """Refuse the eviction of a pod whose end disrupts something."""

    async def _do_get(self, _http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return web.json_response(self.store.get(served, served.key(request.namespace, request.name)))

    async def _do_create(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        body, key = await self._body(http), (request.namespace, request.name)
        if request.resource == "pods/binding":
            self.store.bind(key, body)
        elif request.resource == "pods/eviction":
            self.store.evict(key, body, partial(self._disrupt, key))
        else:
            keep = request.params.get("dryRun") != "All"
            return web.json_response(self.store.create(served, request.namespace, body, keep=keep), status=201)
        return web.json_response({**_SUCCESS, "code": 201}, status=201)

    async def _do_patch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        apply = self.patches.get(http.content_type)
        if apply is None:
            raise StatusError(415, "UnsupportedMediaType", f"the body was in an unknown format: {http.content_type}")
        patch = await http.json()
        return self._changed(served, request, lambda found: apply(found, patch))

    async def _do_update(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        body = await self._body(http)
        return self._changed(served, request, lambda _: body)

    def _changed(self, served: Served, request: ApiRequest, apply: Callable[[Json], Json]) -> web.Response:
        key, subresource = served.key(request.namespace, request.name), request.resource.partition("/")[2]
        admit = partial(self._ask_policies, served)
        return web.json_response(self.store.change(served, key, apply, subresource=subresource, admit=admit))

    async def _do_delete(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        options = await http.json() if http.can_read_body else {}
        grace = http.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        preconditions = options.get("preconditions") or {}
        deleted = self.store.delete(
            served,
            served.key(request.namespace, request.name),
            grace_s=None if grace is None else int(grace),
            uid=preconditions.get("uid", ""),
            version=preconditions.get("resourceVersion", ""),
        )
        if served.kind != "Pod":
            details = {"name": request.name, "kind": served.plural, "uid": deleted["metadata"]["uid"]}
            return web.json_response({**_SUCCESS, "details": details})
        return web.json_response(deleted)

    async def _do_list(self, _http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return web.json_response(await self.reads.list(served, request))

    async def _do_watch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        return await self.reads.watch(http, served, request)
