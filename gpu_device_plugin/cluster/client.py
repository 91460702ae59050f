"""Speak to the Kubernetes API: read, list, watch, create, replace and patch objects as JSON.

Every call is one attempt with a deadline, and fails with one of the types in `errors`; what to do then is the caller's
to decide. The one exception is a 401: the token file is read again and, if it changed, the call repeated.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import ssl
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from gpu_device_plugin.cluster.api import Page, WatchEvent, version_number
from gpu_device_plugin.cluster.config import ClusterConfigError
from gpu_device_plugin.cluster.credentials import Credentials
from gpu_device_plugin.cluster.errors import ApiError, Call, UnauthorizedError, UnavailableError, error_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from types import TracebackType

    from gpu_device_plugin.cluster.api import Kind
    from gpu_device_plugin.cluster.config import ClusterConfig

_LONGEST_EVENT = 16 << 20
"""Bytes. etcd keeps no object above 1.5 MiB; a longer line in a watch is no event."""


_METHODS = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}
"""By the verb as RBAC calls it."""


class PatchType(StrEnum):
    """How a patch is understood; the value is its content type."""

    MERGE = "application/merge-patch+json"
    """Null removes, lists are replaced."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """Lists of named things are merged by name."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long we wait for what, in seconds."""

    connect_s: float = 5.0
    request_s: float = 15.0
    """From the first byte of a request to the last of its answer; for a watch, to the answer's head."""
    watch_s: float = 60.0
    """After about so long the server ends a watch, which is then continued. Each watch differs by up to a tenth."""
    silence_s: float = 20.0
    """A watch in which nothing came for so much longer than `watch_s` is on a dead connection."""
    token_s: float = 60.0
    """How old a token may be before its file is read again."""


