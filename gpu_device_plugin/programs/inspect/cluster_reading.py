"""Read the symptoms of a cluster for `kubectl inspect gpushare doctor`, as far as the user may."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpu_device_plugin.features.conflicts.rules import sightings
from gpu_device_plugin.features.terminal_features import TERMINAL
from gpu_device_plugin.kubernetes.agent_reader import AGENT_LABELS
from gpu_device_plugin.kubernetes.client.errors import ApiError, ForbiddenError
from gpu_device_plugin.kubernetes.kubectl import Access
from gpu_device_plugin.kubernetes.objects.api_objects import ApiObject, Condition, ConfigMap, Container, Named, PodSpec
from gpu_device_plugin.kubernetes.objects.decoding import (
    LEASES,
    NodeReader,
    ObjectKind,
    ObjectMeta,
    PodReader,
    UnreadableObjectError,
    decoded,
)
from gpu_device_plugin.model.contract.keys import (
    AGENT_NAMESPACE,
    ASSUME_TIME,
    ELASTIC,
    POD_ANNOTATIONS,
    SWITCH_LABEL,
    MalformedAnnotationError,
)
from gpu_device_plugin.model.contract.nodelabels import our_annotations, our_labels, switched_on
from gpu_device_plugin.model.contract.promises import promises
from gpu_device_plugin.model.contract.variables import VISIBLE_DEVICES
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.programs.doctor.rules.component_checks import group_of
from gpu_device_plugin.programs.doctor.rules.symptoms import (
    ClusterSymptoms,
    ComponentStatus,
    Karpenter,
    Lease,
    NodeSeen,
    PodSeen,
    node_seen,
)
from gpu_device_plugin.programs.inspect.uninstall import mig_resources
from gpu_device_plugin.report.commands import unread
from gpu_device_plugin.report.rules.finding import Unknown

if TYPE_CHECKING:
    from gpu_device_plugin.features.terminal_features import Read

R = TypeVar("R")
T = TypeVar("T")

_AGENT, _SCHEDULER, _EXTENDER, _SUPERVISOR = "node", "scheduler", "extender", "mps"
_COMPONENTS = (_AGENT, _SCHEDULER, _EXTENDER, _SUPERVISOR)
"""Values of ``app.kubernetes.io/component`` in our manifests."""
_ORIGINAL = {"gpushare-device-plugin": _AGENT, "gpushare-schd-extender": _EXTENDER}
"""Values of ``component`` in the manifests of Alibaba's gpushare."""
_LEASES = {_SCHEDULER: "gpushare-scheduler", _EXTENDER: "gpu-device-plugin-extender"}
_AGENTS_SETTINGS = "gpushare-node"
"""The ConfigMap with the settings of the agents."""
_CONFIGURATION = "gpushare-scheduler"
"""The ConfigMap with the configuration of our own kube-scheduler."""
_WRITER = "gpu-device-plugin"
"""The manager in managedFields of fields that our agent wrote; fields from a Binding have no manager."""
_MOST_METRICS, _METRICS_S = 16 << 20, 20.0
"""Bytes and seconds of an extender's answer."""
_CAUSES = frozenset({"OOMKilled", "StartError"})
"""Reasons of a container that did not end by itself."""
_DAEMON_SETS = ObjectKind("daemonsets", group="apps")
_RUNTIME_CLASSES = ObjectKind("runtimeclasses", group="node.k8s.io")
_POLICIES = ObjectKind("validatingadmissionpolicies", group="admissionregistration.k8s.io")
_KUBE_SCHEDULER = "kube-scheduler"
"""The container beside the extender in our own scheduler's pods."""


