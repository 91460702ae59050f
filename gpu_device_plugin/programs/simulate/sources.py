"""Nodes and pods from what a user names: a file of any known format, entries in words, or the cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.core.worth.appraising import Left
from gpu_device_plugin.programs.simulate import openb
from gpu_device_plugin.programs.simulate.arrivals import MOST_ARRIVALS
from gpu_device_plugin.programs.simulate.clusterlist import ClusterList, read_cluster
from gpu_device_plugin.programs.simulate.entries import EntryError, nodes_in, pods_in
from gpu_device_plugin.programs.simulate.jsonlist import json_nodes, json_pods, read_json
from gpu_device_plugin.programs.simulate.model import Start, Workload
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.worth.mix import PodKind

T = TypeVar("T")

CLUSTER = "cluster"
"""The word for the cluster that kubectl reads."""
MOST_BYTES = 256 << 20
_MOST_NODES = 100_000
_WORDS = re.compile(r"\s*[0-9]+x\b|[^/]*=")
_NODE_EXAMPLE = "10x gpus=4 mem=24 cpu=64 memory=256Gi"
_POD_EXAMPLE = "40x mem=8 cpu=4 memory=16Gi; 5x count=2"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is simulated."""

    nodes: tuple[Start, ...]
    workload: Workload
    ordered: bool
    """The pods have an order of their own; otherwise a seed shuffles them."""
    notes: tuple[str, ...] = ()
    """A sentence for each thing that the user should know of."""


@dataclass(frozen=True, slots=True)
class _Pods:
    workload: Workload
    ordered: bool
    hundredths: bool = False
    """A GPU counts as 100 shares, whatever its memory."""
    notes: tuple[str, ...] = ()


class Sources:
    """Reads what the arguments name; each file, and the cluster, once."""

    def __init__(self, resources: Sequence[Resource], cluster: Callable[[], bytes], *, from_empty: bool) -> None:
        """Read nodes and pods.

        Args:
            resources: the managed resources.
            cluster: returns the cluster's nodes and pods as kubectl prints them.
            from_empty: the running pods with GPUs are taken away, and come again before the waiting ones.
        """
        self._resources = resources
        self._cluster = cluster
        self._from_empty = from_empty
        self._texts: dict[str, bytes] = {}
        self._clusters: dict[str, ClusterList] = {}

    def inputs(self, nodes: str, pods: str | None) -> Inputs:
        """Return nodes and pods; without `pods` those in the source of the nodes.

        Raises:
            UsageError: one of them cannot be read, or is empty; the message says which and why.
        """
        found, hundredths, notes = self._of("--nodes", nodes, self._nodes)
        wanted = self._of("--pods" if pods else "--nodes", pods or nodes, self._pods)
        notes = (*notes, *(note for note in wanted.notes if note not in notes))
        if not any(node.shape.sizes for node in found):
            raise UsageError(
                f"--nodes: {nodes[:80]}: none of {len(found):,} nodes has a GPU that is shared; give nodes "
                f"with GPUs, as in --nodes {_NODE_EXAMPLE!r}"
            )
        if len(found) > _MOST_NODES:
            raise UsageError(f"--nodes: {len(found):,} nodes are more than {_MOST_NODES:,}; give fewer")
        workload = wanted.workload
        if not workload.pods:
            raise UsageError(
                f"--pods: {(pods or nodes)[:80]}: there is no pod to place; give some, as in --pods {_POD_EXAMPLE!r}"
                + ("" if self._from_empty else ", or take the running ones with --from-empty")
            )
        if len(workload.pods) > MOST_ARRIVALS:
            raise UsageError(f"--pods: {len(workload.pods):,} pods are more than {MOST_ARRIVALS:,}; give fewer")
        if wanted.hundredths and any(node.shape.cards for node in found):
            raise UsageError(
                "--pods: the pods of a trace ask for hundredths of GPUs, and --nodes has MIG instances; name pods in "
                f"words, as in --pods {_POD_EXAMPLE!r}, or nodes without MIG"
            )
        if wanted.hundredths and not hundredths:
            found = tuple(map(_in_hundredths, found))
            notes = (*notes, f"each GPU counts as {openb.SHARES} shares, as the pods of a trace ask for parts of a GPU")
        elif hundredths and not wanted.hundredths:
            notes = (*notes, f"a GPU of a trace has {openb.SHARES} shares: mem counts hundredths of a GPU")
        return Inputs(found, workload, wanted.ordered, (*notes, *_misfits(found, workload)))

    def _of(self, flag: str, text: str, read: Callable[[str], T]) -> T:
        try:
            return read(text)
        except (EntryError, UnreadableObjectError, openb.TraceError) as error:
            place = text if len(text) <= 80 else f"{text[:80]}..."
            raise UsageError(f"{flag}: {place}: {error}") from None

    def _nodes(self, text: str) -> tuple[tuple[Start, ...], bool, tuple[str, ...]]:
        if text != CLUSTER and _in_words(text):
            return nodes_in(text), False, ()
        content = self._content(text, f"nodes such as {_NODE_EXAMPLE!r}")
        if not _is_json(content):
            return openb.read_nodes(_lines(content)), True, ()
        if not _is_kubernetes(content):
            listed = read_json(content).nodes
            if listed is None:
                raise EntryError('this JSON has no list "nodes"; see docs/simulate.md for the format')
            return json_nodes(listed), False, ()
        cluster = self._read_cluster(text, content)
        return cluster.empty if self._from_empty else cluster.nodes, False, cluster.notes

    def _pods(self, text: str) -> _Pods:
        if text != CLUSTER and _in_words(text):
            return _Pods(_workload(pods_in(text)), ordered=False)
        content = self._content(text, f"pods such as {_POD_EXAMPLE!r}")
        if not _is_json(content):
            return _Pods(openb.read_pods(_lines(content)), ordered=True, hundredths=True)
        if not _is_kubernetes(content):
            listed = read_json(content).pods
            if listed is None:
                raise EntryError('this JSON has no list "pods"; add it, or name the pods with --pods')
            return _Pods(_workload(json_pods(listed)), ordered=False)
        cluster = self._read_cluster(text, content)
        kinds = (*(cluster.running if self._from_empty else ()), *cluster.waiting)
        return _Pods(_workload(kinds), ordered=True, notes=cluster.notes)

    def _content(self, text: str, otherwise: str) -> bytes:
        if text not in self._texts:
            self._texts[text] = self._cluster() if text == CLUSTER else _read(text, otherwise)
        return self._texts[text]

    def _read_cluster(self, text: str, content: bytes) -> ClusterList:
        if text not in self._clusters:
            self._clusters[text] = read_cluster(content, self._resources)
        return self._clusters[text]


