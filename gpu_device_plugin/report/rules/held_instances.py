"""Whole MIG instances of a node, and the pods that hold them, for display.

Kube-scheduler counts them, and the kubelet chooses; which ones a pod has, its node's agent writes on the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_device_plugin.model.contract.keys import INSTANCES, MalformedAnnotationError
from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.contract.promises import read_instances
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.scheduler.rules.pod_demand import amount_of
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer


@dataclass(frozen=True, slots=True)
class InstancePod(GpuConsumer):
    """A pod on a node that asks for whole MIG instances, which are no `usage`. Compared by its fields."""

    asked: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The number of instances by resource."""
    held: frozenset[str] = frozenset()
    """The UUIDs of its instances, as far as its node's agent has written them on it."""


@dataclass(frozen=True, slots=True)
class Instances:
    """The MIG instances of one resource on a node, and the pods that have them."""

    resource: str
    profile: str
    instances: tuple[ListedGpu, ...]
    """By position."""
    holders: Mapping[str, tuple[InstancePod, ...]] = field(default_factory=dict)
    """By UUID of the instances that are known to be in use."""
    unassigned_usage: tuple[tuple[InstancePod, int], ...] = ()
    """Pods that have instances of which is not known which, each with their number."""

    @property
    def used(self) -> int:
        """Instances in use; more than there are where the node has lost some."""
        return len(self.holders) + sum(number for _, number in self.unassigned_usage)

    @property
    def free(self) -> int:
        """Instances that a pod could get: they are in service, and not in use."""
        usable = sum(not gpu.closed and gpu.uuid not in self.holders for gpu in self.instances)
        return max(0, usable - sum(number for _, number in self.unassigned_usage))

    @property
    def closed(self) -> tuple[ListedGpu, ...]:
        """The instances that no pod can get, as they are out of service or put aside."""
        return tuple(gpu for gpu in self.instances if gpu.closed)

    @property
    def by_pod(self) -> Mapping[InstancePod, tuple[ListedGpu, ...]]:
        """The known instances of each pod, none for those of which nothing is known; by namespace and name."""
        pods = {pod.uid: pod for held in self.holders.values() for pod in held} | {
            pod.uid: pod for pod, _ in self.unassigned_usage
        }
        return {
            pod: tuple(gpu for gpu in self.instances if pod in self.holders.get(gpu.uuid, ()))
            for pod in sorted(pods.values(), key=lambda pod: (pod.namespace, pod.name))
        }


def asked_instances(pod: Pod) -> Mapping[str, int]:
    """Return the number of MIG instances that a pod asks for, by resource, as the kubelet adds them up."""
    names = dict.fromkeys(
        name for each in pod.containers for name, n in each.limits.items() if n and is_mig_resource(name)
    )
    return {name: amount_of(pod, Resource(Kind.INSTANCE, name)) for name in names}


def instance_pod(pod: Pod) -> InstancePod | None:
    """Return a pod on a node as one that holds MIG instances; None: it asks for none, or has ended."""
    asked = asked_instances(pod) if pod.node_name and not pod.ended else {}
    if not asked:
        return None
    held = frozenset(uuid for uuids in readable_instances(pod).values() for uuid in uuids)
    who = pod.uid, NOTHING, pod.priority, pod.deleting, None, pod.namespace, pod.name
    return InstancePod(*who, asked=asked, held=held)


def readable_instances(pod: Pod) -> Mapping[str, tuple[str, ...]]:
    """Return the UUIDs of the instances of each container, as the agent wrote them; none if that is malformed.

    Where no policy keeps the pod's owner from writing them, they may be more than the container asked for: then the
    agent has not written them, and none of them counts.
    """
    try:
        written = read_instances(pod.annotations.get(INSTANCES, "{}"))
    except MalformedAnnotationError:
        return {}
    asked = {
        each.name: sum(amount for name, amount in each.limits.items() if is_mig_resource(name))
        for each in pod.containers
    }
    return {name: uuids for name, uuids in written.items() if len(uuids) <= asked.get(name, 0)}


def whole_instances(listed: Iterable[ListedGpu], pods: Sequence[InstancePod]) -> tuple[Instances, ...]:
    """Return the whole MIG instances that a node's agent lists, by resource, the smallest profile first."""
    of: dict[str, list[ListedGpu]] = {}
    for gpu in listed:
        if gpu.instance is not None:
            of.setdefault(gpu.instance.resource, []).append(gpu)
    found = [_of_resource(resource, gpus, pods) for resource, gpus in of.items()]
    return tuple(sorted(found, key=lambda each: (each.instances[0].memory_mib or 0, each.resource)))


def _of_resource(resource: str, gpus: Sequence[ListedGpu], pods: Sequence[InstancePod]) -> Instances:
    uuids = {gpu.uuid for gpu in gpus}
    holders: dict[str, tuple[InstancePod, ...]] = {}
    number: Counter[str] = Counter()
    for pod in pods:
        named = pod.held & uuids
        # Instances of another profile than the pod asked for are none that its agent wrote on it.
        for uuid in sorted(named) if len(named) <= pod.asked.get(resource, 0) else ():
            holders[uuid] = (*holders.get(uuid, ()), pod)
            number[pod.uid] += 1
    unassigned_usage = tuple((pod, less) for pod in pods if (less := pod.asked.get(resource, 0) - number[pod.uid]) > 0)
    profile = gpus[0].instance.profile if gpus[0].instance is not None else ""
    return Instances(resource, profile, tuple(gpus), holders, unassigned_usage)


def asked_by_profile(asked: Mapping[str, int]) -> tuple[Finding, ...]:
    """Return what a pod asks for of MIG instances, as ends of a sentence."""
    return tuple(note("n-of", "{n} of {resource}", n=n, resource=resource) for resource, n in sorted(asked.items()))
