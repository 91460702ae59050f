"""Bind a pod to a node and write a promise on it, atomically, and find out the outcome if the answer is lost."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.client.api_client import Client
from gpu_device_plugin.kubernetes.client.errors import ApiError, Call, ConflictError, NotFoundError, UnavailableError
from gpu_device_plugin.kubernetes.objects.decoding import PODS, PodReader
from gpu_device_plugin.kubernetes.objects.requests import ClaimStatuses
from gpu_device_plugin.model.contract.keys import ASSIGNED, MEMORY_HELD, MEMORY_PROMISED
from gpu_device_plugin.model.pods import Pod

_ATTEMPTS = 3
_REWRITTEN = frozenset({ASSIGNED, MEMORY_HELD, MEMORY_PROMISED})
"""Annotations that the node's agent, or a resize, may have changed before we read the pod."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod, identified by its UID as well as its name."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class BinderTiming:
    """Timeouts of a binding, in seconds. kube-scheduler's default timeout for an extender's bind is 5 s."""

    call_s: float = 2.0
    """For one answer of the API server."""
    total_s: float = 4.0
    """After this time no further attempt begins."""
    pause_s: float = 0.1
    """Before the retry of a binding whose answer was lost."""

    @classmethod
    def within(cls, total_s: float) -> BinderTiming:
        """Return the timeouts of a binding that may take `total_s`: half for one answer, half for checking the pod."""
        return cls(call_s=total_s / 2, total_s=total_s, pause_s=min(0.1, total_s / 40))


class _OutcomeError(ApiError):
    """The outcome of a binding. The whole message is for the pod's owner."""

    def __init__(self, pod: PodRef, sentence: str) -> None:
        super().__init__(Call("create", "pods/binding", PODS.group, pod.namespace, pod.name), sentence)

    def __str__(self) -> str:
        return self.why


class BindError(_OutcomeError):
    """The pod is not bound to this node with this promise, and this call will not bind it.

    Release the claim, unless an earlier call is in doubt.
    """


class InDoubtError(_OutcomeError):
    """It is unknown whether the pod is bound with this promise: keep the claim until the pod itself shows it.

    The pod shows it once the cache has caught up (`Reflector.caught_up`): it is bound, and then its annotations count,
    or it is deleted. The lost request may still bind an unbound pod for as long as the API server works on a request,
    60 s by default.
    """


class _Pod(msgspec.Struct):
    status: ClaimStatuses = msgspec.field(default_factory=ClaimStatuses)


