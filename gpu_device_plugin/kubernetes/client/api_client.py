"""A client of the Kubernetes API: read, list, watch, create, replace and patch objects as JSON.

Every call is one attempt with a timeout, and fails with one of the types in `errors`; the caller decides about retries.
The one exception is a 401: the token file is read again and, if it changed, the call is repeated.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from gpu_device_plugin.kubernetes.client.answers import ApiAnswer, Page, WatchEvent, decoded, events, read, translated
from gpu_device_plugin.kubernetes.client.config import ClusterConfig, ClusterConfigError, Credentials
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, UnauthorizedError, UnavailableError, error_from
from gpu_device_plugin.kubernetes.objects.decoding import PODS, ObjectKind, version_number

T = TypeVar("T")

_US = "gpu-device-plugin"
_LARGEST_PAGE = 16 << 20
"""Bytes. 500 nodes with many images have 15 MB, 500 pods on which somebody has written all that etcd stores 750 MB."""
_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
"""HTTP methods by RBAC verb."""
LATEST_COMMIT_S = 60.0
"""A request may take effect until this long after we gave up on it: kube-apiserver's default request timeout."""
_REVIEWS = ObjectKind("selfsubjectaccessreviews", group="authorization.k8s.io")


class PatchType(StrEnum):
    """The kind of a patch; the value is its content type."""

    MERGE = "application/merge-patch+json"
    """Null removes, lists are replaced."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Lists of named items are merged by name."""
    APPLY = "application/apply-patch+yaml"
    """Server-side apply: the server merges our fields into those of other writers. JSON is YAML."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts, in seconds."""

    connect_s: float = 5.0
    request_s: float = 15.0
    """From the first byte of a request to the last of its answer; for a watch, to the answer's head."""
    watch_s: float = 60.0
    """The server ends a watch after about this time, up to a tenth more or less; it is then continued."""
    silence_s: float = 20.0
    """A watch that is silent for `watch_s` plus this time is on a dead connection."""
    token_s: float = 60.0
    """How old a token may be before its file is read again."""
    starting_s: float = 30.0
    """How long a server that was unavailable may take to know the rights of all accounts. It serves before it does."""