async def symptoms_in(  # noqa: PLR0917 - what the doctor reads
    access: Access,
    resources: Sequence[Resource],
    raw_nodes: Iterable[msgspec.Raw],
    raw_pods: Iterable[msgspec.Raw],
    agents_namespace: str = AGENT_NAMESPACE,
    reads: Iterable[tuple[str, Read]] = TERMINAL.reads,
) -> ClusterSymptoms:
    """Return the symptoms in nodes and pods, and read what else belongs to them, which may be unknown.

    `reads` are those of features, by the names of their symptoms.
    """
    names = {resource.kind: resource.name for resource in resources}
    nodes = [_node(raw, frozenset(names.values())) for raw in raw_nodes]
    every = [(decoded(raw, _Pod), raw) for raw in raw_pods]
    pods = [pod for pod, _ in every]
    parts = {pod.name: pod.part for pod in pods if pod.part}
    extending = [pod for pod in pods if pod.part and pod.part[0] in {_SCHEDULER, _EXTENDER}]
    ours = [raw for pod, raw in every if pod.part == (_AGENT, False)]
    places = sorted({name.partition("/")[0] for name in parts}) or ["gpushare"]
    sharing = {node.name for node in nodes if node.shares_gpus}
    groups = {group_of(node.labels) for node in nodes if node.shares_gpus} - {""}
    reader = PodReader((resource.name for resource in resources), (POD_ANNOTATIONS | ELASTIC).__contains__)
    return ClusterSymptoms(
        memory_resource=names[Kind.MEMORY],
        count_resource=names[Kind.COUNT],
        version=await _known(access.client.server(), lambda server: server.version),
        nodes=tuple(
            node
            for node in nodes
            if SWITCH_LABEL in node.labels or node.annotated or node.capacity or group_of(node.labels) in groups
        ),
        agents=tuple(_seen(pod) for pod in pods if pod.part and pod.part[0] == _AGENT),
        extenders=tuple([_seen(pod, await _filter_calls(access, pod)) for pod in extending]),
        own_scheduler=(_SCHEDULER, False) in parts.values(),
        daemonset=await _known(access.every(_DAEMON_SETS, _Object, labels=AGENT_LABELS), _runtime_class),
        runtime_classes=await _known(access.every(_RUNTIME_CLASSES, Named), _names),
        pods=tuple(_asking(pod, raw, reader, resources) for pod, raw in every if _asks(pod, resources)),
        pods_overriding_visible_devices=tuple(
            pod.name
            for pod in pods
            if pod.spec.node_name in sharing and not pod.part and _overrides_visible_devices(pod)
        ),
        leases=await _known(_leases(access, places, {part for part, original in parts.values() if not original}), dict),
        configurations=await _known(_configurations(access, places), dict),
        policies=await _known(access.every(_POLICIES, Named), _names),
        supervisors=tuple(_seen(pod) for pod in pods if pod.part and pod.part[0] == _SUPERVISOR),
        limits_by_profile=await _limits_by_profile(access, places),
        karpenter=await _known(_karpenter(access), lambda found: found),
        **{name: await _known(read(access, ours, agents_namespace), lambda found: found) for name, read in reads},
    )


async def _known(read: Awaitable[R], told: Callable[[R], T]) -> T | Unknown:
    """Return what is told from what is read, or why that cannot be read."""
    try:
        return told(await read)
    except (ApiError, UnreadableObjectError) as error:
        return unread(error)


def _names(found: Iterable[Named]) -> frozenset[str]:
    return frozenset(each.metadata.name for each in found)


def _node(raw: msgspec.Raw, names: frozenset[str]) -> NodeSeen:
    node = NodeReader().read(raw)
    ours = names | mig_resources(node, names)
    return node_seen(
        node,
        time.time(),
        annotated=bool(our_annotations(node.annotations) or our_labels(node.labels)),
        capacity={name: amount for name, amount in node.capacity.items() if name in ours},
        allocatable={name: amount for name, amount in node.allocatable.items() if name in ours},
        other_plugins=sightings((), (), node.allocatable, ours),
    )


# --- Pods -------------------------------------------------------------------------------------------------------------


class _Halt(ApiObject):
    reason: str = ""
    message: str = ""


class _State(ApiObject):
    waiting: _Halt | None = None
    terminated: _Halt | None = None


class _ContainerStatus(ApiObject):
    name: str = ""
    ready: bool = False
    state: _State = msgspec.field(default_factory=_State)
    last_state: _State = msgspec.field(default_factory=_State)

    @property
    def halt(self) -> _Halt:
        """Why the container does not run; empty: it runs."""
        waiting, ended = self.state.waiting or _Halt(), self.last_state.terminated or _Halt()
        # CrashLoopBackOff gives no cause; the last termination does.
        return ended if waiting.reason == "CrashLoopBackOff" and ended.reason in _CAUSES else waiting


