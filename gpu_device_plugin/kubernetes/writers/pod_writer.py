"""Write annotations on pods in the background, with retries until they are written or the pod is deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.worker import Backoff, Worker
from gpu_device_plugin.kubernetes.client.errors import (
    TRANSIENT,
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from gpu_device_plugin.kubernetes.objects.decoding import PODS, read_metadata

if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.client.api_client import Client
    from gpu_device_plugin.model.pods import Pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    pod: Pod
    annotations: Mapping[str, str | None]


@dataclass(eq=False)
class PodWriter:
    """A queue of annotations to write, with at most one patch for each pod and at most `limit` pods.

    A patch names the pod's uid, so that another pod of the same name is never annotated. It names no resourceVersion,
    because the kubelet changes that often and no other client writes these keys. A refused patch (an admission policy
    denies it, a right is missing) is retried with backoff, up to `most_retry_s`, and holds up no other pod.
    """

    _client: Client
    _: KW_ONLY
    node: str = ""
    """The node of all pods; empty: they may be on any."""
    refused: Callable[[Pod, ApiError], None] = lambda _pod, _error: None
    """Called for every attempt that failed because of the pod's content, a policy or a missing right."""
    limit: int = 1024
    first_retry_s: float = 0.2
    most_retry_s: float = 300.0
    dropped: int = field(default=0, init=False)
    """Dropped patches whose pods may still exist."""
    problem: ApiError | None = field(default=None, init=False)
    """Why the last attempt failed; None if it did not."""

    def __post_init__(self) -> None:
        self._waiting: dict[str, _Wanted] = {}
        self._refused: dict[str, tuple[Backoff, float]] = {}
        """By UID of a pod whose patches the API server refuses: its backoff, and when the next one may be sent, in
        seconds by the clock of `time.monotonic`."""
        self._backoff = Backoff(self.first_retry_s)
        self._worker = Worker(self._step)

    def __repr__(self) -> str:
        return f"<PodWriter: {len(self._waiting)} waiting, {self.dropped} dropped, {self.problem or 'no problem'}>"

    def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """Queue `annotations` for `pod`; None removes a key. Returns at once and never fails.

        They are merged with those already queued for the pod; the newer value of a key wins.
        """
        waiting = self._waiting.get(pod.uid)
        merged = {**(waiting.annotations if waiting else {}), **annotations}
        if not merged:
            return
        self._waiting[pod.uid] = _Wanted(pod, merged)
        if len(self._waiting) > self.limit:
            self._done(next(iter(self._waiting.values())))
            self.dropped += 1
        self._worker.wake()

    async def run(self) -> NoReturn:
        """Write the queued annotations. Ends only by cancellation; the kubelet's records have what is still queued."""
        await self._worker.run()

    async def _step(self) -> float | None:
        """Try the first entry that may be tried; return in how many seconds there is another one."""
        times = {uid: self._refused[uid][1] for uid in self._waiting if uid in self._refused}
        now = time.monotonic()
        wanted = next((wanted for uid, wanted in self._waiting.items() if times.get(uid, now) <= now), None)
        if wanted is None:
            return min(times.values()) - now if times else None
        try:
            if not await self._write(wanted):
                _log.info("pod %s/%s was deleted before it was annotated", wanted.pod.namespace, wanted.pod.name)
        except (*TRANSIENT, UnauthorizedError) as error:
            self._failed(wanted, error)
            await asyncio.sleep(self._backoff.next_s(error.retry_after_s))
        except ApiError as error:
            self._failed(wanted, error)
            self._put_off(wanted.pod, error)
        else:
            self.problem = None
            self._backoff.reset()
            self._done(wanted)
        return 0.0

    async def _write(self, wanted: _Wanted) -> bool:
        """Patch the pod; return False if the pod no longer exists."""
        pod = wanted.pod
        body = {"metadata": {"uid": pod.uid, "annotations": wanted.annotations}}
        try:
            (await self._client.patch(PODS, pod.name, body, namespace=pod.namespace)).read(read_metadata)
        except NotFoundError:
            return False
        except (ConflictError, InvalidError):
            # Both may mean another pod of the same name, or another fault. Only a fresh list shows which.
            if await self._is_there(pod):
                raise
            return False
        return True

    async def _is_there(self, pod: Pod) -> bool:
        """Look for the pod in a list of its node's pods: the account may have no right to read other pods."""
        fields = f"metadata.name={pod.name}" + (f",spec.nodeName={self.node}" if self.node else "")
        named = self._client.objects(PODS, read_metadata, namespace=pod.namespace, fields=fields)
        return pod.uid in [found.uid async for found in named]

    def _failed(self, wanted: _Wanted, error: ApiError) -> None:
        if type(error) is not type(self.problem):
            _log.warning("annotations of pod %s/%s are not written: %s", wanted.pod.namespace, wanted.pod.name, error)
        self.problem = error
        if wanted.pod.uid in self._waiting:  # to the end of the queue, in case only this pod fails
            self._waiting[wanted.pod.uid] = self._waiting.pop(wanted.pod.uid)

    def _put_off(self, pod: Pod, error: ApiError) -> None:
        if pod.uid not in self._waiting:
            return
        backoff, _ = self._refused.get(pod.uid) or (Backoff(self.first_retry_s, self.most_retry_s), 0.0)
        self._refused[pod.uid] = backoff, time.monotonic() + backoff.next_s(error.retry_after_s)
        if not isinstance(error, ConflictError):  # a conflict is a lost race, not a refusal
            self.refused(pod, error)

    def _done(self, wanted: _Wanted) -> None:
        """Remove `wanted` from the queue, unless more annotations were queued meanwhile."""
        self._refused.pop(wanted.pod.uid, None)
        if self._waiting.get(wanted.pod.uid) == wanted:
            del self._waiting[wanted.pod.uid]
