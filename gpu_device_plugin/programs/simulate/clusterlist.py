"""Nodes and pods of a cluster, from what `kubectl get nodes,pods -A -o json` prints, and pods of manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpu_device_plugin.features.learning.rules.arrivals import Start
from gpu_device_plugin.features.learning.rules.marginal_value import free_capacity, shape_of
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind, kinds_of
from gpu_device_plugin.hardware.fake.gpu_models import MODELS
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import NodeReader, PodReader, UnreadableObjectError, decoded
from gpu_device_plugin.kubernetes.objects.requests import OwnerReference
from gpu_device_plugin.model.contract.keys import NODE_GPUS, READ_ON_NODES, READ_ON_PODS
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import MOST_GPUS
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.programs.simulate.entries import SHARE_MIB
from gpu_device_plugin.programs.simulate.model import MOST_ARRIVALS, Inputs, Workload
from gpu_device_plugin.scheduler.cluster_state import Fleet
from gpu_device_plugin.scheduler.rules.candidate import gpus_of_node
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, amount_of, ask

WHOLE = Resource(Kind.COUNT, "nvidia.com/gpu")
"""The resource of NVIDIA's device plugin: whole GPUs, unless it is told to hand each out several times."""
_COUNT, _MEMORY, _PRODUCT, _REPLICAS = (f"{WHOLE.name}.{each}" for each in ("count", "memory", "product", "replicas"))
LABELS = frozenset({_COUNT, _MEMORY, _PRODUCT, _REPLICAS})
"""Of GPU feature discovery (k8s-device-plugin, docs/gpu-feature-discovery): memory in MiB, of one GPU."""
_RESERVED_MIB = 768
"""No driver of a known model reserves more."""
_SHARED, _DIVIDED = "-SHARED", "-MIG-"
"""In a product's name: each GPU is handed out several times; GPUs are MIG instances (strategy ``single``)."""


class _List(msgspec.Struct, gc=False):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


