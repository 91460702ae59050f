"""The resizes of running pods: which are due, which are under way, and what counts in the fleet meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.objects.decoding import version_number
from gpu_device_plugin.core.capacity.asks import in_turns
from gpu_device_plugin.core.cluster.resizing import Outcome, decides, resize
from gpu_device_plugin.core.cluster.usage import NO_GROWTH
from gpu_device_plugin.features.elastic.contract import Allowance, write_answer
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_PROMISED, PLACES
from gpu_device_plugin.programs.extender.controller_context import LATEST_COMMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.programs.extender.controller_context import ControllerContext

_EVERY_S = 1.0
"""There is at most one decision on a pod in this time, however often its owner changes the wish."""
_QUIET_S = 2.0
"""An agent has written what it holds this long after it saw a change of the pod."""
_BOUND_AGAIN_S = 30.0
"""A wish that its namespace's bound refuses is looked at again after this time: nobody watches namespaces."""
_LONGEST_RETRY_S = 60.0
_SPARE = 256
_READ_ON_PODS = PLACES | {MEMORY_GUARANTEE, MEMORY_PROMISED, MEMORY_HELD}
_LONGEST_PROMISE = 64
"""Characters for each container: shares of one GPU, which alone can grow."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A promise that is to be written on a pod in the state that was decided on, and on no newer one.

    So it never takes effect later than another one, and once the pod is newer without it, it never does.
    """

    pod: Pod
    promised: str
    """The value of `MEMORY_PROMISED`."""
    outcome: Outcome


@dataclass(slots=True)
class _Claim:
    """A promise that counts in the fleet before the watch shows it."""

    patch: Patch
    version: int = 0
    """The pod's version that has it; 0: unknown."""
    doubted_at: float | None = None
    """When we gave up on the last patch that may still take effect, monotonic seconds; None: there is none."""


