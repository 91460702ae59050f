"""Nodes and pods of a cluster, from what `kubectl get nodes,pods -A -o json` prints, and pods of manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.marginal_value import free_capacity, shape_of
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind, kinds_of
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, PodReader, UnreadableObjectError, decoded
from gpu_device_plugin.kubernetes.objects.requests import OwnerReference
from gpu_device_plugin.model.contract.keys import NODE_GPUS, READ_ON_NODES, READ_ON_PODS
from gpu_device_plugin.model.gpus import MOST_SHARES
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.programs.simulate.misread import misread
from gpu_device_plugin.programs.simulate.model import MOST_ARRIVALS, Inputs, Workload, counted
from gpu_device_plugin.programs.simulate.vendor_nodes import (
    OFFERED,
    VENDORS,
    Vendor,
    VendorNode,
    as_kinds,
    frees_beside,
    held_by,
    is_read,
    not_offered,
    offering,
)
from gpu_device_plugin.report.rules.printing import first
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask

_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})


class _List(msgspec.Struct, gc=False):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


def read_cluster(text: bytes, resources: Sequence[Resource], *, from_empty: bool = False) -> Inputs:
    """Read a list of nodes, of pods, and of objects that make pods; or one of these alone.

    Nodes have the room beside the pods that run there. The pods with GPUs that have no node come, the oldest first, and
    then those of manifests: each with the name of the object that made it. A pod counts once for each part of it that
    gets GPUs of its own. What is left out, and why, is in the notes.

    With `from_empty` pods with GPUs that run take no room, and come before those that wait; other pods stay.

    Where no node has GPUs of ours yet, those that the vendors' device plugins offer are taken as an agent would share
    them, and pods that ask for them as asking for whole GPUs.

    Raises:
        UnreadableObjectError: it is not a list of the Kubernetes API.
    """
    objects = list(_objects(text))
    reader = _Reader(resources, from_empty=from_empty)
    reader.read_nodes([raw for kind, raw in objects if kind == "Node"])
    reader.read_pods([raw for kind, raw in objects if kind == "Pod"])
    reader.read_manifests([(kind, raw) for kind, raw in objects if kind in _MAKERS])
    others = Counter(kind for kind, _ in objects if kind not in _READ)
    if others:
        named = [f"{number:,} {kind or 'without a kind'}" for kind, number in sorted(others.items())]
        reader.notes.append(f"left out, as no pods are read from these kinds: {', '.join(named)[:200]}")
    return reader.found()


def _objects(text: bytes) -> Iterator[tuple[str, msgspec.Raw]]:
    listed = decoded(text, _List, "list as kubectl prints it")
    if listed.items is None and not listed.kind:
        raise UnreadableObjectError("not a list as kubectl prints it: it has no items, and no kind")
    if listed.items is None and not listed.kind.endswith("List"):
        yield listed.kind, msgspec.Raw(text)
    for raw in listed.items or ():
        try:
            kind = decoded(raw, _List, "object").kind
        except UnreadableObjectError:
            kind = ""
        yield kind or listed.kind.removesuffix("List"), raw


class _Reader:
    def __init__(self, resources: Sequence[Resource], *, from_empty: bool) -> None:
        self._resources = tuple(resources)
        self._names = {resource.kind: resource.name for resource in resources}
        self._from_empty = from_empty
        self._fleet = Fleet(resources, vanished_grace_s=0)
        self._pods = self._pod_reader()
        self._by_vendor: dict[str, VendorNode] = {}
        """The nodes without an agent of ours, where no node has one."""
        self._held: dict[str, list[PodKind]] = {}
        """What pods hold through the vendors' device plugins, by node."""
        self._coming: list[tuple[str, PodKind]] = []
        self._seen: set[tuple[str, str, str]] = set()
        self._without: dict[str, list[str]] = {}
        """The names of what is left out, by the reason."""
        self.notes: list[str] = []

    def _pod_reader(self) -> PodReader:
        return PodReader([each.name for each in self._resources], READ_ON_PODS.__contains__, sums=True)

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def read_nodes(self, objects: Sequence[msgspec.Raw]) -> None:
        """Read all nodes; pods only afterwards."""
        names = (*self._names.values(), *(each.name for each in OFFERED))
        reader = NodeReader(names, lambda key: key in READ_ON_NODES or is_read(key))
        nodes = list(readable(map(_with_uid, objects), reader.read, "an object", self.notes))
        before_us = not any(map(self._ours, nodes))
        if before_us:
            offered = {name for node in nodes for name, amount in node.capacity.items() if amount}
            usual = {vendor.names[0] for vendor in VENDORS if vendor.names}
            more = [each for each in OFFERED if each.name in offered | usual and each not in self._resources]
            self._resources = (*self._resources, *more)
            self._pods = self._pod_reader()
        nodes_of: dict[Vendor, list[VendorNode]] = {}
        for node in nodes:
            vendor = offering(node)
            if before_us and vendor:
                described = self._by_vendor[node.name] = vendor.read(node, vendor.offered_by(node))
                if described.gpus.gpus:
                    nodes_of.setdefault(vendor, []).append(described)
            elif vendor and not self._ours(node):
                self._leave_out(f"node {node.name}", f"its GPUs are offered as {vendor.names[0]}, by no agent of ours")
            elif not self._ours(node):
                self._leave_out(f"node {node.name}", not_offered(node) or "it has no GPUs")
            self._put(node)
        for vendor, described_nodes in nodes_of.items():
            whole = f", and {vendor.names[0]} of a pod counts as whole GPUs"
            self.notes.append(
                f"no node runs our agent, so GPUs are read from the labels of {vendor.labeller}, in shares of 1 GiB"
                + whole * any(not node.slice_shares for node in described_nodes)
            )
        known = [each for each in self._by_vendor.items() if each[1].gpus.gpus]
        self.notes += [f"node {name}: {node.note}" for name, node in known if node.note]
        sliced = [name for name, node in known if node.slice_shares]
        if sliced:
            self.notes.append(
                f"the GPUs of {'node' if len(sliced) == 1 else 'nodes'} {first(sliced)} are handed out several "
                "times: a pod counts with the GPU's memory divided by its replicas, which time-slicing does not enforce"
            )

    def _ours(self, node: NodeRecord) -> bool:
        return NODE_GPUS in node.annotations or any(node.capacity.get(name) for name in self._names.values())

    def _put(self, node: NodeRecord) -> None:
        if node.name in self._by_vendor:
            gpus = self._by_vendor[node.name].gpus
        else:
            memory, count = (node.capacity.get(self._names[kind], 0) for kind in (Kind.MEMORY, Kind.COUNT))
            gpus = gpus_of_node(node.annotations, node.labels, memory, count)
        if node.unschedulable or not node.ready:
            if gpus.gpus:
                self._leave_out(f"node {node.name}", "it is cordoned" if node.unschedulable else "it is not ready")
            return
        self._fleet.put_node(node.name, gpus, node.cpu_and_memory)

    # --- Pods ---------------------------------------------------------------------------------------------------------

    def read_pods(self, objects: Sequence[msgspec.Raw]) -> None:
        found = [each for each in readable(objects, self._pod, "an object", self.notes) if each is not None]
        running: list[tuple[str, PodKind]] = []
        for pod, name in sorted(found, key=lambda each: (each[0].created, each[0].uid)):
            (running if pod.node_name else self._coming).extend(self._kinds(pod, name))
        self._coming[:0] = running if self._from_empty else ()

    def _pod(self, raw: msgspec.Raw | bytes) -> tuple[Pod, str] | None:
        """Put a pod onto its node; return it, and its name for people, if it asks for GPUs and has not ended."""
        about = _manifest(raw, "Pod")
        if about.metadata.uid or about.status.phase:
            self._seen.update(about.owners)
            raw = raw if about.metadata.uid else _with_uid(raw)
        else:
            raw = _unbound(raw, about)
        pod, ignored = self._pods.read(raw)
        why = self._misread(raw, pod, ignored)
        if not pod.containers or why:
            self._fleet.put_other(self._pods.read_other(raw))
            if not pod.ended and (why or not pod.node_name):
                self._leave_out(f"pod {about.name}", why or "it asks for no GPU")
            return None
        if not self._from_empty and held_by(pod):
            self._fleet.put_other(self._pods.read_other(raw))
            if not pod.ended:
                self._held.setdefault(pod.node_name, []).extend(self._of_request(pod))
        elif not self._from_empty:
            self._fleet.put_pod(pod)
        return None if pod.ended or pod.deleting else (pod, about.name)

    def _misread(self, raw: msgspec.Raw | bytes, pod: Pod, ignored: Sequence[str]) -> str:
        """Return what of its request for GPUs is not read; of most pods their sums say that there is nothing."""
        known = _PLAIN.union(each.name for each in self._resources)
        plain = pod.containers and pod.requests is not None and not pod.requests.keys() - known
        odd = any(not 0 < amount <= MOST_SHARES for each in pod.containers for amount in each.limits.values())
        return "" if plain and not ignored and not odd else misread(raw, self._resources)

    def _kinds(self, pod: Pod, name: str) -> list[tuple[str, PodKind]]:
        kinds = self._of_request(pod)
        if not kinds:
            asked = ask(pod, self._resources)
            self._leave_out(
                f"pod {pod.namespace}/{pod.name}", asked.sentence if not isinstance(asked, GpuRequest) else ""
            )
        return [(name if len(kinds) == 1 else f"{name}, part {at}", kind) for at, kind in enumerate(kinds, 1)]

    def _of_request(self, pod: Pod) -> list[PodKind]:
        """Return what a pod asks for, part by part; nothing where it can never run."""
        asked = ask(pod, self._resources)
        if not isinstance(asked, GpuRequest):
            return []
        slice_shares = self._slice_shares(pod.node_name)
        return [each for kind in kinds_of(asked, pod.amounts) for each in as_kinds(kind, pod, slice_shares)]

    def _slice_shares(self, node: str) -> int:
        """Return what one GPU of a plugin is on a node; without a node: the least, unless some have GPUs whole."""
        there = [self._by_vendor[node]] if node in self._by_vendor else [*self._by_vendor.values()]
        return min((each.slice_shares for each in there if each.gpus.gpus), default=0)

    def read_manifests(self, objects: Sequence[tuple[str, msgspec.Raw]]) -> None:
        read = readable(objects, lambda each: _manifest(each[1], each[0]), "an object", self.notes)
        found = [(about, (about.kind, about.metadata.namespace, about.metadata.name)) for about in read]
        listed = {key for _, key in found}
        for about, key in found:
            if about.owners & listed:
                continue  # of a ReplicaSet whose Deployment is here, too
            if key in self._seen or any(key in other.owners and own in self._seen for other, own in found):
                self._leave_out(about.name, "its pods are in the list")
                continue
            try:
                waiting, number = _template_of(about)
                pod, ignored = self._pods.read(waiting)
                why = self._misread(waiting, pod, ignored)
            except UnreadableObjectError as error:
                self._leave_out(about.name, str(error))
                continue
            if why:
                self._leave_out(f"{about.name} with {counted(number, 'pod')}", why)
                continue
            if not pod.containers:
                self.notes.append(f"{about.name} asks for no GPU, and counts with CPU and memory")
            self._coming.extend(self._kinds(pod, about.name) * number)

    def _leave_out(self, what: str, why: str) -> None:
        self._without.setdefault(why, []).append(what)

    # --- All together -------------------------------------------------------------------------------------------------

    def found(self) -> Inputs:
        nodes = []
        for name, node in self._fleet.candidates.items():
            if node.gpus.problem:
                self._leave_out(f"node {name}", node.gpus.problem)
            elif node.rooms:
                nodes.append(self._with_pods(Start(name, shape_of(node), free_capacity(node))))
            elif node.gpus.instances:
                why = "its MIG instances are allocated whole, by the resources of their profiles"
                self._leave_out(f"node {name}", why)
        left_out = [
            f"{names[0]} is left out: {why}"
            if len(names) == 1
            else f"{first(names, 3)} are left out: {_of_several(why)}"
            for why, names in self._without.items()
        ]
        return Inputs(tuple(nodes), Workload.of(self._coming), ordered=True, notes=(*left_out, *self.notes))

    def _with_pods(self, node: Start) -> Start:
        """Return a node without what pods hold of its GPUs through the vendors' device plugins."""
        if not (held := self._held.get(node.name)):
            return node
        frees = frees_beside(node.shape.sizes, held, self._by_vendor[node.name].slice_shares)
        return replace(node, left=replace(node.left, frees=frees))


