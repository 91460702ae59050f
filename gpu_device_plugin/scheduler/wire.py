"""Decode kube-scheduler's requests to an extender, and encode the answers.

The types are those of Kubernetes 1.36 (k8s.io/kube-scheduler/extender/v1), which Go encodes under the names of their
fields, with null for an empty one. Pods and nodes are not of these types; only their names and UIDs are read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from gpu_device_plugin.kubernetes.objects.decoding import decoder_of
from gpu_device_plugin.scheduler.cluster_state import FleetEntry
from gpu_device_plugin.scheduler.rules.candidate import Candidate

T = TypeVar("T")


class UnreadableRequestError(ValueError):
    """A request in another format than kube-scheduler's. The message is a sentence that quotes nothing from it."""


# --- Requests --------------------------------------------------------------------------------------------------------

SMALLEST_SAMPLE = 100
"""kube-scheduler names fewer nodes only if no others passed its plugins (minFeasibleNodesToFind, 1.27 to 1.36)."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """The arguments of filter and prioritize: a pod, and the nodes that it may go to."""

    pod: Raw
    names: list[str]
    """The names of the nodes, in the order of the request."""
    nodes: list[Raw] | None = None
    """The nodes themselves, one for each name, where the scheduler is configured without nodeCacheCapable."""


@dataclass(frozen=True, slots=True)
class Placing:
    """What a pod says of the nodes that it may go to."""

    constraints: int
    """Equal for pods whose own fields keep them from the same nodes."""
    nominated_node: str
    """The node that kube-scheduler looks at first; empty: there is none."""
    may_preempt: bool
    prefers: bool
    """It prefers some of these nodes, by affinity or spreading of its own."""


class BindingArgs(Struct, frozen=True, gc=False):
    """The arguments of bind: a pod and its node; no field is empty."""

    name: str = field(default="", name="PodName")
    namespace: str = field(default="", name="PodNamespace")
    uid: str = field(default="", name="PodUID")
    node: str = field(default="", name="Node")


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict from one node."""

    uids: tuple[str, ...]
    pdb_violations: int = 0
    """How many of these evictions violate a PodDisruptionBudget."""


_PREFERRED, _ANYWAY = b'"preferredDuringSchedulingIgnoredDuringExecution"', b'"ScheduleAnyway"'
_ABSENT = Raw()
_NOTHING = (_ABSENT, Raw(b"null"))
# A node provides any number of these kinds, and no pod can block another's.
_UNLIMITED_VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "projected", "secret"})


class _Args(Struct, rename="pascal", gc=False):
    pod: Raw = _ABSENT
    nodes: Raw = _ABSENT
    node_names: list[str] | None = None


class _NodeList(Struct, gc=False):
    items: list[Raw] | None = None


class _Meta(Struct, gc=False):
    name: str = ""
    uid: str = ""


class _Object(Struct, gc=False):
    """A node."""

    metadata: _Meta


class _Container(Struct, gc=False):
    ports: list[dict[str, Any]] | None = None


class _Spec(Struct, rename="camel", gc=False):
    node_selector: Raw = _ABSENT
    affinity: Raw = _ABSENT
    tolerations: Raw = _ABSENT
    topology_spread_constraints: Raw = _ABSENT
    preemption_policy: str | None = None


class _WholeSpec(_Spec, rename="camel", gc=False):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[Raw] | None = None
    volumes: list[dict[str, Raw]] | None = None


class _Status(Struct, rename="camel", gc=False):
    nominated_node_name: str | None = None


class _Namespaced(Struct, gc=False):
    namespace: str = ""


class _Pod(Struct, gc=False):
    metadata: _Namespaced = field(default_factory=_Namespaced)
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


class _WholePod(Struct, gc=False):
    spec: _WholeSpec = field(default_factory=_WholeSpec)


class _PreemptionArgs(Struct, rename="pascal", gc=False):
    pod: Raw = _ABSENT
    node_name_to_victims: dict[str, Raw] | None = None
    node_name_to_meta_victims: dict[str, Raw] | None = None


class _Victim(Struct, gc=False):
    """A complete pod, or its UID alone."""

    metadata: _Meta = field(default_factory=_Meta)
    uid: str = field(default="", name="UID")


class _Victims(Struct, rename="pascal", gc=False):
    pods: list[_Victim] | None = None
    violations: int = field(default=0, name="NumPDBViolations")


def read_args(body: bytes) -> ExtenderArgs:
    """Decode the arguments of filter and prioritize. UnreadableRequestError: it lacks the pod or the list of nodes."""
    args = _decode(body, _Args)
    pod = _pod(args.pod)
    if not args.node_names and args.nodes not in _NOTHING:
        nodes = _decode(args.nodes, _NodeList).items or []
        return ExtenderArgs(pod, [_decode(node, _Object).metadata.name for node in nodes], nodes)
    return ExtenderArgs(pod, _given(args.node_names, "list of nodes, neither as NodeNames nor as Nodes"))


