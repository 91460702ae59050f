"""What the page shows at present: each node as JSON, written once for everybody who may see all of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NoReturn

import msgspec

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.history.rules.slowness import everyone
from gpu_device_plugin.features.report_features import ReportParts
from gpu_device_plugin.model.contract.node_use import NodeReport, NodeUse
from gpu_device_plugin.model.resources import Resource
from gpu_device_plugin.programs.web.callers import CallerScope
from gpu_device_plugin.programs.web.figures import FiguresState
from gpu_device_plugin.programs.web.watched import Watched
from gpu_device_plugin.report.followed_cluster import FollowedPod
from gpu_device_plugin.report.rules.finding import Finding, Message, note
from gpu_device_plugin.report.rules.node_answers import NodeAnswer, asked_amounts, what_makes_room, why_waits
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import node_document
from gpu_device_plugin.report.why_pod import why
from gpu_device_plugin.scheduler.rules.changes import ChangeLog
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask

_SLICE_S = 0.01
"""After this time of uninterrupted work the event loop gets a turn."""
_MOST_ALONE = 2000
_MOST_LIMITED = 4096
"""The most documents that are kept of nodes without the names that some readers may not see: 10 MB of usual nodes."""

NO_NODES = note(
    "no-right-to-nodes",
    "You have no right to list nodes, so only pods of your namespaces are shown, without their GPUs; ask an "
    "administrator to bind the ClusterRole gpushare-viewer to you",
)
ASKING = note(
    "names-follow",
    "Names of pods follow: the API server has not yet said for all namespaces whether you may see their pods",
)
PARTS = ("waiting", "alone", "notes", "figures")
"""The parts of the page beside its nodes, by their names in events."""


# --- The waiting pods, each with why it waits, computed beside the event loop -----------------------------------------

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

    asks: Finding
    why: Finding
    nearest: tuple[NodeAnswer, ...]


class WaitingPage:
    """The pods without a node that ask for GPUs."""

    def __init__(self, page: PageState) -> None:
        """Explain the pods of a page by its nodes; with each new reason it is `dirty`."""
        self._page = page
        self._cluster = page.watched.cluster
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
        room = None if reasons is None else what_makes_room(reasons.nearest, may_see)
        fields = {
            "asks": (_asks(asked_amounts(pod, self._cluster.resources)) if reasons is None else reasons.asks).message(),
            "since": pod.created,
            "scheduler": "" if each.status is None else each.status.scheduler,
            "why": "" if reasons is None else reasons.why.message(),
            "room": room and room.message(),
        }
        return {"namespace": pod.namespace, "name": pod.name, **{key: value for key, value in fields.items() if value}}

    def notes(self, may_see: Callable[[str], bool] = everyone) -> Sequence[Finding]:
        """Return a sentence if not all waiting pods that the reader may see are shown."""
        more = sum(may_see(each.pod.namespace) for each in self._cluster.waiting) - MOST_WAITING
        if more <= 0:
            return []
        text = "{n:more pod is|more pods are} pending; the oldest {most} are shown."
        return [note("more-pods-wait", text, n=more, most=MOST_WAITING)]

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
        claims = {namespace: self._cluster.more_of(namespace) for namespace in namespaces}
        page, cluster = self._page, self._cluster
        found = await asyncio.to_thread(
            _explained, pods, page.readable, claims, cluster.resources, page.watched.parts, stop=self._stop
        )
        if len(found) < len(pods):
            self._stale.set()
        if any(self._reasons.get(uid) != reasons for uid, reasons in found.items()):
            self.version += 1
        for uid, reasons in found.items():
            self._reasons.pop(uid, None)
            self._reasons[uid] = reasons
        self._page.dirty.set()


def _explained(
    pods: Sequence[FollowedPod],
    nodes: Sequence[NodeView] | None,
    claims: Mapping[str, Sequence[Any]],
    resources: Sequence[Resource],
    parts: ReportParts,
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
        kind = (asked if isinstance(asked, GpuRequest) and asked.parts else each.uid, each.status)
        known = next((reasons for other, reasons in kinds if other == kind), None)
        if known is None:
            own = claims.get(each.pod.namespace, ())
            said = why(
                each.pod,
                each.status,
                resources,
                nodes,
                most=1,
                followed={} if parts.kind is None else {parts.kind.kind.plural: own},
                features=parts,
            )
            asks = _asks(said.asks or asked_amounts(each.pod, resources))
            known = Reasons(asks, why_waits(each.status, said.facts, said.answers), said.answers[:_WEIGHED])
            kinds.append((kind, known))
        found[each.uid] = known
    return found


def _asks(amounts: tuple[str | Finding, ...]) -> Finding:
    return note("asks", "{asks:+ and }", asks=amounts)


# --- All of the page --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownNode:
    """One node."""

    view: NodeView
    namespaces: frozenset[str]
    """Of the pods on it."""
    live: bool
    """Its use was read from its agent."""
    document: bytes
    """Its JSON, with all names."""


class PageState:
    """What the page shows."""

    def __init__(self, watched: Watched, figures: Callable[[], FiguresState]) -> None:
        self.watched = watched
        self._figures = figures
        self._looked_s = time.time()
        self._use: dict[str, NodeUse] = {}
        self._used: set[str] = set()
        self.namespaces: frozenset[str] = frozenset()
        """The namespaces of all pods with GPUs, as of the last `refresh`."""
        self._shown: dict[str, ShownNode] = {}
        self._changes: ChangeLog[str] = ChangeLog()
        self._begun = 0
        """The first change of a complete page."""
        self.complete = False
        """Everything that may be read was read and written."""
        self._marks = dict.fromkeys(PARTS, 0)
        self._seen: dict[str, object] = {}
        self._limited: OrderedDict[tuple[str, frozenset[str]], tuple[bytes, bytes]] = OrderedDict()
        """By node and the namespaces there that are seen: the JSON with all names, and with theirs alone."""
        self.mark: Observable[int] = Observable(0)
        """The number of the last change."""
        self.dirty = watched.changed
        """Something has changed since the last `refresh`: of the cluster, of the use of nodes, or why pods wait."""
        self.waiting = WaitingPage(self)
        self._writing = False

    # --- Changes ------------------------------------------------------------------------------------------------------

    def use(self, name: str, use: NodeUse | None) -> None:
        """Take the use of a node as its agent gives it now; None: only the node's annotation is known."""
        if use is None:
            if self._use.pop(name, None) is None:
                return
        elif self._use.get(name) == use:
            return
        else:
            self._use[name] = use
        self._used.add(name)
        self.dirty.set()

    @property
    def current(self) -> bool:
        """Whether all that is known is written and announced."""
        return not self._writing and not self.dirty.is_set()

    async def refresh(self) -> None:
        """Write what has changed, in slices, and announce it."""
        self._writing = True
        self.dirty.clear()
        cluster, known = self.watched.cluster, self.watched.known
        names = cluster.changed()
        used, self._used = self._used, set()
        now_s = time.time()
        stale, self._looked_s = cluster.went_stale(self._looked_s), now_s
        number = self.mark.value + 1
        wanted = {*self._shown, *cluster.names} if names is None else {*names, *used, *stale}
        any_node = False
        pause_at = time.monotonic() + _SLICE_S
        for name in sorted(wanted):
            any_node = self._write(name, number) or any_node
            if time.monotonic() >= pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + _SLICE_S
        for name in self._use.keys() - self._shown.keys():
            del self._use[name]
        waits = cluster.waiting_version, self.waiting.version
        completed = known and not self.complete
        # Before all is read, a reason would be that there are no nodes.
        if completed or (self.complete and (any_node or self._seen.get("waiting") != waits)):
            self.waiting.changed()
        parts = {"waiting": waits, "alone": self._alone(), "notes": self.notes(), "figures": self._figures()}
        changed = [part for part in PARTS if self._seen.get(part) != parts[part]]
        self._seen.update(parts)
        self._marks.update(dict.fromkeys(changed, number))
        self.namespaces = frozenset[str]().union(
            *(shown.namespaces for shown in self._shown.values()),
            (entry.namespace for entry in cluster.fleet.entries.values()),
            (pod.namespace for _, pod in cluster.instance_pods),
            (each.pod.namespace for each in cluster.waiting),
        )
        if completed:
            self.complete, self._begun = True, number
        if any_node or changed or completed:
            self.mark.set(number)
        self._writing = False

    def _write(self, name: str, number: int) -> bool:
        """Write one node; return whether it has changed."""
        view, use = self.watched.cluster.view(name), self._use.get(name)
        before = self._shown.get(name)
        if view is None:
            if self._shown.pop(name, None) is None:
                return False
        else:
            if use is not None:
                view = replace(view, report=NodeReport(view.report.limits, use, 0.0))
            spaces = {pod.namespace for pod in view.pods} | {part.namespace for part in view.report.current}
            spaces |= {pod.namespace for pod in view.instance_pods}
            spaces |= {part.needed_by.partition("/")[0] for part in view.report.current if part.needed_by}
            document = msgspec.json.encode(node_document(view, brief=True, live=use is not None))
            self._shown[name] = ShownNode(view, frozenset(spaces), use is not None, document)
            if before is not None and before.document == document:
                return False
        self._changes.add(name, number)
        return True

    @property
    def readable(self) -> Sequence[NodeView] | None:
        """All nodes, with all names; None: they cannot be read."""
        return [self._shown[name].view for name in self.names] if self.watched.nodes_readable else None

    # --- Reading ------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes."""
        return sorted(self._shown)

    def node(self, name: str) -> ShownNode | None:
        """Return one node; None: there is no such node that shares GPUs."""
        return self._shown.get(name)

    def changed_since(self, mark: int) -> tuple[Sequence[str] | None, frozenset[str]]:
        """Return the nodes and the `PARTS` that changed after `mark`; None instead of nodes: any may have changed."""
        parts = frozenset(part for part in PARTS if self._marks[part] > mark)
        names = None if mark < self._begun else self._changes.since(mark)
        return names and sorted(names), parts

    def document(self, shown: ShownNode, scope: CallerScope) -> bytes:
        """Return the JSON of a node for a reader."""
        if scope.everything or all(map(scope.may_see, shown.namespaces)):
            return shown.document
        # Most readers see none of a node's namespaces, and share one document.
        key = shown.view.name, frozenset(filter(scope.may_see, shown.namespaces))
        whole, limited = self._limited.get(key, (b"", b""))
        if whole != shown.document:
            limited = msgspec.json.encode(node_document(scope.of(shown.view), brief=True, live=shown.live))
            self._limited[key] = shown.document, limited
        self._limited.move_to_end(key)
        if len(self._limited) > _MOST_LIMITED:
            self._limited.popitem(last=False)
        return limited

    def shows_nodes(self, scope: CallerScope) -> bool:
        """Return whether nodes are read, and the reader may see them."""
        return self.watched.nodes_readable and scope.nodes

    def with_pods_of(self, namespaces: Collection[str]) -> Sequence[str]:
        """Return the names of the nodes with pods of any of these namespaces."""
        return [name for name, shown in self._shown.items() if not shown.namespaces.isdisjoint(namespaces)]

    def part(self, name: str, scope: CallerScope) -> Any:
        """Return one of `PARTS` for a reader."""
        if name == "waiting":
            waiting = self.waiting.documents(scope.may_see)
            # Why a pod waits is told by nodes.
            return waiting if scope.nodes else [{**each, "why": "", "room": ""} for each in waiting]
        if name == "alone":
            return self._alone(scope.may_see, anyway=not scope.nodes)
        if name == "notes":
            asking = [] if scope.knows(self.namespaces) else [ASKING.message()]
            return [*asking, *(self.notes(scope.may_see) if scope.nodes else [NO_NODES.message()])]
        state = self._figures()
        if not scope.nodes:
            return {"source": "none"}
        # Why an agent cannot be read names it and its node.
        why = tuple(filter(None, (state.why, state.detail if scope.everything else None)))
        return {"source": state.source, **({"why": note("reasons", "{why:+; }", why=why).message()} if why else {})}

    def notes(self, may_see: Callable[[str], bool] = everyone) -> Sequence[Message]:
        """Return what is not shown, and why, in sentences."""
        return [each.message(capital=True) for each in (*self.watched.notes(), *self.waiting.notes(may_see))]

    def _alone(self, may_see: Callable[[str], bool] = everyone, *, anyway: bool = False) -> Sequence[Mapping[str, Any]]:
        if self.watched.nodes_readable and not anyway:
            return []
        entries, phases = self.watched.cluster.fleet.entries, self.watched.cluster.phases
        holders = {pod.uid: (node, pod) for node, pod in self.watched.cluster.instance_pods}
        names = {(each.namespace, each.name, each.uid) for each in entries.values()}
        names |= {(pod.namespace, pod.name, pod.uid) for _, pod in holders.values()}
        found = []
        for namespace, name, uid in sorted(each for each in names if may_see(each[0]))[:_MOST_ALONE]:
            fields: dict[str, Any] = {"phase": phases.get(uid, "")}
            if uid in holders:
                node, holder = holders[uid]
                fields |= {"node": node, "instances": holder.asked}
            if (entry := entries.get(uid)) is not None:
                usage = entry.usage
                fields |= {"node": entry.node, "shares": usage.all_shares, "wholeGpus": usage.all_gpus}
            found.append(
                {"namespace": namespace, "name": name, **{key: value for key, value in fields.items() if value}}
            )
        return found
