"""The containers of one pod as the page shows them, with the GPUs, the variables and the use of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, added_for_limits
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.contract.keys import FRAMEWORKS, POD
from gpu_device_plugin.model.contract.node_use import ContainerUse
from gpu_device_plugin.model.contract.nodegpus import ListedGpu
from gpu_device_plugin.model.contract.promises import readable_promises
from gpu_device_plugin.model.contract.variables import read_frameworks
from gpu_device_plugin.model.gpus import Gpu, MigInstance
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.pods import Container, Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import SharedGpu, Shares
from gpu_device_plugin.node.rules.container_grants import Delivery, GrantOwner, grant
from gpu_device_plugin.report.rules.held_instances import readable_instances
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.overview_document import Fields, container_use, known, mig_place


def containers_of(pod: Pod, resources: Sequence[Resource], node: NodeView | None) -> list[Fields]:
    """Return the containers of a pod that ask for GPUs, then those that use GPUs that they were not given.

    The variables are those that the agent gives for the place in the pod's annotations: the pod's own environment is
    not read. Without a node that lists its GPUs there are none.
    """
    promised = {} if not pod.node_name else readable_promises(pod, resources)
    held = readable_instances(pod) if pod.node_name else {}
    parts = [
        part
        for part in (() if node is None else node.report.current)
        if (part.namespace, part.pod) == (pod.namespace, pod.name)
    ]
    found: list[Fields] = []
    for container in pod.containers:
        own = [part for part in parts if part.container == container.name]
        placements = [
            Placement(Demand(resource.kind, sum(count for _, count in promise.shares)), promise.shares)
            for resource in resources
            if (promise := promised.get((container.name, resource.kind))) is not None
        ]
        instances = {} if node is None else {gpu.uuid: gpu for gpu in node.candidate.gpus.instances}
        own_instances = [instances[uuid] for uuid in held.get(container.name, ()) if uuid in instances]
        if given := sorted((gpu.position, gpu.shares) for gpu in own_instances):
            placements.append(Placement(Demand(Kind.INSTANCE, len(given)), tuple(given)))
        found.append(
            {
                "name": container.name,
                "kind": container.kind.value,
                "asks": {name: amount for name, amount in container.limits.items() if amount},
                "gpus": [gpu for placement in placements for gpu in _gpus(placement, node)],
                "variables": {
                    name: value
                    for placement in placements
                    for name, value in _variables(pod, container, placement, own, node).items()
                },
                "use": [_use_of(part, node) for part in own],
            }
        )
    known = {container.name for container in pod.containers}
    others = sorted({part.container for part in parts} - known)
    return found + [
        {"name": name, "kind": "app", "use": [_use_of(part, node) for part in parts if part.container == name]}
        for name in others
    ]


def _gpus(placement: Placement, node: NodeView | None) -> Iterable[Fields]:
    listed = {} if node is None else {gpu.position: gpu for gpu in node.candidate.gpus.all}
    share_mib = None if node is None else node.candidate.gpus.share_mib
    for position, shares in placement.shares:
        gpu = listed.get(position)
        facts: Fields = {} if gpu is None else {"uuid": gpu.uuid, "model": gpu.model}
        if gpu is not None and gpu.instance is not None:
            facts |= {"mig": mig_place(gpu.instance)}
        if placement.demand.kind is not Kind.MEMORY:
            facts |= {"whole": True, "grantedMiB": None if gpu is None else gpu.memory_mib}
        else:
            facts |= {"shares": shares, "grantedMiB": None if share_mib is None else shares * share_mib}
        yield known({"index": position} | facts)


def _variables(
    pod: Pod, container: Container, placement: Placement, own: Sequence[ContainerUse], node: NodeView | None
) -> Mapping[str, str]:
    if node is None:
        return {}
    gpus, listed = node.candidate.gpus, {gpu.position: gpu for gpu in node.candidate.gpus.all}
    known = all(at in listed and listed[at].uuid and listed[at].memory_mib for at in placement.positions)
    if not known or gpus.share_mib is None:
        return {}
    # MIG instances that exist no more leave gaps.
    shared = []
    for gpu in (listed.get(at) or ListedGpu(at, 0) for at in range(max(listed) + 1)):
        of = None if (at := gpu.instance) is None else MigInstance(at.parent, at.number, at.profile, at.gi, 0)
        described = Gpu(gpu.uuid, gpu.position, gpu.model, gpu.memory_mib or 0, gpu.reserved_mib or 0, instance=of)
        shared.append(SharedGpu(described, gpu.position, ("",) * gpu.shares))
    shares = Shares(gpus.share_mib, gpus=tuple(shared))
    # The means with which the container was started, which the node's present one may differ from.
    started = next((part.enforcement for part in own if part.enforcement is not None), None)
    enforcements: dict[str, GpuEnforcement] = {}
    for position in placement.positions:
        present = node.report.enforcement(position)
        enforcement = started or (None if present is None else present.enforcement)
        if enforcement is not None:
            enforcements[listed[position].uuid] = GpuEnforcement(enforcement, "")
    frameworks, _ = read_frameworks(pod.annotations.get(FRAMEWORKS, ""))
    foreign = {each.enforcement for each in enforcements.values()} & {Enforcement.MPS, Enforcement.CUSTOM}
    owner = GrantOwner(pod.uid, container.name, () if Enforcement.CUSTOM in foreign else frameworks)
    whole = pod.annotations.get(POD, "")
    envs = dict(
        grant(
            placement,
            shares,
            Delivery(),
            int(whole) if whole.isascii() and whole.isdigit() and len(whole) < 10 else None,
            owner=owner,
            added=added_for_limits(placement, shares, LimitPlan(enforcements), owner),
        ).envs
    )
    if variables.LIMITS in envs and foreign:
        # The rest of what these add is known to the node's agent alone.
        envs[variables.LIMITS] = min(
            (each.enforcement for each in enforcements.values()), key=lambda enforcement: enforcement.strength
        ).value
    return envs


def _use_of(part: ContainerUse, node: NodeView | None) -> Fields:
    states = [] if node is None else [state.message() for state in node.part_states([part])]
    return known({"index": part.gpu} | container_use(part) | {"states": states})