@dataclass(frozen=True, slots=True)
class Binder:
    """Makes bindings, any number at a time; none waits for another."""

    _client: Client
    _reader: PodReader
    """It keeps at least the promise of a pod."""
    timing: Callable[[], BinderTiming] = BinderTiming
    """Called for every use."""

    async def read(self, namespace: str, name: str, *, timeout_s: float = math.inf) -> Pod:
        """Return the current state of a pod. Raises ApiError."""
        answer = await self._client.get(PODS, name, namespace=namespace, timeout_s=timeout_s)
        return answer.read(self._reader.read)[0]

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> Pod:
        """Write annotations on a pod if it is still in the given state; return its new state.

        Raises:
            ConflictError, InvalidError: the pod is in a newer state, or another one has its name.
            UnavailableError: if it was `sent`, the outcome is unknown.
            ApiError: it is not written.
        """
        meta = {"uid": pod.uid, "resourceVersion": pod.resource_version, "annotations": dict(annotations)}
        answer = await self._client.patch(
            PODS, pod.name, {"metadata": meta}, namespace=pod.namespace, timeout_s=self.timing().call_s
        )
        return answer.read(self._reader.read)[0]

    async def made_claim(self, namespace: str, name: str) -> str:
        """Return the name of the ResourceClaim that kube-scheduler has made of a pod's limits; empty if there is none.

        It is on the pod before kube-scheduler calls bind: the plugin for claims writes it in PreBind. Raises ApiError.
        """
        raw = await self._client.get(PODS, name, namespace=namespace)
        try:
            claim = msgspec.json.decode(raw, type=_Pod).status.extended_resource_claim_status
        except (msgspec.DecodeError, UnicodeDecodeError):
            claim = None
        return "" if claim is None else claim.resource_claim_name

    async def bind(self, pod: PodRef, node: str, annotations: Mapping[str, str]) -> None:
        """Bind `pod` to `node` and write `annotations` on it, in one transaction. On return both are done.

        An existing binding to this node with these annotations counts as success: it is our own, whose answer was lost.

        Raises:
            BindError: this call certainly has no effect; if no earlier call is in doubt, the claim can be released.
            InDoubtError: the outcome is unknown; keep the claim. Keep it, too, if this call is cancelled.
        """
        until = time.monotonic() + self.timing().total_s
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            # No resourceVersion: ours is outdated as soon as another client writes a label or a condition.
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                # Every API server merges them into the pod's annotations when it sets the node (decision 20).
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        lost: ApiError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                # An identical retry: whichever request the API server handles first, the other one has no effect.
                await asyncio.sleep(self.timing().pause_s)
            error = await self._post(pod, body, until)
            if error is None:
                return
            if isinstance(error, UnavailableError) and error.sent:
                lost = error
            elif not isinstance(error, ConflictError):
                raise _refused(pod, error, lost) from error
            if await self._stands(pod, node, annotations, until, refusal=error, lost=lost):
                return
            if lost is None:
                raise BindError(pod, f"pod {pod} was not bound: {error}") from error
            if time.monotonic() + self.timing().pause_s >= until:
                break
        raise InDoubtError(pod, f"whether pod {pod} is bound to node {node} is unknown: {lost}") from lost

    async def _post(self, pod: PodRef, body: Mapping[str, Any], until: float) -> ApiError | None:
        patience_s = self._patience_s(until)
        try:
            await self._client.create(
                PODS, body, namespace=pod.namespace, name=pod.name, subresource="binding", timeout_s=patience_s
            )
        except ApiError as error:
            return error
        return None

    async def _stands(
        self,
        pod: PodRef,
        node: str,
        annotations: Mapping[str, str],
        until: float,
        *,
        refusal: ApiError,
        lost: ApiError | None,
    ) -> bool:
        """Return whether the pod is bound as requested, False if it is still unbound; raise in all other cases."""
        try:
            found = await self.read(pod.namespace, pod.name, timeout_s=self._patience_s(until))
        except NotFoundError as error:
            raise _gone(pod, "was deleted meanwhile", lost) from error
        except ApiError as error:
            why = f"whether pod {pod} is bound to node {node} is unknown: {refusal}; and then {error}"
            raise InDoubtError(pod, why) from error
        if found.uid != pod.uid:
            raise _gone(pod, "was replaced by another of the same name", lost)
        if found.node_name and found.node_name != node:
            raise BindError(pod, f"pod {pod} is already bound to node {found.node_name}")
        if found.node_name:
            if all(found.annotations.get(key) == annotations[key] for key in annotations.keys() - _REWRITTEN):
                return True
            raise InDoubtError(pod, f"pod {pod} is already bound to node {node}, with a different assignment")
        if found.deleting:
            raise BindError(pod, f"pod {pod} is being deleted")
        return False

    def _patience_s(self, until: float) -> float:
        """Return the timeout of the next call. Even the last one gets a moment: it may reveal an earlier outcome."""
        return max(self.timing().call_s / 4, min(self.timing().call_s, until - time.monotonic()))


def _refused(pod: PodRef, error: ApiError, lost: ApiError | None) -> BindError | InDoubtError:
    if isinstance(error, NotFoundError):
        return _gone(pod, "was deleted meanwhile", lost)
    if lost is None:
        return BindError(pod, f"pod {pod} was not bound: {error}")
    # This refusal is certain, but the outcome of the previous attempt is not.
    return InDoubtError(pod, f"whether pod {pod} is bound is unknown: {lost}; and then {error}")


def _gone(pod: PodRef, why: str, lost: ApiError | None) -> BindError | InDoubtError:
    """Return the error for a deleted pod; in doubt if an earlier attempt may have bound it and started containers."""
    if lost is None:
        return BindError(pod, f"pod {pod} {why}")
    return InDoubtError(pod, f"pod {pod} {why}; whether it was bound before is unknown: {lost}")