_PLURALS = {"it asks ": "they ask ", "it has ": "they have ", "it is ": "they are ", "its ": "their "}


def _of_several(why: str) -> str:
    singular = next((each for each in _PLURALS if why.startswith(each)), "")
    return _PLURALS.get(singular, "") + why.removeprefix(singular)


# --- The pods that Deployments, Jobs and their like make of their templates -------------------------------------------

_REPLICATED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})
_MAKERS = _REPLICATED | {"Job", "CronJob"}
"""The kinds whose pods are known from the object alone."""
_READ = _MAKERS | {"Node", "Pod"}


class _Template(msgspec.Struct, gc=False):
    metadata: dict[str, Any] | None = None
    spec: dict[str, Any] | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    template: _Template | None = None
    job_template: _JobTemplate | None = None


class _JobTemplate(msgspec.Struct, gc=False):
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    """Decoded of a CronJob alone, so that one that is not right is told of by its name."""


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, Any] | None = None
    owner_references: list[OwnerReference] | None = None


class _Status(msgspec.Struct, gc=False):
    phase: str | None = None


class _Manifest(msgspec.Struct, gc=False):
    """What is read of an object that makes pods, or of a pod."""

    metadata: _Metadata
    kind: str = ""
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def owners(self) -> frozenset[tuple[str, str, str]]:
        """The kind, namespace and name of the objects that made it."""
        meta = self.metadata
        return frozenset([(each.kind, meta.namespace, each.name) for each in meta.owner_references or ()])

    @property
    def name(self) -> str:
        """The name that people know it by: of a pod of a cluster that of the object that made it."""
        meta = self.metadata
        owner = next((each for each in meta.owner_references or () if each.controller), None)
        name = meta.name or meta.generate_name.removesuffix("-") or "without a name"
        if self.kind != "Pod":
            name = f"{self.kind} {name}"
        elif owner is not None:
            # A Deployment names its ReplicaSets by itself and this label.
            of_template = str((meta.labels or {}).get("pod-template-hash", ""))
            name = owner.name.removesuffix(f"-{of_template}") if owner.kind == "ReplicaSet" else owner.name
        return f"{meta.namespace}/{name}" if meta.namespace else name


