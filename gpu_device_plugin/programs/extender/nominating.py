"""Have kube-scheduler look at a node outside its sample, by nominating it for the pod. See docs/decisions/0030.

Which pods wait is known by the latest answers to kube-scheduler about them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter, OrderedDict
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.cluster.client.errors import ApiError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import PODS
from gpu_device_plugin.core.model.times import epoch_s
from gpu_device_plugin.core.report.gauges import WaitingReason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.fleet import Fleet

_log = logging.getLogger(__name__)

SMALLEST_SAMPLE = 100
"""kube-scheduler names fewer nodes only if no others passed its plugins (minFeasibleNodesToFind, 1.27 to 1.36)."""
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

    _client: Client
    _pending: Callable[[], Collection[str]]
    """Returns the UIDs of the unbound pods."""
    _: KW_ONLY
    delay_s: float
    """How long a nomination waits for what kube-scheduler writes of the pod's failure, which would remove it."""
    clock: Callable[[], float] = time.monotonic
    """Returns monotonic seconds."""

    def __post_init__(self) -> None:
        self._nominated: dict[str, _Nominated] = {}
        """By pod UID."""
        self._kinds: OrderedDict[int, _Kind] = OrderedDict()
        """The latest at the end."""
        self._unwritten: dict[str, tuple[float, Pod, str | None]] = {}
        """By pod UID: when to write, for which pod, and the node."""
        self._queued = asyncio.Event()

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
        known.named.update(map(sys.intern, names))

    def nominate(
        self, pod: Pod, kind: int, suitable: Sequence[str], scores: Callable[[Sequence[str]], Sequence[float]]
    ) -> str | None:
        """Nominate one of the nodes that suit a pod, and return it; None: it was given enough of them in vain.

        Preferred are nodes that kube-scheduler has named for the kind of pod, then those that were not nominated for
        this pod before, then those of the fewest other pods, then the best score.
        """
        now, pending = self.clock(), self._pending()
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
        self._unwritten[pod.uid] = self.clock() + self.delay_s, pod, node
        self._queued.set()

    async def run(self) -> NoReturn:
        """Write the nominations. Ends only by cancellation; one that cannot be written is logged."""
        while True:
            self._queued.clear()
            now = self.clock()
            due = [each for each in self._unwritten.values() if each[0] <= now]
            if not due:
                first = min((each[0] for each in self._unwritten.values()), default=None)
                await within(None if first is None else first - now, self._queued.wait())
                continue
            for _, pod, _ in due:
                del self._unwritten[pod.uid]
            await asyncio.gather(*(self._write(pod, node) for at, pod, node in due if now - at < _TOO_LATE_S))

    async def _write(self, pod: Pod, node: str | None) -> None:
        if pod.uid not in self._pending():
            return
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        patch = self._client.patch(PODS, pod.name, body, namespace=pod.namespace, subresource="status")
        try:
            written = await within(_TOO_LATE_S, patch)
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


_SPARE = 256
"""Remembered verdicts beyond two for each waiting pod, before those of pods that no longer wait are forgotten."""
_NEWEST = 64
"""Verdicts that are kept then anyway: the scheduler may know a pod before our watch shows it."""


@dataclass(eq=False, repr=False)
class WaitingObserved:
    """The last verdict on each waiting pod. Only a leader is asked for verdicts.

    kube-scheduler asks about the nodes that pass its own checks, with the sums of resources among them. So a pod that
    it never asks about has room on no node by the sums, which a cluster's autoscaler sees as well.
    """

    _fleet: Fleet
    _wall: Callable[[], float] = time.time
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
