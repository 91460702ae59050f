"""What kube-scheduler sends to an extender, and what it understands of an answer.

The types are those of Kubernetes 1.36 (k8s.io/kube-scheduler/extender/v1), which Go writes under the names of their
fields, null where there is nothing. Of what is inside of a pod or a node, which is not of these types, only names and
UIDs are read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Raw, Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


class UnreadableRequestError(ValueError):
    """A request that is not what kube-scheduler sends. The message is a sentence, and quotes nothing of it."""


# --- What comes in ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A pod, and the nodes that it may go to: asked by filter and by prioritize."""

    pod: Raw
    names: list[str]
    """Of the nodes, in the order of the request."""
    nodes: list[Raw] | None = None
    """The nodes themselves, one for each name, where the scheduler takes the extender for one that knows no nodes."""


class BindingArgs(Struct, frozen=True, gc=False):
    """A pod that is to be bound, and to which node; nothing of it is empty."""

    name: str = field(default="", name="PodName")
    namespace: str = field(default="", name="PodNamespace")
    uid: str = field(default="", name="PodUID")
    node: str = field(default="", name="Node")


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods of one node that are to be evicted."""

    uids: tuple[str, ...]
    pdb_violations: int = 0
    """How many of these evictions a PodDisruptionBudget is against."""


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A pod that fits nowhere, and the pods of each node that could be evicted for it."""

    pod: Raw
    victims: Mapping[str, Victims]


_ABSENT = Raw()
_NOTHING = (_ABSENT, Raw(b"null"))


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
    """A pod or a node."""

    metadata: _Meta


class _PreemptionArgs(Struct, rename="pascal", gc=False):
    pod: Raw = _ABSENT
    node_name_to_victims: dict[str, Raw] | None = None
    node_name_to_meta_victims: dict[str, Raw] | None = None


class _Victims(Struct, rename="pascal", gc=False):
    pods: list[Raw] | None = None
    violations: int = field(default=0, name="NumPDBViolations")


class _MetaPod(Struct, gc=False):
    uid: str = field(default="", name="UID")


def read_args(body: bytes) -> ExtenderArgs:
    """Read what filter and prioritize are asked.

    Raises:
        UnreadableRequestError: it cannot be read, or has no pod or no list of nodes; an empty list is one.
    """
    args = _decode(body, _Args)
    pod = _pod(args.pod)
    if not args.node_names and args.nodes not in _NOTHING:
        nodes = _decode(args.nodes, _NodeList).items or []
        return ExtenderArgs(pod, [_decode(node, _Object).metadata.name for node in nodes], nodes)
    return ExtenderArgs(pod, _given(args.node_names, "list of nodes, neither as NodeNames nor as Nodes"))


def read_binding(body: bytes) -> BindingArgs:
    """Read what bind is asked.

    Raises:
        UnreadableRequestError: it cannot be read, or something is missing.
    """
    args = _decode(body, BindingArgs)
    for each in msgspec.structs.fields(args):
        _given(getattr(args, each.name) or None, each.encode_name)
    return args


def read_preemption(body: bytes) -> PreemptionArgs:
    """Read what preempt is asked, with whole pods or with no more than their UIDs.

    Raises:
        UnreadableRequestError: it cannot be read, or something is missing.
    """
    args = _decode(body, _PreemptionArgs)
    pod = _pod(args.pod)
    if args.node_name_to_meta_victims:
        return PreemptionArgs(pod, _victims(args.node_name_to_meta_victims, lambda raw: _decode(raw, _MetaPod).uid))
    nodes = _given(args.node_name_to_victims or args.node_name_to_meta_victims, "nodes with victims")
    return PreemptionArgs(pod, _victims(nodes, lambda raw: _decode(raw, _Object).metadata.uid))


def with_identity(pod: Raw) -> bytes:
    """Return a pod that has at least some name and some UID: one that a person sends by hand may have none.

    Raises:
        UnreadableRequestError: this is no object of the Kubernetes API.
    """
    said = _decode(pod, dict[str, Raw])
    meta = _decode(said.get("metadata", Raw(b"{}")), dict[str, Raw])
    for key in ("name", "uid"):
        if meta.get(key, Raw(b'""')) in (Raw(b'""'), Raw(b"null")):
            meta[key] = Raw(b'"unknown"')
    return _encode({**said, "metadata": meta})


def _victims(nodes: Mapping[str, Raw], uid_of: Callable[[Raw], str]) -> Mapping[str, Victims]:
    found: dict[str, Victims] = {}
    for name, raw in nodes.items():
        victims = _decode(raw, _Victims)
        uids = tuple(_given(uid_of(pod) or None, "UID of a victim") for pod in victims.pods or ())
        found[name] = Victims(uids, victims.violations)
    return found


