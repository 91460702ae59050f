"""Which pods wait on this node for devices, what they were promised, and which of them have been served."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpu_device_plugin import metrics as m
from gpu_device_plugin.core.annotations import MalformedAnnotationError, promises
from gpu_device_plugin.core.ledger import SETTLING_S
from gpu_device_plugin.core.matching import Matched, WaitingPod, Wanted, match
from gpu_device_plugin.core.pods import ContainerKind
from gpu_device_plugin.core.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.cluster.mirror import PodMirror
    from gpu_device_plugin.core.annotations import Promise
    from gpu_device_plugin.core.matching import Call, Match
    from gpu_device_plugin.core.pods import Pod
    from gpu_device_plugin.core.resources import Resource
    from gpu_device_plugin.kubelet.checkpoint import Record

_log = logging.getLogger(__name__)

WAIT_S = 1.0
"""Longest wait for the pod that explains a call. On an idle node the watch is 7 to 14 ms ahead of the kubelet."""

Slot: TypeAlias = tuple[str, str, Kind]
"""One container's use of one resource: pod UID, container name, kind."""


@dataclass(frozen=True, slots=True)
class _Guess:
    device_ids: frozenset[str]
    promise: Promise | None
    at: float


class WaitingPods:
    """The pods of this node as the watch shows them, less what has been given out.

    No call of the kubelet names a pod, so that who was served is a guess until the checkpoint shows it. Where the guess
    was wrong, two equal pods were swapped, and each goes on with the other's promise.
    """

    def __init__(self, mirror: PodMirror, resources: Sequence[Resource], metrics: m.Metrics) -> None:
        """Follow `mirror`, which someone else runs."""
        self._mirror = mirror
        self._resources = tuple(resources)
        self._kinds = {resource.name: resource.kind for resource in resources}
        self._metrics = metrics
        self._records: Mapping[Slot, frozenset[str]] = {}
        self._guesses: dict[Slot, _Guess] = {}
        self._swapped: dict[Slot, Promise] = {}
        self._begun: str | None = None
        self._malformed: set[str] = set()

    def __repr__(self) -> str:
        return f"<WaitingPods: {len(self.waiting())} wait, {len(self._guesses)} guesses>"

    @property
    def records(self) -> Mapping[Slot, frozenset[str]]:
        """What the kubelet's checkpoint says each container has."""
        return self._records

    async def find(self, call: Call) -> Matched:
        """Return whose call this is; wait a moment for the watch if nobody is known who could ask this."""
        found = self.find_now(call)
        if found.match is not None or not (self._mirror.synced and self._mirror.live):
            return found

        def explained(_pods: object) -> Matched | None:
            answer = self.find_now(call)
            return answer if answer.match is not None else None

        return await self._mirror.wait_for(explained, WAIT_S) or self.find_now(call)

    def find_now(self, call: Call) -> Matched:
        """Return whose call this is, as far as can be told at this moment."""
        return match(call, self.waiting(), self._begun)

    def served(self, match: Match, device_ids: frozenset[str]) -> None:
        """Take note that this container was probably given these devices."""
        slot = (match.pod.uid, match.wanted.container, match.wanted.kind)
        self._guesses[slot] = _Guess(device_ids, match.wanted.promise, time.monotonic())
        self._begun = match.pod.uid

    def learn(self, records: Iterable[Record]) -> None:
        """Take over what the kubelet's checkpoint says, and correct the guesses by it."""
        self._records = {
            (record.pod_uid, record.container, self._kinds[record.resource]): record.device_ids
            for record in records
            if record.resource in self._kinds
        }
        now = time.monotonic()
        for slot, guess in list(self._guesses.items()):
            owners = [owner for owner, ids in self._records.items() if ids == guess.device_ids and owner[2] is slot[2]]
            if slot in self._records or (not owners and now - guess.at > SETTLING_S):
                del self._guesses[slot]
            elif owners:
                del self._guesses[slot]
                self._swap(slot, owners[-1])
        self._forget()

    def waiting(self) -> tuple[WaitingPod, ...]:
        """Return the pods with containers that have no devices yet, in the order in which they were admitted."""
        waiting = (self._waiting(pod) for pod in self._mirror.pods.values() if not (pod.ended or pod.deleting))
        return tuple(pod for pod in waiting if pod is not None)

    def _waiting(self, pod: Pod) -> WaitingPod | None:
        wanted = [
            (container, resource.kind, amount)
            for container in pod.containers
            for resource in self._resources
            if (amount := container.limits.get(resource.name, 0)) > 0
        ]
        if all(self._is_served((pod.uid, container.name, kind)) for container, kind, _ in wanted):
            return None
        promised = self._promises(pod)
        return WaitingPod(
            pod.uid,
            f"{pod.namespace}/{pod.name}",
            tuple(
                Wanted(
                    container=container.name,
                    kind=kind,
                    amount=amount,
                    init=container.kind is ContainerKind.INIT,
                    promise=self._swapped.get((pod.uid, container.name, kind), promised.get((container.name, kind))),
                    served=self._is_served((pod.uid, container.name, kind)),
                )
                for container, kind, amount in wanted
            ),
            sum(amount for c, kind, amount in wanted if kind is Kind.MEMORY and c.kind is ContainerKind.APP),
        )

    def _is_served(self, slot: Slot) -> bool:
        return slot in self._records or slot in self._guesses

    def _promises(self, pod: Pod) -> Mapping[tuple[str, Kind], Promise]:
        try:
            return promises(pod, self._resources)
        except MalformedAnnotationError as error:
            if pod.uid not in self._malformed:
                self._malformed.add(pod.uid)
                self._metrics.count(m.MALFORMED_ANNOTATIONS)
                _log.warning("a promise is ignored", extra={"pod": f"{pod.namespace}/{pod.name}", "why": str(error)})
            return {}

    def _swap(self, guessed: Slot, actual: Slot) -> None:
        """`actual` has what `guessed` was promised; the promise of `actual` passes on, if it had one."""
        pod = self._mirror.pods.get(actual[0])
        inherited = self._swapped.get(actual) or (self._promises(pod).get(actual[1:]) if pod is not None else None)
        if inherited is not None:
            self._swapped[guessed] = inherited
        if self._begun == guessed[0]:
            self._begun = actual[0]

    def _forget(self) -> None:
        pods = self._mirror.pods
        self._swapped = {slot: promise for slot, promise in self._swapped.items() if slot[0] in pods}
        self._malformed &= pods.keys()
