"""Write annotations on pods, in the background, until they stand or the pod is gone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.cluster.api import PODS, UnreadableObjectError, read_metadata
from gpu_device_plugin.cluster.backoff import Backoff
from gpu_device_plugin.cluster.errors import (
    ApiError,
    Call,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.api import PodRecord
    from gpu_device_plugin.cluster.client import Client

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str | None]


class PodWriter:
    """Annotations to be written, at most one patch for each pod and at most `limit` pods.

    A patch names the pod's uid: a namesake is never written on. It names no version, because the kubelet changes that
    all the time and nobody else writes these keys.
    """

    def __init__(self, client: Client, *, limit: int = 1024, attempts: int = 5, first_retry_s: float = 0.2) -> None:
        """Give up on a pod after `attempts` conflicts in a row with what is there."""
        self._client = client
        self._limit = limit
        self._attempts = attempts
        self._first_retry_s = first_retry_s
        self._waiting: dict[str, _Wanted] = {}
        self._conflicts: dict[str, int] = {}
        self._queued = asyncio.Event()
        self.dropped = 0
        """Patches given up although their pods may still be there."""
        self.problem: ApiError | None = None
        """Why the last attempt failed; None if it did not."""

    def __repr__(self) -> str:
        return f"<PodWriter: {len(self._waiting)} waiting, {self.dropped} dropped, {self.problem or 'no problem'}>"

    def annotate(self, pod: PodRecord, annotations: Mapping[str, str | None]) -> None:
        """Have `annotations` written on `pod`, soon; None removes a key. Returns at once and never fails.

        What waits for the same pod already is written with it, the newer value of a key winning.
        """
        waiting = self._waiting.get(pod.uid)
        merged = {**(waiting.annotations if waiting else {}), **annotations}
        if not merged:
            return
        self._waiting[pod.uid] = _Wanted(pod.namespace, pod.name, pod.uid, merged)
        if len(self._waiting) > self._limit:
            self._done(next(iter(self._waiting.values())))
            self.dropped += 1
        self._queued.set()

    async def run(self) -> NoReturn:
        """Write what is asked for. Ends only by cancellation; what waits then is lost, and known to the kubelet."""
        backoff = Backoff(self._first_retry_s)
        while True:
            await self._queued.wait()
            wanted = next(iter(self._waiting.values()))
            try:
                if not await self._write(wanted):
                    _log.info("pod %s/%s is gone before it was annotated", wanted.namespace, wanted.name)
            except ApiError as error:
                self._failed(wanted, error)
                await asyncio.sleep(backoff.next_s(error.retry_after_s))
            else:
                self.problem = None
                backoff.reset()
                self._done(wanted)

    async def _write(self, wanted: _Wanted) -> bool:
        """Patch the pod; return False if there is no such pod any more."""
        body = {"metadata": {"uid": wanted.uid, "annotations": wanted.annotations}}
        try:
            read_metadata(await self._client.patch(PODS, wanted.name, body, namespace=wanted.namespace))
        except NotFoundError:
            return False
        except UnreadableObjectError as error:  # a proxy on the way answers so
            call = Call("patch", PODS.plural, namespace=wanted.namespace, name=wanted.name)
            raise UnavailableError(call, str(error)) from error
        except (ConflictError, InvalidError) as refusal:
            # Both are said of a namesake, and of other things. Only a fresh look tells.
            try:
                there = read_metadata(await self._client.get(PODS, wanted.name, namespace=wanted.namespace))
            except NotFoundError:
                return False
            except UnreadableObjectError as error:
                raise UnavailableError(refusal.call, f"looking at the pod again: {error}") from error
            if there.uid == wanted.uid:
                raise
            return False
        return True

    def _failed(self, wanted: _Wanted, error: ApiError) -> None:
        if type(error) is not type(self.problem):
            _log.warning("annotations of pod %s/%s are not written: %s", wanted.namespace, wanted.name, error)
        self.problem = error
        conflicts = self._conflicts[wanted.uid] = self._conflicts.get(wanted.uid, 0) + isinstance(error, ConflictError)
        if isinstance(error, InvalidError) or conflicts >= self._attempts:
            self._done(wanted)
            self.dropped += 1
        elif self._waiting.get(wanted.uid) is not None:  # the next one first, in case only this pod is in trouble
            self._waiting[wanted.uid] = self._waiting.pop(wanted.uid)

    def _done(self, wanted: _Wanted) -> None:
        """Forget `wanted`, unless more was asked for meanwhile."""
        if self._waiting.get(wanted.uid) == wanted:
            del self._waiting[wanted.uid]
            self._conflicts.pop(wanted.uid, None)
        if not self._waiting:
            self._queued.clear()