def _pod(raw: Raw) -> Raw:
    return _given(None if raw in _NOTHING else raw, "Pod")


def _given(value: T | None, what: str) -> T:
    if value is None:
        raise UnreadableRequestError(f"the request has no {what}")
    return value


def _decode(raw: bytes | Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableRequestError(f"the request is not what kube-scheduler sends: {error}") from None
    except UnicodeDecodeError:  # carries the bytes themselves
        raise UnreadableRequestError("the request is not what kube-scheduler sends: it is not UTF-8") from None


# --- What goes out ---------------------------------------------------------------------------------------------------


class _Nodes(Struct, gc=False):
    metadata: dict[str, str]
    items: list[Raw]


class _FilterResult(Struct, rename="pascal", gc=False):
    nodes: _Nodes | None = None
    node_names: Sequence[str] | None = None
    failed_nodes: Mapping[str, str] | None = None
    failed_and_unresolvable_nodes: Mapping[str, str] | None = None
    error: str = ""


class HostPriority(Struct, rename="pascal", frozen=True, gc=False):
    """How well a node suits, 0 to 10."""

    host: str
    score: int


class _BindingResult(Struct, rename="pascal", gc=False):
    error: str


class _MetaVictims(Struct, rename="pascal", gc=False):
    pods: list[_MetaPod]
    violations: int = field(name="NumPDBViolations")


class _PreemptionResult(Struct, rename="pascal", gc=False):
    node_name_to_meta_victims: dict[str, _MetaVictims]


class InspectedPod(Struct, frozen=True, gc=False):
    """A pod and what it takes, in shares."""

    name: str
    namespace: str
    used: int = field(name="usedGPU")
    gpus: int = field(name="wholeGPUs")
    """Of these GPUs, how many it takes whole."""
    state: str
    """``bound``, ``binding`` (promised by us), ``deleting`` (its containers may still run) or ``vanished`` (deleted
    by force, and counted for a while)."""
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
    """It is in whole use."""


class InspectedNode(Struct, frozen=True, rename="camel", gc=False):
    """A node, in shares."""

    name: str
    total: int = field(name="totalGPU")
    used: int = field(name="usedGPU")
    devs: Sequence[InspectedGpu]
    share_mib: int | None = field(name="shareMiB")
    """MiB; null where the node does not say."""
    policy: str | None
    driver: str | None
    problem: str
    """Why nothing is known of its GPUs."""
    unplaced: Sequence[InspectedPod]
    """What pods take of GPUs that are not known yet, or that the node does not list."""


class _InspectResult(Struct, omit_defaults=True, gc=False):
    nodes: Sequence[InspectedNode]
    error: str = ""


def filter_result(
    args: ExtenderArgs, passed: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]
) -> bytes:
    """Answer filter, in the form in which it was asked.

    Args:
        args: what was asked.
        passed: the nodes that the pod may go to.
        failed: why not to others; evicting pods might help.
        unresolvable: why not to the rest; evicting pods would not help.
    """
    if args.nodes is None:
        return _encode(_FilterResult(None, passed, failed, unresolvable))
    chosen = frozenset(passed)
    nodes = [node for name, node in zip(args.names, args.nodes, strict=True) if name in chosen]
    return _encode(_FilterResult(_Nodes({}, nodes), None, failed, unresolvable))


def filter_error(sentence: str) -> bytes:
    """Say why filter has no answer. The scheduler shows it on the pod, and asks again."""
    return _encode(_FilterResult(error=sentence))


def priorities(scores: list[HostPriority]) -> bytes:
    """Answer prioritize."""
    return _encode(scores)


def binding_result(error: str) -> bytes:
    """Answer bind; the text is empty if the pod is bound."""
    return _encode(_BindingResult(error))


def preemption_result(victims: Mapping[str, Victims]) -> bytes:
    """Answer preempt: which pods to evict from which node. A node that is left out is none for the pod."""
    nodes = {
        name: _MetaVictims([_MetaPod(uid) for uid in chosen.uids], chosen.pdb_violations)
        for name, chosen in victims.items()
    }
    return _encode(_PreemptionResult(nodes))


def inspect_result(nodes: Sequence[InspectedNode], error: str = "") -> bytes:
    """Answer inspect, in the form of gpushare's extender; its `error` is there only if there is one."""
    return _encode(_InspectResult(nodes, error))


_encode = msgspec.json.Encoder().encode
