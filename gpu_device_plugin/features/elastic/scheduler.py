"""Answer the wishes of running pods for more or less guaranteed memory, and place those that may borrow."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.turns import in_turns
from gpu_device_plugin.features.elastic.contract import Allowance, read_wish
from gpu_device_plugin.features.elastic.rules.promising import Outcome, decides, resize, wants_more, with_room_to_borrow
from gpu_device_plugin.kubernetes.client.api_client import LATEST_COMMIT_S
from gpu_device_plugin.kubernetes.client.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from gpu_device_plugin.kubernetes.objects.decoding import NAMESPACES, read_metadata, version_number
from gpu_device_plugin.kubernetes.writers.binder import PodRef
from gpu_device_plugin.model.contract.keys import (
    MEMORY_GUARANTEE,
    MEMORY_HELD,
    MEMORY_LIMIT,
    MEMORY_PROMISED,
    NODE_USE,
    PLACES,
)
from gpu_device_plugin.model.contract.node_use import used_mib
from gpu_device_plugin.model.contract.reservations import write_answer
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature
from gpu_device_plugin.scheduler.leader_tasks import LeaderStep
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import NO_GROWTH

_log = logging.getLogger(__name__)

_MOST = 10
"""Pods that are decided on between two pauses: 50 a second, which take 2 % of a CPU and as many patches at most."""
_LABELS_S = 10.0
"""How long the labels of a namespace are remembered."""
_MOST_NAMESPACES = 1000
_READ_S = 2.0
"""Timeout of reading a namespace."""
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
    version: int
    """The first version of the pod that shows whether it was made; only the next one after the patch's can have it."""
    term: Hashable | None
    """In which it was claimed."""
    doubted_at: float | None = None
    """When we gave up on the last patch that may still take effect, monotonic seconds; None: there is none."""


