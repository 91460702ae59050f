"""The kinds of nodes that the cluster has or had: those that are gone are kept in a ConfigMap over restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from gpu_device_plugin.features.capacity.capacity_cache import CapacityCache
from gpu_device_plugin.features.capacity.rules.node_kinds import NodeKind, kind_of, lasting
from gpu_device_plugin.features.learning.node_scores import NodeTypes
from gpu_device_plugin.features.learning.rules.marginal_value import shape_of
from gpu_device_plugin.kubernetes.client.errors import ForbiddenError, InvalidError, NotFoundError
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind
from gpu_device_plugin.model.contract.keys import GROUP_LABELS, HOSTNAME, MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import read_node_gpus, write_node_gpus
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.model.resources import Amounts
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.rules.candidate import candidate

_log = logging.getLogger(__name__)

_CONFIG_MAPS = ObjectKind("configmaps")
_NAME = "gpushare-node-kinds"
_MOST_KINDS = 64
_MOST_BYTES = 8192
"""Of a kind that is remembered: a node with 16 GPUs takes 2 kB, and its labels up to 4 kB."""
_MOST_LABELS = 4096
"""Characters of the labels of a kind that are remembered; one with more is not."""
_FEATURES = "feature.node.kubernetes.io/"
"""Of Node Feature Discovery: how keys of labels begin that are not remembered of a node with more."""
_NODES_AT_ONCE = 64
_CALL_S = 5.0


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


@dataclass(eq=False)
class KnownKinds:
    """Which kinds there are. Where the ConfigMap is missing, those that are gone are forgotten at a restart."""

    _context: ControllerContext
    _cache: CapacityCache
    namespace: str

    def __post_init__(self) -> None:
        self._types = NodeTypes(self._context.fleet.now)
        self._kept: dict[str, str] | None = None
        """By `NodeKind.key`, the JSON of the kinds that are remembered; None: it is to be read."""
        self._written = True
        """Whether the ConfigMap is there to be written."""
        self._found: tuple[object, Sequence[NodeKind]] | None = None
        """The latest kinds that are there, and for which state of the cluster."""

    def forget(self) -> None:
        """Read again what is kept: another extender has been active."""
        self._kept = None

    async def all(self, labels: Collection[str]) -> Sequence[NodeKind]:
        """Return the kinds, present ones first. Nodes that differ in one of these labels are of different kinds.

        Raises ApiError.
        """
        # A kind has no host name: nodes that differ in theirs alone are of one kind.
        present = await self._there(frozenset([*labels, *GROUP_LABELS]) - {HOSTNAME})
        await self._remember(present)
        there = {kind.key for kind in present}
        gone = [read_kind(text) for key, text in (self._kept or {}).items() if key not in there]
        return [*present, *(kind for kind in gone if kind is not None)]

    async def _there(self, labels: frozenset[str]) -> Sequence[NodeKind]:
        nodes = self._cache.nodes
        state = labels, self._cache.changes, self._types.count()
        if self._found is not None and self._found[0] == state:
            return self._found[1]
        found: dict[object, NodeKind] = {}
        for number, node in enumerate(tuple(self._context.fleet.candidates.values())):
            if not number % _NODES_AT_ONCE:
                await asyncio.sleep(0)
            itself, node_type = nodes.get(node.name), shape_of(node)
            if itself is None or not node_type.sizes or node.gpus.claims or len(found) >= _MOST_KINDS:
                continue
            told = tuple([itself.labels.get(key) for key in labels])
            key = node_type, told, lasting(itself.taints), itself.others
            if key not in found:
                found[key] = kind_of(node, itself.labels, itself.taints, itself.others)
        self._found = state, list(found.values())
        return self._found[1]

    async def _remember(self, present: Sequence[NodeKind]) -> None:
        if self._kept is None:
            self._kept = await self._read()
        # Of a kind of which a node lists fewer GPUs now, as one is broken, the whole one is remembered.
        texts: dict[str, str] = {}
        for kind in sorted(present, key=lambda each: each.node.summary.total):
            text = write_kind(kind)
            if text is not None and len(text) <= _MOST_BYTES:
                texts[kind.key] = text
        new = {key: text for key, text in texts.items() if self._kept.get(key) != text}
        if not new:
            return
        full = [key for key in self._kept if key not in texts][: max(0, len(self._kept | new) - _MOST_KINDS)]
        changes: dict[str, str | None] = {**new, **dict.fromkeys(full)}
        if self._written:
            body = {"data": changes}
            with self._told():
                await self._context.client.patch(_CONFIG_MAPS, _NAME, body, namespace=self.namespace, timeout_s=_CALL_S)
        self._kept = {key: text for key, text in (self._kept | new).items() if key not in full}

    async def _read(self) -> dict[str, str]:
        self._written, data = True, {}
        with self._told():
            raw = await self._context.client.get(_CONFIG_MAPS, _NAME, namespace=self.namespace, timeout_s=_CALL_S)
            data = raw.decoded(_ConfigMap, "a ConfigMap").data or {}
        return {key: text for key, text in list(data.items())[:_MOST_KINDS] if len(text) <= _MOST_BYTES}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Do without the ConfigMap where it is not there, or may not be read or be written like that."""
        try:
            yield
        except (NotFoundError, ForbiddenError, InvalidError) as error:
            self._written = False
            hint = (
                "apply deploy/optional/capacity.yaml; without it, kinds of nodes that are gone are not requested "
                "after a restart"
            )
            _log.warning(
                "the known kinds of nodes are not saved", extra={"why": f"{error}; {hint}", "once_per_s": 3600}
            )


class _Kept(msgspec.Struct):
    gpus: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    allocatable: Amounts | None
    others: tuple[str, ...]


def write_kind(kind: NodeKind) -> str | None:
    """Return a kind as JSON; None: its labels are too long to be remembered, or another's plugin is on it."""
    labels = dict(kind.labels)
    if _size(labels) > _MOST_LABELS:
        labels = {key: value for key, value in labels.items() if not key.startswith(_FEATURES)}
    if kind.node.gpus.divided or _size(labels) > _MOST_LABELS:
        return None
    gpus, others = write_node_gpus(kind.node.gpus), tuple(sorted(kind.others))
    kept = _Kept(gpus, labels, kind.taints, kind.node.allocatable, others)
    return msgspec.json.encode(kept, order="sorted").decode()


def _size(labels: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in labels.items())


def read_kind(text: str) -> NodeKind | None:
    """Return a kind from its JSON; None: it is not one, as others may have written it."""
    try:
        kept = msgspec.json.decode(text, type=_Kept)
        node = candidate("", read_node_gpus(kept.gpus), (), kept.allocatable)
    except (msgspec.DecodeError, RecursionError, MalformedAnnotationError):
        return None
    return NodeKind(node=node, labels=kept.labels, taints=kept.taints, others=frozenset(kept.others))