def read_binding(body: bytes) -> BindingArgs:
    """Decode the arguments of bind. Raises UnreadableRequestError."""
    args = _decode(body, BindingArgs)
    for value, name in (
        (args.name, "PodName"),
        (args.namespace, "PodNamespace"),
        (args.uid, "PodUID"),
        (args.node, "Node"),
    ):
        _given(value or None, name)
    return args


def read_preemption(body: bytes) -> tuple[Raw, Mapping[str, Victims]]:
    """Decode the arguments of preempt: a pod that fits nowhere, and the victims that are proposed on each node.

    These are complete pods, or their UIDs alone. Raises UnreadableRequestError.
    """
    args = _decode(body, _PreemptionArgs)
    pod, uids = _pod(args.pod), args.node_name_to_meta_victims
    nodes = _given(uids or args.node_name_to_victims or uids, "nodes with victims")
    return pod, {name: _victims(_decode(raw, _Victims)) for name, raw in nodes.items()}


def read_placing(pod: Raw) -> Placing:
    """Decode what a pod says of its nodes. Raises UnreadableRequestError."""
    read = _decode(pod, _Pod)
    spec = read.spec
    # Affinity to pods and spreading select pods of the same namespace.
    relative = (spec.affinity, spec.topology_spread_constraints)
    namespace = "" if relative == (_ABSENT, _ABSENT) else read.metadata.namespace
    affinity, spreading, *others = [bytes(field) for field in (*relative, spec.node_selector, spec.tolerations)]
    return Placing(
        hash((namespace, affinity, spreading, *others)),
        read.status.nominated_node_name or "",
        may_preempt=spec.preemption_policy != "Never",
        # Go leaves out empty lists. The same text anywhere else in it costs the pod's owner some time, and nobody else.
        prefers=_PREFERRED in affinity or _ANYWAY in spreading,
    )


def fits_by_requests_alone(pod: bytes | Raw) -> bool:
    """Return whether pods of lower priority can keep this pod off a node only by their requests.

    False where host ports, the placement of other pods, claimed devices or claimed volumes may also decide, and where
    the pod cannot be decoded.
    """
    try:
        spec = _decode(pod, _WholePod).spec
        affinity = {} if spec.affinity in _NOTHING else _decode(spec.affinity, dict[str, Any])
    except UnreadableRequestError:
        return False
    ports = [port for each in (*(spec.init_containers or ()), *(spec.containers or ())) for port in each.ports or ()]
    volumes = (kind for volume in spec.volumes or () for kind in volume if kind != "name")
    return not (
        any(port.get("hostPort") for port in ports)
        or affinity.get("podAffinity")
        or affinity.get("podAntiAffinity")
        or spec.topology_spread_constraints not in (*_NOTHING, Raw(b"[]"))
        or spec.resource_claims
        or not _UNLIMITED_VOLUMES.issuperset(volumes)
    )


def with_identity(pod: Raw) -> bytes:
    """Return a pod with a placeholder for a missing name or UID: a pod sent by hand, with curl, may lack both.

    Raises UnreadableRequestError.
    """
    said = _decode(pod, dict[str, Raw])
    meta = _decode(said.get("metadata", Raw(b"{}")), dict[str, Raw])
    for key in ("name", "uid"):
        if meta.get(key, Raw(b'""')) in (Raw(b'""'), Raw(b"null")):
            meta[key] = Raw(b'"unknown"')
    return _encode({**said, "metadata": meta})


def _victims(found: _Victims) -> Victims:
    uids = [_given(pod.uid or pod.metadata.uid or None, "UID of a victim") for pod in found.pods or ()]
    return Victims(tuple(uids), found.violations)


def _pod(raw: Raw) -> Raw:
    return _given(None if raw in _NOTHING else raw, "Pod")


def _given(value: T | None, what: str) -> T:
    if value is None:
        raise UnreadableRequestError(f"the request has no {what}")
    return value


def _decode(raw: bytes | Raw, kind: type[T]) -> T:
    try:
        found: T = decoder_of(kind).decode(raw)  # type: ignore[arg-type]
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableRequestError(f"the request is not what kube-scheduler sends: {error}") from None
    except UnicodeDecodeError:  # its message quotes the bytes
        raise UnreadableRequestError("the request is not what kube-scheduler sends: it is not UTF-8") from None
    return found


# --- Answers ---------------------------------------------------------------------------------------------------------


_FILTER_RESULT = ("Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error")
"""The fields of an answer to filter, in Go's order."""


class HostPriority(Struct, rename="pascal", frozen=True, gc=False):
    """How well a node suits, 0 to 10."""

    host: str
    score: int


class InspectedPod(Struct, frozen=True, gc=False):
    """A pod and its usage, in shares."""

    name: str
    namespace: str
    used: int = field(name="usedGPU")
    gpus: int = field(name="wholeGPUs")
    """How many GPUs it takes whole, of those that `used` counts."""
    state: str
    """``bound``, ``binding`` (promised by this extender), ``deleting`` (its containers may still run) or ``vanished``
    (deleted by force, and counted for a grace period)."""
    uid: str


