"""Leader election among the replicas, by a Lease, compatible with client-go's leader election."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.kubernetes.client.answers import ApiAnswer
from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, ConflictError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import LEASES
from gpu_device_plugin.model.times import micro_time

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The three times of a leader election, in seconds, with the defaults of Kubernetes' own components."""

    lease_s: int = 15
    """Lease duration: others may take the lease when its holder has not renewed it for this long."""
    renew_s: float = 10.0
    """Renew deadline: a leader that could not renew the lease for this long steps down."""
    retry_s: float = 2.0
    """Retry period: the time between attempts to acquire or renew the lease."""
    release_s: float = 2.0
    """Timeout of releasing the lease at shutdown; a lease that is not released expires."""

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > 1.2 * self.retry_s > 0:
            raise ValueError(
                f"a lease of {self.lease_s} s must be longer than its renew deadline of {self.renew_s} s, and that"
                f" longer than 1.2 times the {self.retry_s} s between attempts"
            )


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: dict[str, Any]
    spec: _Spec | None = None


async def holder_of(client: Client, namespace: str, name: str, *, timeout_s: float) -> tuple[str, int]:
    """Return the holder of a Lease, empty: none, and how often it has changed. Raises ApiError."""
    try:
        answer = await client.get(LEASES, name, namespace=namespace, timeout_s=timeout_s)
    except NotFoundError:
        return "", 0
    spec = answer.decoded(_Lease, "a lease").spec or _Spec()
    return spec.holder_identity or "", spec.lease_transitions or 0


@dataclass(eq=False)
class Lease:
    """One candidate of the election.

    Clocks of different machines are never compared: the age of another's claim counts from when we first saw that
    version of it. A caller that reads `leading` right before it acts can rely on it while the monotonic clock runs.
    """

    _client: Client
    _namespace: str
    _name: str
    _identity: str
    """Unique to this process: not even this program may reuse it later."""
    _: KW_ONLY
    timing: LeaseTiming = LeaseTiming()
    problem: ApiError | None = field(default=None, init=False)
    """Why the last attempt failed; None if it did not."""

    def __post_init__(self) -> None:
        self._object: dict[str, Any] | None = None
        """The lease as we last wrote it, until another process's write is seen."""
        self._spec = _Spec()
        self._spec_seen_at = -math.inf
        self._until = -math.inf
        """Until this time, on our clock, no other candidate can have become the leader."""
        self.leader: Observable[bool] = Observable(False)
        """Whether we lead; set only on a change."""

    def __repr__(self) -> str:
        return f"<Lease {self._namespace}/{self._name}: {'ours' if self.leading else f'held by {self.holder or None}'}>"

    @property
    def leading(self) -> bool:
        """Whether we lead at this moment."""
        return self.leader.value and time.monotonic() < self._until

    @property
    def holder(self) -> str:
        """The holder of the lease when it was last read; empty if it was free, or never read."""
        return self._spec.holder_identity or ""

    async def run(self) -> NoReturn:
        """Acquire the lease when it is free, and renew it. Ends only by cancellation, and then releases the lease."""
        try:
            while True:
                await self._attempt()
                pause_s = self.timing.retry_s * random.uniform(1.0, 1.2)  # noqa: S311 - spreads load
                if self.leader.value:
                    await asyncio.sleep(min(pause_s, max(0.0, self._until - time.monotonic())))
                    if time.monotonic() >= self._until:
                        self._step_down(f"the lease could not be renewed for {self.timing.renew_s} s")
                else:
                    await asyncio.sleep(pause_s)
        finally:
            led = self.leader.value
            self._step_down("this process shuts down")
            if led:
                await self._release()

    async def _attempt(self) -> None:
        """Try to acquire or renew the lease. A renewal takes no longer than our lead lasts."""
        began = time.monotonic()
        # Half, so that one dead connection does not cost the lead.
        until = began + self.timing.renew_s / 2
        if self.leader.value:
            until = min(until, self._until)
        try:
            held = await self._take(until)
        except ConflictError:
            self._object = None  # another client was faster: read the lease again next time
            return
        except ApiError as error:
            if type(error) is not type(self.problem):
                sentence = "the lease %s/%s cannot be acquired or renewed: %s; trying again"
                _log.warning(sentence, self._namespace, self._name, error)
            self.problem = error
            return
        self.problem = None
        if held:
            self._until = began + self.timing.renew_s
            if not self.leader.value:
                _log.info("%s is now the leader (lease %s/%s)", self._identity, self._namespace, self._name)
                self.leader.set(True)
        else:
            self._step_down(f"{self.holder} leads")

    async def _take(self, until: float) -> bool:
        """Write the lease as ours; return False if another holds it."""
        body = self._object
        if body is None:
            try:
                body = self._read(
                    await self._client.get(LEASES, self._name, namespace=self._namespace, timeout_s=_left_s(until))
                )
            except NotFoundError:
                self._spec = _Spec()
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                }
            if self.holder not in {"", self._identity} and not self._expired():
                return False
        spec = self._as_ours()
        self._object = None  # if the answer is lost, the state of the lease is unknown
        if "resourceVersion" in body["metadata"]:
            self._object = await self._put(body, spec, until)
        else:
            written = await self._client.create(
                LEASES, {**body, "spec": spec}, namespace=self._namespace, timeout_s=_left_s(until)
            )
            self._object = self._read(written)
        return True

    def _as_ours(self) -> dict[str, Any]:
        now = micro_time(datetime.now(UTC))
        old = self._spec
        renewing = old.holder_identity == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self.timing.lease_s,
            "acquireTime": (old.acquire_time if renewing else None) or now,
            "renewTime": now,
            "leaseTransitions": 0 if old == _Spec() else (old.lease_transitions or 0) + (not renewing),
        }

    def _expired(self) -> bool:
        duration_s = self._spec.lease_duration_seconds or self.timing.lease_s
        return time.monotonic() >= self._spec_seen_at + duration_s

    async def _put(self, body: dict[str, Any], spec: dict[str, Any], until: float) -> dict[str, Any]:
        """Replace the lease, and keep the fields that we do not manage."""
        whole = {**body, "spec": {**(body.get("spec") or {}), **spec}}
        return self._read(
            await self._client.replace(LEASES, self._name, whole, namespace=self._namespace, timeout_s=_left_s(until))
        )

    def _read(self, answer: ApiAnswer) -> dict[str, Any]:
        body = answer.decoded(dict[str, Any], "a lease")
        spec = answer.decoded(_Lease, "a lease").spec or _Spec()
        if spec != self._spec:
            self._spec = spec
            self._spec_seen_at = time.monotonic()
        return body

    def _step_down(self, why: str) -> None:
        self._object = None
        if self.leader.value:
            _log.warning(
                "%s is no longer the leader: %s (lease %s/%s)", self._identity, why, self._namespace, self._name
            )
            self.leader.set(False)

    async def _release(self) -> None:
        """Release the lease, so that the next candidate can lead at once. Otherwise the lease expires."""
        until = time.monotonic() + self.timing.release_s
        try:
            body = self._read(
                await self._client.get(LEASES, self._name, namespace=self._namespace, timeout_s=_left_s(until))
            )
            if self.holder == self._identity:
                now = micro_time(datetime.now(UTC))
                free = {"holderIdentity": None, "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
                await self._put(body, free, until)
        except ApiError as error:
            _log.info("the lease %s/%s is not released, it expires: %s", self._namespace, self._name, error)


def _left_s(until: float) -> float:
    return max(0.001, until - time.monotonic())