class _Status(ApiObject):
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Managed(ApiObject):
    manager: str = ""
    fields_v1: msgspec.Raw = msgspec.Raw(b"{}")


class _PodMeta(ObjectMeta, rename="camel"):
    managed_fields: list[_Managed] | None = None


class _Pod(ApiObject):
    metadata: _PodMeta
    spec: PodSpec
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def name(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def containers(self) -> list[Container]:
        return [*(self.spec.init_containers or ()), *self.spec.containers]

    @property
    def part(self) -> tuple[str, bool] | None:
        """The component of the system, and whether it belongs to the original gpushare; None: no component."""
        labels = self.metadata.labels or {}
        component = labels.get("app.kubernetes.io/component", "")
        if labels.get("app.kubernetes.io/name") == "gpushare" and component in _COMPONENTS:
            return component, False
        original = _ORIGINAL.get(labels.get("component", "")) if labels.get("app") == "gpushare" else None
        return (original, True) if original else None

    def condition(self, kind: str) -> Condition:
        return next((one for one in self.status.conditions or () if one.type == kind), Condition())


def _asks(pod: _Pod, resources: Iterable[Resource]) -> bool:
    names = {resource.name for resource in resources}
    asked = {name for each in pod.containers if each.resources for name in each.resources.limits or {}}
    return bool(names & asked) or any(map(is_mig_resource, asked))


def _asking(pod: _Pod, raw: msgspec.Raw, reader: PodReader, resources: Sequence[Resource]) -> PodSeen:
    read = reader.read(raw)[0]
    return PodSeen(
        pod=read,
        scheduler=pod.spec.scheduler_name,
        promised=_promised(pod, read, resources),
        seen=bool(pod.condition("PodScheduled").type),
        age_s=_age_s(pod.metadata.creation_timestamp or ""),
    )


def _promised(pod: _Pod, read: Pod, resources: Sequence[Resource]) -> bool:
    """Return whether a scheduler annotated a pod with its GPU.

    The agent writes the same annotations on pods without a promise, so the writer decides.
    """
    try:
        promised = bool(promises(read, resources))
    except MalformedAnnotationError:
        promised = True  # a promise, though it cannot be read
    mark = f'"f:{ASSUME_TIME}"'.encode()
    by_agent = any(one.manager == _WRITER and mark in bytes(one.fields_v1) for one in pod.metadata.managed_fields or ())
    return promised and not by_agent


def _overrides_visible_devices(pod: _Pod) -> bool:
    return any(
        env.name == VISIBLE_DEVICES and env.value not in frozenset({"void", "none"})
        for container in pod.containers
        for env in container.env or ()
    )


def _age_s(moment: str) -> float:
    at_s = epoch_s(moment)
    return 0.0 if at_s is None else time.time() - at_s


def _seen(pod: _Pod, asked: int | Unknown | None = None) -> ComponentStatus:
    ready, scheduled = pod.condition("Ready"), pod.condition("PodScheduled")
    idle = [each for each in pod.status.container_statuses or () if not each.ready]
    held = min(idle, key=lambda each: not each.halt.reason, default=_ContainerStatus())
    unplaced = scheduled if scheduled.status == "False" else Condition()
    return ComponentStatus(
        name=pod.name,
        node=pod.spec.node_name,
        ready=ready.status == "True",
        why=" ".join((held.halt.message if held.halt.reason else unplaced.message or ready.message or "").split()),
        container=held.name,
        reason=held.halt.reason or unplaced.reason or "",
        version=next((_tag(each) for each in pod.spec.containers if each.name != _KUBE_SCHEDULER), ""),
        kube_scheduler=next((_tag(each) for each in pod.spec.containers if each.name == _KUBE_SCHEDULER), None),
        original=bool(pod.part and pod.part[1]),
        asked=asked,
    )


def _tag(container: Container) -> str:
    return container.image.partition("@")[0].rpartition("/")[2].partition(":")[2]


async def _filter_calls(access: Access, pod: _Pod) -> int | Unknown | None:
    """Return the number of filter calls of schedulers, by an extender's own metrics; see `ComponentStatus.asked`."""
    ports = (port.container_port for each in pod.spec.containers for port in each.ports or () if port.name == "http")
    port = next(ports, 9402)
    where = pod.metadata.namespace, pod.metadata.name, port
    try:
        page = (await access.client.from_pod(*where, "/metrics", most=_MOST_METRICS, timeout_s=_METRICS_S)).decode()
    except ForbiddenError as error:
        return unread(error)
    except (ApiError, UnicodeDecodeError):
        return None
    counted = re.findall(
        r'^gpushare_extender_verb_duration_seconds_count\{[^}]*verb="filter"[^}]*\} ([0-9.e+]+)$', page, re.MULTILINE
    )
    return int(sum(map(float, counted))) if "gpushare_extender_" in page else None


# --- Other installed objects ------------------------------------------------------------------------------------------


class _Object(ApiObject):
    """Any object, with its spec as it is."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


def _runtime_class(found: Sequence[_Object]) -> str | None:
    """Return the runtime class of our DaemonSet's pods, empty if they have none; None: there is no DaemonSet."""
    return found[0].spec["template"]["spec"].get("runtimeClassName", "") if found else None


async def _leases(access: Access, places: Iterable[str], parts: Iterable[str]) -> dict[str, Lease]:
    wanted = {_LEASES[part] for part in parts if part in _LEASES}
    found = {}
    for place in places:
        for lease in await access.every(LEASES, _Object, namespace=place):
            if lease.metadata.name in wanted:
                holder, renewed, lasts_s = map(lease.spec.get, ("holderIdentity", "renewTime", "leaseDurationSeconds"))
                found[f"{place}/{lease.metadata.name}"] = Lease(
                    holder or "", _age_s(renewed or ""), float(lasts_s or 0)
                )
    return found


async def _configurations(access: Access, places: Iterable[str]) -> dict[str, str]:
    """Return the API versions of our own kube-scheduler's configurations; those of other schedulers are not visible."""
    found = {}
    for place in places:
        for key, text in await _texts(access, place, _CONFIGURATION):
            version = re.search(r"^apiVersion:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
            if "KubeSchedulerConfiguration" in text:
                found[f"{place}/{_CONFIGURATION}, {key}"] = version[1] if version else ""
    return found


async def _limits_by_profile(access: Access, places: Iterable[str]) -> dict[str, str]:
    """Return the setting `limits` by settings profile; a ConfigMap that cannot be read has none."""
    found = {}
    for place in places:
        with suppress(ApiError, UnreadableObjectError):
            for key, text in await _texts(access, place, _AGENTS_SETTINGS):
                if limits := re.search(r"^limits:\s*[\"']?(\w+)", text, re.MULTILINE):
                    found[key.removesuffix(".yaml")] = limits[1]
    return found


async def _texts(access: Access, place: str, name: str) -> list[tuple[str, str]]:
    """Return the files of a ConfigMap; none if it does not exist."""
    raw = await access.items(ObjectKind("configmaps"), [f"metadata.name={name}"], namespace=place)
    found = (config for config in (decoded(each, ConfigMap) for each in raw) if config.metadata.name == name)
    return [file for config in found for file in (config.data or {}).items()]


_KARPENTER = "karpenter.sh"


async def _karpenter(access: Access) -> Karpenter:
    """Return what Karpenter knows of nodes that share; where no NodePool labels its nodes, no more is read."""
    found = await access.every(ObjectKind("nodepools", group=_KARPENTER), _Object)
    labels = {one.metadata.name: one.spec.get("template", {}).get("metadata", {}).get("labels", {}) for one in found}
    pools = tuple(name for name in labels if switched_on(labels[name]))
    overlays = ObjectKind("nodeoverlays", group=_KARPENTER, version="v1alpha1")
    there = await access.every(overlays, _Object) if pools else []
    return Karpenter(pools, frozenset(name for one in there for name in one.spec.get("capacity", ())))