def _in_words(text: str) -> bool:
    return _WORDS.match(text) is not None and not Path(text).exists()


def _read(path: str, otherwise: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        raise EntryError(f"the file cannot be read: {why}; give a file, the word {CLUSTER}, or {otherwise}") from None
    if len(content) > MOST_BYTES:
        raise EntryError(f"the file is larger than {MOST_BYTES >> 20} MiB; give a smaller one")
    if not content.strip():
        raise EntryError("the file is empty; give a trace, JSON, or what kubectl get nodes,pods -A -o json prints")
    return content


def _is_json(content: bytes) -> bool:
    return content.lstrip()[:1] in {b"{", b"["}


class _Items(msgspec.Struct, gc=False):
    kind: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()


def _is_kubernetes(content: bytes) -> bool:
    try:
        found = msgspec.json.decode(content, type=_Items)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the reader of our own JSON says what is wrong
    return bool(bytes(found.items) or bytes(found.kind))


def _lines(content: bytes) -> Iterable[str]:
    try:
        return content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise EntryError("the file is neither text nor JSON; give a trace, or JSON") from None


def _workload(kinds: Iterable[PodKind]) -> Workload:
    places: dict[PodKind, int] = {}
    pods = tuple(places.setdefault(kind, len(places)) for kind in kinds)
    return Workload(tuple(places), pods)


def _in_hundredths(node: Start) -> Start:
    """Return a node whose GPUs have 100 shares each; what is free of a GPU is rounded down."""
    sizes, most = node.shape.sizes, openb.SHARES
    frees = tuple(free if free < 0 else free * most // size for free, size in zip(node.left.frees, sizes, strict=True))
    left = Left(frees, node.left.cpu_milli, node.left.memory_mib)
    return replace(node, shape=replace(node.shape, sizes=(most,) * len(sizes)), left=left)


def _misfits(nodes: Sequence[Start], workload: Workload) -> Sequence[str]:
    """Return a sentence about the pods that fit on no node, were it empty.

    Raises:
        UsageError: these are all.
    """
    shapes = {node.shape for node in nodes}
    hosted = [any(shape.hosts(kind) for shape in shapes) for kind in workload.kinds]
    misfits = [pod for pod in workload.pods if not hosted[pod]]
    if not misfits:
        return ()
    example = told(workload.kinds[misfits[0]])
    if len(misfits) == len(workload.pods):
        raise UsageError(
            f"--pods: no pod fits on any node, not even on an empty one; the first asks for {example}. Compare mem, "
            "count, model, cpu and memory with the nodes"
        )
    return [f"{len(misfits):,} pods fit on no node, not even on an empty one, as one that asks for {example}"]


def told(kind: PodKind) -> str:
    """Return what a pod asks for, in the words of the command line."""
    use, avoid = kind.models
    words = (
        f"mem={kind.shares * kind.gpus}" * bool(kind.shares and kind.gpus),
        f"split={kind.gpus}" * bool(kind.shares and kind.gpus > 1),
        f"count={kind.gpus}" * bool(kind.gpus and not kind.shares),
        f"model={'|'.join(use)}" * bool(use),
        f"no {'|'.join(avoid)}" * bool(avoid),
        f"cpu={kind.cpu_milli}m",
        f"memory={kind.memory_mib}Mi",
    )
    return " ".join(filter(None, words))
