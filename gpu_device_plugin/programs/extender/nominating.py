"""Have kube-scheduler try a node that was not in its sample, by nominating it for the pod. See docs/decisions/0030."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter, OrderedDict
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.cluster.client.errors import ApiError, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.core.model.pods import Pod

_log = logging.getLogger(__name__)

SMALLEST_SAMPLE = 100
"""kube-scheduler names fewer nodes only if no others passed its plugins (minFeasibleNodesToFind, 1.27 to 1.36)."""
_MOST_NOMINATIONS = 6
"""For one pod in `_PERIOD_S`: others may take the room each time."""
_MOST_REFUSED = 3
"""Nodes that kube-scheduler's plugins may refuse to pods of one kind in `_PERIOD_S`, of those it has never named."""
_PERIOD_S = 300.0
"""kube-scheduler retries an unschedulable pod after this time at the latest."""
_SEEN_AFTER_S = 0.2
"""How long after it is written a nomination may be unknown to kube-scheduler's watch."""
_MOST_KINDS, _MOST_NAMED = 16, 50_000
"""The most kinds of pods that are remembered, and nodes for each; with 5,000 nodes a kind takes up to 0.5 MB."""
_MOST_SCORED = 100


@dataclass(slots=True)
class _Kind:
    """The pods whose own fields allow them on the same nodes (`wire.node_constraints`)."""

    named: set[str] = field(default_factory=set)
    """The nodes that kube-scheduler has named for one of them: they passed its plugins then."""
    refused: dict[str, float] = field(default_factory=dict)
    """The nodes that its plugins refused although nominated, and until when these are left out."""


@dataclass(slots=True)
class _Nominated:
    """The nodes nominated for one pod."""

    until: float
    """When the pod may be given others, monotonic seconds."""
    nodes: list[str] = field(default_factory=list)
    """The latest at the end."""
    written: float | None = None
    """When the latest was written on the pod; None: it was not, or kube-scheduler has asked about it since."""


@dataclass(eq=False)
class Nominator:
    """Writes the nominated node of pods (``status.nominatedNodeName``), which kube-scheduler tries before all others.

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
        self._queue: asyncio.Queue[tuple[float, Pod, str]] = asyncio.Queue()
        """When to write, for which pod, and the node."""

    def __repr__(self) -> str:
        return f"<Nominator: {len(self._nominated)} pods, {self._queue.qsize()} to be written>"

    def sampled(self, kind: int, names: Sequence[str]) -> None:
        """Note that kube-scheduler's plugins passed these nodes for a pod of a kind."""
        known = self._kinds.setdefault(kind, _Kind())
        self._kinds.move_to_end(kind)
        if len(known.named) > _MOST_NAMED:
            known.named.clear()  # most of them are gone by now
        known.named.update(map(sys.intern, names))
        for node in known.refused.keys() & names:
            del known.refused[node]
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)

    def tried(self, uid: str, node: str) -> None:
        """Note that kube-scheduler asks about one node alone: if it is a pod's nominated one, its plugins passed it."""
        nominated = self._nominated.get(uid)
        if nominated is not None and nominated.nodes[-1:] == [node]:
            nominated.written = None

    def nominate(
        self, pod: Pod, kind: int, fitting: Sequence[str], scores: Callable[[Sequence[str]], Sequence[int]]
    ) -> str | None:
        """Nominate one of the nodes that a pod fits on, and return it; None: it was given enough of them in vain.

        Preferred are nodes that kube-scheduler has named for the kind of pod, then those that were not nominated for
        this pod before, then those of the fewest other pods, then the best score.
        """
        now, pending = self.clock(), self._pending()
        self._nominated = {
            uid: each for uid, each in self._nominated.items() if uid in pending and each.nodes and now < each.until
        }
        known = self._kinds.setdefault(kind, _Kind())
        mine = self._nominated.setdefault(pod.uid, _Nominated(now + _PERIOD_S))
        if mine.written is not None and now - mine.written > _SEEN_AFTER_S:
            # kube-scheduler has come back with another sample, without having asked about it.
            known.refused[mine.nodes[-1]] = now + _PERIOD_S
        mine.written = None
        known.refused = {name: until for name, until in known.refused.items() if now < until}
        fitting = [name for name in fitting if name not in known.refused]
        nodes = [name for name in fitting if name in known.named]
        if not nodes and len(known.refused) < _MOST_REFUSED:
            nodes = fitting
        if not nodes or len(mine.nodes) == _MOST_NOMINATIONS:
            return None
        others = Counter(each.nodes[-1] for uid, each in self._nominated.items() if uid != pod.uid)
        nodes = sorted(nodes, key=lambda name: (mine.nodes.count(name), others[name]))[:_MOST_SCORED]
        by_score = dict(zip(nodes, scores(nodes), strict=True))
        node = min(nodes, key=lambda name: (mine.nodes.count(name), others[name], -by_score[name]))
        mine.nodes.append(node)
        self._queue.put_nowait((now + self.delay_s, pod, node))
        return node

    async def run(self) -> NoReturn:
        """Write the nominations. Ends only by cancellation; one that cannot be written is logged."""
        while True:
            due, pod, node = await self._queue.get()
            await asyncio.sleep(due - self.clock())
            nominated = self._nominated.get(pod.uid)
            if nominated is None or pod.uid not in self._pending():
                continue
            body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
            try:
                await self._client.patch(PODS, pod.name, body, namespace=pod.namespace, subresource="status")
            except NotFoundError:
                continue
            except ApiError as error:
                where = {"pod": f"{pod.namespace}/{pod.name}", "node": node}
                _log.warning(
                    "a node could not be nominated for a pod; kube-scheduler looks for one by itself",
                    extra=where | {"why": str(error), "once_per_s": 60},
                )
            else:
                nominated.written = self.clock()
