"""The kinds of nodes that an autoscaler can bring, by the nodes that are there or were: what a new one will be like.

How many of each the waiting pods need is found by packing them GPU by GPU, as a scheduler will place them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from gpu_device_plugin.model.contract.keys import GROUP_LABELS, HOSTNAME, NODE_LABELS, STARTUP_TAINT
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.contract.nodelabels import label_value
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import after, fit, unfit
from gpu_device_plugin.scheduler.rules.node_constraints import Terms, obstacles
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest

Steps = Generator[None, None, "tuple[Candidate, Counter[Needs]]"]

PRODUCT = f"{NODE_LABELS}product"
MACHINE = "node.kubernetes.io/instance-type"
"""Of Kubernetes: the label with the cloud's type of machine."""
_STARTING = ("node.kubernetes.io/", "startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.")
"""How keys of taints begin that a node loses once it has started."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a waiting pod needs of a node; a scheduler may treat pods with equal needs alike."""

    ask: GpuRequest
    terms: Terms
    amounts: Amounts = NO_AMOUNTS
    others: frozenset[str] = frozenset()
    """The resources that it requests besides ours, CPU and memory."""

    def met_by(self, node: Candidate) -> bool:
        """Return whether a node has room now, on its GPUs and of CPU and memory."""
        return (node.left is None or node.left.cover(self.amounts)) and unfit(self.ask, node) is None

    def fits_by_sums(self, node: Candidate) -> bool:
        """Return whether the GPUs that it asks for are free in sum, which is all that an autoscaler looks at."""
        whole = sum(part.demand.amount for part in self.ask.parts if part.demand.kind is Kind.COUNT)
        shares = sum(part.demand.amount for part in self.ask.parts if part.demand.kind is Kind.MEMORY)
        return len(node.summary.unused) >= whole and sum(node.summary.frees) >= shares


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind(NodeRecord):
    """A node as far as it decides which pods may go there, started and with all that it offers."""

    node: Candidate
    name: str = ""
    uid: str = ""
    ready: bool = True

    def allows(self, needs: Needs) -> bool:
        """Return whether a pod may go there by its own terms, whatever room there is."""
        return needs.others <= self.others and next(obstacles(self, needs.terms), None) is None

    @property
    def product(self) -> str:
        """The model of its GPUs as agents label it; empty: it is not known."""
        models = {gpu.model for gpu in self.node.gpus.gpus if gpu.instance is None}
        return label_value(models.pop()) if len(models) == 1 else "mixed" if models else ""

    @property
    def marks(self) -> Mapping[str, str]:
        """The labels by which nodes of this kind are told from others, as far as they are known."""
        found = {PRODUCT: self.product, MACHINE: self.labels.get(MACHINE, "")}
        return {key: value for key, value in found.items() if value}

    @property
    def key(self) -> str:
        """The same for nodes of one kind, whatever GPUs of theirs are listed at the moment."""
        # Groups of the same machines differ in labels that pods select.
        groups = sorted((key, self.labels[key]) for key in self.labels.keys() & GROUP_LABELS)
        told = [sorted(self.marks.items()), sorted(map(str, self.taints)), groups]
        return sha256(json.dumps(told).encode()).hexdigest()[:16]


def kind_of(node: Candidate, labels: Mapping[str, str], taints: Iterable[Taint], others: frozenset[str]) -> NodeKind:
    """Return the kind of a node: as if no pod were on it, every GPU took pods, and it had started.

    Its GPUs have no UUIDs: no new node has a GPU that a pod may want by name.
    """
    cards = node.gpus.cards
    gpus = tuple(
        ListedGpu(
            gpu.position,
            gpu.shares,
            model=gpu.model,
            instance=gpu.instance and replace(gpu.instance, parent=str(cards[gpu.position])),
        )
        for gpu in node.gpus.gpus
    )
    listed = NodeGpus(gpus, node.gpus.share_mib, node.gpus.policy, divided=node.gpus.divided)
    empty = candidate("", listed, (), node.allocatable)
    lasting_labels = {key: labels[key] for key in labels if key != HOSTNAME}
    return NodeKind(node=empty, labels=lasting_labels, taints=lasting(taints), others=others)


def lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Return the taints that a node keeps once it has started."""
    return tuple(taint for taint in taints if taint.key != STARTUP_TAINT and not taint.key.startswith(_STARTING))


def likely_labels(labels: Mapping[str, str], kinds: Iterable[NodeKind]) -> Mapping[str, str]:
    """Return the labels of a node with those of the kind that it is likely of: its agent has written none yet.

    That has most of its labels, and either all of them or the same machine: nodes of a group may be in several zones.
    """
    theirs = {key: value for key, value in labels.items() if key != HOSTNAME}
    alike = [
        kind
        for kind in kinds
        if theirs.items() <= kind.labels.items() or theirs.get(MACHINE, "") == kind.marks.get(MACHINE)
    ]
    best = max(alike, key=lambda kind: len(theirs.items() & kind.labels.items()), default=None)
    return theirs if best is None else {**best.labels, **best.marks, **theirs}


def unlike(fitting: Collection[NodeKind], others: Iterable[NodeKind]) -> Mapping[str, list[str]]:
    """Return by label the values that none of the fitting kinds has, and some of the others."""
    found: dict[str, set[str]] = {}
    for key in (PRODUCT, MACHINE):
        known = {kind.marks.get(key, "") for kind in fitting}
        found[key] = {kind.marks.get(key, "") for kind in others} - known - {""}
    return {key: sorted(values) for key, values in found.items() if values}


_AT_ONCE = 16
"""Pods that are placed in one step, each within a tenth of a millisecond."""
_POLICY = "binpack"


def needed(
    waiting: Mapping[Needs, int], kinds: Sequence[NodeKind], coming: Iterable[NodeKind] = ()
) -> Generator[None, None, Sequence[tuple[NodeKind, Mapping[Needs, int]]]]:
    """Return the nodes that pods need which fit on none of those that exist, in steps of some milliseconds.

    Each with the number of the pods that it is for, by their needs. `coming` are nodes that are so new that pods may
    not have been tried on them yet, or that will soon exist: pods take their room first, and they are not part of the
    answer. Each new node is of the kind that takes the most of the pods that are left.
    """
    left = +Counter(waiting)
    order = sorted(left, key=lambda needs: needs.ask.size, reverse=True)
    for kind in coming:
        _, taken = yield from _filled(kind.node, [needs for needs in order if kind.allows(needs)], left)
        left -= taken
    allowed: list[Sequence[Needs]] = []
    for kind in kinds:
        allowed.append([needs for needs in order if kind.allows(needs)])
        yield
    nodes: list[tuple[NodeKind, Mapping[Needs, int]]] = []
    while left:
        best: tuple[tuple[float, float], NodeKind, Counter[Needs]] | None = None
        for kind, pods in zip(kinds, allowed, strict=True):
            full, taken = yield from _filled(kind.node, pods, left)
            # Of nodes that take as much, the smallest.
            worth = float(full.summary.used), -float(kind.node.summary.total)
            if taken and (best is None or worth > best[0]):
                best = worth, kind, taken
        if best is None:
            break
        _, kind, taken = best
        # As many nodes as can be filled with the same pods are needed of it: they need not be tried one by one.
        alike = min(left[each] // number for each, number in taken.items())
        nodes += [(kind, taken)] * alike
        left -= Counter({each: alike * number for each, number in taken.items()})
    return nodes


def _filled(node: Candidate, pods: Iterable[Needs], left: Mapping[Needs, int]) -> Steps:
    """Return a node with as many of the pods as fit, the largest first, and how many of each these are."""
    taken: Counter[Needs] = Counter()
    placed = 0
    for needs in pods:
        for _ in range(left[needs]):
            if node.left is not None and not node.left.cover(needs.amounts):
                break
            found = fit(needs.ask, node, _POLICY)
            if isinstance(found, FilterFailure):
                break
            node = after(node, found, needs.amounts)
            taken[needs] += 1
            placed += 1
            if not placed % _AT_ONCE:
                yield
    yield
    return node, taken