@dataclass(eq=False, repr=False)
class Resizes:
    """Follows the pods that have a wish or a promise beyond their requests. Only here the fleet's growth is claimed.

    Pods of a namespace that resizes much do not hold up those of others: namespaces take turns.
    """

    _context: ControllerContext

    def __post_init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        """By UID, as the watch has shown them last."""
        self._changed_at: dict[str, float] = {}
        """By UID, when its annotations changed last, monotonic seconds."""
        self._claims: dict[str, _Claim] = {}
        self._next_at: dict[str, float] = {}
        """By UID of a pod that was decided on, the first moment of the next decision, monotonic seconds."""
        self._failures: dict[str, int] = {}
        self._queued: dict[str, float] = {}
        """By UID, when to decide on it, monotonic seconds."""
        self._turns: dict[str, int] = {}
        """By namespace, a number that is the higher the later its last turn was."""
        self._turn = 0
        self._refused: dict[str, set[str]] = {}
        """By node, the UIDs of pods that had no room."""
        self._mark = 0

    def __repr__(self) -> str:
        return f"<Resizes: {len(self._pods)} pods, {len(self._queued)} queued, {len(self._claims)} claimed>"

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def put(self, pod: Pod) -> None:
        """Learn the state of a bound pod, which the fleet knows already."""
        claim, pod = self._claims.get(pod.uid), _brief(pod)
        if claim is not None and _shows(pod, claim):
            self._settle(pod)
        if not _elastic(pod):
            self._forget(pod.uid)
            return
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if before is None or before.annotations != pod.annotations:
            self._failures.pop(pod.uid, None)
            self._changed_at[pod.uid] = self._context.clock()
            self._queue(pod.uid)

    def remove(self, uid: str) -> None:
        """Forget a deleted pod. The fleet counts what was claimed for as long as it counts the pod."""
        self._claims.pop(uid, None)
        self._forget(uid)

    def replace(self, pods: Mapping[str, Pod]) -> None:
        """Learn the state of all pods, by UID; the others are deleted."""
        for uid in [uid for uid in (*self._pods, *self._claims) if uid not in pods]:
            self.remove(uid)
        for pod in pods.values():
            self.put(pod)

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            # `_next_at` stays for a moment: an owner may remove the wish and write it again.
            for known in (self._failures, self._changed_at, self._queued):
                known.pop(uid, None)
            self._accepted(pod)

    # --- What is due --------------------------------------------------------------------------------------------------

    def requeue(self) -> None:
        """Look at all pods again: this extender has become the leader."""
        for uid in self._pods:
            self._queue(uid)

    def _queue(self, uid: str, after_s: float = 0.0) -> None:
        at = max(self._context.clock() + after_s, self._next_at.get(uid, 0.0))
        self._queued[uid] = min(at, self._queued.get(uid, at))

    def due(self) -> bool:
        """Return whether something is due, or may have become possible."""
        self._look_at_nodes()
        now = self._context.clock()
        return any(at <= now for at in self._queued.values())

    def _look_at_nodes(self) -> None:
        if self._refused:
            self._mark, names = self._context.fleet.now.changed_since(self._mark)
            for name in self._refused if names is None else self._refused.keys() & set(names):
                for uid in self._refused[name]:
                    self._queue(uid)

    def take(self, most: int) -> Sequence[Pod]:
        """Return pods that are due, one of each namespace in turn, and count them as decided on now."""
        if max(len(self._next_at), len(self._turns)) > 2 * len(self._pods) + _SPARE:
            now = self._context.clock()
            self._next_at = {uid: at for uid, at in self._next_at.items() if at > now}
            self._turns.clear()
        self._look_at_nodes()
        now = self._context.clock()
        due = sorted((at, uid) for uid, at in self._queued.items() if at <= now)
        pods = sorted((self._pods[uid] for _, uid in due), key=lambda pod: self._turns.get(pod.namespace, 0))
        taken = in_turns(pods, lambda pod: pod.namespace)[:most]
        for pod in taken:
            del self._queued[pod.uid]
            self._next_at[pod.uid] = now + _EVERY_S
            self._turn += 1
            self._turns[pod.namespace] = self._turn
        return taken

    # --- Decisions ----------------------------------------------------------------------------------------------------

    def decide(self, uid: str, labels: Mapping[str, str]) -> tuple[Outcome, Patch | None]:
        """Decide on a pod of a namespace with these labels, and claim the growth; None: nothing is to be written."""
        pod, entry = self._pods.get(uid), self._context.fleet.entries.get(uid)
        counts = entry is not None and not (entry.claimed or entry.temporary)
        if pod is None or not counts or not decides(pod) or uid in self._claims:
            return Outcome.KEPT, None
        node = self._context.fleet.candidates.get(pod.node_name)
        if node is not None and node.gpus.claims:
            node = None  # its pods count nowhere
        allowance = Allowance.of(pod.namespace, labels, self._context.fleet.growth[pod.namespace])
        quiet_s = self._context.clock() - self._changed_at[uid]
        decision = resize(pod, self._context.resources, node, allowance, quiet=quiet_s >= _QUIET_S)
        self._accepted(pod)
        if quiet_s < _QUIET_S and decision.outcome is Outcome.KEPT:
            self._queue(uid, _QUIET_S - quiet_s)
        if decision.by_bound:
            self._queue(uid, _BOUND_AGAIN_S)
        elif decision.answer.why:
            if not self._refused:
                self._mark = self._context.fleet.now.changed_since(0)[0]
            self._refused.setdefault(pod.node_name, set()).add(uid)
        promised = write_answer(decision.answer)
        if promised == pod.annotations[MEMORY_PROMISED]:
            return decision.outcome, None
        patch = Patch(pod, promised, decision.outcome)
        if decision.outcome is Outcome.GROWN:
            self._claims[uid] = _Claim(patch)
            self._context.fleet.grow(pod, promised)
        return decision.outcome, patch

    def _accepted(self, pod: Pod) -> None:
        refused = self._refused.get(pod.node_name, set())
        refused.discard(pod.uid)
        if not refused:
            self._refused.pop(pod.node_name, None)

    # --- What became of a patch ---------------------------------------------------------------------------------------

    def written(self, patch: Patch, after: Pod) -> None:
        """Learn that a patch is written, and how the pod is since."""
        claim = self._claims.get(patch.pod.uid)
        if claim is not None:
            claim.version, claim.doubted_at = version_number(after.resource_version), None
            known = self._pods.get(patch.pod.uid)
            if known is not None and _shows(known, claim):
                self._settle(known)

    def failed(self, patch: Patch, *, certain: bool, outdated: bool = False) -> None:
        """Learn that a patch failed; unless this is `certain`, it may be written, or may still be.

        `outdated`: the pod is newer, or another one. The watch shows it.
        """
        uid = patch.pod.uid
        claim = self._claims.get(uid)
        if claim is not None and not certain:
            claim.doubted_at = self._context.clock()
        elif claim is not None and claim.doubted_at is None:
            self._settle(self._pods.get(uid, patch.pod))
        if uid in self._pods:
            failures = 0 if outdated else min(8, self._failures.get(uid, 0) + 1)
            self._failures[uid] = failures
            self._queue(uid, min(_LONGEST_RETRY_S, _EVERY_S * 2.0**failures) if failures else 0.0)

    def postpone(self, uid: str) -> None:
        """Decide on a pod later: what the decision needs is not known."""
        if uid in self._pods:
            self._queue(uid, 2 * _EVERY_S)

    @property
    def doubts(self) -> Sequence[Patch]:
        """The patches of which it is not known whether they are written; what they promise counts."""
        return [claim.patch for claim in self._claims.values() if claim.doubted_at is not None]

    def looked(self, patch: Patch, now: Pod | None, asked_at: float) -> bool:
        """Learn how a pod in doubt was at `asked_at` or later; None: it is gone. Return whether the doubt remains."""
        claim = self._claims.get(patch.pod.uid)
        if claim is None or claim.patch is not patch or claim.doubted_at is None:
            return False
        if now is None or now.uid != patch.pod.uid:
            del self._claims[patch.pod.uid]  # the fleet learns of its end by the watch
        elif now.annotations.get(MEMORY_PROMISED) == patch.promised:
            self.written(patch, now)
        elif (
            now.resource_version != patch.pod.resource_version or asked_at - claim.doubted_at >= LATEST_COMMIT_S
        ):  # it never takes effect
            self._settle(self._pods.get(now.uid, now))
        else:
            return True
        return False

    def _settle(self, pod: Pod) -> None:
        """Count a pod by its own annotations again."""
        del self._claims[pod.uid]
        self._context.fleet.grown(pod)
        if pod.uid in self._pods:
            self._queue(pod.uid)


def _brief(pod: Pod) -> Pod:
    """Return a pod with the annotations that resizing reads; without a promise that is longer than any scheduler's.

    A pod whose GPU is not known is not resized.
    """
    kept = {key: text for key, text in pod.annotations.items() if key in _READ_ON_PODS}
    if sum(len(kept.get(key, "")) for key in PLACES) > _LONGEST_PROMISE * (1 + len(pod.containers)):
        kept = {key: text for key, text in kept.items() if key not in PLACES}
    return pod if len(kept) == len(pod.annotations) else replace(pod, annotations=kept)


def _elastic(pod: Pod) -> bool:
    """Return whether an extender may have to decide on a pod."""
    promised = pod.annotations.get(MEMORY_PROMISED, NO_GROWTH)
    return (promised != NO_GROWTH or MEMORY_GUARANTEE in pod.annotations) and decides(pod)


def _shows(pod: Pod, claim: _Claim) -> bool:
    """Return whether a state of a pod is that of a claim's patch, or a newer one."""
    written = pod.annotations.get(MEMORY_PROMISED) == claim.patch.promised
    return written or 0 < claim.version <= version_number(pod.resource_version)