DEFAULT_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Server:
    """An API server, as it describes itself."""

    version: str
    """Like ``v1.36.2``."""
    clock_s: float | None
    """What its clock showed, in whole seconds since the epoch; None if it did not say."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


class Client:
    """One connection pool to one API server; use it in an ``async with``, in one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        timing: Timing = DEFAULT_TIMING,
        on_error: Callable[[ApiError], None] = lambda _error: None,
    ) -> None:
        """Speak to the server of `config`; `on_error` is told of every call that fails, before its caller is."""
        self._config = config
        self._on_error = on_error
        self._timing = timing
        self._credentials = Credentials(config, timing.token_s)
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Client of {self._config.url}>"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Answers are read once and dropped: compressing them costs both sides more than the network between them.
            headers={"User-Agent": "gpu-device-plugin", "Accept": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
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
            # Being told to end while we end already does not hide why: `error` goes on.

    async def get(self, kind: Kind, name: str, *, namespace: str = "", timeout_s: float = math.inf) -> bytes:
        """Return one object as it is now. `timeout_s` here and below: if less patience is wanted than `Timing` has."""
        return await self._call("get", kind, name, namespace=namespace, timeout_s=timeout_s)

    async def server(self) -> Server:
        """Return what the server says of itself."""
        call = Call("get", "/version")
        timeout = aiohttp.ClientTimeout(total=self._timing.request_s, sock_connect=self._timing.connect_s)
        async with self._answer(call, "GET", "/version", timeout=timeout) as response:
            with _translated(call):
                answer = await response.read()
            date = response.headers.get("Date", "")
        try:
            version = msgspec.json.decode(answer, type=_Version).git_version
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UnavailableError(call, "the answer is no version") from None
        try:
            return Server(version, parsedate_to_datetime(date).timestamp())
        except ValueError:
            return Server(version, None)

    async def newest(self, kind: Kind) -> int:
        """Return the newest version there is: what the server tells of `kind` from now on is not older.

        It comes from a list of one object at most, which the server makes no older than what etcd holds.
        """
        return version_number((await self._page(kind, "", {"limit": "1"})).metadata.resource_version)

    async def pages(
        self, kind: Kind, *, namespace: str = "", fields: str = "", labels: str = "", since: str = "", limit: int = 500
    ) -> AsyncIterator[Page]:
        """List objects, page by page; every page carries the version of the whole list.

        Args:
            kind: what to list.
            namespace: only there; empty: everywhere.
            fields: field selector.
            labels: label selector.
            since: the state not older than this version. ``0`` is whatever the server has at hand; empty asks for the
                newest state, which costs the cluster most.
            limit: most objects in a page.

        Raises:
            GoneError: the list changed too much under way; begin again with `since` empty.
        """
        selected = {"limit": str(limit), **_selectors(fields, labels)}
        # Without a match rule, a limit turns a version into "exactly this one".
        wanted = {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"} if since else {}
        while True:
            page = await self._page(kind, namespace, selected | wanted)
            yield page
            if not page.metadata.continue_:
                return
            wanted = {"continue": page.metadata.continue_}

    @asynccontextmanager
    async def watch(
        self,
        kind: Kind,
        *,
        since: str,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        seconds: int | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open a watch; inside the ``async with`` the server has accepted it.

        The events are those after version `since`. They end when the server ends the watch, after `seconds` or about
        `Timing.watch_s`; continue from the version of the last event or bookmark. About 2 s before the end there is a
        bookmark.

        Raises:
            GoneError: the server no longer knows what happened since `since`; list again. Also raised by the events.
            UnavailableError: by the events: the connection broke or went silent.
        """
        call = Call("watch", kind.plural, kind.group, namespace)
        if seconds is None:
            seconds = math.ceil(self._timing.watch_s * random.uniform(0.9, 1.1))  # noqa: S311 - spreads load
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
                sock_connect=self._timing.connect_s, sock_read=seconds + self._timing.silence_s
            ),
        ) as response:
            yield _events(call, response)

    async def create(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        timeout_s: float = math.inf,
    ) -> bytes:
        """Create an object, or with a name and a subresource (``binding``) something beneath one.

        Raises:
            ConflictError: it exists already, or the precondition inside `body` does not hold.
        """
        return await self._call(
            "create", kind, name, namespace=namespace, subresource=subresource, body=body, timeout_s=timeout_s
        )

    async def replace(
        self, kind: Kind, name: str, body: Mapping[str, Any], *, namespace: str = "", timeout_s: float = math.inf
    ) -> bytes:
        """Put `body` in the place of an object, and return what stands there now.

        Raises:
            ConflictError: there is a newer version than the ``metadata.resourceVersion`` inside `body`.
        """
        return await self._call("update", kind, name, namespace=namespace, body=body, timeout_s=timeout_s)

    async def patch(
        self,
        kind: Kind,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        how: PatchType = PatchType.MERGE,
    ) -> bytes:
        """Change an object and return it.

        A ``metadata.resourceVersion`` inside `body` makes it compare-and-swap: ConflictError if there is a newer one.
        A ``metadata.uid`` makes sure that it is not a namesake: InvalidError (1.36) or ConflictError.
        """
        return await self._call(
            "patch", kind, name, namespace=namespace, subresource=subresource, body=body, content_type=how.value
        )

    async def _page(self, kind: Kind, namespace: str, params: Mapping[str, str]) -> Page:
        answer = await self._call("list", kind, namespace=namespace, params=params)
        try:
            return msgspec.json.decode(answer, type=Page)
        except (msgspec.DecodeError, UnicodeDecodeError):
            call = Call("list", kind.plural, kind.group, namespace)
            raise UnavailableError(call, "the answer is no list of objects") from None

    async def _call(
        self,
        verb: str,
        kind: Kind,
        name: str = "",
        *,
        namespace: str = "",
        subresource: str = "",
        timeout_s: float = math.inf,
        **rest: Any,
    ) -> bytes:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        call = Call(verb, resource, kind.group, namespace, name)
        path = kind.path(namespace=namespace, name=name, subresource=subresource)
        timeout = aiohttp.ClientTimeout(
            total=min(timeout_s, self._timing.request_s), sock_connect=self._timing.connect_s
        )
        async with self._answer(call, _METHODS[verb], path, timeout=timeout, **rest) as response:
            with _translated(call):
                return await response.read()

    @asynccontextmanager
    async def _answer(self, call: Call, method: str, path: str, **rest: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._attempt(call, method, path, **rest) as response:
                yield response
        except ApiError as error:
            self._on_error(error)
            raise

    @asynccontextmanager
    async def _attempt(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own, which ends its connection too
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an answer of success with its body still unread. Only our own awaits are translated, not the user's."""
        if self._session is None:
            raise RuntimeError(f"{self!r} is used outside its `async with`")
        data = None if body is None else msgspec.json.encode(body)
        while True:
            with self._tls_forgotten_on_failure(), _translated(call):
                async with asyncio.timeout(self._timing.request_s):
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
                with _translated(call):
                    async with asyncio.timeout(self._timing.request_s):
                        answer = await response.read()
                raise error_from(
                    call, answer, status=response.status, retry_after=response.headers.get("Retry-After", "")
                )

    def _headers(self, call: Call, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type} if content_type else {}
        try:
            token = self._credentials.token()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds something that is no token"
            raise UnauthorizedError(call, f"the token file cannot be read: {why}") from None
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})

    @contextmanager
    def _tls_forgotten_on_failure(self) -> Iterator[None]:
        """Read the certificates anew for the next call: an authority is rotated by replacing the file."""
        try:
            yield
        except UnavailableError as error:
            if isinstance(error.__cause__, (aiohttp.ClientSSLError, ClusterConfigError)):
                self._credentials.forget_tls()
            raise


def _selectors(fields: str, labels: str) -> dict[str, str]:
    return {key: value for key, value in (("fieldSelector", fields), ("labelSelector", labels)) if value}


@contextmanager
def _translated(call: Call) -> Iterator[None]:
    """Turn whatever kept an answer from us into an UnavailableError; its cause stays attached."""
    try:
        yield
    except TimeoutError as error:
        sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
        raise UnavailableError(call, "no answer in time", sent=sent) from error
    except aiohttp.ClientConnectorError as error:
        why = f"cannot connect to {error.host}:{error.port}: {_no_connection(error.os_error)}"
        raise UnavailableError(call, why, sent=False) from error
    except (aiohttp.ClientError, OSError, ClusterConfigError) as error:
        sent = not isinstance(error, ClusterConfigError)
        raise UnavailableError(call, str(error) or type(error).__name__, sent=sent) from error


def _no_connection(error: OSError) -> str:
    # asyncio writes the address in the place of the system's word; where names are resolved, and in TLS, the number
    # is not one of the system's.
    if error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


async def _events(call: Call, response: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
    decoder = msgspec.json.Decoder(WatchEvent)
    rest = b""
    while True:
        with _translated(call):
            # Not readline: it refuses lines above 128 KiB, and a pod may be ten times that.
            chunk = await response.content.readany()
        if not chunk:
            if rest.strip():
                raise UnavailableError(call, "the connection ended inside an event")
            return
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_EVENT:
            raise UnavailableError(call, f"an event is longer than {_LONGEST_EVENT >> 20} MiB")
        for line in lines:
            try:
                event = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise UnavailableError(call, "what came is no event of a watch") from None
            if event.type == "ERROR":
                raise error_from(call, event.object)
            yield event