def _manifest(raw: bytes | msgspec.Raw, kind: str) -> _Manifest:
    """Read an object of one of the `_MAKERS`, or a pod; the items of a typed list do not name their kind themselves."""
    found = decoded(raw, _Manifest, kind)
    found.kind = kind
    return found


def _with_uid(raw: bytes | msgspec.Raw) -> bytes | msgspec.Raw:
    """Return an object with a uid: people remove those of a cluster before they pass a list on."""
    try:
        found = decoded(raw, _Manifest, "object").metadata
    except UnreadableObjectError:
        return raw
    if found.uid or not found.name:
        return raw
    whole = decoded(raw, dict[str, Any], "object")
    whole["metadata"]["uid"] = f"{found.namespace}/{found.name}"
    return msgspec.json.encode(whole)


def _template_of(found: _Manifest) -> tuple[bytes, int]:
    """Return one of the pods of a workload, as JSON of the API and as if it waited, and how many there are."""
    spec = found.spec
    if found.kind == "CronJob" and spec.job_template is not None:
        spec = decoded(spec.job_template.spec, _Spec, "CronJob")
    number = _number(found.kind, spec)
    if spec.template is None or not spec.template.spec:
        raise UnreadableObjectError(f"not a {found.kind}: it has no template with a spec")
    if number < 0:
        raise UnreadableObjectError(f"not a {found.kind}: it asks for {number:,} pods")
    return _waiting(spec.template.metadata or {}, spec.template.spec, found), min(number, MOST_ARRIVALS + 1)


def _unbound(raw: bytes | msgspec.Raw, found: _Manifest) -> bytes:
    """Return a pod that no cluster has yet as one that waits."""
    pod = decoded(raw, dict[str, Any], "Pod")
    return _waiting(pod["metadata"], pod.get("spec") or {}, found)


def _waiting(metadata: dict[str, Any], spec: dict[str, Any], of: _Manifest) -> bytes:
    named = {"name": of.metadata.name or "pod", "namespace": of.metadata.namespace or "default", "uid": f"of {of.name}"}
    return msgspec.json.encode({"kind": "Pod", "metadata": {**metadata, **named}, "spec": {**spec, "nodeName": ""}})


def _number(kind: str, spec: _Spec) -> int:
    """Return how many of its pods run at once."""
    if kind in _REPLICATED:
        return 1 if spec.replicas is None else spec.replicas
    at_once = 1 if spec.parallelism is None else spec.parallelism
    return at_once if spec.completions is None else min(at_once, spec.completions)