def read_cluster(text: bytes, resources: Sequence[Resource], *, from_empty: bool = False) -> Inputs:
    """Read a list of nodes, of pods, and of objects that make pods; or one of these alone.

    Nodes have the room beside the pods that run there. The pods with GPUs that have no node come, the oldest first, and
    then those of manifests: each with the name of the object that made it. A pod counts once for each part of it that
    gets GPUs of its own. What is left out, and why, is in the notes.

    With `from_empty` pods with GPUs that run take no room, and come before those that wait; other pods stay.

    Where no node has GPUs of ours yet, those that NVIDIA's device plugin offers are taken as an agent would share them,
    and pods that ask for them as asking for whole GPUs.

    Raises:
        UnreadableObjectError: it is not a list of the Kubernetes API.
    """
    objects = list(_objects(text))
    reader = _Reader(resources, from_empty=from_empty)
    reader.read_nodes([raw for kind, raw in objects if kind == "Node"])
    reader.read_pods([raw for kind, raw in objects if kind == "Pod"])
    reader.read_manifests([(kind, raw) for kind, raw in objects if kind in _MAKERS])
    others = sorted({kind for kind, _ in objects} - _MAKERS - {"Node", "Pod", ""})
    if others:
        reader.notes.append(f"left out, as no pods are read of them: {', '.join(others)[:200]}")
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
        self._nvidia: dict[str, tuple[NodeGpus, int]] = {}
        """The nodes without an agent of ours, where no node has one; see `gpus_by_labels`."""
        self._held: dict[str, int] = {}
        """How many of the resource of NVIDIA's device plugin pods hold, by node."""
        self._coming: list[tuple[str, PodKind]] = []
        self._seen: set[tuple[str, str, str]] = set()
        self.notes: list[str] = []

    def _pod_reader(self) -> PodReader:
        return PodReader([each.name for each in self._resources], READ_ON_PODS.__contains__, sums=True)

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def read_nodes(self, objects: Sequence[msgspec.Raw]) -> None:
        """Read all nodes; pods only afterwards."""
        names = (*self._names.values(), WHOLE.name)
        reader = NodeReader(names, (READ_ON_NODES | LABELS).__contains__)
        nodes = list(readable(objects, reader.read, "an object", self.notes))
        before_us = not any(map(self._ours, nodes))
        if before_us and WHOLE not in self._resources:
            self._resources = (*self._resources, WHOLE)
            self._pods = self._pod_reader()
        for node in nodes:
            offered = node.capacity.get(WHOLE.name, 0)
            if before_us and offered:
                self._nvidia[node.name] = gpus_by_labels(node.labels, offered)
            elif offered and not self._ours(node):
                self._leave_out(f"node {node.name}", f"its GPUs are given as {WHOLE.name}, by no agent of ours")
            self._put(node)
        if any(gpus.gpus for gpus, _ in self._nvidia.values()):
            self.notes.append(
                "no node has an agent of ours, so that its GPUs are those of the labels of GPU feature discovery, in "
                f"shares of 1 GiB, and {WHOLE.name} of a pod counts as whole GPUs"
            )

    def _ours(self, node: NodeRecord) -> bool:
        return NODE_GPUS in node.annotations or any(node.capacity.get(name) for name in self._names.values())

    def _put(self, node: NodeRecord) -> None:
        if node.name in self._nvidia:
            gpus, _ = self._nvidia[node.name]
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
        if about.metadata.uid:
            self._seen.update(about.owners)
        else:
            raw = _unbound(raw, about)
        pod, _ = self._pods.read(raw)
        if not pod.containers:
            self._fleet.put_other(self._pods.read_other(raw))
            return None
        if not self._from_empty and (held := amount_of(pod, WHOLE)):
            self._fleet.put_other(self._pods.read_other(raw))
            if not pod.ended:
                self._held[pod.node_name] = self._held.get(pod.node_name, 0) + held
        elif not self._from_empty:
            self._fleet.put_pod(pod)
        return None if pod.ended or pod.deleting else (pod, about.name)

    def _kinds(self, pod: Pod, name: str) -> list[tuple[str, PodKind]]:
        asked = ask(pod, self._resources)
        if not isinstance(asked, GpuRequest):
            self._leave_out(f"pod {pod.namespace}/{pod.name}", asked.sentence)
            return []
        kinds = kinds_of(asked, pod.amounts)
        return [(name if len(kinds) == 1 else f"{name}, part {at}", kind) for at, kind in enumerate(kinds, 1)]

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
                pod, _ = self._pods.read(waiting)
            except UnreadableObjectError as error:
                self._leave_out(about.name, str(error))
                continue
            self._coming.extend(self._kinds(pod, about.name) * number)

    def _leave_out(self, what: str, why: str) -> None:
        self.notes.append(f"{what} is left out: {why}")

    # --- All together -------------------------------------------------------------------------------------------------

    def found(self) -> Inputs:
        nodes = []
        for name, node in self._fleet.candidates.items():
            if node.gpus.problem:
                self._leave_out(f"node {name}", node.gpus.problem)
            elif node.rooms:
                nodes.append(self._with_pods(Start(name, shape_of(node), free_capacity(node))))
            elif node.gpus.instances:
                why = "its MIG instances are given whole, by the resources of their profiles"
                self._leave_out(f"node {name}", why)
        return Inputs(tuple(nodes), Workload.of(self._coming), ordered=True, notes=tuple(self.notes))

    def _with_pods(self, node: Start) -> Start:
        """Return a node without GPUs that pods hold through NVIDIA's device plugin: without the first ones."""
        if not (held := self._held.get(node.name)):
            return node
        _, each = self._nvidia.get(node.name, (None, 0))
        taken = -(-held // each) if each else 0
        frees = (*[0] * min(taken, len(node.left.frees)), *node.left.frees[taken:])
        return replace(node, left=replace(node.left, frees=frees))


# --- The pods that Deployments, Jobs and their like make of their templates -------------------------------------------

_REPLICATED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})
_MAKERS = _REPLICATED | {"Job", "CronJob"}
"""The kinds whose pods are known from the object alone."""


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


class _Manifest(msgspec.Struct, gc=False):
    """What is read of an object that makes pods, or of a pod."""

    metadata: _Metadata
    kind: str = ""
    spec: _Spec = msgspec.field(default_factory=_Spec)

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


# --- A node's GPUs by what NVIDIA's device plugin and GPU feature discovery say of it ---------------------------------


def gpus_by_labels(labels: Mapping[str, str], offered: int) -> tuple[NodeGpus, int]:
    """Return the GPUs as an agent of ours would list them, and how often NVIDIA's device plugin hands out each.

    `offered` is the node's capacity of `WHOLE`. Where GPUs cannot be known, there are none, and `problem` says why.
    """
    product = labels.get(_PRODUCT, "").replace(" ", "-")
    if _DIVIDED in product:
        return NodeGpus(problem="its GPUs are divided into MIG instances; name it in words, with mig="), 1
    memory_mib, replicas = _labelled(labels, _MEMORY), max(1, _labelled(labels, _REPLICAS))
    number = _labelled(labels, _COUNT) or offered // replicas
    if not memory_mib:
        why = f"no label {_MEMORY} says how much memory its GPUs have; deploy NVIDIA's GPU feature discovery"
        return NodeGpus(problem=f"{why}, or name it in words"), 1
    if not 0 < number <= MOST_GPUS:
        return NodeGpus(problem=f"its label {_COUNT} is no number of GPUs"), 1
    product = product.removesuffix(_SHARED)
    reserved_mib = next((known[2] for known in MODELS.values() if known[0].replace(" ", "-") == product), _RESERVED_MIB)
    shares = max(0, memory_mib - reserved_mib) // SHARE_MIB
    model = product.replace("-", " ")
    gpus = [ListedGpu(at, shares, model=model, memory_mib=memory_mib) for at in range(number)]
    return NodeGpus(tuple(gpus), share_mib=SHARE_MIB), replicas


def _labelled(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
