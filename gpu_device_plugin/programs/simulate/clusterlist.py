"""Nodes and pods of a cluster, from what `kubectl get nodes,pods -A -o json` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gpu_device_plugin.cluster.api import NodeReader, PodReader, UnreadableObjectError
from gpu_device_plugin.cluster.other_pods import OtherPodReader
from gpu_device_plugin.core.cluster.asking import Ask, ask
from gpu_device_plugin.core.contract.keys import READ_ON_NODES, READ_ON_PODS
from gpu_device_plugin.core.contract.nodegpus import gpus_of_node
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.worth.candidates import left_on, shape_of
from gpu_device_plugin.core.worth.mix import kinds_of
from gpu_device_plugin.fleet import Fleet
from gpu_device_plugin.programs.simulate.model import Start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.worth.mix import PodKind


class _Typed(msgspec.Struct, gc=False):
    kind: str = ""


class _List(msgspec.Struct, gc=False):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class ClusterList:
    """A cluster as a list of its nodes and pods has it."""

    nodes: tuple[Start, ...]
    """With the room beside the pods that run there."""
    empty: tuple[Start, ...]
    """The same without the pods that have GPUs; others stay."""
    waiting: tuple[PodKind, ...]
    """The pods with GPUs that have no node, the oldest first. A pod counts once for each part of it that gets GPUs of
    its own."""
    running: tuple[PodKind, ...]
    """The pods with GPUs that have one, likewise."""
    notes: tuple[str, ...] = ()
    """A sentence for each object that is left out, and why."""


def read_cluster(text: bytes, resources: Sequence[Resource]) -> ClusterList:
    """Read a list of nodes and pods.

    Raises:
        UnreadableObjectError: it is not a list of the Kubernetes API.
    """
    try:
        listed = msgspec.json.decode(text, type=_List)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error) if isinstance(error, msgspec.DecodeError) else "not UTF-8"
        raise UnreadableObjectError(f"not a list as kubectl prints it: {why}") from None
    fleet, empty = Fleet(resources, vanished_grace_s=0), Fleet(resources, vanished_grace_s=0)
    notes: list[str] = []
    pods: list[Pod] = []
    reader = _Reader(resources)
    for raw in listed.items or ():
        try:
            kind = msgspec.json.decode(raw, type=_Typed).kind
            if kind == "Node" or listed.kind == "NodeList":
                notes += reader.put_node(raw, (fleet, empty))
            elif kind == "Pod" or listed.kind == "PodList":
                found = reader.pod(raw, fleet, empty)
                pods += [found] if found is not None else []
        except (UnreadableObjectError, msgspec.DecodeError) as error:
            notes.append(f"an object is left out: {error}")
    pods.sort(key=lambda pod: (pod.created, pod.uid))
    names = [name for name, node in fleet.candidates.items() if node.rooms and not node.gpus.problem]
    notes += [f"node {n} is left out: {c.gpus.problem}" for n, c in fleet.candidates.items() if c.gpus.problem]
    notes += [
        f"node {name} is left out: its MIG instances are given whole, by the resources of their profiles"
        for name, node in fleet.candidates.items()
        if node.gpus.instances and not node.rooms and not node.gpus.problem
    ]
    waiting = [kind for pod in pods if not pod.node_name for kind in reader.kinds(pod, notes)]
    running = [kind for pod in pods if pod.node_name for kind in reader.kinds(pod, notes)]
    return ClusterList(
        tuple(_start(fleet, name) for name in names),
        tuple(_start(empty, name) for name in names),
        tuple(waiting),
        tuple(running),
        tuple(notes),
    )


def _start(fleet: Fleet, name: str) -> Start:
    node = fleet.candidates[name]
    return Start(name, shape_of(node), left_on(node))


class _Reader:
    def __init__(self, resources: Sequence[Resource]) -> None:
        self._resources = resources
        self._names = {resource.kind: resource.name for resource in resources}
        self._nodes = NodeReader(self._names.values(), READ_ON_NODES.__contains__)
        self._pods = PodReader(self._names.values(), READ_ON_PODS.__contains__, sums=True)
        self._others = OtherPodReader()

    def put_node(self, raw: msgspec.Raw, fleets: Iterable[Fleet]) -> Sequence[str]:
        """Put a node into fleets; return why it is left out, if it is."""
        node = self._nodes.read(raw)
        memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
        gpus = gpus_of_node(node.annotations, node.labels, memory, count)
        if node.unschedulable or not node.ready:
            why = "it is cordoned" if node.unschedulable else "it is not ready"
            return [f"node {node.name} is left out: {why}"] if gpus.gpus else []
        for fleet in fleets:
            fleet.put_node(node.name, gpus, node.cpu_and_memory)
        return []

    def pod(self, raw: msgspec.Raw, fleet: Fleet, empty: Fleet) -> Pod | None:
        """Put a pod onto its node; return it if it asks for GPUs and has not ended."""
        pod, _ = self._pods.read(raw)
        if not pod.containers:
            for there in (fleet, empty):
                there.put_other(self._others.read(raw))
            return None
        fleet.put_pod(pod)
        return None if pod.ended or pod.deleting else pod

    def kinds(self, pod: Pod, notes: list[str]) -> Sequence[PodKind]:
        asked = ask(pod, self._resources)
        if not isinstance(asked, Ask):
            notes.append(f"pod {pod.namespace}/{pod.name} is left out: {asked.sentence}")
            return ()
        return kinds_of(asked, pod.amounts.cpu_milli, pod.amounts.memory_mib)
