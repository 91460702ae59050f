"""Read the symptoms of a cluster for `kubectl inspect gpushare doctor`, as far as the user may."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gpu_device_plugin.cluster.objects.decoding import (
    NodeReader,
    ObjectKind,
    ObjectMeta,
    PodReader,
    UnreadableObjectError,
)
from gpu_device_plugin.core.cluster.agentpods import AGENT_NAMESPACE
from gpu_device_plugin.core.cluster.candidate import gpus_of_node
from gpu_device_plugin.core.report.findings.component_checks import group_of
from gpu_device_plugin.core.report.findings.symptoms import (
    ClusterSymptoms,
    Karpenter,
    Lease,
    NodeSeen,
    PartSeen,
    PodSeen,
    SliceSeen,
)
from gpu_device_plugin.core.report.leftovers import mig_resources
from gpu_device_plugin.features.claims.claim_objects import CLAIMS, GROUP, SLICES, read_slice
from gpu_device_plugin.features.claims.contract import DRIVER
from gpu_device_plugin.features.conflicts.rules import sightings
from gpu_device_plugin.features.use.contract import node_report
from gpu_device_plugin.model.contract.keys import (
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
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.programs.inspect.agent_answers import histories
from gpu_device_plugin.programs.kubectl import ClusterUnreadableError, items, unread
from gpu_device_plugin.view.objects import (
    ApiObject,
    Condition,
    ConfigMap,
    Container,
    Named,
    PodSpec,
    decoded,
    readable_claims,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpu_device_plugin.core.report.finding import Unknown
    from gpu_device_plugin.model.pods import Pod
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.programs.kubectl import Kubectl

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
_CAUSES = frozenset({"OOMKilled", "StartError"})
"""Reasons of a container that did not end by itself."""
_KUBE_SCHEDULER = "kube-scheduler"
"""The container beside the extender in our own scheduler's pods."""


