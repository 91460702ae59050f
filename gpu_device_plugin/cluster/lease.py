"""Agree with the other replicas on which one of us leads, by a Lease that client-go's leader elections understand."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.cluster.api import LEASES, micro_time
from gpu_device_plugin.cluster.errors import ApiError, Call, ConflictError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    from gpu_device_plugin.cluster.client import Client

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The three times of a leader election, in seconds, with the defaults of Kubernetes' own components."""

    lease_s: int = 15
    """Others may take the lease when its holder has not renewed it for so long."""
    renew_s: float = 10.0
    """A leader that could not renew the lease for so long leads no more."""
    retry_s: float = 2.0
    """Between attempts, to take the lease or to renew it."""

    def __post_init__(self) -> None:
        if not self.lease_s > self.renew_s > 1.2 * self.retry_s > 0:
            raise ValueError(
                f"a lease of {self.lease_s} s must be longer than its renew deadline of {self.renew_s} s, and that"
                f" longer than 1.2 times the {self.retry_s} s between attempts"
            )


DEFAULT_TIMING = LeaseTiming()


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    spec: _Spec | None = None


class Lease:
    """One candidate for the lead.

    Clocks are never compared: how old another's claim is, counts from when we first saw it as it stands. Whoever reads
    `leading` at the moment of acting is right about the lead as long as this machine's monotonic clock runs.
    """

    def __init__(
        self, client: Client, namespace: str, name: str, identity: str, *, timing: LeaseTiming = DEFAULT_TIMING
    ) -> None:
        """Stand for the lead under `identity`, which no other process may use, nor this program after a restart."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing
        self._object: dict[str, Any] | None = None
        """The lease as we last wrote it, for as long as nobody else was seen to write."""
        self._spec = _Spec()
        self._spec_seen_at = -math.inf
        self._until = -math.inf
        """Up to here, on our clock, nobody else can have become the leader."""
        self.leader: Latest[bool] = Latest(False)
        """Whether we lead; set only when it changes."""
        self.problem: ApiError | None = None
        """Why the last attempt failed; None if it did not."""

    def __repr__(self) -> str:
        return f"<Lease {self._namespace}/{self._name}: {'ours' if self.leading else f'held by {self.holder or None}'}>"

    @property
    def leading(self) -> bool:
        """Whether we lead at this very moment."""
        return self.leader.value and time.monotonic() < self._until

    @property
    def holder(self) -> str:
        """Who held the lease when it was last seen; empty: nobody, or it was never seen."""
        return self._spec.holder_identity or ""

    async def run(self) -> NoReturn:
        """Take the lease when it is free and renew it. Ends only by cancellation, and then gives it back."""
        try:
            while True:
                await self._attempt()
                pause_s = self._timing.retry_s * random.uniform(1.0, 1.2)  # noqa: S311 - spreads load
                if self.leader.value:
                    await asyncio.sleep(min(pause_s, max(0.0, self._until - time.monotonic())))
                    if time.monotonic() >= self._until:
                        self._step_down(f"it could not be renewed for {self._timing.renew_s} s")
                else:
                    await asyncio.sleep(pause_s)
        finally:
            led = self.leader.value
            self._step_down("we stop")
            if led:
                await self._release()

    async def _attempt(self) -> None:
        """Take or renew the lease if we may. It takes no longer than our lead lasts."""
        began = time.monotonic()
        # Half, so that one connection that went dead does not cost the lead.
        until = began + self._timing.renew_s / 2
        if self.leader.value:
            until = min(until, self._until)
        try:
            held = await self._take(until)
        except ConflictError:
            self._object = None  # somebody was faster: look again next time
            return
        except ApiError as error:
            if type(error) is not type(self.problem):
                _log.warning("the lease %s/%s is not to be had: %s; trying again", self._namespace, self._name, error)
            self.problem = error
            return
        self.problem = None
        if held:
            self._until = began + self._timing.renew_s
            if not self.leader.value:
                _log.info("%s leads now (lease %s/%s)", self._identity, self._namespace, self._name)
                self.leader.set(True)
        else:
            self._step_down(f"{self.holder} does")

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
        self._object = None  # if the answer is lost we do not know what stands there
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
        mine = old.holder_identity == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._timing.lease_s,
            "acquireTime": (old.acquire_time if mine else None) or now,
            "renewTime": now,
            "leaseTransitions": 0 if old == _Spec() else (old.lease_transitions or 0) + (not mine),
        }

    def _expired(self) -> bool:
        duration_s = self._spec.lease_duration_seconds or self._timing.lease_s
        return time.monotonic() >= self._spec_seen_at + duration_s

    async def _put(self, body: dict[str, Any], spec: dict[str, Any], until: float) -> dict[str, Any]:
        """Replace the lease, leaving alone in it what is not ours."""
        whole = {**body, "spec": {**(body.get("spec") or {}), **spec}}
        return self._read(
            await self._client.replace(LEASES, self._name, whole, namespace=self._namespace, timeout_s=_left_s(until))
        )

    def _read(self, raw: bytes) -> dict[str, Any]:
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
            spec = msgspec.convert(body, _Lease).spec or _Spec()
            msgspec.convert(body, _Named)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            call = Call("get", LEASES.plural, LEASES.group, self._namespace, self._name)
            raise UnavailableError(call, "the answer is no lease") from error
        if spec != self._spec:
            self._spec = spec
            self._spec_seen_at = time.monotonic()
        return body

    def _step_down(self, why: str) -> None:
        self._object = None
        if self.leader.value:
            _log.warning("%s leads no more: %s (lease %s/%s)", self._identity, why, self._namespace, self._name)
            self.leader.set(False)

    async def _release(self) -> None:
        """Let the next one lead at once. What is not given back expires."""
        until = time.monotonic() + self._timing.retry_s
        try:
            body = self._read(
                await self._client.get(LEASES, self._name, namespace=self._namespace, timeout_s=_left_s(until))
            )
            if self.holder == self._identity:
                now = micro_time(datetime.now(UTC))
                free = {"holderIdentity": None, "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
                await self._put(body, free, until)
        except ApiError as error:
            _log.info("the lease %s/%s is not given back, it expires: %s", self._namespace, self._name, error)


class _Named(msgspec.Struct):
    metadata: dict[str, Any]


def _left_s(until: float) -> float:
    return max(0.001, until - time.monotonic())
