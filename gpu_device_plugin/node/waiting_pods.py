"""Track the pods that wait for devices on this node, their promises, and the containers already served."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gpu_device_plugin import metrics as m
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, read_preferences
from gpu_device_plugin.model.contract.keys import FRAMEWORKS, MEMORY_GUARANTEE, MEMORY_LIMIT, MalformedAnnotationError
from gpu_device_plugin.model.contract.promises import MOST_CONTAINERS, promises
from gpu_device_plugin.model.contract.variables import read_frameworks
from gpu_device_plugin.model.pods import ContainerKind
from gpu_device_plugin.model.resources import OF_GPUS, Kind
from gpu_device_plugin.node.rules.ledger import SETTLING_S
from gpu_device_plugin.node.rules.matching import ContainerRequest, Matched, WaitingPod, match

if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.node_pods import NodePods
    from gpu_device_plugin.model.allocations import Allocation, Slot
    from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
    from gpu_device_plugin.model.contract.promises import Promise
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.matching import Call, Match

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    """A pod's annotations, parsed once: each call of the kubelet looks at all pods that wait."""

    pod: Pod
    promises: Mapping[tuple[str, Kind], Promise]
    wishes: GpuSelector
    frameworks: tuple[str, ...]


@dataclass(eq=False)
class WaitingPods:
    """The pods of this node as the watch shows them, without the containers that have their devices.

    No call of the kubelet names a pod, so the container that was served is a guess until the checkpoint shows it. If
    the guess was wrong, two equal pods were swapped, and each takes over the other's promise.
    """

    _followed: NodePods
    _resources: Sequence[Resource]
    _metrics: m.Metrics
    _state: NodeState
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.wait_s = 1.0
        """Longest wait for the pod of a call, in seconds: on an idle node the watch is 10 ms ahead of the kubelet."""
        self.recorded: Mapping[Slot, frozenset[str]] = {}
        """The devices of each container according to the kubelet's checkpoint."""
        self._guesses: dict[Slot, tuple[frozenset[str], float]] = {}
        """The devices that each container was probably given, and when."""
        self._swapped: dict[Slot, Promise] = {}
        self._refused: dict[str, float] = {}
        self._begun: str | None = None
        self._in_vain = False
        self._malformed: set[str] = set()
        self._written: dict[str, _Written] = {}

    def __repr__(self) -> str:
        guesses = f"{len(self._guesses)} guesses, {len(self._swapped)} swapped, {len(self._refused)} refused"
        return f"<WaitingPods: {len(self.recorded)} containers served, {guesses}>"

    async def find(self, call: Call) -> Matched:
        """Return the container that a call is for; if none matches, wait up to `wait_s` for the watch.

        While the API server is unreachable only the first such call waits: the kubelet may reach it again before us.
        """
        found = self.find_now(call)
        if found.match is not None:
            return found
        reflector = self._followed.reflector
        reflector.hurry()
        if self._in_vain and not reflector.live and reflector.problem is not None:
            return found

        def explained(_pods: object) -> Matched | None:
            answer = self.find_now(call)
            return answer if answer.match is not None else None

        late = await self._followed.wait_for(explained, self.wait_s)
        self._in_vain = late is None
        return late or self.find_now(call)

    def find_now(self, call: Call) -> Matched:
        """Return the container that a call is for, by the pods known at this moment."""
        return match(call, self.waiting(), self._begun)

    def served(self, match: Match, device_ids: frozenset[str]) -> None:
        """Record that this container was probably given these devices."""
        self._guesses[match.pod.uid, match.request.container, match.request.kind] = device_ids, self.clock()
        self._begun = match.pod.uid

    def refused(self, match: Match) -> None:
        """Record that this container was probably refused: its pod fails, though the watch does not show it yet.

        The call for the next pod may come at once, and must not be matched with this one.
        """
        self._refused[match.pod.uid] = self.clock()

    def learn(self, allocations: Iterable[Allocation]) -> None:
        """Take over what containers hold by the kubelet's checkpoint, and correct the guesses by it."""
        self.recorded = {
            (allocation.pod_uid, allocation.container, allocation.kind): allocation.device_ids
            for allocation in allocations
            if allocation.kind in OF_GPUS
        }
        now = self.clock()
        owners = {(slot[2], ids): slot for slot, ids in self.recorded.items()}
        actual = {slot: owners.get((slot[2], ids)) for slot, (ids, _) in self._guesses.items()}
        for slot, owner in actual.items():
            if owner is None:
                if now - self._guesses[slot][1] > SETTLING_S:
                    del self._guesses[slot]
            elif slot in self.recorded:
                del self._guesses[slot]
            else:
                self._swap(slot, owner, actual)
        self._forget()

    def waiting(self) -> tuple[WaitingPod, ...]:
        """Return the pods with containers that have no devices yet, in the order in which they were admitted."""
        return tuple(
            waiting
            for pod in self._followed.pods.values()
            # The kubelet asks for all containers of a pod before it starts the first.
            if pod.phase == "Pending" and not pod.deleting and (waiting := self._waiting(pod)) is not None
        )

    def _waiting(self, pod: Pod) -> WaitingPod | None:
        uid = pod.kubelet_uid
        wanted = [
            (container, resource.kind, amount)
            # One container above the limit is enough to refuse the pod at once for having too many.
            for container in pod.containers[: MOST_CONTAINERS + 1]
            for resource in self._resources
            if (amount := container.limits.get(resource.name, 0)) > 0
        ]
        refused_at = self._refused.get(uid)
        # A refused pod turns Failed within a second or two; a pod that still waits later was not the refused one.
        refused = refused_at is not None and self.clock() - refused_at < SETTLING_S
        if refused or all(self._is_served((uid, container.name, kind)) for container, kind, _ in wanted):
            return None
        written = self._read(pod)
        promised, preferences = written.promises, written.wishes
        gpus = self._state.node.shares.gpus if preferences.choosy else ()
        allowed = {
            s.position
            for s in gpus
            if preferences.allow_model(s.gpu.product) and preferences.allow_uuid(s.gpu.uuid, s.gpu.card)
        }
        return WaitingPod(
            uid,
            str(pod),
            tuple(
                ContainerRequest(
                    container=container.name,
                    kind=kind,
                    amount=amount,
                    init=container.devices_reused_by_later,
                    promise=self._swapped.get((uid, container.name, kind), promised.get((container.name, kind))),
                    served=self._is_served((uid, container.name, kind)),
                    allowed=frozenset(allowed) if preferences.choosy else None,
                )
                for container, kind, amount in wanted
            ),
            sum(amount for c, kind, amount in wanted if kind is Kind.MEMORY and c.kind is ContainerKind.APP),
            preferences.gpu_policy,
            written.frameworks,
            {key: pod.annotations[key] for key in (MEMORY_LIMIT, MEMORY_GUARANTEE) if key in pod.annotations},
        )

    def _is_served(self, slot: Slot) -> bool:
        return slot in self.recorded or slot in self._guesses

    def _read(self, pod: Pod) -> _Written:
        known = self._written.get(pod.uid)
        if known is None or known.pod != pod:
            promised = partial(promises, pod, self._resources)
            wishes = partial(read_preferences, pod.annotations)
            frameworks, ignored = read_frameworks(pod.annotations.get(FRAMEWORKS, ""))
            if ignored:
                self._complain("frameworks of a pod are ignored", pod, ignored)
            known = self._written[pod.uid] = _Written(
                pod,
                self._understood("an assignment is ignored", pod, promised, MappingProxyType({})),
                self._understood("the memory annotations of a pod are ignored", pod, wishes, NO_PREFERENCES),
                frameworks,
            )
        return known

    def _understood(self, what: str, pod: Pod, read: Callable[[], T], otherwise: T) -> T:
        """Return the result of `read`, or, for malformed annotations, `otherwise`, with one warning for each pod."""
        try:
            return read()
        except MalformedAnnotationError as error:
            self._complain(what, pod, str(error))
            return otherwise

    def _complain(self, what: str, pod: Pod, why: str) -> None:
        if pod.uid not in self._malformed:
            self._malformed.add(pod.uid)
            self._metrics.count(m.MALFORMED_ANNOTATIONS)
            _log.warning("%s", what, extra={"pod": str(pod), "why": why})

    def _swap(self, guessed: Slot, owner: Slot, actual: Mapping[Slot, Slot | None]) -> None:
        """`owner` has the devices promised to `guessed`, so `guessed` takes over the promise that this left unused.

        That is the promise of `owner`, unless a third container took that over in the same way, and so on.
        """
        heir, seen = owner, {guessed}
        while heir in actual and heir not in seen:
            seen.add(heir)
            further = actual[heir]
            if further is None:
                return  # the checkpoint does not show it yet
            heir = further
        del self._guesses[guessed]
        pod = next((pod for pod in self._followed.pods.values() if pod.kubelet_uid == heir[0]), None)
        inherited = self._swapped.get(heir) or (self._read(pod).promises.get(heir[1:]) if pod is not None else None)
        if inherited is not None:
            self._swapped[guessed] = inherited
        if self._begun == guessed[0]:
            self._begun = owner[0]

    def _forget(self) -> None:
        there = {pod.kubelet_uid for pod in self._followed.pods.values()}
        self._swapped = {slot: promise for slot, promise in self._swapped.items() if slot[0] in there}
        self._malformed &= self._followed.pods.keys()
        pods = self._followed.pods
        # What is written on a pod that runs is not read again.
        waiting = {uid for uid, pod in pods.items() if pod.phase == "Pending"}
        self._written = {uid: known for uid, known in self._written.items() if uid in waiting}
        self._refused = {uid: at for uid, at in self._refused.items() if uid in there}
