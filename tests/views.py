"""Nodes with pods on them in one line, as people look at them: GPUs are called GPU-0, GPU-1 and so on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.model.contract.cordons import Cordon, write_cordons
from gpu_device_plugin.model.contract.keys import CORDONS
from gpu_device_plugin.model.contract.node_use import NO_REPORT, NodeReport
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.report.rules.held_instances import InstancePod
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.candidate import candidate, with_cordons
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage
from tests.builders import GPU_COUNT, GPU_MEM


def pod_on(
    name: str,
    shares: Mapping[int, int] | None = None,
    *whole: int,
    unassigned_usage: int = 0,
    loose_gpus: int = 0,
    priority: int = 0,
    deleting: bool = False,
) -> GpuConsumer:
    """Return a pod that takes something.

    Args:
        name: with its namespace before a slash, else that is `default`.
        shares: what it has of GPUs, by position.
        whole: GPUs that it has whole.
        loose: shares that it has somewhere.
        loose_gpus: whole GPUs that it has somewhere.
        priority: higher ones may evict lower ones.
        deleting: it is being deleted.
    """
    namespace, _, own = name.rpartition("/")
    usage = Usage(tuple(sorted((shares or {}).items())), tuple(sorted(whole)), unassigned_usage, loose_gpus)
    return GpuConsumer(f"uid-{name}", usage, priority, deleting, {}, namespace or "default", own)


def node_view(
    name: str,
    sizes: Mapping[int, int] | tuple[int, ...],
    *pods: GpuConsumer,
    share_mib: int | None = 1024,
    unhealthy: Mapping[int, str] | None = None,
    model: str = "Tesla T4",
    problem: str = "",
    amounts: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
    ready: bool = True,
    unschedulable: bool = False,
    report: NodeReport = NO_REPORT,
) -> NodeView:
    """Return a node.

    Args:
        name: of the node.
        sizes: the shares of its GPUs, by position.
        pods: who takes something of them.
        share_mib: the size of a share; None for a node of gpushare's own device plugin, which names no GPUs either.
        unhealthy: reasons of GPUs out of service, by position.
        model: of all its GPUs.
        problem: why its GPUs are not known.
        amounts: its capacity and its allocatable resources; without them all of both.
        ready: whether its kubelet is well.
        unschedulable: whether it is cordoned.
        report: what its agent tells of limits and of real use.
    """
    named = share_mib is not None
    by_position = dict(sizes) if not isinstance(sizes, tuple) else dict(enumerate(sizes))
    gpus = NodeGpus(
        tuple(
            ListedGpu(
                position,
                shares,
                uuid=f"GPU-{position}" if named else "",
                model=model if named else "",
                memory_mib=shares * share_mib if share_mib is not None else None,
                unhealthy=(unhealthy or {}).get(position, ""),
            )
            for position, shares in sorted(by_position.items())
        ),
        share_mib=share_mib,
        driver="580.95" if named else None,
        divided=not named,
        policy="binpack" if named else None,
        problem=problem,
    )
    ordered = tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name)))
    offered = {GPU_MEM: sum(by_position.values()), GPU_COUNT: len(by_position)}
    capacity, allocatable = amounts or (offered, offered)
    return NodeView(
        candidate(name, gpus, [pod.usage for pod in ordered]),
        NodeRecord(
            name,
            name,
            address="10.0.0.7",
            ready=ready,
            unschedulable=unschedulable,
            capacity=capacity,
            allocatable=allocatable,
        ),
        ordered,
        report=report,
        features=REPORT,
    )


def changed(view: NodeView, **changes: Any) -> NodeView:
    """Return a node with other fields of its record."""
    return replace(view, record=replace(view.record, **changes))


def put_aside(view: NodeView, *uuids: str) -> NodeView:
    """Return a node with cordons of these GPUs, instances, or GPUs in MIG mode."""
    text = write_cordons(dict.fromkeys(uuids, Cordon("alice", "2026-11-28T18:00:00Z", "loud")))
    gpus = with_cordons(view.candidate.gpus, {} if text is None else {CORDONS: text})
    return replace(view, candidate=candidate(view.name, gpus, [pod.usage for pod in view.pods]))


WHOLE = "nvidia.com/mig-1g.10gb"
"""The resource of the whole instances of `mig_view`."""


def listed_instance(
    position: int, number: int, *, profile: str = "1g.10gb", resource: str = "", **more: Any
) -> ListedGpu:
    """Return an instance of 9 shares of the GPU with the index 0, called MIG-0, MIG-1 and so on by its number."""
    place = ListedInstance("GPU-m", 0, number, profile, 7 + number, resource)
    fields = {"shares": 9, "uuid": f"MIG-{number}", "model": f"NVIDIA H100 MIG {profile}", "memory_mib": 9728, **more}
    return ListedGpu(position, instance=place, **fields)


def mig_view(
    name: str,
    *pods: GpuConsumer | InstancePod,
    shared: int = 0,
    whole: int = 0,
    gpus: int = 0,
    ill: Mapping[int, str] | None = None,
    report: NodeReport = NO_REPORT,
) -> NodeView:
    """Return a node with whole GPUs of 15 shares, then shared MIG instances of one GPU, then whole ones of the same.

    Args:
        name: of the node.
        pods: what pods have of it.
        shared: the number of instances that are shared by memory.
        whole: the number of those that are given out whole.
        gpus: the number of whole GPUs.
        ill: reasons of those out of service, by position.
        report: what its agent tells of limits and of real use.
    """
    ill = ill or {}
    cards = [
        ListedGpu(at, 15, uuid=f"GPU-{at}", model="Tesla T4", memory_mib=15360, unhealthy=ill.get(at, ""))
        for at in range(gpus)
    ]
    parts = [listed_instance(gpus + n, n, unhealthy=ill.get(gpus + n, "")) for n in range(shared)]
    rest = [
        listed_instance(gpus + n, n, resource=WHOLE, unhealthy=ill.get(gpus + n, ""))
        for n in range(shared, shared + whole)
    ]
    found = NodeGpus((*cards, *parts), share_mib=1024, driver="580.95", policy="binpack", instances=tuple(rest))
    occupants = tuple(each for each in pods if not isinstance(each, InstancePod))
    offered = {GPU_MEM: 15 * gpus + 9 * shared, GPU_COUNT: gpus}
    return NodeView(
        candidate(name, found, [pod.usage for pod in occupants]),
        NodeRecord(name, name, address="10.0.0.7", ready=True, capacity=offered, allocatable=offered),
        occupants,
        report=report,
        instance_pods=tuple(each for each in pods if isinstance(each, InstancePod)),
        features=REPORT,
    )


def with_instances(name: str, *numbers: int, asks: int = 0, deleting: bool = False) -> InstancePod:
    """Return a pod of `default` with the whole instances of these numbers; `asks` is how many it has in all."""
    held = frozenset(f"MIG-{number}" for number in numbers)
    return holder(f"uid-{name}", "default", name, {WHOLE: asks or len(numbers)}, held, deleting=deleting)


def holder(
    uid: str,
    namespace: str,
    name: str,
    asked: Mapping[str, int],
    held: frozenset[str] = frozenset(),
    *,
    deleting: bool = False,
) -> InstancePod:
    """Return a pod that asks for whole MIG instances, and has some."""
    return InstancePod(uid, NOTHING, 0, deleting, None, namespace, name, asked=asked, held=held)
