"""The waiting pods for the page, each with why it waits, computed beside the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from gpu_device_plugin.core.cluster.pod_demand import Ask, ask
from gpu_device_plugin.core.report.text.printing import counted
from gpu_device_plugin.core.report.why.explanations import asked_amounts, what_makes_room, why_waits
from gpu_device_plugin.programs.web.callers import everyone
from gpu_device_plugin.view.why_pod import why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.model.resource_claims import Claim
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.report.why.explanations import NodeAnswer
    from gpu_device_plugin.core.report.why.scheduler_checks import Surroundings
    from gpu_device_plugin.view.following import FollowedCluster, FollowedPod

MOST_WAITING = 200
"""The oldest are shown; the others are counted."""
_WEIGHED = 20
"""The nodes nearest to having room, from which `what_makes_room` chooses."""
_EVERY_S = 3.0
_BUDGET_S = 2.0
_REST = 4.0
"""A computation is followed by a pause of so many times its duration, so that it takes a fifth of a CPU at most."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a pod waits."""

    asks: str
    why: str
    nearest: tuple[NodeAnswer, ...]


class WaitingPage:
    """The pods without a node that ask for GPUs."""

    def __init__(
        self, cluster: FollowedCluster, nodes: Callable[[], Sequence[NodeView] | None], on_change: Callable[[], None]
    ) -> None:
        """Explain the pods of `cluster` by `nodes` (None: unreadable); `on_change` is called with each new reason."""
        self._cluster = cluster
        self._nodes = nodes
        self._on_change = on_change
        self._reasons: dict[str, Reasons] = {}
        self._stale = asyncio.Event()
        self._stop = threading.Event()
        self.version = 0
        """Grows with every change of the reasons."""

    def changed(self) -> None:
        """Learn that nodes or waiting pods have changed."""
        self._stale.set()

    def documents(self, may_see: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return the oldest waiting pods in the page's form, of the namespaces that the reader may see."""
        seen = (each for each in self._cluster.waiting if may_see(each.pod.namespace))
        return [self._document(each, may_see) for each in islice(seen, MOST_WAITING)]

    def _document(self, each: FollowedPod, may_see: Callable[[str], bool]) -> dict[str, Any]:
        pod, reasons = each.pod, self._reasons.get(each.uid)
        fields = {
            "asks": asked_amounts(pod, self._cluster.resources) if reasons is None else reasons.asks,
            "since": pod.created,
            "scheduler": "" if each.status is None else each.status.scheduler,
            "why": "" if reasons is None else reasons.why,
            "room": "" if reasons is None else what_makes_room(reasons.nearest, may_see),
        }
        return {"namespace": pod.namespace, "name": pod.name, **{key: value for key, value in fields.items() if value}}

    def notes(self, may_see: Callable[[str], bool] = everyone) -> Sequence[str]:
        """Return a sentence if not all waiting pods that the reader may see are shown."""
        more = sum(may_see(each.pod.namespace) for each in self._cluster.waiting) - MOST_WAITING
        if more <= 0:
            return []
        return [f"{counted(more, 'more pod waits', 'more pods wait')}; the oldest {MOST_WAITING} are shown."]

    async def run(self) -> NoReturn:
        """Explain again whenever something has changed. Ends only by cancellation."""
        try:
            while True:
                await self._stale.wait()
                self._stale.clear()
                began = time.monotonic()
                await self._explain()
                await asyncio.sleep(max(_EVERY_S, _REST * (time.monotonic() - began)))
        finally:
            self._stop.set()

    async def _explain(self) -> None:
        pods = self._cluster.waiting[:MOST_WAITING]
        self._reasons = {each.uid: self._reasons[each.uid] for each in pods if each.uid in self._reasons}
        if not pods:
            return
        # Those of which nothing is known come first; of the others, in turn, those explained longest ago.
        turn = {uid: number for number, uid in enumerate(self._reasons)}
        pods = sorted(pods, key=lambda each: turn.get(each.uid, -1))
        # Pods that ask by claims come only once these are read.
        namespaces = {each.pod.namespace for each in pods if each.status is not None and each.status.claims}
        claims = {namespace: self._cluster.claims_of(namespace) for namespace in namespaces}
        found = await asyncio.to_thread(
            _explained, pods, self._nodes(), self._cluster.around(), claims, self._cluster.resources, stop=self._stop
        )
        if len(found) < len(pods):
            self._stale.set()
        if any(self._reasons.get(uid) != reasons for uid, reasons in found.items()):
            self.version += 1
        for uid, reasons in found.items():
            self._reasons.pop(uid, None)
            self._reasons[uid] = reasons
        self._on_change()


def _explained(
    pods: Sequence[FollowedPod],
    nodes: Sequence[NodeView] | None,
    around: Mapping[str, Surroundings],
    claims: Mapping[str, Sequence[Claim]],
    resources: Sequence[Resource],
    *,
    stop: threading.Event,
) -> Mapping[str, Reasons]:
    """Return why pods wait, of as many as the budget allows. Equal pods are explained once."""
    until = time.monotonic() + _BUDGET_S
    kinds: list[tuple[object, Reasons]] = []
    found: dict[str, Reasons] = {}
    for each in pods:
        if stop.is_set() or (found and time.monotonic() > until):
            break
        if each.status is None:
            continue
        asked = ask(each.pod, resources)
        # Of a demand that no node can meet the explanation names the pod, and not everybody may see all pods.
        kind = (asked if isinstance(asked, Ask) and asked.parts else each.uid, each.status)
        known = next((reasons for other, reasons in kinds if other == kind), None)
        if known is None:
            own = claims.get(each.pod.namespace, ())
            said = why(each.pod, each.status, resources, nodes, around, most=1, claims=own)
            asks = said.asks or asked_amounts(each.pod, resources)
            known = Reasons(asks, why_waits(each.status, said.facts, said.answers), said.answers[:_WEIGHED])
            kinds.append((kind, known))
        found[each.uid] = known
    return found
