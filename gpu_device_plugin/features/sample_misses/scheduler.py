"""Have kube-scheduler look at a node outside its sample, by nominating it for the pod. See docs/decisions/0035."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.preemption.rules import Preemptor, where_evicting_may_help
from gpu_device_plugin.kubernetes.client.errors import ApiError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import PODS
from gpu_device_plugin.metrics import SAMPLE_MISSES
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature, Tasks
from gpu_device_plugin.scheduler.node_evaluator import UNTRIED
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.scheduler_gauges import WaitingReason
from gpu_device_plugin.scheduler.wire import SMALLEST_SAMPLE, Placing

_log = logging.getLogger(__name__)

_OUTSIDE = "none of the {} nodes of kube-scheduler's sample has room; node {}, which {}, is proposed to it"
_MOST_TO_EVICT = 16
"""Nodes outside the sample that are compared where pods have to be evicted."""
_LARGEST_SAMPLE = 1_000
"""A larger one takes too long to learn from: kube-scheduler's adaptive percentage is less up to 20,000 nodes."""
_MOST_NOMINATIONS = 6
"""For one pod in `_PERIOD_S`: others may take the room each time."""
_MOST_GUESSES = 3
"""For pods of one kind in `_PERIOD_S`: nodes that kube-scheduler has never named for them. Its plugins may refuse
these."""
_PERIOD_S = 300.0
"""kube-scheduler retries an unschedulable pod after this time at the latest."""
_TOO_LATE_S = 1.0
"""A nomination that was not written for so long is not written any more: kube-scheduler may have retried the pod."""
_MOST_KINDS, _MOST_NAMED = 16, 50_000
"""The most kinds of pods that are remembered, and nodes for each; with 5,000 nodes a kind takes up to 0.5 MB."""
_MOST_SCORED = 100


@dataclass(slots=True)
class _Kind:
    """The pods whose own fields allow them on the same nodes (`wire.Placing.constraints`)."""

    named: set[str] = field(default_factory=set)
    """The nodes that kube-scheduler has named for one of them: they passed its plugins then."""
    guessed: dict[str, float] = field(default_factory=dict)
    """Other nodes that were nominated for one of them, and until when these are left out, monotonic seconds."""


@dataclass(slots=True)
class _Nominated:
    """The nodes nominated for one pod."""

    until: float
    """When the pod may be given others, monotonic seconds."""
    nodes: list[str] = field(default_factory=list)
    """The latest at the end."""


@dataclass(eq=False)
class Nominator:
    """Writes the nominated node of pods (``status.nominatedNodeName``), at which kube-scheduler looks first.

    If its plugins pass that node, it asks about it alone; if not, it takes its next sample. So this learns for each
    kind of pods which nodes they may go to, without knowing their taints, affinity or spreading.
    """

    _context: ControllerContext

    def __post_init__(self) -> None:
        self._nominated: dict[str, _Nominated] = {}
        """By pod UID."""
        self._kinds: OrderedDict[int, _Kind] = OrderedDict()
        """The latest at the end."""
        self._unwritten: dict[str, tuple[float, Pod, str | None]] = {}
        """By pod UID: when to write, for which pod, and the node."""
        self._worker = Worker(self._write_due)

    def __repr__(self) -> str:
        return f"<Nominator: {len(self._nominated)} pods, {len(self._unwritten)} to be written>"

    def asked(self, uid: str, kind: int, names: Sequence[str]) -> None:
        """Learn from the nodes that kube-scheduler names for a pod of a kind: its plugins passed them."""
        alone = len(names) == 1 and self.has_nominated(uid, names[0])
        if not alone and not SMALLEST_SAMPLE <= len(names) <= _LARGEST_SAMPLE:
            return
        known = self._known(kind)
        if alone:
            known.guessed.pop(names[0], None)
        if len(known.named) > _MOST_NAMED:
            known.named.clear()  # most of them are gone by now
        if not known.named.issuperset(names):
            known.named.update(map(sys.intern, names))

    def nominate(
        self, pod: Pod, kind: int, suitable: Sequence[str], scores: Callable[[Sequence[str]], Sequence[float]]
    ) -> str | None:
        """Nominate one of the nodes that suit a pod, and return it; None: it was given enough of them in vain.

        Preferred are nodes that kube-scheduler has named for the kind of pod, then those that were not nominated for
        this pod before, then those of the fewest other pods, then the best score.
        """
        now, pending = self._context.clock(), self._context.fleet.pending
        self._nominated = {
            uid: each for uid, each in self._nominated.items() if uid in pending and each.nodes and now < each.until
        }
        known = self._known(kind)
        known.guessed = {name: until for name, until in known.guessed.items() if now < until}
        mine = self._nominated.setdefault(pod.uid, _Nominated(now + _PERIOD_S))
        nodes = [name for name in suitable if name in known.named]
        if not nodes:
            may_guess = len(known.guessed) < _MOST_GUESSES
            nodes = [name for name in suitable if name in mine.nodes or (may_guess and name not in known.guessed)]
        if not nodes or len(mine.nodes) == _MOST_NOMINATIONS:
            return None
        others = Counter(each.nodes[-1] for uid, each in self._nominated.items() if uid != pod.uid)
        nodes = sorted(nodes, key=lambda name: (mine.nodes.count(name), others[name]))[:_MOST_SCORED]
        by_score = dict(zip(nodes, scores(nodes), strict=True))
        node = min(nodes, key=lambda name: (mine.nodes.count(name), others[name], -by_score[name]))
        mine.nodes.append(node)
        if node not in known.named:
            known.guessed[node] = now + _PERIOD_S
        self._write_soon(pod, node)
        return node

    def _known(self, kind: int) -> _Kind:
        known = self._kinds.setdefault(kind, _Kind())
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        return known

    def has_nominated(self, uid: str, node: str) -> bool:
        """Return whether a node is the latest that was nominated for a pod."""
        nominated = self._nominated.get(uid)
        return bool(node) and nominated is not None and nominated.nodes[-1:] == [node]

    def withdraw(self, pod: Pod) -> None:
        """Remove the nominated node of a pod: kube-scheduler keeps room there until it removes the node itself."""
        self._write_soon(pod, None)

    def _write_soon(self, pod: Pod, node: str | None) -> None:
        self._unwritten[pod.uid] = self._context.clock() + self._context.timings.nominate_s, pod, node
        self._worker.wake()

    async def run(self) -> NoReturn:
        """Write the nominations. Ends only by cancellation; one that cannot be written is logged."""
        await self._worker.run()

    async def _write_due(self) -> float | None:
        """Write what is due; return in how many seconds the next one is."""
        now = self._context.clock()
        due = [each for each in self._unwritten.values() if each[0] <= now]
        for _, pod, _ in due:
            del self._unwritten[pod.uid]
        await asyncio.gather(*(self._write(pod, node) for at, pod, node in due if now - at < _TOO_LATE_S))
        return min((each[0] - self._context.clock() for each in self._unwritten.values()), default=None)

    async def _write(self, pod: Pod, node: str | None) -> None:
        if pod.uid not in self._context.fleet.pending:
            return
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        patch = self._context.client.patch(PODS, pod.name, body, namespace=pod.namespace, subresource="status")
        try:
            written = await wait_within(_TOO_LATE_S, patch)
            why = "" if written else "the API server did not answer"
        except NotFoundError:
            return
        except ApiError as error:
            why = str(error)
        if why:
            where = {"pod": f"{pod.namespace}/{pod.name}", "node": node or ""}
            _log.warning(
                "a node could not be nominated for a pod; kube-scheduler looks for one by itself",
                extra=where | {"why": why, "once_per_s": 60},
            )