def symptoms_in(
    kubectl: Kubectl,
    resources: Sequence[Resource],
    raw_nodes: Iterable[msgspec.Raw],
    raw_pods: Iterable[msgspec.Raw],
    agents_namespace: str = AGENT_NAMESPACE,
) -> ClusterSymptoms:
    """Return the symptoms in nodes and pods, and read what else belongs to them, which may be unknown."""
    names = {resource.kind: resource.name for resource in resources}
    nodes = [_node(raw, frozenset(names.values())) for raw in raw_nodes]
    every = [(decoded(raw, _Pod), raw) for raw in raw_pods]
    pods = [pod for pod, _ in every]
    parts = {pod.name: pod.part for pod in pods if pod.part}
    places = sorted({name.partition("/")[0] for name in parts}) or ["gpushare"]
    sharing = {node.name for node in nodes if node.labelled}
    groups = {group_of(node.labels) for node in nodes if node.labelled} - {""}
    reader = PodReader((resource.name for resource in resources), (POD_ANNOTATIONS | ELASTIC).__contains__)
    return ClusterSymptoms(
        memory_resource=names[Kind.MEMORY],
        count_resource=names[Kind.COUNT],
        version=_known(lambda: decoded(kubectl.raw("/version"), _Version).git_version),
        nodes=tuple(
            node
            for node in nodes
            if SWITCH_LABEL in node.labels or node.annotated or node.capacity or group_of(node.labels) in groups
        ),
        agents=tuple(_seen(pod) for pod in pods if pod.part and pod.part[0] == _AGENT),
        extenders=tuple(
            _seen(pod, _filter_calls(kubectl, pod))
            for pod in pods
            if pod.part and pod.part[0] in {_SCHEDULER, _EXTENDER}
        ),
        own_scheduler=(_SCHEDULER, False) in parts.values(),
        daemonset=_known(lambda: _daemonset(kubectl)),
        runtime_classes=_known(lambda: _names(kubectl, "/apis/node.k8s.io/v1/runtimeclasses")),
        pods=tuple(_asking(pod, raw, reader, resources) for pod, raw in every if _asks(pod, resources)),
        meddling=tuple(pod.name for pod in pods if pod.spec.node_name in sharing and not pod.part and _meddles(pod)),
        leases=_known(lambda: _leases(kubectl, places, {part for part, original in parts.values() if not original})),
        configurations=_known(lambda: _configurations(kubectl, places)),
        policies=_known(lambda: _names(kubectl, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies")),
        supervisors=tuple(_seen(pod) for pod in pods if pod.part and pod.part[0] == _SUPERVISOR),
        limits_by_profile=_limits_by_profile(kubectl, places),
        claims=_known(lambda: tuple(readable_claims(kubectl.items(CLAIMS.path(), optional=True))[0])),
        slices=_known(lambda: _slices(kubectl)),
        device_classes=_known(lambda: _device_classes(kubectl)),
        karpenter=_known(lambda: _karpenter(kubectl)),
        histories=histories(kubectl, [raw for pod, raw in every if pod.part == (_AGENT, False)], agents_namespace),
    )


def _known(read: Callable[[], T]) -> T | Unknown:
    try:
        return read()
    except (ClusterUnreadableError, UnreadableObjectError) as error:
        return unread(error)


class _Version(ApiObject):
    git_version: str = ""


def _names(kubectl: Kubectl, path: str) -> frozenset[str]:
    return frozenset(found.metadata.name for found in items(kubectl, path, Named))


def _node(raw: msgspec.Raw, names: frozenset[str]) -> NodeSeen:
    node = NodeReader().read(raw)
    ours = names | mig_resources(node.annotations, node.capacity, names)
    report, problems = node_report(node.annotations, time.time())
    return NodeSeen(
        name=node.name,
        annotated=bool(our_annotations(node.annotations) or our_labels(node.labels)),
        gpus=gpus_of_node(node.annotations, node.labels, 0, 0),
        capacity={name: amount for name, amount in node.capacity.items() if name in ours},
        allocatable={name: amount for name, amount in node.allocatable.items() if name in ours},
        others=sightings((), (), node.allocatable, ours),
        report=report,
        report_problems=problems,
        labels=node.labels,
        runtime=node.runtime,
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
    scheduled, read = pod.condition("PodScheduled"), reader.read(raw)[0]
    return PodSeen(
        name=pod.name,
        node=pod.spec.node_name,
        scheduler=pod.spec.scheduler_name,
        promised=_promised(pod, read, resources),
        seen=bool(scheduled.type),
        age_s=_age_s(pod.metadata.creation_timestamp or ""),
        elastic=None if read.annotations.keys().isdisjoint(ELASTIC) else read,
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


def _meddles(pod: _Pod) -> bool:
    return any(
        env.name == VISIBLE_DEVICES and env.value not in frozenset({"void", "none"})
        for container in pod.containers
        for env in container.env or ()
    )


def _age_s(moment: str) -> float:
    at_s = epoch_s(moment)
    return 0.0 if at_s is None else time.time() - at_s


def _seen(pod: _Pod, asked: int | None = None) -> PartSeen:
    ready, scheduled = pod.condition("Ready"), pod.condition("PodScheduled")
    idle = [each for each in pod.status.container_statuses or () if not each.ready]
    held = min(idle, key=lambda each: not each.halt.reason, default=_ContainerStatus())
    unplaced = scheduled if scheduled.status == "False" else Condition()
    return PartSeen(
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


def _filter_calls(kubectl: Kubectl, pod: _Pod) -> int | None:
    """Return the number of filter calls of schedulers, by an extender's own metrics; None if those are unreadable."""
    ports = (port.container_port for each in pod.spec.containers for port in each.ports or () if port.name == "http")
    port = next(ports, 9402)
    meta = pod.metadata
    try:
        page = kubectl.raw(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}:{port}/proxy/metrics").decode()
    except (ClusterUnreadableError, UnicodeDecodeError):
        return None
    counted = re.findall(
        r'^gpushare_extender_verb_duration_seconds_count\{[^}]*verb="filter"[^}]*\} ([0-9.e+]+)$', page, re.MULTILINE
    )
    return int(sum(map(float, counted))) if "gpushare_extender_" in page else None


# --- Other installed objects ------------------------------------------------------------------------------------------


class _Template(ApiObject):
    spec: PodSpec


class _SetSpec(ApiObject):
    template: _Template


class _DaemonSet(ApiObject):
    spec: _SetSpec


def _daemonset(kubectl: Kubectl) -> str | None:
    """Return the runtime class of our DaemonSet's pods, empty if they have none; None: there is no DaemonSet."""
    selector = f"app.kubernetes.io/name%3Dgpushare,app.kubernetes.io/component%3D{_AGENT}"
    found = items(kubectl, f"/apis/apps/v1/daemonsets?labelSelector={selector}", _DaemonSet)
    return found[0].spec.template.spec.runtime_class_name if found else None


class _LeaseSpec(ApiObject):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _Lease(Named):
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


def _leases(kubectl: Kubectl, places: Iterable[str], parts: Iterable[str]) -> dict[str, Lease]:
    wanted = {_LEASES[part] for part in parts if part in _LEASES}
    found = {}
    for place in places:
        for lease in items(kubectl, f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases", _Lease):
            if lease.metadata.name in wanted:
                spec = lease.spec
                found[f"{place}/{lease.metadata.name}"] = Lease(
                    spec.holder_identity or "", _age_s(spec.renew_time or ""), float(spec.lease_duration_seconds or 0)
                )
    return found


def _configurations(kubectl: Kubectl, places: Iterable[str]) -> dict[str, str]:
    """Return the API versions of our own kube-scheduler's configurations; those of other schedulers are not visible."""
    found = {}
    for place in places:
        for key, text in _texts(kubectl, place, _CONFIGURATION):
            version = re.search(r"^apiVersion:\s*[\"']?([^\s\"']+)", text, re.MULTILINE)
            if "KubeSchedulerConfiguration" in text:
                found[f"{place}/{_CONFIGURATION}, {key}"] = version[1] if version else ""
    return found


def _limits_by_profile(kubectl: Kubectl, places: Iterable[str]) -> dict[str, str]:
    """Return the setting `limits` by settings profile; a ConfigMap that cannot be read has none."""
    found = {}
    for place in places:
        with suppress(ClusterUnreadableError, UnreadableObjectError):
            for key, text in _texts(kubectl, place, _AGENTS_SETTINGS):
                if limits := re.search(r"^limits:\s*[\"']?(\w+)", text, re.MULTILINE):
                    found[key.removesuffix(".yaml")] = limits[1]
    return found


def _texts(kubectl: Kubectl, place: str, name: str) -> list[tuple[str, str]]:
    """Return the files of a ConfigMap; none if it does not exist."""
    path = f"/api/v1/namespaces/{place}/configmaps?fieldSelector=metadata.name%3D{name}"
    found = (config for config in items(kubectl, path, ConfigMap) if config.metadata.name == name)
    return [file for config in found for file in (config.data or {}).items()]


class _ClassSpec(ApiObject):
    extended_resource_name: str | None = None


class _Class(Named):
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


def _slices(kubectl: Kubectl) -> tuple[SliceSeen, ...]:
    """Return the ResourceSlices of our driver; raises as `kubectl.items`."""
    raw = kubectl.items(SLICES.path(), [f"spec.driver={DRIVER}"], optional=True)
    return tuple(
        SliceSeen(
            pool=found.pool,
            generation=found.generation,
            of=found.count,
            devices=len(found.content["devices"]),
            shared=any(device.get("allowMultipleAllocations") for device in found.content["devices"]),
        )
        for found in map(read_slice, raw)
    )


def _device_classes(kubectl: Kubectl) -> dict[str, str]:
    """Return the extended resource of each DeviceClass by the name of the class, empty: none; raises as `slices`."""
    found = [
        decoded(each, _Class) for each in kubectl.items(ObjectKind("deviceclasses", group=GROUP).path(), optional=True)
    ]
    return {each.metadata.name: each.spec.extended_resource_name or "" for each in found}


class _OfKarpenter(Named):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


def _karpenter(kubectl: Kubectl) -> Karpenter:
    """Return what Karpenter knows of nodes that share; where no NodePool labels its nodes, no more is read."""
    found = items(kubectl, "/apis/karpenter.sh/v1/nodepools", _OfKarpenter)
    labels = {one.metadata.name: one.spec.get("template", {}).get("metadata", {}).get("labels", {}) for one in found}
    pools = tuple(name for name in labels if switched_on(labels[name]))
    overlays = items(kubectl, "/apis/karpenter.sh/v1alpha1/nodeoverlays", _OfKarpenter) if pools else []
    return Karpenter(pools, frozenset(name for one in overlays for name in one.spec.get("capacity", ())))
