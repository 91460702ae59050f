"""Ask the cluster's autoscaler for the nodes that waiting pods need, as long as they need them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.cluster.client.answers import translated
from gpu_device_plugin.cluster.client.errors import Call, NotFoundError
from gpu_device_plugin.cluster.objects.decoding import PODS, decoded
from gpu_device_plugin.cluster.writers.events import EventSubject
from gpu_device_plugin.core.capacity.attempts import Asker, Attempts
from gpu_device_plugin.core.capacity.need import Need, Waiting, empty, needed
from gpu_device_plugin.core.capacity.stand_ins import Wanted, terms_of
from gpu_device_plugin.core.capacity.turns import in_turns
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.contract.keys import NODE_LABELS
from gpu_device_plugin.core.contract.nodelabels import label_value
from gpu_device_plugin.core.model.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpu_device_plugin.cluster.writers.events import EventWriter
    from gpu_device_plugin.core.cluster.candidate import Candidate
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.core.model.resources import Amounts
    from gpu_device_plugin.core.value.node_types import NodeType
    from gpu_device_plugin.fleet_judge import Judge
    from gpu_device_plugin.programs.extender.capacity.parts import Parts
    from gpu_device_plugin.programs.extender.waiting import Refused, WaitingObserved

_log = logging.getLogger(__name__)

_MOST_NODES, _MOST_NAMED = 100, 80_000
"""Nodes that are asked for at the same time, and present nodes that all of the objects name: some 4 MB."""
_MOST_TYPES = 64
_MOST_KINDS = 256
"""Pods with different terms whose nodes are remembered."""
_MOST_TERMS = 1 << 14
"""Bytes of the terms of one pod."""
_TRIED_S = 60.0
"""A node that has been open to pods for so long is one that kube-scheduler has tried them on: it does so at once."""
_CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class _NewNode:
    """A new node that pods can be placed on, as it was last; times are seconds since the epoch."""

    node: Candidate
    created_s: float
    open_at: float


class _Pod(msgspec.Struct):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


_SPEC = msgspec.json.Decoder(_Pod)


@dataclass(eq=False)
class Grower:
    """Works out which nodes are wanted."""

    _parts: Parts
    _judge: Judge
    _waiting: WaitingObserved
    _: KW_ONLY
    node_start_s: Callable[[], float]
    """How long a new node takes until pods can be placed on it, seconds."""
    events: EventWriter
    settled_s: float
    """A pod counts once it has been refused for so many seconds: others may end, or an eviction may make room."""
    need: Need = field(default_factory=Need, init=False)
    """The latest result."""

    def __post_init__(self) -> None:
        self._types: dict[NodeType, Candidate] = {}
        """The types of nodes that the cluster has or had, with an empty node of each."""
        self._names: Mapping[int, Sequence[str]] = {}
        """By the constraints of the pods that are looked at, the nodes that kube-scheduler named."""
        self._terms: dict[int, Mapping[str, Any]] = {}
        """By the pods' constraints, what their specs say of nodes."""
        self._attempts = Attempts()
        self._young: dict[str, _NewNode] = {}
        """The new nodes that pods can be placed on."""

    async def wanted(self) -> Sequence[Wanted]:
        """Return the room that is wanted of new nodes, one for each node. Raises ApiError."""
        found_none = self._waiting.without_room(self.settled_s)
        self._names = {each.constraints: self._waiting.names.get(each.constraints, ()) for each in found_none}
        refused = await self._still_without_room(found_none)
        by_type = self._by_type() if refused else {}
        await self._judge_new_nodes(refused, by_type)
        now = self._parts.wall()
        refused = [each for each in refused if self._attempts.may_ask(_asker(each), now)]
        if not refused:
            self.need = Need()
            return []
        types = list(self._types)
        groups: dict[tuple[Ask, Amounts, int], list[Refused]] = {}
        for each in refused:
            groups.setdefault((each.ask, each.pod.amounts, each.constraints), []).append(each)
        allowed = {constraints: self._named_types(constraints, types, by_type) for _, _, constraints in groups}
        empties = list(self._types.values())
        waiting = [
            Waiting(asked, len(pods), amounts, self._useful(asked, allowed[constraints], empties))
            for (asked, amounts, constraints), pods in groups.items()
        ]
        self.need = await last_of(needed(waiting, empties, self._coming(types, by_type)))
        left = [iter(in_turns(sorted(pods, key=_age), lambda each: each.pod.namespace)) for pods in groups.values()]
        nodes = [
            (types[new.type], [pod for place, number in new.pods.items() for pod in islice(left[place], number)])
            for new in self.need.nodes
        ]
        present = self._parts.followed.hostnames()
        most = min(_MOST_NODES, max(1, _MOST_NAMED // (len(present) or 1)))
        chosen = in_turns(nodes, _namespace)[:most]
        askers = dict.fromkeys(_asker(pod) for _, pods in chosen for pod in pods)
        self._attempts.asked(askers, now, self.node_start_s())
        return [await self._room(node_type, present, pods) for node_type, pods in chosen]

    async def _judge_new_nodes(
        self, refused: Sequence[Refused], by_type: Mapping[NodeType, Sequence[Candidate]]
    ) -> None:
        """Note the nodes whose time to start is over, or that have gone, empty, although pods wait that fit there."""
        followed, now = self._parts.followed, self._parts.wall()
        young = set(self._young_names()) if by_type else set()
        before, self._young = self._young, {}
        for node in [node for found in by_type.values() for node in found if node.name in young]:
            itself = followed.nodes[node.name]
            # Its agent lists GPUs before its kubelet offers them, and others may keep pods from it meanwhile.
            if itself.open and itself.offers and node.name not in followed.starting:
                open_at = before[node.name].open_at if node.name in before else now
                self._young[node.name] = _NewNode(node, itself.created_s, open_at)
        one_each = {_asker(each): each for each in reversed(refused)}
        tried_s = min(_TRIED_S, self.node_start_s() / 2)
        for name in before.keys() - young:
            new = before[name]
            if new.node.summary.used or now - new.open_at < tried_s:
                continue
            for each in one_each.values():
                left = new.node.left
                if unfit(each.ask, new.node) is None and (left is None or left.cover(each.pod.amounts)):
                    self._tell_in_vain(each, name, new.created_s)
            await asyncio.sleep(0)

    def _tell_in_vain(self, refused: Refused, node: str, created_s: float) -> None:
        now, pod = self._parts.wall(), refused.pod
        until = self._attempts.in_vain(_asker(refused), created_s, now, self.node_start_s())
        if until is None:
            return
        why = (
            f"node {node} came for it, has room on its GPUs, and stays empty: affinity to pods, topology spread or a "
            f"volume may keep the pod from it; for pods of its controller no node is asked for until {rfc3339(until)}"
        )
        about = EventSubject("Pod", pod.name, pod.namespace, pod.uid)
        self.events.post(about, reason="GPUNodeDidNotHelp", note=why, action="Grow", warning=True)
        _log.warning("a new node did not help", extra={"pod": f"{pod.namespace}/{pod.name}", "why": why})

    async def _still_without_room(self, refused: Sequence[Refused]) -> Sequence[Refused]:
        """Leave out pods for which there is room by now: kube-scheduler is about to try them again."""
        found = []
        known: dict[tuple[Ask, int], bool] = {}
        for each in refused:
            key = each.ask, each.constraints
            if key not in known:
                known[key] = None in self._judge.verdicts(each.ask, self._names[each.constraints])
                await asyncio.sleep(0)
            if not known[key]:
                found.append(each)
        return found

    def _by_type(self) -> Mapping[NodeType, Sequence[Candidate]]:
        """Return the nodes of each type, and remember the types."""
        found: dict[NodeType, list[Candidate]] = {}
        for node_type, node in self._judge.by_type():
            found.setdefault(node_type, []).append(node)
        for node_type, nodes in found.items():
            if node_type not in self._types and len(self._types) < _MOST_TYPES:
                self._types[node_type] = empty(nodes[0])
        return found

    def _named_types(
        self, constraints: int, types: Sequence[NodeType], by_type: Mapping[NodeType, Sequence[Candidate]]
    ) -> set[int]:
        """Return the types of the nodes that kube-scheduler has named for pods with these constraints."""
        names = set(self._names[constraints])
        return {
            place
            for place, node_type in enumerate(types)
            if any(node.name in names for node in by_type.get(node_type, ()))
        }

    def _useful(self, asked: Ask, named: set[int], empties: Sequence[Candidate]) -> set[int] | None:
        """Return the types that kube-scheduler allows pods, as far as is known, and where they fit; None: any."""
        useful = {place for place in named if unfit(asked, empties[place]) is None}
        # Of other types it may have named no node because none is free by the sums.
        return useful or None

    def _young_names(self) -> Iterator[str]:
        return self._parts.followed.young(self._parts.wall() - self.node_start_s())

    def _coming(
        self, types: Sequence[NodeType], by_type: Mapping[NodeType, Sequence[Candidate]]
    ) -> Sequence[tuple[int, Candidate]]:
        """Return the new nodes: those with GPUs as they are, those without yet as what is most likely."""
        young = set(self._young_names())
        known = [
            (place, node)
            for place, node_type in enumerate(types)
            for node in by_type.get(node_type, ())
            if node.name in young
        ]
        starting = len(young.difference(node.name for _, node in known))
        # They are of the types that were wanted last, else of the commonest.
        last = [new.type for new in self.need.nodes]
        common = Counter({place: len(by_type.get(node_type, ())) for place, node_type in enumerate(types)})
        guess = (last or [common.most_common(1)[0][0]] if common else last)[:1]
        likely = [*last, *(guess * starting)][:starting]
        empties = list(self._types.values())
        return [*((place, empty(node)) if node.gpus.problem else (place, node) for place, node in known)] + [
            (place, empties[place]) for place in likely
        ]

    async def _room(self, node_type: NodeType, present: tuple[str, ...], pods: Sequence[Refused]) -> Wanted:
        # Always the same pod stands for the same ones: what is asked changes only if something of it does.
        pods = sorted(pods, key=lambda each: (each.constraints, each.pod.created, each.pod.uid))
        amounts = max((each.pod.amounts for each in pods), key=lambda amounts: (amounts.cpu_milli, amounts.memory_mib))
        about = tuple(f"{each.pod.namespace}/{each.pod.name}" for each in pods)
        return Wanted(await self._terms_of(pods[0]), present, self._labels(node_type), amounts, about)

    def _labels(self, node_type: NodeType) -> Mapping[str, str]:
        """Return the labels that tell nodes of a type from those of the others, as far as the agents write some."""
        models = {gpu.model for gpu in self._types[node_type].gpus.gpus if gpu.uuid and gpu.instance is None}
        if len(self._types) < 2 or len(models) != 1:
            return {}
        return {f"{NODE_LABELS}product": label_value(models.pop())}

    async def _terms_of(self, refused: Refused) -> Mapping[str, Any]:
        found = self._terms.get(refused.constraints)
        if found is None:
            pod = refused.pod
            try:
                raw = await self._parts.client.get(PODS, pod.name, namespace=pod.namespace, timeout_s=_CALL_S)
            except NotFoundError:
                return {}
            with translated(Call("get", PODS.plural, namespace=pod.namespace, name=pod.name)):
                found = terms_of(decoded(_SPEC, raw, "pod").spec)
            if len(msgspec.json.encode(found)) > _MOST_TERMS:
                return {}  # another pod by now: those with so many terms are not remembered
            if len(self._terms) >= _MOST_KINDS:
                self._terms.clear()
            self._terms[refused.constraints] = found
        return found


def _asker(refused: Refused) -> Asker:
    pod = refused.pod
    return Asker(pod.namespace, pod.uid if pod.owner is None else pod.owner.uid)


def _age(refused: Refused) -> tuple[str, str]:
    return refused.pod.created, refused.pod.uid


def _namespace(node: tuple[NodeType, Sequence[Refused]]) -> str:
    return node[1][0].pod.namespace
