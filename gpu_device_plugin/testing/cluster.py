"""An API server to develop and test against: real HTTP, real conflicts, and every trouble one can have with it.

It keeps pods, nodes, events and leases by the rules in `cluster_store` and serves them as Kubernetes does: list and
watch with selectors, pages, bookmarks and 410; patches; bindings; ``Status`` objects for errors. Troubles are ordered
with `ApiServer.fail` and the methods named after them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from aiohttp import web

from gpu_device_plugin.testing.cluster_store import (
    CORE_EVENTS,
    EVENTS,
    KINDS,
    LEASES,
    PODS,
    RefusedError,
    Served,
    Store,
    core_event,
    invalid,
    merge,
    strategic_merge,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from gpu_device_plugin.testing.builders import Json
    from gpu_device_plugin.testing.cluster_store import State

_PATCHES: Mapping[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge,
    "application/strategic-merge-patch+json": strategic_merge,
}
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LONGEST_WATCH_S = 1800.0
_LAST_BOOKMARK_S = 2.0
"""Before the end of a watch; in a shorter one there is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asked of the server, in the words of RBAC."""

    verb: str
    resource: str
    """With its subresource: ``pods/binding``."""
    group: str = ""
    namespace: str = ""
    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with an error."""

    code: int
    retry_after_s: int | None = None
    reason: str = ""
    message: str = "trouble, as ordered"
    causes: tuple[str, ...] = ()
    done: bool = False
    """What was asked is done nevertheless."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Take the request and never answer, whether it is done or not."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection, before or after doing what was asked."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait, then do what was asked."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer 200 with something that no API server says, as a proxy on the way might."""

    body: bytes = b"<html>sign in, please</html>"


@dataclass(frozen=True, slots=True)
class Late:
    """Take the request and never answer; it is carried out when `ApiServer.carry_out` says so, or never.

    An API server goes on with a request that its client has given up, for up to 60 s by default.
    """


Trouble: TypeAlias = Answer | Hang | Reset | Slow | Garbage | Late


@dataclass(eq=False, slots=True)
class Fault:
    """A trouble that stays until it has happened `times` times, or for ever."""

    trouble: Trouble
    verbs: frozenset[str]
    resources: frozenset[str]
    tokens: frozenset[str] = frozenset()
    times: float = math.inf
    happened: int = 0

    def strikes(self, request: Request) -> bool:
        """Whether this request is hit; counts it."""
        hit = (
            self.happened < self.times
            and (not self.verbs or request.verb in self.verbs)
            and (not self.resources or request.resource in self.resources)
            and (not self.tokens or request.token in self.tokens)
        )
        self.happened += hit
        return hit


