"""Serve paged lists and watches like an API server, from a watch cache that may lag."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.testing.cluster.cluster_kinds import CORE_EVENTS, EVENTS, Served, StatusError, core_event
from gpu_device_plugin.testing.cluster.cluster_requests import ApiRequest, status_of, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.testing.builders import Json
    from gpu_device_plugin.testing.cluster.cluster_store import State, Store

_LONGEST_WATCH_S = 1800.0
_LAST_BOOKMARK_S = 2.0
"""The last bookmark comes this long before the end of a watch; a shorter watch gets none."""


@dataclass(eq=False, slots=True)
class _Watch:
    """An open watch and its connection."""

    response: web.StreamResponse
    served: Served
    namespace: str
    selected: Callable[[Json], bool]
    ended: bool = False
    half_open: bool = False
    """The peer vanished without closing the connection: it receives nothing any more."""

    def wants(self, found: Json) -> bool:
        inside = not self.namespace or found["metadata"].get("namespace") == self.namespace
        return inside and self.selected(found)

    async def send(self, kind: str, body: Json) -> None:
        if self.half_open:
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


@dataclass(eq=False)
class Reads:
    """Serves all lists and watches."""

    _store: Callable[[], Store]
    """Called each time: a test may have replaced the store."""
    _bookmark_s: float
    _patience_s: float

    def __post_init__(self) -> None:
        self._held: State | None = None
        self._open: set[_Watch] = set()
        self._pages: dict[str, tuple[int, Sequence[Json]]] = {}

    @property
    def watches(self) -> int:
        """The number of open watches, including half-open ones."""
        return len(self._open)

    def hold(self) -> None:
        """Let the cache lag: watches, and lists that may use the cache, do not see later changes."""
        self._held = self._store().state()

    def release(self) -> None:
        """Let the cache catch up."""
        self._held = None
        self._wake()

    def lose_peers(self) -> None:
        """Silence every open watch for ever."""
        for watch in self._open:
            watch.half_open = True

    def close(self) -> None:
        """End every open watch, like a server after its timeout."""
        for watch in self._open:
            watch.ended = True
        self._wake()

    async def list(self, served: Served, request: ApiRequest) -> Json:
        """Return a list, or a page of it."""
        params = request.params
        limit = int(params.get("limit") or 0)
        if params.get("continue"):
            version, found = self._continued(params["continue"])
        else:
            state = await self._state(params.get("resourceVersion", ""))
            version = state.version
            selected = served.selector(params.get("fieldSelector", ""), params.get("labelSelector", ""))
            objects = state.objects[EVENTS if served is CORE_EVENTS else served]
            if served is CORE_EVENTS:
                objects = {key: core_event(one) for key, one in objects.items()}
            found = [
                # The items of a list carry no kind or apiVersion.
                {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
                for key, one in sorted(objects.items())
                if selected(one) and (not request.namespace or key[0] == request.namespace)
            ]
        meta: Json = {"resourceVersion": str(version)}
        if limit and len(found) > limit:
            meta["continue"] = base64.urlsafe_b64encode(f"{version}:{len(self._pages)}".encode()).decode()
            meta["remainingItemCount"] = len(found) - limit
            self._pages[meta["continue"]] = version, found[limit:]
            found = found[:limit]
        return {"kind": f"{served.kind}List", "apiVersion": served.api_version, "metadata": meta, "items": found}

    def _continued(self, token: str) -> tuple[int, Sequence[Json]]:
        page = self._pages.get(token)
        if page is None:
            raise StatusError(400, "BadRequest", "continue key is not valid")
        if page[0] < self._store().oldest:
            raise StatusError(410, "Expired", "The provided continue parameter is too old to display a consistent list")
        return page

    async def _state(self, since: str) -> State:
        """Return a state not older than `since`, from the watch cache unless the newest state is requested."""
        if not since:
            return self._store().state()
        wanted = version_of(since)
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    state = self._held or self._store().state()
                    if state.version >= wanted:
                        return state
                    await self._store().changed.after(self._store().changed.version)
        except TimeoutError:
            raise StatusError(
                504,
                "Timeout",
                f"Timeout: Too large resource version: {wanted}, current: {state.version}",
                {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
            ) from None

    async def watch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        """Answer a watch until its end."""
        params = request.params
        selected = served.selector(params.get("fieldSelector", ""), params.get("labelSelector", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(http)
        except ConnectionError:  # the connection broke before the answer
            return response
        watch = _Watch(response, served, request.namespace, selected)
        self._open.add(watch)
        try:
            await self._feed(watch, params)
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            self._open.discard(watch)
        return response

    async def _feed(self, watch: _Watch, params: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        begin = params.get("resourceVersion", "")
        done = version_of(begin) if begin else 0
        if done and done < self._store().oldest:
            await watch.send("ERROR", status_of(StatusError(410, "Expired", f"too old resource version: {done}")))
            return
        if not done:
            state = self._held or self._store().state()
            done = state.version
            for _, found in sorted(state.objects[watch.served].items()):
                if watch.wants(found):
                    await watch.send("ADDED", found)
        end = loop.time() + float(params.get("timeoutSeconds") or _LONGEST_WATCH_S)
        bookmarks = params.get("allowWatchBookmarks", "").lower() in {"1", "true"}
        bookmark = loop.time() + self._bookmark_s
        if loop.time() < end - _LAST_BOOKMARK_S:
            bookmark = min(bookmark, end - _LAST_BOOKMARK_S)
        while not watch.ended and done >= self._store().oldest:  # a watch that lags too far is ended
            tick = self._store().changed.version
            done = await self._send_events(watch, done)
            now = loop.time()
            if bookmarks and now >= bookmark:
                await watch.bookmark(done)
                bookmark = now + self._bookmark_s
            if now >= end:
                return
            await wait_within((min(bookmark, end) if bookmarks else end) - now, self._store().changed.after(tick))

    async def _send_events(self, watch: _Watch, done: int) -> int:
        """Send the events after version `done`, and return the version up to which they are sent."""
        newest = self._held.version if self._held is not None else self._store().version
        for change in self._store().changes_after(done, newest):
            event = change.seen_by(watch.wants) if change.served is watch.served else None
            if event is not None:
                await watch.send(*event)
        return max(done, newest)

    def _wake(self) -> None:
        self._store().changed.set(self._store().changed.value)
