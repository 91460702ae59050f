"""Write annotations on pods, in the background, until they stand or the pod is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.within import within
from gpu_device_plugin.cluster.api import PODS, UnreadableObjectError, read_metadata
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import (
    TRANSIENT,
    ApiError,
    Call,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.core.model.pods import Pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    pod: Pod
    annotations: Mapping[str, str | None]


@dataclass(slots=True)
class _Refused:
    """A pod that the API server has something against; the others go on without it."""

    backoff: Backoff
    not_before: float
    """By the clock of `time.monotonic`, in seconds."""


class PodWriter:
    """Annotations to be written, at most one patch for each pod and at most `limit` pods.

    A patch names the pod's uid: a namesake is never written on. It names no version, because the kubelet changes that
    all the time and nobody else writes these keys. A pod on which nothing can be written (an admission policy is
    against it, a right is missing) is tried again after growing times, up to `most_retry_s`, and holds up no other.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: str = "",
        refused: Callable[[Pod, ApiError], None] = lambda _pod, _error: None,
        limit: int = 1024,
        first_retry_s: float = 0.2,
        most_retry_s: float = 300.0,
    ) -> None:
        """Prepare to write on the pods of a node, whichever it is where none is named.

        `refused` is told of every attempt that failed by what stands on the pod, by a policy or for want of a right.
        """
        self._client = client
        self._of_node = f",spec.nodeName={node}" if node else ""
        self._tell = refused
        self._limit = limit
        self._first_retry_s = first_retry_s
        self._most_retry_s = most_retry_s
        self._waiting: dict[str, _Wanted] = {}
        self._refused: dict[str, _Refused] = {}
        self._queued = asyncio.Event()
        self.dropped = 0
        """Patches given up although their pods may still be there."""
        self.problem: ApiError | None = None
        """Why the last attempt failed; None if it did not."""

    def __repr__(self) -> str:
        return f"<PodWriter: {len(self._waiting)} waiting, {self.dropped} dropped, {self.problem or 'no problem'}>"

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Have `annotations` written on `pod`, soon; None removes a key. Returns at once and never fails.

        What waits for the same pod already is written with it, the newer value of a key winning.
        """
        waiting = self._waiting.get(pod.uid)
        merged = {**(waiting.annotations if waiting else {}), **annotations}
        if not merged:
            return
        self._waiting[pod.uid] = _Wanted(pod, merged)
        if len(self._waiting) > self._limit:
            self._done(next(iter(self._waiting.values())))
            self.dropped += 1
        self._queued.set()

    async def run(self) -> NoReturn:
        """Write what is asked for. Ends only by cancellation; what waits then is lost, and known to the kubelet."""
        backoff = Backoff(self._first_retry_s)
        while True:
            wanted = await self._next()
            try:
                if not await self._write(wanted):
                    _log.info("pod %s/%s is gone before it was annotated", wanted.pod.namespace, wanted.pod.name)
            except (*TRANSIENT, UnauthorizedError) as error:
                self._failed(wanted, error)
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
            except ApiError as error:
                self._failed(wanted, error)
                self._put_off(wanted.pod, error)
            else:
                self.problem = None
                backoff.reset()
                self._done(wanted)

    async def _next(self) -> _Wanted:
        """Return the first that may be tried, as soon as there is one."""
        while True:
            self._queued.clear()
            times = {uid: self._refused[uid].not_before for uid in self._waiting if uid in self._refused}
            now = time.monotonic()
            for uid, wanted in self._waiting.items():
                if times.get(uid, now) <= now:
                    return wanted
            await within(min(times.values()) - now if times else None, self._queued.wait())

    async def _write(self, wanted: _Wanted) -> bool:
        """Patch the pod; return False if there is no such pod any more."""
        pod = wanted.pod
        body = {"metadata": {"uid": pod.uid, "annotations": wanted.annotations}}
        try:
            read_metadata(await self._client.patch(PODS, pod.name, body, namespace=pod.namespace))
        except NotFoundError:
            return False
        except UnreadableObjectError as error:  # a proxy on the way answers so
            call = Call("patch", PODS.plural, namespace=pod.namespace, name=pod.name)
            raise UnavailableError(call, str(error)) from error
        except (ConflictError, InvalidError) as refusal:
            # Both are said of a namesake, and of other things. Only a fresh look tells.
            if await self._is_there(pod, refusal.call):
                raise
            return False
        return True

    async def _is_there(self, pod: Pod, call: Call) -> bool:
        """Look for the pod in a list of its node's pods: an account may have no right to read others."""
        fields = f"metadata.name={pod.name}{self._of_node}"
        try:
            async for page in self._client.pages(PODS, namespace=pod.namespace, fields=fields):
                if any(read_metadata(found).uid == pod.uid for found in page.items or ()):
                    return True
        except UnreadableObjectError as error:
            raise UnavailableError(call, f"looking at the pod again: {error}") from error
        return False

    def _failed(self, wanted: _Wanted, error: ApiError) -> None:
        if type(error) is not type(self.problem):
            _log.warning("annotations of pod %s/%s are not written: %s", wanted.pod.namespace, wanted.pod.name, error)
        self.problem = error
        if wanted.pod.uid in self._waiting:  # the next one first, in case only this pod is in trouble
            self._waiting[wanted.pod.uid] = self._waiting.pop(wanted.pod.uid)

    def _put_off(self, pod: Pod, error: ApiError) -> None:
        if pod.uid not in self._waiting:
            return
        known = self._refused.get(pod.uid)
        backoff = known.backoff if known else Backoff(self._first_retry_s, self._most_retry_s)
        self._refused[pod.uid] = _Refused(backoff, time.monotonic() + backoff.next_s(error.retry_after_s))
        if not isinstance(error, ConflictError):  # which says that somebody else was faster
            self._tell(pod, error)

    def _done(self, wanted: _Wanted) -> None:
        """Forget `wanted`, unless more was asked for meanwhile."""
        self._refused.pop(wanted.pod.uid, None)
        if self._waiting.get(wanted.pod.uid) == wanted:
            del self._waiting[wanted.pod.uid]
