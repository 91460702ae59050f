"""Ask the cluster's autoscaler for the nodes that waiting pods need, as long as they need them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

from gpu_device_plugin.aio.turns import in_turns
from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.features.capacity import CapacitySettings
from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache, Waiter, replaceable
from gpu_device_plugin.features.capacity.known_kinds import KnownKinds
from gpu_device_plugin.features.capacity.rules.node_kinds import Needs, NodeKind, lasting, likely_labels, needed, unlike
from gpu_device_plugin.features.capacity.rules.node_requests import PRIORITY, Asker, Attempts, Wanted, common_terms
from gpu_device_plugin.kubernetes.writers.events import EventSubject
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.node_constraints import Terms, obstacles

_Node: TypeAlias = tuple[Wanted, Sequence[Waiter]]
"""A new node, and the pods that it is for."""

_log = logging.getLogger(__name__)

_MOST_NODES, _MOST_NAMED = 100, 80_000
"""Nodes that are asked for at the same time, and present nodes that all of the objects name: some 4 MB."""
_GONE = 100
"""Nodes that have gone and are named still: to leave one out is to ask anew."""
_TRIED_S = 60.0
"""A node that has been open to pods for so long is one that kube-scheduler has tried them on: it does so at once."""
_EMPTY = "has room on its GPUs but stays empty: pod affinity, topology spread or a volume may keep the pod away"
_OTHER = "lacks the GPUs that it needs, like the nodes that were there before"


@dataclass(frozen=True, slots=True)
class _NewNode:
    """A new node that pods can be placed on, as it was last; times are seconds since the epoch."""

    kind: NodeKind
    created_s: float
    open_at: float


@dataclass(eq=False)
class Grower:
    """Works out which nodes are wanted."""

    _context: ControllerContext
    _cache: CapacityCache
    _kinds: KnownKinds
    latest: Sequence[Wanted] = field(default=(), init=False)
    """The latest result."""

    def __post_init__(self) -> None:
        self._attempts = Attempts()
        self._guessed: dict[Asker, Mapping[str, Sequence[str]]] = {}
        """For whose pods nodes of kinds that nobody has seen were asked for; by label the values that they had not."""
        self._young: dict[str, _NewNode] = {}
        """The new nodes that pods can be placed on."""
        self._present: frozenset[str] = frozenset()
        """The host names of the nodes that share GPUs, or did while the latest asks stood."""

    @property
    def _node_start_s(self) -> float:
        return self._context.settings().of(CapacitySettings).node_start_s

    async def wanted(self) -> Sequence[Wanted]:
        """Return the new nodes that are wanted. Raises ApiError."""
        # An autoscaler adds no nodes for pods of a lower priority, nor for those that have a node of their own.
        waiting = [
            each
            for each in self._cache.waiters()
            if each.pod.priority >= PRIORITY and (each.pod.owner is None or replaceable(each.pod))
        ]
        labels = {key for each in waiting for key in each.needs.terms.labels}
        kinds = await self._kinds.all(labels)
        await self._judge_new_nodes(waiting)
        now = self._context.wall()
        waiting = [
            each for each in await self._cache.without_room(waiting) if self._attempts.may_ask(_asker(each), now)
        ]
        young = list(self._young_nodes())
        groups: dict[Needs, list[Waiter]] = {}
        for each in sorted(waiting, key=lambda one: (one.pod.created, one.pod.uid)):
            groups.setdefault(each.needs, []).append(each)
        fitting: dict[Needs, list[NodeKind]] = {}
        for needs in groups:
            fitting[needs] = [kind for kind in kinds if kind.allows(needs) and needs.met_by(kind.node)]
            await asyncio.sleep(0)
        # Nodes whose agents list GPUs, and on which kube-scheduler cannot place pods yet, or may not have.
        coming = [
            kind
            for itself, kind in young
            if kind is not None and (itself.created_s > self._cache.new_since() or not _takes(itself))
        ]
        useful = {needs: groups[needs] for needs in groups if fitting[needs]}
        nodes = [*await _packed(useful, fitting, kinds, coming, kinds)]
        # They are counted by the kind that takes most. Where the autoscaler has brought another, more are asked for of
        # that alone: once it has none left, others would come in their number.
        keys = {kind.key for _, kind in young if kind is not None}
        recent = [kind for kind in kinds if kind.key in keys]
        if nodes and 0 < len(recent) < len(kinds):
            nodes += (await _packed(useful, fitting, kinds, coming, recent))[len(nodes) :]
        nodes += await self._for_unknown_kinds({needs: groups[needs] for needs in groups if not fitting[needs]}, kinds)
        present = frozenset(node.hostname for node in self._cache.nodes.values() if node.shares_gpus)
        known = self._present | present
        self._present = known if self.latest and len(known) <= 2 * len(present) + _GONE else present
        most = min(_MOST_NODES, max(1, _MOST_NAMED // (len(self._present) or 1)))
        chosen = in_turns(
            await _without(nodes, [itself for itself, kind in young if kind is None], kinds),
            lambda node: node[1][0].pod.namespace,
        )[:most]
        self._attempts.asked(dict.fromkeys(_asker(pod) for _, pods in chosen for pod in pods), now, self._node_start_s)
        names = tuple(sorted(self._present))
        self.latest = [
            replace(node, present=names, pods=tuple([str(each.pod) for each in pods])) for node, pods in chosen
        ]
        return self.latest

    async def _for_unknown_kinds(
        self, groups: Mapping[Needs, Sequence[Waiter]], kinds: Sequence[NodeKind]
    ) -> Sequence[_Node]:
        """Return a node for pods that fit on no kind that anybody has seen, while sums hide that from the autoscaler.

        A group of nodes that never had one may be what they need.
        """
        before, self._guessed = self._guessed, {}
        if not all(kind.product for kind in kinds):
            return ()  # nothing tells these from others: they would come, and be of no use
        present = self._cache.sharing().values()
        found: dict[Terms, list[Waiter]] = {}
        for needs, pods in groups.items():
            await asyncio.sleep(0)
            # No new node has a GPU that a pod wants by name.
            if (
                not needs.terms.nowhere
                and not needs.ask.selector.use_uuids
                and any(needs.fits_by_sums(node) for node in present)
            ):
                found.setdefault(needs.terms, []).extend(pods)
        other = unlike((), kinds)
        askers = {_asker(pod) for pods in found.values() for pod in pods}
        self._guessed = {asker: before.get(asker, other) for asker in askers}
        return [(Wanted(terms, other), pods) for terms, pods in found.items()]

    def _young_nodes(self) -> Iterator[tuple[NodeRecord, NodeKind | None]]:
        """Yield the nodes that may still be starting, each as it is now; None: its agent does not list GPUs yet."""
        for itself in self._cache.young(self._context.wall() - self._node_start_s):
            node = self._context.fleet.candidates.get(itself.name)
            if node is None or not node.rooms or node.gpus.problem:
                yield itself, None
            else:
                yield (
                    itself,
                    NodeKind(node=node, labels=itself.labels, taints=lasting(itself.taints), others=itself.others),
                )

    # --- Nodes that came in vain --------------------------------------------------------------------------------------

    async def _judge_new_nodes(self, waiting: Sequence[Waiter]) -> None:
        """Note the new nodes that are of no use to pods that wait.

        Of a kind that is no better than those before, or empty once its time to start is over or it has gone, although
        pods wait that fit there.
        """
        now, before, self._young = self._context.wall(), self._young, {}
        young = list(self._young_nodes()) if waiting else []
        # Its agent lists GPUs before its kubelet offers them, and others may keep pods from it meanwhile.
        for itself, kind in young:
            if kind is not None and _takes(itself):
                open_at = before[itself.name].open_at if itself.name in before else now
                self._young[itself.name] = _NewNode(kind, itself.created_s, open_at)
        one_each = {_asker(each): each for each in reversed(waiting)}
        for name in before.keys() - {itself.name for itself, _ in young}:
            new = before[name]
            if not new.kind.node.summary.used and now - new.open_at >= min(_TRIED_S, self._node_start_s / 2):
                for asker, each in one_each.items():
                    met = each.needs.met_by(new.kind.node)
                    if new.kind.allows(each.needs) and (met or asker in self._guessed):
                        self._tell_in_vain(each, name, new.created_s, _EMPTY if met else _OTHER)
            await asyncio.sleep(0)
        for name in self._young.keys() - before:
            new = self._young[name]
            for asker in self._guessed.keys() & one_each.keys():
                needs, marks = one_each[asker].needs, new.kind.marks.items()
                # One of another kind may have come for other pods: it is of no use once it stays empty.
                known = any(value in self._guessed[asker].get(key, ()) for key, value in marks)
                if not known and new.kind.allows(needs) and not needs.met_by(new.kind.node):
                    self._tell_in_vain(one_each[asker], name, new.created_s, _OTHER)

    def _tell_in_vain(self, waiter: Waiter, node: str, created_s: float, why: str) -> None:
        now, pod = self._context.wall(), waiter.pod
        until = self._attempts.in_vain(_asker(waiter), created_s, now, self._node_start_s)
        if until is None:
            return
        note = (
            f"node {node} was added for it; it {why}. No node is requested for pods of its controller until "
            f"{rfc3339(until)}"
        )
        about = EventSubject("Pod", pod.name, pod.namespace, pod.uid)
        self._context.events.post(about, reason="GPUNodeDidNotHelp", note=note, action="Grow", warning=True)
        _log.warning("a new node did not help", extra={"pod": str(waiter.pod), "why": note})


def _takes(node: NodeRecord) -> bool:
    """Return whether kube-scheduler can place pods on a node whose agent lists GPUs."""
    return node.open and node.offers and not node.starting


async def _packed(
    groups: Mapping[Needs, Sequence[Waiter]],
    fitting: Mapping[Needs, Sequence[NodeKind]],
    kinds: Sequence[NodeKind],
    coming: Sequence[NodeKind],
    allowed: Sequence[NodeKind],
) -> Sequence[_Node]:
    """Return the nodes that pods need of the allowed ones among the kinds, beside those that are coming."""
    left = {needs: iter(in_turns(pods, lambda each: each.pod.namespace)) for needs, pods in groups.items()}
    # Kinds are compared by identity: a comparison of all that is known of two takes long, and there are many.
    fits = {needs: {id(kind) for kind in some} for needs, some in fitting.items()}
    found: list[_Node] = []
    for _, taken in await last_of(needed({needs: len(groups[needs]) for needs in groups}, allowed, coming)):
        pods = [pod for needs, number in taken.items() for pod in islice(left[needs], number)]
        fit = [kind for kind in allowed if all(id(kind) in fits[needs] for needs in taken)]
        terms = common_terms(dict.fromkeys(needs.terms for needs in taken), fit)
        found.append((Wanted(terms, unlike(fit, kinds)), pods))
    return found


async def _without(
    nodes: Sequence[_Node], starting: Iterable[NodeRecord], kinds: Sequence[NodeKind]
) -> Sequence[_Node]:
    """Leave out of the wanted nodes what new ones may be whose agents do not list their GPUs yet."""
    left = list(nodes)
    known = {taint for kind in kinds for taint in kind.taints}
    for itself in starting:
        # Taints that no other node has are those of a node that starts.
        taints = tuple(taint for taint in itself.taints if taint in known)
        likely = replace(itself, labels=likely_labels(itself.labels, kinds), taints=taints, ready=True)
        met = (each for each in left if next(obstacles(likely, each[0].may_be), None) is None)
        if (first := next(met, None)) is not None:
            left.remove(first)
        await asyncio.sleep(0)
    return left


def _asker(waiter: Waiter) -> Asker:
    pod = waiter.pod
    return Asker(pod.namespace, pod.uid if pod.owner is None else pod.owner.uid)