@dataclass(frozen=True, slots=True)
class Server:
    """An API server's description of itself."""

    version: str
    """Like ``v1.36.2``."""
    clock_s: float | None
    """The time on its clock, in whole seconds since the epoch; None if the answer had no date."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


class _Verdict(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Verdict


@dataclass(eq=False)
class Client:
    """One connection pool to one API server; use it in an ``async with``, in one event loop."""

    _config: ClusterConfig
    _: KW_ONLY
    timing: Timing = Timing()
    on_error: Callable[[ApiError], None] = lambda _error: None
    """Called for every failed call, before its caller gets it."""
    connections: int = 0
    """At most, 0: any number; further calls wait."""

    def __post_init__(self) -> None:
        self._credentials = Credentials(self._config, self.timing.token_s)
        self._session: aiohttp.ClientSession | None = None
        self._unavailable_at = -math.inf
        """When a call found no server that works, in monotonic seconds."""

    async def __aenter__(self) -> Self:
        socket, most = self._config.unix_socket, self.connections
        self._session = aiohttp.ClientSession(
            # Answers are read once and dropped: compression costs both sides more than the network transfer.
            headers={"User-Agent": _US, "Accept": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=most)
            if socket is None
            else aiohttp.UnixConnector(str(socket), limit=most),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            await session.close()
        except asyncio.CancelledError:
            if error is None or isinstance(error, asyncio.CancelledError):
                raise
            # A cancellation during the close must not hide `error`, which propagates.

    async def get(self, kind: ObjectKind, name: str, *, namespace: str = "", timeout_s: float = math.inf) -> ApiAnswer:
        """Return the current state of one object. `timeout_s`, here and below, can shorten the timeouts of `Timing`."""
        return await self._call("get", kind, name, namespace=namespace, timeout_s=timeout_s)

    async def from_pod(self, namespace: str, pod: str, port: int, path: str, *, most: int, timeout_s: float) -> bytes:
        """Return what a pod answers to a GET, through the API server's proxy. Our token does not reach the pod.

        The path is like ``/metrics``, and `timeout_s` holds for the whole call. UnavailableError: the pod does not
        answer, or with more than `most` bytes.
        """
        call = Call("get", "pods/proxy", "", namespace, pod)
        url = PODS.path(namespace=namespace, name=f"{pod}:{port}", subresource="proxy") + path
        async with self._answer(call, "GET", url, timeout=self._limit(timeout_s)) as response:
            answer = await read(call, response, most)
            if answer is None:
                raise UnavailableError(call, f"the answer is longer than {most >> 10} KiB")
            return answer

    async def server(self) -> Server:
        """Return the server's version and clock."""
        call = Call("get", "/version")
        async with self._answer(call, "GET", "/version", timeout=self._limit()) as response:
            with translated(call):
                answer = ApiAnswer.to(call, await response.read())
            date = response.headers.get("Date", "")
        version = answer.decoded(_Version, "a version").git_version
        try:
            return Server(version, parsedate_to_datetime(date).timestamp())
        except ValueError:
            return Server(version, None)

    async def may(self, right: Call) -> bool:
        """Return whether our account has the right to a call in all namespaces. Every account may review its own."""
        spec = {"resourceAttributes": {"verb": right.verb, "resource": right.resource, "group": right.group}}
        return (await self.review(_REVIEWS, "SelfSubjectAccessReview", spec, _Review)).status.allowed

    async def review(self, kind: ObjectKind, name: str, spec: Mapping[str, Any], form: type[T]) -> T:
        """Return what the API server says of a `spec` in a review such as a TokenReview."""
        answer = await self.create(kind, {"apiVersion": f"{kind.group}/v1", "kind": name, "spec": spec})
        return answer.decoded(form, "a review")

    async def newest(self, kind: ObjectKind) -> int:
        """Return the newest resource version of `kind` in the cluster.

        It is the version of a list of at most one object, which the server reads consistently from etcd.
        """
        answer = await self._call("list", kind, params={"limit": "1"})
        return version_number(answer.decoded(Page, "a list of objects").metadata.resource_version)

    async def pages(
        self,
        kind: ObjectKind,
        *,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        since: str = "",
        limit: int = 500,
    ) -> AsyncIterator[Page]:
        """List objects, page by page; every page carries the version of the whole list.

        GoneError: the continue token expired; begin again with `since` empty.

        Args:
            kind: the kind of the objects.
            namespace: empty: all namespaces.
            fields: field selector.
            labels: label selector.
            since: return a state not older than this version. ``0`` allows any cached state; empty requires the newest
                state, which costs the cluster most.
            limit: the maximum number of objects in a page. A page of more than `_LARGEST_PAGE` is given up, and listed
                in smaller ones.
        """
        call, path = Call("list", kind.plural, kind.group, namespace), kind.path(namespace=namespace)
        selected = _selectors(fields, labels)
        # Without a match rule, a limit makes the server return exactly this version.
        wanted = {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"} if since else {}
        while True:
            # A server that ignores the limit, as for a list from its cache, sends all of it however often we ask.
            most = _LARGEST_PAGE if limit > 1 else None
            params = {"limit": str(limit), **selected, **wanted}
            async with self._answer(call, "GET", path, timeout=self._limit(), params=params) as response:
                answer = await read(call, response, most)
            if answer is None:
                limit = max(1, limit // 4)
                continue
            page = decoded(call, answer, Page, "a list of objects")
            yield page
            if not page.metadata.continue_:
                return
            wanted = {"continue": page.metadata.continue_}

    async def objects(self, kind: ObjectKind, reader: Callable[[msgspec.Raw], T], **selected: str) -> AsyncIterator[T]:
        """List objects as `reader` reads them, selected as in `pages`. Raises as that does and `ApiAnswer.read`."""
        async for page in self.pages(kind, **selected):  # type: ignore[arg-type]
            with translated(Call("list", kind.plural, kind.group, selected.get("namespace", ""))):
                found = [reader(raw) for raw in page.items or ()]
            for each in found:
                yield each

    @asynccontextmanager
    async def watch(
        self,
        kind: ObjectKind,
        *,
        since: str,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        seconds: int | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open a watch; inside the ``async with`` the server has accepted it.

        It yields the events after version `since`, until the server ends the watch, after `seconds` or about
        `Timing.watch_s`; continue from the version of the last event or bookmark. The server sends a bookmark about 2 s
        before the end.

        Raises:
            GoneError: the server no longer keeps the events since `since`; list again. The iterator raises it, too.
            UnavailableError: from the iterator: the connection broke or went silent.
        """
        call = Call("watch", kind.plural, kind.group, namespace)
        if seconds is None:
            seconds = math.ceil(self.timing.watch_s * random.uniform(0.9, 1.1))  # noqa: S311 - spreads load
        params = {
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **_selectors(fields, labels),
        }
        async with self._answer(
            call,
            "GET",
            kind.path(namespace=namespace),
            params=params,
            timeout=aiohttp.ClientTimeout(
                sock_connect=self.timing.connect_s, sock_read=seconds + self.timing.silence_s
            ),
        ) as response:
            yield events(call, response)

    async def create(
        self,
        kind: ObjectKind,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        timeout_s: float = math.inf,
        dry_run: bool = False,
    ) -> ApiAnswer:
        """Create an object or, with a name and a subresource (``binding``), have the server act on an object.

        With `dry_run` the server does all but store it.
        ConflictError: it exists, or the precondition inside `body` does not hold.
        """
        params = {"dryRun": "All"} if dry_run else None
        target = {"namespace": namespace, "subresource": subresource}
        answer = await self._call("create", kind, name, **target, timeout_s=timeout_s, body=body, params=params)
        if subresource:
            answer.check_success()
        return answer

    async def delete(self, kind: ObjectKind, name: str, *, namespace: str = "", uid: str = "") -> None:
        """Delete an object; only the one with this UID, where it is given: ConflictError if another has its name."""
        body = {"preconditions": {"uid": uid}} if uid else None
        await self._call("delete", kind, name, namespace=namespace, body=body)

    async def replace(
        self, kind: ObjectKind, name: str, body: Mapping[str, Any], *, namespace: str = "", timeout_s: float = math.inf
    ) -> ApiAnswer:
        """Replace an object by `body`, and return the new object.

        ConflictError: there is a newer version than the ``metadata.resourceVersion`` inside `body`.
        """
        return await self._call("update", kind, name, namespace=namespace, body=body, timeout_s=timeout_s)

    async def patch(
        self,
        kind: ObjectKind,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        how: PatchType = PatchType.MERGE,
        timeout_s: float = math.inf,
    ) -> ApiAnswer:
        """Change an object and return it.

        A ``metadata.resourceVersion`` inside `body` makes it compare-and-swap: ConflictError if there is a newer one.
        A ``metadata.uid`` guards against another object of the same name: InvalidError (1.36) or ConflictError.
        A server-side apply takes our fields from others who wrote them.
        """
        params = {"fieldManager": _US, "force": "true"} if how is PatchType.APPLY else None
        target: dict[str, Any] = {"namespace": namespace, "subresource": subresource, "timeout_s": timeout_s}
        return await self._call("patch", kind, name, **target, body=body, content_type=how.value, params=params)

    async def _call(
        self,
        verb: str,
        kind: ObjectKind,
        name: str = "",
        *,
        namespace: str = "",
        subresource: str = "",
        timeout_s: float = math.inf,
        **rest: Any,
    ) -> ApiAnswer:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        call = Call(verb, resource, kind.group, namespace, name)
        path = kind.path(namespace=namespace, name=name, subresource=subresource)
        async with self._answer(call, _METHODS[verb], path, timeout=self._limit(timeout_s), **rest) as response:
            with translated(call):
                return ApiAnswer.to(call, await response.read())

    def _limit(self, seconds: float = math.inf) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=min(seconds, self.timing.request_s), sock_connect=self.timing.connect_s)

    @asynccontextmanager
    async def _answer(self, call: Call, method: str, path: str, **rest: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._attempt(call, method, path, **rest) as response:
                yield response
        except ApiError as error:
            # A pod that the proxy does not reach says nothing about the server, and a 403 nothing about its absence.
            if isinstance(error, UnavailableError) and call.resource != "pods/proxy" and error.status != 403:
                self._unavailable_at = time.monotonic()
            if isinstance(error.__cause__, (aiohttp.ClientSSLError, ClusterConfigError)):
                self._credentials.forget_tls()
            self.on_error(error)
            raise

    @asynccontextmanager
    async def _attempt(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own, which also closes its connection
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a successful answer with an unread body. Errors of our own awaits are translated, not the caller's."""
        if self._session is None:
            raise RuntimeError(f"the client of {self._config.url} is used outside its `async with`")
        data = None if body is None else msgspec.json.encode(body)
        while True:
            with translated(call):
                async with asyncio.timeout(self.timing.request_s):
                    response = await self._session.request(
                        method,
                        self._config.url + path,
                        params=params,
                        data=data,
                        headers=self._headers(call, content_type if data is not None else ""),
                        timeout=timeout,
                        ssl=self._credentials.tls(),
                        allow_redirects=False,  # they would carry our token elsewhere
                    )
            async with response:
                if response.status < 300:
                    yield response
                    return
                if response.status == 401 and self._credentials.token_changed():
                    continue
                with translated(call):
                    async with asyncio.timeout(self.timing.request_s):
                        answer = await response.read()
                raise error_from(
                    call,
                    answer,
                    status=response.status,
                    retry_after=response.headers.get("Retry-After", ""),
                    starting=time.monotonic() - self._unavailable_at < self.timing.starting_s,
                )

    def _headers(self, call: Call, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type} if content_type else {}
        try:
            token = self._credentials.token()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it does not contain a token"
            raise UnauthorizedError(call, f"the token file cannot be read: {why}") from None
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})


def _selectors(fields: str, labels: str) -> dict[str, str]:
    """Return the parameters of a list or a watch of the objects that both selectors match; an empty one matches all."""
    return {key: value for key, value in (("fieldSelector", fields), ("labelSelector", labels)) if value}