@dataclass(eq=False, slots=True)
class _Watch:
    """An open watch."""

    ended: bool = False
    half_open: bool = False
    """The peer is gone and nobody told us: nothing arrives there any more."""


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
    ) -> None:
        """Prepare a server.

        Args:
            tokens: those it knows; None lets everybody in. Assign `tokens` to rotate them.
            allowed: the (verb, resource) that may be asked for; None allows all.
            bookmark_s: time between bookmarks in a watch, in seconds.
            patience_s: how long a list waits for a version that is not there yet, in seconds.
            tls: to serve https.
        """
        self.store = Store()
        self.tokens = None if tokens is None else frozenset(tokens)
        self.allowed = None if allowed is None else frozenset(allowed)
        self.requests: list[Request] = []
        """All there were, refused ones included."""
        self._bookmark_s = bookmark_s
        self._patience_s = patience_s
        self._tls = tls
        self._faults: list[Fault] = []
        self._policies: dict[str, tuple[Callable[[Json, Json], str], int]] = {}
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._held: State | None = None
        self._hole: asyncio.Event | None = None
        self._late: list[tuple[web.Request, Served, Request]] = []
        self._watches: set[_Watch] = set()
        self._connections: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    def __repr__(self) -> str:
        return f"<ApiServer {self.url}: {self.store!r}, {len(self._watches)} watches>"

    # Life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens; known once it was started."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the port of last time."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Go away: open connections break, new ones are refused."""
        self.reset_connections()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    # The world behind it: what kubelets, controllers and people do

    def add(self, body: Json) -> Json:
        """Create a pod or a node as given, uid, status and all."""
        served = next(kind for kind in KINDS.values() if kind.kind == body["kind"])
        return self.store.create(served, body["metadata"].get("namespace", ""), body, as_given=True)

    def get(self, plural: str, name: str, namespace: str = "default") -> Json:
        """Return an object."""
        served = _served(plural)
        return self.store.get(served, _key(served, namespace, name))

    def all(self, plural: str) -> list[Json]:
        """Return all objects of a kind, by namespace and name."""
        return [found for _, found in sorted(self.store.state().objects[_served(plural)].items())]

    def patch(self, plural: str, name: str, patch: Json, namespace: str = "default", subresource: str = "") -> Json:
        """Change an object by a merge patch."""
        served = _served(plural)
        return self.store.change(
            served, _key(served, namespace, name), lambda found: _merged(found, patch), subresource=subresource
        )

    def bind(self, name: str, node: str, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a pod of the default namespace to a node, as a scheduler does."""
        binding = {"metadata": {"name": name, "annotations": dict(annotations or {})}, "target": {"name": node}}
        self.store.bind(("default", name), binding)

    def delete(self, plural: str, name: str, namespace: str = "default", grace_s: int | None = 0) -> None:
        """Delete an object; None is the grace period that the pod itself asks for."""
        served = _served(plural)
        self.store.delete(served, _key(served, namespace, name), grace_s=grace_s)

    # Trouble

    def fail(
        self,
        trouble: Trouble,
        *,
        verbs: Iterable[str] = (),
        resources: Iterable[str] = (),
        tokens: Iterable[str] = (),
        times: float = math.inf,
    ) -> Fault:
        """Order trouble for requests of these `verbs` and `resources`, made by the bearers of these `tokens`.

        What is not named does not matter. `heal` ends it.
        """
        fault = Fault(trouble, frozenset(verbs), frozenset(resources), frozenset(tokens), times)
        self._faults.append(fault)
        return fault

    async def carry_out(self) -> None:
        """Do what the requests ask that met `Late`, the first first; nobody hears what comes of it."""
        while self._late:
            http, served, request = self._late.pop(0)
            with suppress(RefusedError):
                await self._do(http, served, request)

    def black_hole(self) -> None:
        """Lose every packet from now on: nothing is answered, open watches go silent for good, nothing is closed."""
        self._hole = self._hole or asyncio.Event()
        for watch in self._watches:
            watch.half_open = True

    def deny(self, policy: str, against: Callable[[Json, Json], str], *, code: int = 422) -> None:
        """Have an admission policy refuse changes of pods that come over HTTP.

        Args:
            policy: its name.
            against: says what is wrong with a change, given how the pod was and how it would be; nothing: it passes.
            code: 422 as by default, 403 where the policy has `reason: Forbidden`.
        """
        self._policies[policy] = (against, code)

    def admit_again(self, policy: str) -> None:
        """Delete an admission policy."""
        del self._policies[policy]

    def heal(self) -> None:
        """End every trouble. Watches that a black hole swallowed stay silent: their connections are lost."""
        self._faults.clear()
        self.release_cache()
        if self._hole is not None:
            self._hole.set()
            self._hole = None

    def close_watches(self) -> None:
        """End every open watch, as a server does whose time-out came."""
        for watch in self._watches:
            watch.ended = True
        self._wake()

    def reset_connections(self) -> None:
        """Break every connection that waits for an answer or watches, with a TCP reset."""
        for transport in tuple(self._connections):
            _reset(transport)

    @contextmanager
    def watch_gap(self) -> Iterator[None]:
        """Never tell any watch of what happens inside the ``with``."""
        self.store.hide_changes(hide=True)
        try:
            yield
        finally:
            self.store.hide_changes(hide=False)

    def hold_cache(self) -> None:
        """Let the watch cache lag: from now on watches, and lists that allow it, do not see what happens."""
        self._held = self.store.state()

    def release_cache(self) -> None:
        """Let the watch cache catch up."""
        self._held = None
        self._wake()

    def count(self, verb: str, resource: str) -> int:
        """Return how many such requests there were."""
        return sum((request.verb, request.resource) == (verb, resource) for request in self.requests)

    @property
    def watches(self) -> int:
        """How many watches are open, half-open ones included."""
        return len(self._watches)

    # HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        transport = http.transport
        if transport is not None:
            self._connections.add(transport)
        try:
            if self._hole is not None:
                await self._hole.wait()
            return await self._answer(http)
        except RefusedError as error:
            return _refusal(error)
        except json.JSONDecodeError as error:
            return _refusal(RefusedError(400, "BadRequest", f"error decoding the body: {error}"))
        finally:
            if transport is not None:
                self._connections.discard(transport)

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        if (page := await self._beside_objects(http)) is not None:
            return page
        served, request = _understood(http)
        self.requests.append(request)
        fault = next((fault for fault in self._faults if fault.strikes(request)), None)
        trouble = fault.trouble if fault is not None else None
        if (ordered := await self._instead(trouble, http, served, request)) is not None:
            return ordered
        response = await self._do(http, served, request)
        match trouble:
            case Answer():
                return _ordered(trouble)
            case Hang():
                await asyncio.Event().wait()
            case Reset():
                _reset(http.transport)
        return response

    async def _instead(
        self, trouble: Trouble | None, http: web.Request, served: Served, request: Request
    ) -> web.Response | None:
        """Return what is answered without doing what was asked, None to do it now; or never return."""
        match trouble:
            case Answer(done=False):
                return _ordered(trouble)
            case Hang(done=False):
                await asyncio.Event().wait()
            case Reset(done=False):
                _reset(http.transport)
                await asyncio.Event().wait()
            case Slow(seconds):
                await asyncio.sleep(seconds)
            case Garbage(body):
                return web.Response(body=body, content_type="application/json")
            case Late():
                await http.read()  # it stays with the request, whose connection may be gone by then
                self._late.append((http, served, request))
                await asyncio.Event().wait()
        return None

    async def _do(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        self._admit(request)
        response = await getattr(self, f"_do_{request.verb}")(http, served, request)
        assert isinstance(response, web.StreamResponse)  # noqa: S101 - for the type checker, after getattr
        return response

    def _admit(self, request: Request) -> None:
        if self.tokens is not None and request.token not in self.tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        if self.allowed is not None and (request.verb, request.resource) not in self.allowed:
            scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
            raise RefusedError(
                403,
                "Forbidden",
                f'{request.resource} is forbidden: User "somebody" cannot {request.verb} resource "{request.resource}"'
                f' in API group "{request.group}" {scope}',
            )

    def _ask_policies(self, served: Served, before: Json, after: Json) -> None:
        if served is not PODS:
            return
        for policy, (against, code) in self._policies.items():
            if wrong := against(before, after):
                said = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {wrong}"
                name = before["metadata"]["name"]
                reason = {403: "Forbidden", 422: "Invalid"}[code]
                details = {"name": name, "kind": served.plural, "causes": [{"message": said}]}
                raise RefusedError(code, reason, f'{served.full} "{name}" is forbidden: {said}', details)

    async def _beside_objects(self, http: web.Request) -> web.Response | None:
        """Answer what is asked of the server itself, and not of an object."""
        if http.path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        if http.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        if http.path != _ACCESS_REVIEWS:
            return None
        request = Request("create", "selfsubjectaccessreviews", "authorization.k8s.io")
        self.requests.append(request)
        fault = next((fault for fault in self._faults if fault.strikes(request)), None)
        if fault is not None and isinstance(fault.trouble, Answer):
            return _ordered(fault.trouble)
        review = await http.json()
        asked = review["spec"]["resourceAttributes"]
        allowed = self.allowed is None or (asked["verb"], asked["resource"]) in self.allowed
        return web.json_response({**review, "status": {"allowed": allowed}}, status=201)

    async def _do_get(self, _http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        return web.json_response(self.store.get(served, _key(served, request.namespace, request.name)))

    async def _do_create(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        body = await http.json()
        if request.resource == "pods/binding":
            self.store.bind((request.namespace, request.name), body)
            return web.json_response(
                {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, status=201
            )
        return web.json_response(self.store.create(served, request.namespace, body), status=201)

    async def _do_patch(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        apply = _PATCHES.get(http.content_type)
        if apply is None:
            raise RefusedError(415, "UnsupportedMediaType", f"the body was in an unknown format: {http.content_type}")
        patch = await http.json()
        key = _key(served, request.namespace, request.name)
        subresource = request.resource.partition("/")[2]
        return web.json_response(
            self.store.change(
                served,
                key,
                lambda found: _merged(found, patch, apply),
                subresource=subresource,
                admit=partial(self._ask_policies, served),
            )
        )

    async def _do_update(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        body = await http.json()
        if served is LEASES and not body.get("metadata", {}).get("resourceVersion"):
            # Leases are the one kind here that cannot be overwritten blindly.
            message = "Invalid value: must be specified for an update"
            raise invalid(served, request.name, "metadata.resourceVersion", "FieldValueInvalid", message)
        key = _key(served, request.namespace, request.name)
        subresource = request.resource.partition("/")[2]
        admit = partial(self._ask_policies, served)
        return web.json_response(self.store.change(served, key, lambda _: body, subresource=subresource, admit=admit))

    async def _do_delete(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        options = await http.json() if http.can_read_body else {}
        grace = http.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        preconditions = options.get("preconditions") or {}
        deleted = self.store.delete(
            served,
            _key(served, request.namespace, request.name),
            grace_s=None if grace is None else int(grace),
            uid=preconditions.get("uid", ""),
            version=preconditions.get("resourceVersion", ""),
        )
        if served.kind != "Pod":
            details = {"name": request.name, "kind": served.plural, "uid": deleted["metadata"]["uid"]}
            success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
            return web.json_response(success)
        return web.json_response(deleted)

    async def _do_list(self, _http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        params = request.params
        limit = int(params.get("limit") or 0)
        if params.get("continue"):
            version, found = self._continued(params["continue"])
        else:
            state = await self._state(params.get("resourceVersion", ""))
            version, selected = (
                state.version,
                served.selector(params.get("fieldSelector", ""), params.get("labelSelector", "")),
            )
            objects = state.objects[EVENTS if served is CORE_EVENTS else served]
            found = [
                # The items of a list do not repeat its kind.
                {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
                for key, one in sorted(_in_form(served, objects).items())
                if selected(one) and (not request.namespace or key[0] == request.namespace)
            ]
        meta: Json = {"resourceVersion": str(version)}
        if limit and len(found) > limit:
            meta["continue"] = base64.urlsafe_b64encode(f"{version}:{len(self._pages)}".encode()).decode()
            meta["remainingItemCount"] = len(found) - limit
            self._pages[meta["continue"]] = version, found[limit:]
            found = found[:limit]
        return web.json_response(
            {"kind": f"{served.kind}List", "apiVersion": served.api_version, "metadata": meta, "items": found}
        )

    def _continued(self, token: str) -> tuple[int, list[Json]]:
        page = self._pages.get(token)
        if page is None:
            raise RefusedError(400, "BadRequest", "continue key is not valid")
        if page[0] < self.store.oldest:
            raise RefusedError(
                410, "Expired", "The provided continue parameter is too old to display a consistent list"
            )
        return page

    async def _state(self, since: str) -> State:
        """Return the state not older than `since`: from the watch cache, unless the newest is asked for."""
        if not since:
            return self.store.state()
        wanted = _version(since)
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    state = self._held or self.store.state()
                    if state.version >= wanted:
                        return state
                    await self.store.changed.after(self.store.changed.version)
        except TimeoutError:
            raise RefusedError(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {wanted}, current: {state.version}",
                {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
            ) from None

    async def _do_watch(self, http: web.Request, served: Served, request: Request) -> web.StreamResponse:
        params = request.params
        selected = served.selector(params.get("fieldSelector", ""), params.get("labelSelector", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(http)
        except ConnectionError:  # broken before we could answer
            return response
        watch = _Watch()
        self._watches.add(watch)
        try:
            await self._feed(_Feed(response, served, watch, request.namespace, selected), params)
        except ConnectionError:
            pass  # the reader has left
        finally:
            self._watches.discard(watch)
        return response

    async def _feed(self, feed: _Feed, params: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        begin = params.get("resourceVersion", "")
        done = _version(begin) if begin else 0
        if done and done < self.store.oldest:
            await feed.send("ERROR", _status(RefusedError(410, "Expired", f"too old resource version: {done}")))
            return
        if not done:
            state = self._held or self.store.state()
            done = state.version
            for _, found in sorted(state.objects[feed.served].items()):
                if feed.wants(found):
                    await feed.send("ADDED", found)
        end = loop.time() + float(params.get("timeoutSeconds") or _LONGEST_WATCH_S)
        bookmarks = params.get("allowWatchBookmarks", "").lower() in {"1", "true"}
        bookmark = loop.time() + self._bookmark_s
        if loop.time() < end - _LAST_BOOKMARK_S:
            bookmark = min(bookmark, end - _LAST_BOOKMARK_S)
        while not feed.watch.ended and done >= self.store.oldest:  # one that falls behind is ended
            tick = self.store.changed.version
            done = await self._tell(feed, done)
            now = loop.time()
            if bookmarks and now >= bookmark:
                await feed.bookmark(done)
                bookmark = now + self._bookmark_s
            if now >= end:
                return
            try:
                async with asyncio.timeout_at(min(bookmark, end) if bookmarks else end):
                    await self.store.changed.after(tick)
            except TimeoutError:
                pass

    async def _tell(self, feed: _Feed, done: int) -> int:
        """Send what happened after version `done`, and return up to where it is told now."""
        newest = self._held.version if self._held is not None else self.store.version
        for change in self.store.changes_after(done, newest):
            event = change.seen_by(feed.wants) if change.served is feed.served else None
            if event is not None:
                await feed.send(*event)
        return max(done, newest)

    def _wake(self) -> None:
        self.store.changed.set(self.store.changed.value)


@dataclass(frozen=True, slots=True)
class _Feed:
    """Where the events of one watch go."""

    response: web.StreamResponse
    served: Served
    watch: _Watch
    namespace: str
    selected: Callable[[Json], bool]

    def wants(self, found: Json) -> bool:
        inside = not self.namespace or found["metadata"].get("namespace") == self.namespace
        return inside and self.selected(found)

    async def send(self, kind: str, body: Json) -> None:
        if self.watch.half_open:
            await asyncio.Event().wait()
        await self.response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")

    async def bookmark(self, version: int) -> None:
        body: Json = {
            "kind": self.served.kind,
            "apiVersion": self.served.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        }
        if self.served.kind == "Pod":
            body |= {"spec": {"containers": None}, "status": {}}  # Go writes a nil slice as null
        await self.send("BOOKMARK", body)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _understood(http: web.Request) -> tuple[Served, Request]:
    """Read path and method as Kubernetes does."""
    group, *parts = ("", *http.path.strip("/").split("/")[1:])
    if http.path.startswith("/apis/"):
        group, *parts = parts
    match parts:
        case ["v1", "namespaces", namespace, plural, *rest] if len(rest) <= 2:
            pass
        case ["v1", plural, *rest] if len(rest) <= 2:
            namespace = ""
        case _:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
    name, subresource = [*rest, "", ""][:2]
    served = {**KINDS, ("", "events"): CORE_EVENTS}.get((group, plural))
    known = served is not None and (not subresource or subresource in served.subresources)
    if served is None or not known or (served.namespaced and name and not namespace):
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")
    watching = http.query.get("watch", "").lower() in {"1", "true"}
    reading = "get" if name else "watch" if watching else "list"
    verb = reading if http.method == "GET" else _VERBS.get(http.method, "")
    if served is CORE_EVENTS and verb != "list":
        raise RefusedError(
            405, "MethodNotAllowed", "this double has Events in the group events.k8s.io for all but lists"
        )
    creating_inside = subresource == "binding"
    if not verb or (verb != "create" and creating_inside) or (verb in {"update", "patch", "delete"} and not name):
        raise RefusedError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    resource = f"{plural}/{subresource}" if subresource else plural
    token = http.headers.get("Authorization", "").removeprefix("Bearer ")
    return served, Request(verb, resource, group, namespace, name, dict(http.query), token)


def _in_form(served: Served, objects: Mapping[tuple[str, str], Json]) -> Mapping[tuple[str, str], Json]:
    """Return objects in the form in which they are asked for."""
    return {key: core_event(one) for key, one in objects.items()} if served is CORE_EVENTS else objects


def _served(plural: str) -> Served:
    return next(kind for kind in KINDS.values() if kind.plural == plural)


def _key(served: Served, namespace: str, name: str) -> tuple[str, str]:
    return (namespace if served.namespaced else "", name)


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise RefusedError(400, "BadRequest", f"Invalid value: {text!r}: resource version must be a number")
    return int(text)


def _merged(found: Json, patch: Json, apply: Callable[[Any, Any], Any] = merge) -> Json:
    merged: Json = apply(found, patch)
    return merged


def _status(error: RefusedError) -> Json:
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


def _refusal(error: RefusedError, retry_after_s: int | None = None) -> web.Response:
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response(_status(error), status=error.code, headers=headers)


def _ordered(answer: Answer) -> web.Response:
    details = {"causes": [{"reason": cause} for cause in answer.causes]}
    return _refusal(RefusedError(answer.code, answer.reason, answer.message, details), answer.retry_after_s)


def _reset(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection so that the peer gets a reset, whatever is still under way."""
    if isinstance(transport, asyncio.Transport):
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
