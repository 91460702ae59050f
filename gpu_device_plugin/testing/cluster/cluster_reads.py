"""Serve lists and watches like an API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.testing.cluster.cluster_kinds import (
    CORE_EVENTS,
    EVENTS,
    ApiRequest,
    Json,
    Served,
    StatusError,
    core_event,
    label_selector,
)
from gpu_device_plugin.testing.cluster.cluster_store import State, Store

_LONGEST_WATCH_S = 1800.0
_LAST_BOOKMARK_S = 2.0
"""The last bookmark comes this long before the end of a watch; a shorter watch gets none."""


def version_of(text: str) -> int:
    """Read a resourceVersion, or raise StatusError."""
    if not (text.isascii() and text.isdigit()):
        raise StatusError(400, "BadRequest", f"Invalid value: {text!r}: resource version must be a number")
    return int(text)


@dataclass(eq=False)
class _Watch:
    """An open watch and its connection."""

    response: web.StreamResponse
    served: Served
    namespace: str
    selected: Callable[[Json], bool]
    ended: bool = False

    def wants(self, found: Json) -> bool:
        inside = not self.namespace or found["metadata"].get("namespace") == self.namespace
        return inside and self.selected(found)

    async def send(self, kind: str, body: Json) -> None:
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
    bookmark_s: float = 60.0
    """The time between bookmarks in a watch, in seconds."""

    label_selector = staticmethod(label_selector)
    """Reads the selectors of labels."""

    def __post_init__(self) -> None:
        self._open: set[_Watch] = set()

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return len(self._open)

    async def list(self, served: Served, request: ApiRequest) -> Json:
        """Return a list, whole even where a page of it is asked for."""
        params = request.params
        state = await self.state(params.get("resourceVersion", ""))
        selected = self._selected(served, params)
        objects = state.objects[EVENTS if served is CORE_EVENTS else served]
        if served is CORE_EVENTS:
            objects = {key: core_event(one) for key, one in objects.items()}
        found = [
            # The items of a list carry no kind or apiVersion.
            {key: value for key, value in one.items() if key not in {"kind", "apiVersion"}}
            for key, one in sorted(objects.items())
            if selected(one) and (not request.namespace or key[0] == request.namespace)
        ]
        meta = {"resourceVersion": str(state.version)}
        return {"kind": f"{served.kind}List", "apiVersion": served.api_version, "metadata": meta, "items": found}

    async def state(self, _since: str) -> State:
        """Return a state not older than the version `_since`."""
        return self._store().state()

    @property
    def seen(self) -> int:
        """The version of the newest change that watches see."""
        return self._store().version

    def _selected(self, served: Served, params: Mapping[str, str]) -> Callable[[Json], bool]:
        return served.selector(params.get("fieldSelector", ""), params.get("labelSelector", ""), self.label_selector)

    async def watch(self, http: web.Request, served: Served, request: ApiRequest) -> web.StreamResponse:
        """Answer a watch until its end."""
        params = request.params
        selected = self._selected(served, params)
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
            await watch.send("ERROR", StatusError(410, "Expired", f"too old resource version: {done}").status)
            return
        if not done:
            state = await self.state("0")
            done = state.version
            for _, found in sorted(state.objects[watch.served].items()):
                if watch.wants(found):
                    await watch.send("ADDED", found)
        end = loop.time() + float(params.get("timeoutSeconds") or _LONGEST_WATCH_S)
        bookmarks = params.get("allowWatchBookmarks", "").lower() in {"1", "true"}
        bookmark = loop.time() + self.bookmark_s
        if loop.time() < end - _LAST_BOOKMARK_S:
            bookmark = min(bookmark, end - _LAST_BOOKMARK_S)
        while not watch.ended and done >= self._store().oldest:  # a watch that lags too far is ended
            tick = self._store().changed.version
            done = await self._send_events(watch, done)
            now = loop.time()
            if bookmarks and now >= bookmark:
                await watch.bookmark(done)
                bookmark = now + self.bookmark_s
            if now >= end:
                return
            await wait_within((min(bookmark, end) if bookmarks else end) - now, self._store().changed.after(tick))

    async def _send_events(self, watch: _Watch, done: int) -> int:
        """Send the events after version `done`, and return the version up to which they are sent."""
        newest = self.seen
        for change in self._store().changes_after(done, newest):
            event = change.seen_by(watch.wants) if change.served is watch.served else None
            if event is not None:
                await watch.send(*event)
        return max(done, newest)