@dataclass(eq=False, repr=False)
class Resizes(SchedulerFeature):
    """Follows the pods that have a wish or a promise beyond their requests. Only here the fleet's growth is claimed.

    A few are decided on at a time, so that no call of the scheduler waits for them. Pods of a namespace that resizes
    much do not hold up those of others: namespaces take turns.
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
        self._term: Hashable | None = None
        self._labels: OrderedDict[str, tuple[float, Mapping[str, str]]] = OrderedDict()
        self._writing = asyncio.Lock()
        self._closed = False
        self._use: dict[str, str] = {}
        """By node, as its agent tells it; read for a pod that may borrow, as few may and nodes change all the time."""

    def __repr__(self) -> str:
        return f"<Resizes: {len(self._pods)} pods, {len(self._queued)} queued, {len(self._claims)} claimed>"

    # --- What the watch shows -----------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """Learn the state of a bound pod, which the fleet knows already."""
        claim, pod = self._claims.get(pod.uid), _brief(pod)
        if claim is not None and _shows(pod, claim):
            self._settle(pod)
        promised = pod.annotations.get(MEMORY_PROMISED, NO_GROWTH)
        if not ((promised != NO_GROWTH or MEMORY_GUARANTEE in pod.annotations) and decides(pod)):
            self._forget(pod.uid)
            return
        before = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if before is None or before.annotations != pod.annotations:
            self._failures.pop(pod.uid, None)
            self._changed_at[pod.uid] = self._context.clock()
            self._queue(pod.uid)

    def remove_pod(self, uid: str) -> None:
        """Forget a deleted pod. The fleet counts what was claimed for as long as it counts the pod."""
        self._claims.pop(uid, None)
        self._forget(uid)

    def kept_pods(self, pods: Mapping[str, Pod]) -> None:
        """Learn the state of all pods, by UID; the others are deleted."""
        for uid in [uid for uid in (*self._pods, *self._claims) if uid not in pods]:
            self.remove_pod(uid)
        for pod in pods.values():
            self.put_pod(pod)

    def keys_of_nodes(self) -> frozenset[str] | None:  # noqa: D102
        return frozenset({NODE_USE})

    def put_node(self, node: NodeRecord) -> None:  # noqa: D102
        self._use.pop(node.name, None)
        if NODE_USE in node.annotations:
            self._use[node.name] = node.annotations[NODE_USE]

    def remove_node(self, name: str) -> None:  # noqa: D102
        self._use.pop(name, None)

    def prefer(self, fit: Fit, asked: GpuRequest, node: Candidate, pod: Pod) -> Fit:
        """Return where a pod that may borrow memory has most of it to borrow."""
        if MEMORY_LIMIT not in pod.annotations:
            return fit
        wish = read_wish(pod.annotations, MEMORY_LIMIT)
        members = [member for part in asked.parts if part.demand.kind is Kind.MEMORY for member in part.members]
        borrows = any((wish.of(container.name) or 0) > amount for container, amount in members)
        return with_room_to_borrow(fit, asked, node, used_mib(self._use.get(node.name, ""))[0]) if borrows else fit

    def _forget(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            # `_next_at` stays for a moment: an owner may remove the wish and write it again.
            for known in (self._failures, self._changed_at, self._queued):
                known.pop(uid, None)
            self._accepted(pod)

    # --- What is due --------------------------------------------------------------------------------------------------

    def _queue(self, uid: str, after_s: float = 0.0) -> None:
        if uid in self._pods:  # it may have left while something was awaited
            at = max(self._context.clock() + after_s, self._next_at.get(uid, 0.0))
            self._queued[uid] = min(at, self._queued.get(uid, at))

    def due(self) -> bool:
        """Return whether something is due, or may have become possible."""
        if self._refused:
            self._mark, names = self._context.fleet.now.changed_since(self._mark)
            for name in self._refused if names is None else self._refused.keys() & set(names):
                for uid in self._refused[name]:
                    self._queue(uid)
        now = self._context.clock()
        return any(at <= now for at in self._queued.values())

    def take(self, most: int) -> Sequence[Pod]:
        """Return pods that are due, one of each namespace in turn, and count them as decided on now."""
        now = self._context.clock()
        if max(len(self._next_at), len(self._turns)) > 2 * len(self._pods) + _SPARE:
            self._next_at = {uid: at for uid, at in self._next_at.items() if at > now}
            self._turns.clear()
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
        if pod is None or not counts or not decides(pod):
            return Outcome.KEPT, None
        if (claim := self._claims.get(uid)) is not None:
            return self._again(claim)
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
            self._claims[uid] = _Claim(patch, version_number(pod.resource_version) + 1, self._term)
            self._context.fleet.grow(pod, promised)
        return decision.outcome, patch

    def _again(self, claim: _Claim) -> tuple[Outcome, Patch | None]:
        if claim.doubted_at is None:
            return Outcome.KEPT, None
        if claim.term == self._term:  # of identical patches of one state of the pod only one can be made
            return claim.patch.outcome, claim.patch
        # Another extender may have given its room away. It counts until it cannot be made any more.
        self._queue(claim.patch.pod.uid, claim.doubted_at + LATEST_COMMIT_S - self._context.clock())
        return Outcome.KEPT, None

    def _accepted(self, pod: Pod) -> None:
        refused = self._refused.get(pod.node_name, set())
        refused.discard(pod.uid)
        if not refused:
            self._refused.pop(pod.node_name, None)

    # --- What became of a patch ---------------------------------------------------------------------------------------

    def written(self, patch: Patch, after: Pod) -> None:
        """Learn that a patch is written, and how the pod is since."""
        claim = self._claims.get(patch.pod.uid)
        if claim is not None and claim.patch is patch:
            claim.version, claim.doubted_at = max(claim.version, version_number(after.resource_version)), None

    def failed(self, patch: Patch, *, certain: bool, outdated: bool = False) -> None:
        """Learn that a patch failed; unless this is `certain`, it may be written, or may still be.

        `outdated`: the pod is newer, or another one. The watch shows it; if the same patch was in doubt, it may be what
        made the pod newer.
        """
        uid = patch.pod.uid
        claim = self._claims.get(uid)
        if claim is not None and claim.patch is patch:
            if not certain:
                claim.doubted_at = self._context.clock()
            elif claim.doubted_at is None:
                self._settle(self._pods.get(uid, patch.pod))
        if uid in self._pods:
            failures = 0 if outdated else min(8, self._failures.get(uid, 0) + 1)
            self._failures[uid] = failures
            self._queue(uid, min(_LONGEST_RETRY_S, _EVERY_S * 2.0**failures) if failures else 0.0)

    def expired(self) -> Sequence[Patch]:
        """Return the patches in doubt that cannot be made any more. Some may have been."""
        since = self._context.clock() - LATEST_COMMIT_S
        claims = self._claims.values()
        return [claim.patch for claim in claims if claim.doubted_at is not None and claim.doubted_at <= since]

    def give_up(self, patches: Sequence[Patch]) -> None:
        """Learn that the watch has shown everything that happened until these patches were `expired`."""
        for patch in patches:
            claim = self._claims.get(patch.pod.uid)
            if claim is not None and claim.patch is patch:
                self._settle(self._pods.get(patch.pod.uid, patch.pod))

    def _settle(self, pod: Pod) -> None:
        """Count a pod by its own annotations again."""
        del self._claims[pod.uid]
        self._context.fleet.grown(pod)
        self._queue(pod.uid)

    # --- By the active extender ---------------------------------------------------------------------------------------

    def leader_steps(self) -> Iterable[LeaderStep]:  # noqa: D102
        pause_s = self._context.timings.resize_s
        return (LeaderStep("resizing", self._answer, self._begin, pause_s=pause_s, waits="pod resizes are pending"),)

    async def finished(self) -> None:
        """Return once no promise is being written; none will be."""
        self._closed = True
        async with self._writing:
            return

    def _begin(self, term: Hashable) -> None:
        self._term = term
        for uid in self._pods:
            self._queue(uid)

    async def _answer(self) -> None:
        # The lock spans awaits on purpose: `finished` waits for what is under way.
        async with self._writing:
            if self._closed or not self.due():
                return
            if expired := self.expired():
                await self._context.catch_up()
                self.give_up(expired)
            await asyncio.gather(*map(self._resize, self.take(_MOST)))

    async def _resize(self, pod: Pod) -> None:
        labels: Mapping[str, str] = {}
        pod = self._pods.get(pod.uid, pod)  # the watch may have shown a wish since it was taken
        if wants_more(pod, self._context.resources):
            try:
                labels = await self._labels_of(pod.namespace)
            except ApiError as error:
                self._queue(pod.uid, 2 * _EVERY_S)  # what the decision needs is not known
                self._told(pod, f"the bound of its namespace cannot be read: {error}")
                return
        # The decision claims: what is awaited before the patch does not matter.
        outcome, patch = self.decide(pod.uid, labels)
        if patch is not None and await self._write(patch):
            self._context.metrics.count(m.RESIZES, outcome)
            if outcome in {Outcome.GROWN, Outcome.LOWERED}:
                what = {"pod": f"{pod.namespace}/{pod.name}", "node": pod.node_name, "promised": patch.promised[:600]}
                _log.info("a pod is resized", extra=what)

    async def _write(self, patch: Patch) -> bool:
        try:
            pod = patch.pod
            await self._context.before_bind(pod.node_name, PodRef(pod.namespace, pod.name, pod.uid))
            after = await self._context.binder.annotate(patch.pod, {MEMORY_PROMISED: patch.promised})
        except (ConflictError, InvalidError, NotFoundError):
            self.failed(patch, certain=True, outdated=True)
            return False
        except ApiError as error:
            self.failed(patch, certain=not (isinstance(error, UnavailableError) and error.sent))
            self._told(patch.pod, f"the assignment could not be written: {error}")
            return False
        except BaseException:
            self.failed(patch, certain=False)
            raise
        self.written(patch, after)
        return True

    def _told(self, pod: Pod, why: str) -> None:
        self._context.metrics.count(m.RESIZES, "failed")
        extra = {"pod": f"{pod.namespace}/{pod.name}", "why": why, "once_per_s": 60}
        _log.warning("a pod is not resized yet", extra=extra)

    async def _labels_of(self, namespace: str) -> Mapping[str, str]:
        found = self._labels.get(namespace)
        if found is None or self._context.clock() - found[0] > _LABELS_S:
            try:
                answer = await self._context.client.get(NAMESPACES, namespace, timeout_s=_READ_S)
                labels = answer.read(read_metadata).labels or {}
            except NotFoundError:
                labels = {}
            found = self._context.clock(), labels
            self._labels[namespace] = found
            if len(self._labels) > _MOST_NAMESPACES:
                self._labels.popitem(last=False)
        return found[1]


def _brief(pod: Pod) -> Pod:
    """Return a pod with the annotations that resizing reads; without a promise that is longer than any scheduler's.

    A pod whose GPU is not known is not resized.
    """
    kept = {key: text for key, text in pod.annotations.items() if key in _READ_ON_PODS}
    if sum(len(kept.get(key, "")) for key in PLACES) > _LONGEST_PROMISE * (1 + len(pod.containers)):
        kept = {key: text for key, text in kept.items() if key not in PLACES}
    return pod if len(kept) == len(pod.annotations) else replace(pod, annotations=kept)


def _shows(pod: Pod, claim: _Claim) -> bool:
    """Return whether a state of a pod is that of a claim's patch, or a newer one.

    A patch is for the version that it was decided on: once the pod is newer without it, it is never made.
    """
    written = pod.annotations.get(MEMORY_PROMISED) == claim.patch.promised
    return written or version_number(pod.resource_version) >= claim.version