class SampleMisses(SchedulerFeature):
    """Looks for room on the nodes that kube-scheduler has not named."""

    def __init__(self, context: ControllerContext) -> None:
        """Prepare; what the pods of a kind may use is learned from kube-scheduler's calls."""
        self._context = context
        self.nominator = Nominator(context)
        self._closed: set[str] = set()
        """The nodes that are cordoned or not ready."""

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.nominator.run()]

    def put_node(self, node: NodeRecord) -> None:  # noqa: D102
        (self._closed.add if node.unschedulable or not node.ready else self._closed.discard)(node.name)

    def remove_node(self, name: str) -> None:  # noqa: D102
        self._closed.discard(name)

    def sampled(self, uid: str, constraints: int, nodes: Sequence[str]) -> None:  # noqa: D102
        self.nominator.asked(uid, constraints, nodes)

    def refused(self, pod: Pod, placing: Placing) -> None:
        """Withdraw the nomination of a pod that may have nobody evicted: kube-scheduler keeps room for it there."""
        if not placing.may_preempt and self.nominator.has_nominated(pod.uid, placing.nominated_node):
            self.nominator.withdraw(pod)

    def retry(
        self, pod: Pod, asked: GpuRequest, placing: Placing, sample: Sequence[str]
    ) -> tuple[str, WaitingReason] | None:
        """Nominate a node outside the sample that has room for a pod, or where evicting may make room; say so."""
        left_out, fleet = {*sample, *self._closed}, self._context.fleet
        evaluator = self._context.evaluator
        index = evaluator.rows.index
        outside = [name for name in index if name not in left_out] if len(sample) < len(index) else []
        search = evaluator.search(asked, outside)
        roomy = [
            node.name
            for node in evaluator.rows.at(search.fitting())
            if not node.gpus.claims  # kube-scheduler allocates these
            and (node.left is None or node.left.cover(pod.amounts))
        ]
        if roomy:
            node = self.nominator.nominate(
                pod, placing.constraints, roomy, lambda nodes: self._context.scores(pod, asked, nodes)
            )
            self._context.metrics.count(SAMPLE_MISSES, "refused" if node is None else "nominated")
            return None if node is None else (_OUTSIDE.format(len(sample), node, "has room"), WaitingReason.FITS)
        if search.unfinished:
            return UNTRIED.sentence, WaitingReason.NO_ROOM
        if not placing.may_preempt or placing.nominated_node:
            return None  # kube-scheduler has looked at the nominated node, and looks for pods to evict there now
        candidates = fleet.candidates
        others = (
            candidates[name]
            for name in fleet.nodes_below(pod.priority) - left_out
            if name in candidates and not candidates[name].gpus.claims
        )
        helpful = where_evicting_may_help(Preemptor(asked, pod.priority), others, fleet.occupants)
        lowest = {node.name: priority for node, priority in islice(helpful, _MOST_TO_EVICT)}
        node = self.nominator.nominate(
            pod, placing.constraints, list(lowest), lambda nodes: [-lowest[name] for name in nodes]
        )
        what = "may have room once other pods are evicted"
        return None if node is None else (_OUTSIDE.format(len(sample), node, what), WaitingReason.NO_ROOM)
