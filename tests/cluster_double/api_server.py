"""An API server for tests: with the kinds of objects, rights, admission policies and troubles that they need.

Troubles are ordered with `ApiServer.fail` and the methods named after them.
"""

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

from aiohttp import web

from gpu_device_plugin.testing.cluster import api_server
from gpu_device_plugin.testing.cluster.cluster_kinds import PODS, ApiRequest, Served, StatusError, invalid
from tests.builders import Json
from tests.cluster_double.kinds import BUFFERS, KINDS, LEASES, applied, scale_of, scaled, without_new_fields
from tests.cluster_double.reads import Reads
from tests.cluster_double.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, Account, review_access, review_token
from tests.cluster_double.store import Store, strategic_merge
from tests.cluster_double.troubles import Answer, Fault, Hang, Late, Reset, Trouble, reset, suffered

_OWN_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class ApiServer(api_server.ApiServer):
    """One API server on a loopback port; use it in an ``async with``, in one event loop."""

    kinds = KINDS
    patches: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {
        **api_server.ApiServer.patches,
        "application/strategic-merge-patch+json": strategic_merge,
        "application/apply-patch+yaml": applied,
    }

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
        super().__init__()
        self.store: Store = Store(self.kinds)
        self.reads: Reads = Reads(lambda: self.store, bookmark_s=bookmark_s, patience_s=patience_s)
        """The lists and watches, and the watch cache, which can lag."""
        self.tls = tls
        self._connections: set[asyncio.Transport] = set()
        self.accounts: dict[str, Account] = dict(accounts or {})
        self.tokens = None if tokens is None else frozenset(tokens)
        self.allowed = None if allowed is None else frozenset(allowed)
        self.older = False
        """Drop the fields of resource.k8s.io that Kubernetes 1.36 brought, as 1.34 and 1.35 do."""
        self.without: set[str] = {BUFFERS.group}
        """API groups that the server does not have: at first those that few clusters have."""
        self._faults: list[Fault] = []
        self._policies: dict[str, tuple[Callable[[Json, Json], str], int]] = {}
        self._hole: asyncio.Event | None = None
        self._late: list[Callable[[], Awaitable[web.StreamResponse]]] = []

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
            with suppress(StatusError):
                await self._late.pop(0)()

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

    @contextmanager
    def watch_gap(self) -> Iterator[None]:
        """Never report the changes inside the ``with`` to any watch."""
        self.store.hide_changes = True
        try:
            yield
        finally:
            self.store.hide_changes = False

    def bind(self, name: str, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod of the default namespace to a node, as a scheduler does."""
        binding = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "target": {"name": node}}
        self.store.bind(("default", name), binding)

    def reset_connections(self) -> None:
        """Reset every connection with a pending request or a watch, by TCP RST."""
        for transport in tuple(self._connections):
            reset(transport)

    async def stop(self) -> None:
        """Stop: open connections break, and new ones are refused."""
        self.reset_connections()
        await super().stop()

    # HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        transport = http.transport
        if transport is not None:
            self._connections.add(transport)
        try:
            return await super()._handle(http)
        finally:
            if transport is not None:
                self._connections.discard(transport)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        if self._hole is not None:
            await self._hole.wait()
        return await super()._answer(http)

    async def _execute(
        self, http: web.Request, request: ApiRequest, do: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        async def admitted() -> web.StreamResponse:
            self._admit(request)
            return await do()

        return await self._troubled(http, request, admitted)

    async def _troubled(
        self, http: web.Request, request: ApiRequest, do: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests.append(request)
        trouble = next((fault.trouble for fault in self._faults if fault.strikes(request)), None)
        if isinstance(trouble, Answer | Hang | Reset) and trouble.done:
            await do()
        content_type = "text/plain" if request.resource == "pods/proxy" else "application/json"
        if (answer := await suffered(trouble, content_type)) is not None:
            return answer
        match trouble:
            case Reset():
                reset(http.transport)
                await asyncio.Event().wait()
            case Late():
                await http.read()  # keeps the body with the request, whose connection may be closed later
                self._late.append(do)
                await asyncio.Event().wait()
        return await do()

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
                details = {"name": name, "kind": PODS.plural, "causes": [{"message": denial}]}
                raise StatusError(code, reason, f'{PODS.full} "{name}" is forbidden: {denial}', details)

    async def _beside_objects(self, http: web.Request) -> web.StreamResponse | None:
        if http.method == "POST" and http.path in {TOKEN_REVIEWS, ACCESS_REVIEWS, _OWN_ACCESS_REVIEWS}:
            _, _, group, _, plural = http.path.split("/")
            token = http.headers.get("Authorization", "").removeprefix("Bearer ")
            request = ApiRequest("create", plural, group, token=token)
            return await self._troubled(http, request, partial(self._review, http, request))
        return await super()._beside_objects(http)

    async def _review(self, http: web.Request, request: ApiRequest) -> web.Response:
        review = await http.json()
        if http.path == _OWN_ACCESS_REVIEWS:  # every account may review its own rights
            asked = review["spec"]["resourceAttributes"]
            allowed = self.allowed is None or (asked["verb"], asked["resource"]) in self.allowed
            return web.json_response({**review, "status": {"allowed": allowed}}, status=201)
        self._admit(request)
        tokens = http.path == TOKEN_REVIEWS
        made = review_token(self.accounts, review) if tokens else review_access(self.accounts.values(), review)
        return web.json_response(made, status=201)

    async def _body(self, http: web.Request) -> Any:
        body = await super()._body(http)
        return without_new_fields(body) if self.older else body

    async def _do_get(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        if not request.resource.endswith("/scale"):
            return await super()._do_get(http, served, request)
        return web.json_response(scale_of(self.store.get(served, served.key(request.namespace, request.name))))

    async def _do_update(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        if served is LEASES and not (await http.json()).get("metadata", {}).get("resourceVersion"):
            # Of the kinds here, only Leases refuse an update without a resourceVersion.
            message = "Invalid value: must be specified for an update"
            raise invalid(served, request.name, "metadata.resourceVersion", "FieldValueInvalid", message)
        body = await self._body(http)
        return self._changed(served, request, lambda _: body)

    def _changed(self, served: Served, request: ApiRequest, apply: Callable[[Json], Json]) -> web.Response:
        key, subresource = served.key(request.namespace, request.name), request.resource.partition("/")[2]
        if subresource != "scale":
            admit = partial(self._ask_policies, served)
            return web.json_response(self.store.change(served, key, apply, subresource=subresource, admit=admit))
        return web.json_response(
            scale_of(self.store.change(served, key, lambda found: scaled(found, apply(scale_of(found)))))
        )

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
            return web.json_response({**api_server.SUCCESS, "details": details})
        return web.json_response(deleted)