class InspectedGpu(Struct, frozen=True, rename="camel", gc=False):
    """A GPU, in shares."""

    id: int
    total: int = field(name="totalGPU")
    used: int = field(name="usedGPU")
    pods: Sequence[InspectedPod]
    uuid: str
    model: str
    memory_mib: int | None = field(name="memoryMiB")
    healthy: bool
    reason: str
    """Why it is out of service."""
    whole: bool
    """Whether it is in whole use."""


class InspectedNode(Struct, frozen=True, rename="camel", gc=False):
    """A node, in shares."""

    name: str
    total: int = field(name="totalGPU")
    used: int = field(name="usedGPU")
    devs: Sequence[InspectedGpu]
    share_mib: int | None = field(name="shareMiB")
    """MiB; null where the node does not state it."""
    policy: str | None
    driver: str | None
    problem: str
    """Why its GPUs are unknown."""
    unplaced: Sequence[InspectedPod]
    """Pods and their usage of unknown GPUs, and of GPUs that the node does not list."""


def filter_result(
    args: ExtenderArgs, passed: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """Encode the answer to filter, with the nodes that passed, or their names, as in the request.

    If none passed, evicting pods might help on those that `failed`, and would not on those that are `unresolvable`.
    kube-scheduler reads no reasons where one passed (findNodesThatPassExtenders, 1.27 to 1.36).
    """
    answer: dict[str, object] = dict.fromkeys(_FILTER_RESULT)
    answer |= {"FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}
    if args.nodes is None:
        answer["NodeNames"] = passed
    else:
        chosen, nodes = frozenset(passed), zip(args.names, args.nodes, strict=True)
        answer["Nodes"] = {"metadata": {}, "items": [node for name, node in nodes if name in chosen]}
    return _encode(answer)


def filter_error(sentence: str) -> bytes:
    """Encode an error of filter. The scheduler records it on the pod, and retries."""
    return _encode(dict.fromkeys(_FILTER_RESULT) | {"Error": sentence})


def priorities(scores: list[HostPriority]) -> bytes:
    """Encode the answer to prioritize."""
    return _encode(scores)


def binding_result(error: str) -> bytes:
    """Encode the answer to bind; `error` is empty if the pod is bound."""
    return _encode({"Error": error})


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Encode the answer to preempt: the victims on each node. The scheduler rules out nodes that are left out."""
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in chosen.uids], "NumPDBViolations": chosen.pdb_violations}
        for name, chosen in victims.items()
    }
    return _encode({"NodeNameToMetaVictims": nodes})


def inspect_result(nodes: Sequence[InspectedNode], error: str = "") -> bytes:
    """Encode the answer to inspect, in the format of gpushare's extender; an empty `error` is omitted."""
    return _encode({"nodes": nodes} | ({"error": error} if error else {}))


_encode = msgspec.json.Encoder().encode


def inspected(node: Candidate, entries: Iterable[FleetEntry]) -> InspectedNode:
    """Return a node with the pods that count on it, which are `entries`."""
    sizes = node.gpus.sizes
    usages = [(entry, entry.usage.within(sizes)) for entry in entries]
    devs = []
    for gpu in node.gpus.gpus:
        on_it = ((entry, gpu.position in usage.whole, dict(usage.shares)) for entry, usage in usages)
        each = [(e, gpu.shares if whole else shares.get(gpu.position, 0), int(whole)) for e, whole, shares in on_it]
        pods = [_inspected_pod(*there) for there in each if any(there[1:])]
        devs.append(
            InspectedGpu(
                gpu.position,
                gpu.shares,
                sum(pod.used for pod in pods),
                pods,
                gpu.uuid,
                gpu.model,
                gpu.memory_mib,
                not gpu.closed,
                gpu.unhealthy or gpu.closed,
                any(pod.gpus for pod in pods),
            )
        )
    loose = [(entry, usage.as_listed(sizes, node.gpus.elsewhere)) for entry, usage in usages]
    unplaced = [_inspected_pod(e, usage.unplaced_shares, usage.unplaced_gpus) for e, usage in loose if usage.unplaced]
    return InspectedNode(
        node.name,
        sum(dev.total for dev in devs),
        sum(dev.used for dev in devs) + sum(pod.used for pod in unplaced),
        devs,
        node.gpus.share_mib,
        node.gpus.policy,
        node.gpus.driver,
        node.gpus.problem,
        unplaced,
    )


def _inspected_pod(entry: FleetEntry, shares: int, gpus: int) -> InspectedPod:
    states = {
        "held": bool(entry.held_for),
        "vanished": entry.until is not None,
        "deleting": entry.deleting,
        "binding": entry.claimed,
    }
    state = next((state for state, is_so in states.items() if is_so), "bound")
    return InspectedPod(entry.name, entry.namespace, shares, gpus, state, entry.uid)
