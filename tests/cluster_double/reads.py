"""Lists by pages, and watches, from a watch cache that may lag, for clients that may be lost."""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

from aiohttp import web

from gpu_device_plugin.testing.cluster import cluster_reads
from gpu_device_plugin.testing.cluster.cluster_kinds import ApiRequest, Json, Served, StatusError
from gpu_device_plugin.testing.cluster.cluster_reads import version_of
from gpu_device_plugin.testing.cluster.cluster_store import State, Store
from tests.cluster_double.selectors import label_selector


class _Lost(web.StreamResponse):
    """The answer to a peer that vanished without closing the connection: it receives nothing any more."""

    async def write(self, _data: Any) -> None:
        await asyncio.Event().wait()


class Reads(cluster_reads.Reads):
    """Serves all lists and watches."""

    label_selector = staticmethod(label_selector)

    def __init__(self, store: Callable[[], Store], *, bookmark_s: float, patience_s: float) -> None:
        """Wait `patience_s` seconds with a list for a version that does not exist yet."""
        super().__init__(store, bookmark_s)
        self._patience_s = patience_s
        self._held: State | None = None
        self._pages: dict[str, Json] = {}
        """What is left of lists, by the text with which a client continues."""

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
            watch.response = _Lost()

    def close(self) -> None:
        """End every open watch, like a server after its timeout."""
        for watch in self._open:
            watch.ended = True
        self._wake()

    async def list(self, served: Served, request: ApiRequest) -> Json:
        """Return a list, or a page of it."""
        token, limit = request.params.get("continue"), int(request.params.get("limit") or 0)
        whole = self._continued(token) if token else await super().list(served, request)
        meta, items = whole["metadata"], whole["items"]
        if not limit or len(items) <= limit:
            return whole
        version = meta["resourceVersion"]
        token = base64.urlsafe_b64encode(f"{version}:{len(self._pages)}".encode()).decode()
        self._pages[token] = {**whole, "items": items[limit:]}
        more = {"resourceVersion": version, "continue": token, "remainingItemCount": len(items) - limit}
        return {**whole, "metadata": more, "items": items[:limit]}

    def _continued(self, token: str) -> Json:
        page = self._pages.get(token)
        if page is None:
            raise StatusError(400, "BadRequest", "continue key is not valid")
        if int(page["metadata"]["resourceVersion"]) < self._store().oldest:
            raise StatusError(410, "Expired", "The provided continue parameter is too old to display a consistent list")
        return page

    async def state(self, since: str) -> State:
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

    @property
    def seen(self) -> int:
        return super().seen if self._held is None else self._held.version

    def _wake(self) -> None:
        self._store().changed.set(self._store().changed.value)
