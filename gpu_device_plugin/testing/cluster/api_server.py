"""An API server for development and tests: real HTTP, real conflicts, and injected faults.

It keeps pods, nodes, events, leases and budgets by the rules in `cluster_kinds` and serves them as Kubernetes does:
list and watch with selectors, pages, bookmarks and 410; patches; bindings; evictions; ``Status`` objects for errors.
Troubles are ordered with `ApiServer.fail` and the methods named after them.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from gpu_device_plugin.testing.cluster.cluster_evictions import evict
from gpu_device_plugin.testing.cluster.cluster_kinds import (
    BUFFERS,
    KINDS,
    LEASES,
    PODS,
    applied,
    kind_of,
    scale_of,
    scaled,
    without_new_fields,
)
from gpu_device_plugin.testing.cluster.cluster_reads import Reads
from gpu_device_plugin.testing.cluster.cluster_requests import (
    Answer,
    ApiRequest,
    Fault,
    Hang,
    Late,
    Reset,
    Trouble,
    proxied,
    refusal,
    reset,
    suffered,
    to_pod,
    understood,
)
from gpu_device_plugin.testing.cluster.cluster_reviews import (
    ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Account,
    review_access,
    review_token,
)
from gpu_device_plugin.testing.cluster.cluster_served import Served, StatusError, invalid
from gpu_device_plugin.testing.cluster.cluster_store import Store, merge, strategic_merge

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from gpu_device_plugin.testing.builders import Json

_PATCHES: Mapping[str, Callable[[Any, Any], Any]] = {
    "application/apply-patch+yaml": applied,
    "application/merge-patch+json": merge,
    "application/strategic-merge-patch+json": strategic_merge,
}
_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
_OWN_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ApiServer:
    """One API server on a loopback port; use it in an ``async with``, in one event loop.

    Its memory outlives `stop` and `start`, as etcd's does, and its port stays the same.
    """

    def __init__(
        self,
        *,
        tokens: Iterable[str] | None = None,
        allowed: Iterable[tuple[str, str]] | None = None,
        bookmark_s: float = 60.0,
        patience_s: float = 3.0,
        tls: ssl.SSLContext | None = None,
        accounts: Mapping[str, Account] | None = None,
    ) -> None:
        """Prepare a server.

        Args:
            tokens: the valid tokens; None accepts every client. Assign `tokens` to rotate them.
            allowed: the allowed (verb, resource) pairs; None allows all.
            bookmark_s: time between bookmarks in a watch, in seconds.
            patience_s: how long a list waits for a version that does not exist yet, in seconds.
            tls: serve https with this context.
            accounts: those that TokenReviews and SubjectAccessReviews know, by token; change `accounts` at any time.
                They say nothing of who may talk to this server.
        """
        self.accounts: dict[str, Account] = dict(accounts or {})
        self.store = Store()
        self.tokens = None if tokens is None else frozenset(tokens)
        self.allowed = None if allowed is None else frozenset(allowed)
        self.requests: list[ApiRequest] = []
        """All requests so far, including refused ones."""
        self.older = False
        """Drop the fields of resource.k8s.io that Kubernetes 1.36 brought, as 1.34 and 1.35 do."""
        self.without: set[str] = {BUFFERS.group}
        """API groups that the server does not have: at first those that few clusters have."""
        self.network: dict[str, str] = {}
        """The addresses of pods, like ``10.0.0.1:9445``, with the base URLs of the servers that stand for them."""
        self.reads = Reads(lambda: self.store, bookmark_s, patience_s)
        """The lists and watches, and the watch cache, which can lag."""
        self._tls = tls
        self._faults: list[Fault] = []
        self._policies: dict[str, tuple[Callable[[Json, Json], str], int]] = {}
        self._hole: asyncio.Event | None = None
        self._late: list[tuple[web.Request, Served, ApiRequest]] = []
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
        served = next(kind for kind in KINDS.values() if kind.kind == body["kind"])
        return self.store.create(served, body["metadata"].get("namespace", ""), body, as_given=True)

    def get(self, plural: str, name: str, namespace: str = "default") -> Json:
        """Return an object."""
        served = kind_of(plural)
        return self.store.get(served, served.key(namespace, name))

    def all(self, plural: str) -> list[Json]:
        """Return all objects of a kind, by namespace and name."""
        return [found for _, found in sorted(self.store.state().objects[kind_of(plural)].items())]

    def patch(self, plural: str, name: str, patch: Json, namespace: str = "default", subresource: str = "") -> Json:
        """Change an object by a merge patch."""
        served = kind_of(plural)
        key = served.key(namespace, name)
        return self.store.change(served, key, lambda found: merge(found, patch), subresource=subresource)

    def bind(self, name: str, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod of the default namespace to a node, as a scheduler does."""
        binding = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "target": {"name": node}}
        self.store.bind(("default", name), binding)

    def delete(self, plural: str, name: str, namespace: str = "default", grace_s: int | None = 0) -> None:
        """Delete an object; `grace_s` None uses the pod's own grace period."""
        served = kind_of(plural)
        self.store.delete(served, served.key(namespace, name), grace_s=grace_s)

    # Faults

    def fail(
        self,
        trouble: Trouble,
        *,
        verbs: Iterable[str] = (),
        resources: Iterable[str] = (),
        tokens: Iterable[str] = (),
        times: float = math.inf,
        spared: int = 0,
    ) -> Fault:
        """Inject `trouble` into requests with these `verbs`, `resources` and `tokens`, but not into the first `spared`.

        An empty argument matches all requests. `heal` ends the fault.
        """
        fault = Fault(trouble, frozenset(verbs), frozenset(resources), frozenset(tokens), times, spared)
        self._faults.append(fault)
        return fault

    async def carry_out(self) -> None:
        """Execute the requests that met `Late`, the oldest first; their clients get no answer."""
        while self._late:
            http, served, request = self._late.pop(0)
            with suppress(StatusError):
                await self._do(http, served, request)

    def black_hole(self) -> None:
        """Lose every packet from now on: no request is answered, open watches stay silent, no connection is closed."""
        self._hole = self._hole or asyncio.Event()
        self.reads.lose_peers()

    def deny(self, policy: str, against: Callable[[Json, Json], str], *, code: int = 422) -> None:
        """Add an admission policy that can deny changes of pods over HTTP, with code 403 if it has `reason: Forbidden`.

        `against` returns the reason for a denial, given the old and the new pod; empty: the change is admitted.
        """
        self._policies[policy] = (against, code)

    def admit_again(self, policy: str) -> None:
        """Delete an admission policy."""
        del self._policies[policy]

    def heal(self) -> None:
        """End every fault. Watches from before a black hole stay silent: their connections are lost."""
        self._faults.clear()
        self.reads.release()
        if self._hole is not None:
            self._hole.set()
            self._hole = None

    def reset_connections(self) -> None:
        """Reset every connection with a pending request or a watch, by TCP RST."""
        for transport in tuple(self._connections):
            reset(transport)

    @contextmanager
    def watch_gap(self) -> Iterator[None]:
        """Never report the changes inside the ``with`` to any watch."""
        self.store.hide_changes = True
        try:
            yield
        finally:
            self.store.hide_changes = False

    def count(self, verb: str, resource: str) -> int:
        """Return the number of requests with this verb and resource."""
        return sum((request.verb, request.resource) == (verb, resource) for request in self.requests)

    # HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        transport = http.transport
        if transport is not None:
            self._connections.add(transport)
        try:
            if self._hole is not None:
                await self._hole.wait()
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
            return await self._proxy(http, request)
        served, request = understood(http)
        trouble = self._noted(request)
        if isinstance(trouble, Answer | Hang | Reset) and trouble.done:
            await self._do(http, served, request)
        if (answer := await suffered(trouble)) is not None:
            return answer
        match trouble:
            case Reset():
                reset(http.transport)
                await asyncio.Event().wait()
            case Late():
                await http.read()  # keeps the body with the request, whose connection may be closed later
                self._late.append((http, served, request))
                await asyncio.Event().wait()
        return await self._do(http, served, request)

    async def _proxy(self, http: web.Request, request: ApiRequest) -> web.Response:
        if (answer := await suffered(self._noted(request), "text/plain")) is not None:
            return answer
        self._admit(request)
        pod_name = request.name.partition(":")[0]
        found = self.store.get(PODS, (request.namespace, pod_name))
        return await proxied(http, found, request.name, self.network)

    def _noted(self, request: ApiRequest) -> Trouble | None:
        """Record a request, and return the trouble that matches it."""
        self.requests.append(request)
        return next((fault.trouble for fault in self._faults if fault.strikes(request)), None)

    async def _do(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        self._admit(request)
        do: Callable[..., Awaitable[web.StreamResponse]] = getattr(self, f"_do_{request.verb}")
        return await do(http, served, request)

    def _admit(self, request: ApiRequest) -> None:
        if self.tokens is not None and request.token not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        if self.allowed is not None and (request.verb, request.resource) not in self.allowed:
            scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
            raise StatusError(
                403,
                "Forbidden",
                f'{request.resource} is forbidden: User "somebody" cannot {request.verb} resource "{request.resource}"'
                f' in API group "{request.group}" {scope}',
            )
        if request.group in self.without:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")

    def _ask_policies(self, served: Served, before: Json, after: Json) -> None:
        if served is not PODS:
            return
        for policy, (against, code) in self._policies.items():
            if wrong := against(before, after):
                denial = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {wrong}"
                name = before["metadata"]["name"]
                reason = {403: "Forbidden", 422: "Invalid"}[code]
                details = {"name": name, "kind": served.plural, "causes": [{"message": denial}]}
                raise StatusError(code, reason, f'{served.full} "{name}" is forbidden: {denial}', details)

    async def _beside_objects(self, http: web.Request) -> web.Response | None:
        """Answer requests about the server itself; None if the request is about an object."""
        if http.path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        if http.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        if http.method == "POST" and http.path in {TOKEN_REVIEWS, ACCESS_REVIEWS, _OWN_ACCESS_REVIEWS}:
            return await self._review(http)
        return None

    async def _review(self, http: web.Request) -> web.Response:
        _, _, group, _, plural = http.path.split("/")
        token = http.headers.get("Authorization", "").removeprefix("Bearer ")
        request = ApiRequest("create", plural, group, token=token)
        if (answer := await suffered(self._noted(request))) is not None:
            return answer
        review = await http.json()
        if http.path == _OWN_ACCESS_REVIEWS:  # every account may review its own rights
            asked = review["spec"]["resourceAttributes"]
            allowed = self.allowed is None or (asked["verb"], asked["resource"]) in self.allowed
            return web.json_response({**review, "status": {"allowed": allowed}}, status=201)
        self._admit(request)
        tokens = http.path == TOKEN_REVIEWS
        made = review_token(self.accounts, review) if tokens else review_access(self.accounts.values(), review)
        return web.json_response(made, status=201)

    async def _do_get(self, _http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        found = self.store.get(served, served.key(request.namespace, request.name))
        return web.json_response(scale_of(found) if request.resource.endswith("/scale") else found)

    async def _do_create(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        body = await http.json()
        if request.resource in {"pods/binding", "pods/eviction"}:
            act = self.store.bind if request.resource == "pods/binding" else partial(evict, self.store)
            act((request.namespace, request.name), body)
            return web.json_response({**_SUCCESS, "code": 201}, status=201)
        keep = request.params.get("dryRun") != "All"
        return web.json_response(
            self.store.create(served, request.namespace, self._as_read(body), keep=keep), status=201
        )

    async def _do_patch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        apply = _PATCHES.get(http.content_type)
        if apply is None:
            raise StatusError(415, "UnsupportedMediaType", f"the body was in an unknown format: {http.content_type}")
        patch = await http.json()
        return self._changed(served, request, lambda found: apply(found, patch))

    async def _do_update(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        body = await http.json()
        if served is LEASES and not body.get("metadata", {}).get("resourceVersion"):
            # Of the kinds here, only Leases refuse an update without a resourceVersion.
            message = "Invalid value: must be specified for an update"
            raise invalid(served, request.name, "metadata.resourceVersion", "FieldValueInvalid", message)
        return self._changed(served, request, lambda _: self._as_read(body))

    def _as_read(self, body: Json) -> Any:
        return without_new_fields(body) if self.older else body

    def _changed(self, served: Served, request: ApiRequest, apply: Callable[[Json], Json]) -> web.Response:
        key = served.key(request.namespace, request.name)
        subresource = request.resource.partition("/")[2]
        admit = partial(self._ask_policies, served)
        if subresource == "scale":
            found = self.store.change(served, key, lambda found: scaled(found, apply(scale_of(found))), admit=admit)
            return web.json_response(scale_of(found))
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
