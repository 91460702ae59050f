"""Answer kube-scheduler's filter, prioritize, preempt and inspect from the fleet, without changing it."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from gpu_device_plugin.aio.http import JSON, Page
from gpu_device_plugin.kubernetes.objects.decoding import PodReader, UnreadableObjectError
from gpu_device_plugin.metrics import VERDICTS
from gpu_device_plugin.model.contract.keys import READ_ON_PODS
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler import wire
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import Proposals, SchedulerFeature
from gpu_device_plugin.scheduler.node_evaluator import MOST_OFFERED, MOST_STEPS, UNKNOWN, UNTRIED, Search
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure, resolvable, unresolvable
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.packing import CachingPacker, Effort, TooLongError
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Impossible, ask
from gpu_device_plugin.scheduler.rules.scheduler_gauges import WaitingReason

if TYPE_CHECKING:
    from msgspec import Raw


_log = logging.getLogger(__name__)

Reasons: TypeAlias = "Mapping[FilterFailure, Sequence[str]]"
"""Why a pod fits on none of the named nodes, with the nodes of which that is true."""


class _NotReadyError(Exception):
    """The fleet is not ready to answer from."""


_NO_ANSWER = (wire.UnreadableRequestError, UnreadableObjectError, _NotReadyError)


_ELSEWHERE = resolvable(
    "binding-unanswered", "the pod may already be bound to another node: the API server has not answered"
)
_MOST_TRIED = 1000
"""Pods of which the best nodes are known."""
_SOON = (
    "there will be room once pods that vanished while running, or whose binding got no answer, no longer count, and "
    "room held for others is released"
)


_SPARE = 256
"""Remembered verdicts beyond two for each waiting pod, before those of pods that no longer wait are forgotten."""
_NEWEST = 64
"""Verdicts that are kept then anyway: the scheduler may know a pod before our watch shows it."""


@dataclass(eq=False, repr=False)
class WaitingObserved:
    """The last verdict on each waiting pod. Only a leader is asked for verdicts.

    kube-scheduler asks about the nodes that pass its own checks, with the sums of resources among them. So a pod that
    it never asks about has room on no node by the sums.
    """

    _fleet: Fleet
    _wall: Callable[[], float]
    """Returns seconds since the epoch."""

    def __post_init__(self) -> None:
        self._reasons: dict[str, WaitingReason] = {}
        """By pod UID, the latest verdict at the end."""

    def refused(self, uid: str) -> bool:
        """Return whether none of the nodes that kube-scheduler has named last for a pod had room for it."""
        return self._reasons.get(uid) in {WaitingReason.NO_ROOM, WaitingReason.NEVER_FITS}

    def filtered(self, uid: str, reason: WaitingReason) -> None:
        """Remember the result of a filter call about a pod."""
        self._reasons.pop(uid, None)
        self._reasons[uid] = reason
        if len(self._reasons) > 2 * len(self._fleet.pending) + _SPARE:
            newest = frozenset(list(self._reasons)[-_NEWEST:])
            self._reasons = {
                uid: reason for uid, reason in self._reasons.items() if uid in newest or uid in self._fleet.pending
            }

    def preempted(self, uid: str, *, helps: bool) -> None:
        """Remember whether an eviction that the scheduler proposed makes room for a pod.

        It proposes only pods of a lower priority: without one that helps, other pods may still end. It asks also about
        a pod that was never filtered, because the sums of no node are sufficient.
        """
        never = self._reasons.get(uid) is WaitingReason.NEVER_FITS and not helps
        self.filtered(uid, WaitingReason.NEVER_FITS if never else WaitingReason.NO_ROOM)

    def counts(self) -> Mapping[WaitingReason, int]:
        """Return the number of waiting pods by reason."""
        return Counter(self._reasons.get(pod.uid, WaitingReason.NOT_ASKED) for pod in self._fleet.pending.values())

    def oldest_s(self) -> float:
        """Return the age of the oldest waiting pod in seconds; 0 if no pod waits."""
        # Times in UTC sort as texts do. The clock of the API server may be ahead of ours.
        created = (pod.created for pod in self._fleet.pending.values() if pod.created.endswith("Z"))
        first_s = epoch_s(min(created, default=""))
        return 0.0 if first_s is None else max(0.0, self._wall() - first_s)


@dataclass(eq=False, repr=False)
class Verbs:
    """The scheduler's calls, each from the body of the request to that of the answer; none awaits, none raises.

    `filter` can return an error. `prioritize` and `preempt` cannot: they log the error and return a safe answer, in
    which all nodes score 0 and no pod is evicted.
    """

    _context: ControllerContext
    ready: Callable[[], str]
    """Returns a sentence on why the fleet is not ready to answer from; empty if it is."""

    def __post_init__(self) -> None:
        self._fleet = fleet = self._context.fleet
        names = [resource.name for resource in self._context.resources]
        self._pods = PodReader(names, READ_ON_PODS.__contains__, sums=True, every=True, owners=True)
        self.waiting = WaitingObserved(fleet, self._context.wall)
        self._features = self._context.features
        self._tried: OrderedDict[str, frozenset[str]] = OrderedDict()
        """By pod UID, the nodes that were best for a pod, or failed, so far; the latest pod at the end."""

    def filter(self, body: bytes) -> bytes:
        """Return the best of the nodes that a pod may go to; if there are none, the reason against each node.

        The scheduler retries a pod that fits nowhere only after an event in the API that may help it. Where time alone
        will help, or a node that was not in its sample, there is no event: then the answer is an error, and the
        scheduler retries by itself in 1 to 10 s.
        """
        try:
            args = wire.read_args(body)
            pod, asked = self._asked(args.pod)
            placing = wire.read_placing(args.pod)
        except _NO_ANSWER as error:
            return wire.filter_error(str(error))
        self._features.each(SchedulerFeature.sampled, pod.uid, placing.constraints, args.names)
        if isinstance(asked, Impossible):
            self.waiting.filtered(pod.uid, WaitingReason.NEVER_FITS)
            return self._refused(args, pod, placing, {unresolvable("never", "{why}", why=asked.why): args.names})
        search = self._context.evaluator.search(asked, _turned(args.names, pod.uid))
        only = self._only_node(pod, asked, args.names) if asked.parts else None
        if only is not None:
            passed = [name for name in args.names if name == only]
        else:
            passed = self._offered(search, pod, placing)
            if not asked.parts:
                passed = passed or args.names
        if passed:
            self.waiting.filtered(pod.uid, WaitingReason.FITS)
            self._context.metrics.count(VERDICTS, "fits", times=len(passed))
            return wire.filter_result(args, passed, {}, {})
        whys = search.reasons() if only is None else {_ELSEWHERE: args.names}
        if why_again := self._retry_reason(pod, search, placing, whys):
            self._count(whys)
            return wire.filter_error(why_again)
        self.waiting.filtered(pod.uid, self._reason(asked, whys))
        return self._refused(args, pod, placing, whys)

    def _only_node(self, pod: Pod, asked: GpuRequest, names: Sequence[str]) -> str | None:
        """Return the only node that a pod may go to; None: it may go to any that has room."""
        claim = self._fleet.entries.get(pod.uid)
        if claim is not None and claim.claimed:
            # Its binding got no answer. Its own claim takes the room on that node, and it must not go to another.
            return claim.node
        reserved = self._features.first(SchedulerFeature.reserved, pod, asked, names)
        return None if reserved is None else reserved.node.name

    def _offered(self, search: Search, pod: Pod, placing: wire.Placing) -> list[str]:
        """Return the best nodes on which a pod fits; all of them where kube-scheduler has preferences to weigh."""
        averse = self._fleet.averse
        if placing.prefers or (averse and not averse.isdisjoint(search.names) and not averse.issuperset(search.names)):
            return self._names(search)
        tried = self._tried.pop(pod.uid, frozenset())
        passed = best = self._context.best(search, pod, tried)
        if tried:
            # Its binding has failed since, or a plugin or an extender that kube-scheduler asks after this one: so that
            # these find what suits them, all nodes pass but those that were best before, as long as there are others.
            tried = tried if best else frozenset()
            passed = [name for name in self._names(search) if name not in tried]
            best = best or self._context.best(search, pod)
        if best:
            self._tried[pod.uid] = tried.union(best)
            if len(self._tried) > _MOST_TRIED:
                self._tried.popitem(last=False)
        return passed

    def not_bound(self, uid: str, node: str) -> None:
        """Note that the binding of a pod to a node has failed: the pod is offered others first."""
        if uid in self._tried:
            self._tried[uid] |= {node}

    def _names(self, search: Search) -> list[str]:
        return [node.name for node in self._context.evaluator.rows.at(search.fitting())]

    def _refused(self, args: wire.ExtenderArgs, pod: Pod, placing: wire.Placing, whys: Reasons) -> bytes:
        """Refuse a pod that fits on none of these nodes, so that kube-scheduler may evict others for it.

        It finds no pods to evict on these: its plugins pass them as they are. It would write so, with the names of the
        nodes in another order each time, and retry the pod at once because of that change. The node that is nominated
        stays resolvable: the pod waits for those that were evicted there, and has no others evicted meanwhile.
        """
        self._count(whys)
        self._features.each(SchedulerFeature.refused, pod, placing)
        final: dict[str, str] = {}
        awaited: dict[str, str] = {}
        for why, names in whys.items():
            final |= dict.fromkeys(names, why.sentence)
            if not why.unresolvable and placing.nominated_node in names:
                awaited[placing.nominated_node] = final.pop(placing.nominated_node)
        return wire.filter_result(args, [], awaited, final)

    def _retry_reason(self, pod: Pod, search: Search, placing: wire.Placing, whys: Reasons) -> str:
        """Return why the scheduler should retry a pod by itself that fits on none of these nodes; empty: it need not.

        Time alone helps, or a node that the scheduler has not named, or to search on.
        """
        claim = self._fleet.entries.get(pod.uid)
        if claim is not None and claim.claimed:
            # The pod had a node, whether or not that is among the named ones.
            self.waiting.filtered(pod.uid, WaitingReason.FITS)
            return _ELSEWHERE.sentence
        sampled = len(search.names) >= wire.SMALLEST_SAMPLE
        if sampled and (again := self._features.first(SchedulerFeature.retry, pod, search.ask, placing, search.names)):
            why_again, reason = again
            self.waiting.filtered(pod.uid, reason)
            return why_again
        names = (
            self._fleet.candidates
            if sampled
            else chain(*(names for why, names in whys.items() if not why.unresolvable))
        )
        soon = self._fleet.soon
        node = next((name for name in names if name in soon and search.fits(soon[name])), None) if soon else None
        if node is None:
            return UNTRIED.sentence if search.unfinished else ""
        self.waiting.filtered(pod.uid, self._reason(search.ask, whys))
        (why,) = self._context.evaluator.verdicts(search.ask, [node])
        return f"node {node}: {'' if why is None else why.sentence}; {_SOON}"

    def _count(self, whys: Reasons) -> None:
        """Count why a pod fits on none of these nodes."""
        for why, names in whys.items():
            verdict = "unknown" if why == UNKNOWN else "unresolvable" if why.unresolvable else "full"
            self._context.metrics.count(VERDICTS, verdict, times=len(names))

    def _reason(self, asked: GpuRequest, whys: Reasons) -> WaitingReason:
        """Return why a pod waits that fits on none of the named nodes."""
        if all(why.unresolvable for why in whys):
            # kube-scheduler names only nodes whose sums are sufficient now; room may be made on another node.
            named, evaluator = {*chain(*whys.values())}, self._context.evaluator
            everywhere = evaluator.search(asked, [name for name in evaluator.rows.index if name not in named])
            if next(iter(everywhere.fitting()), None) is None and all(why.unresolvable for why in everywhere.reasons()):
                return WaitingReason.NEVER_FITS
        return WaitingReason.NO_ROOM

    def prioritize(self, body: bytes) -> bytes:
        """Return the scores of nodes for a pod, in their order; 0 where it does not fit."""
        names: Sequence[str] = ()
        scores: Iterable[int] = repeat(0)
        try:
            args = wire.read_args(body)
            names = args.names
            pod, asked = self._asked(args.pod)
            if not isinstance(asked, Impossible):
                scores = self._context.scores(pod, asked, names)
        except _NO_ANSWER as error:
            self._unanswered("prioritize", error)
        return wire.priorities(list(map(wire.HostPriority, names, scores)))

    def preempt(self, body: bytes) -> bytes:
        """Return for each node the pods to evict so that the pod fits there; omit nodes where that does not help."""
        try:
            raw, proposed = wire.read_preemption(body)
            pod, asked = self._asked(raw)
        except _NO_ANSWER as error:
            self._unanswered("preempt", error)
            return wire.preemption_result({})
        if isinstance(asked, Impossible):
            self.waiting.filtered(pod.uid, WaitingReason.NEVER_FITS)
            return wire.preemption_result({})
        if not asked.parts:
            return wire.preemption_result(proposed)
        there = (
            (node, self._fleet.occupants(name), frozenset(victims.uids))
            for name, victims in proposed.items()
            if (node := self._fleet.candidates.get(name)) is not None
        )
        chosen: dict[str, wire.Victims] = {}
        requests = pod.requests if wire.fits_by_requests_alone(raw) else None
        helpful = self._features.first(SchedulerFeature.victims, pod, asked, requests, there)
        for node, found in _as_proposed(asked, there) if helpful is None else helpful:
            victims = proposed[node.name]
            kept = [uid for uid in victims.uids if uid in found]
            # The request gives only the number of victims whose eviction violates a budget: at most those that remain.
            violations = min(victims.pdb_violations, len(kept))
            chosen[node.name] = wire.Victims(self._by_importance(kept, found.difference(kept)), violations)
        self.waiting.preempted(pod.uid, helps=bool(chosen))
        return wire.preemption_result(chosen)

    def _by_importance(self, kept: Iterable[str], added: Iterable[str]) -> tuple[str, ...]:
        """Return victims in kube-scheduler's order, the most important first; `kept` are already in that order."""
        entries = self._fleet.entries
        priorities: dict[str, int] = {}
        highest = 2**31
        for uid in kept:
            # The priority of a pod without GPUs is not known here: it is no higher than that of its predecessor.
            highest = priorities[uid] = entries[uid].priority if uid in entries else highest
        priorities.update({uid: entries[uid].priority for uid in sorted(added)})
        return tuple(sorted(priorities, key=lambda uid: -priorities[uid]))

    def inspect(self, name: str = "") -> Page:
        """Return a node, or all that share GPUs, in the format of gpushare's extender; 404 if no node has the name."""
        candidates = self._fleet.candidates
        if name and name not in candidates:
            error = "no node of this name is known to the GPU scheduler"
            return Page(wire.inspect_result([], error), 404, JSON)
        shown = (
            [candidates[name]]
            if name
            else [node for _, node in sorted(candidates.items()) if node.gpus.gpus or node.gpus.problem]
        )
        nodes = [wire.inspected(node, self._fleet.on_node(node.name)) for node in shown]
        return Page(wire.inspect_result(nodes), content_type=JSON)

    def _asked(self, raw: Raw) -> tuple[Pod, GpuRequest | Impossible]:
        why = self.ready()
        if why:
            raise _NotReadyError(why)
        try:
            pod, ignored = self._pods.read(raw)
        except UnreadableObjectError:
            pod, ignored = self._pods.read(wire.with_identity(raw))
        if ignored:
            raise UnreadableObjectError("; ".join(ignored))
        return pod, ask(pod, self._context.resources)

    def _unanswered(self, verb: str, error: Exception) -> None:
        _log.warning(
            "a scheduler request could not be answered", extra={"verb": verb, "why": str(error), "once_per_s": 60}
        )


def _turned(names: list[str], uid: str) -> list[str]:
    """Return the names from another one on for each pod: the first with room are offered, and only these compared."""
    first = crc32(uid.encode()) % len(names) if len(names) > MOST_OFFERED else 0
    return names[first:] + names[:first]


def _as_proposed(asked: GpuRequest, proposals: Proposals) -> Iterator[tuple[Candidate, frozenset[str]]]:
    """Yield the nodes on which a pod fits once all that kube-scheduler would evict have gone, and those.

    It ends early where that takes long.
    """
    packer = CachingPacker(asked.demands, Effort(MOST_STEPS))
    with suppress(TooLongError):
        for node, occupants, victims in proposals:
            staying = [pod.usage for pod in occupants if not pod.terminating and pod.uid not in victims]
            if victims and unfit(asked, node.occupied(staying), packer) is None:
                yield node, victims
