"""Explain node by node why a pod that asks for whole MIG instances does not run, or which ones it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.finding import Finding, note
from gpu_device_plugin.core.report.text.printing import first
from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.mig import resource_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.core.cluster.held_instances import Instances
    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.model.contract.nodegpus import ListedGpu

_MOST_NODES = 20
"""Nodes that are explained one by one."""


def asked_by_profile(asked: Mapping[str, int]) -> str:
    """Return what a pod asks for of MIG instances, as the end of a sentence."""
    return " and ".join(f"{number} of {resource}" for resource, number in sorted(asked.items()))


def instance_facts(
    asked: Mapping[str, int], nodes: Sequence[NodeView], kept: Mapping[str, tuple[Finding, ...]]
) -> Iterator[Finding]:
    """Yield why no node gives a pod its MIG instances: first of all of them together, then node by node.

    `asked` has the number by resource; `kept` has by node why kube-scheduler does not consider it for the pod.
    """
    for resource, number in sorted(asked.items()):
        yield from _of_resource(resource, number, nodes, kept)


def _of_resource(
    resource: str, number: int, nodes: Sequence[NodeView], kept: Mapping[str, tuple[Finding, ...]]
) -> Iterator[Finding]:
    offers = [(node, each) for node in nodes for each in node.instances() if each.resource == resource]
    if not offers:
        yield from _offered_nowhere(resource, nodes)
        return
    away = {node.name: (*map(str, kept.get(node.name, ())), *_gives_none(node)) for node, _ in offers}
    # The nearest first: those with the most free instances.
    offers.sort(key=lambda offer: (bool(away[offer[0].name]), -offer[1].free, offer[0].name))
    free = sum(each.free >= number and not away[node.name] for node, each in offers)
    has = "{free:has|have} {number:free one}" if free else "none has enough free"
    text = f"{{nodes:node offers|nodes offer}} {{resource}}, and {has}."
    yield note("instances", text, nodes=len(offers), resource=resource, free=free, number=number)
    for node, each in offers[:_MOST_NODES]:
        use = "; ".join([in_use(each), *away[node.name]])
        yield note("instances-of-node", "  {node}: {use}", node=node.name, use=use)
    if (more := len(offers) - _MOST_NODES) > 0:
        yield note("more-nodes", "  and {nodes} more.", nodes=more)


def _gives_none(node: NodeView) -> tuple[str, ...]:
    """Return why a node gives no instance at present, although it has some."""
    gpus = node.candidate.gpus
    if gpus.claims and not gpus.away:
        return ("it gives them to ResourceClaims (DRA), or by a DeviceClass with this extendedResourceName",)
    return (gpus.problem,) if gpus.problem else ()


def in_use(offer: Instances) -> str:
    """Return how many instances of a node are in use, by which pods, and which give none."""
    facts = [f"{offer.used}/{len(offer.instances)} in use"]
    for gpu in offer.closed:
        why = f"out of service ({gpu.unhealthy})" if gpu.unhealthy else gpu.closed
        facts.append(f"{gpu.instance.label if gpu.instance else ''} {why}")
    held = holders(offer)
    return ", ".join(facts) + (f": {held}" if held else "")


def holders(offer: Instances) -> str:
    """Return the pods that have instances of a resource: ``shop/web (0:0, 0:1), shop/api (not known which)``."""
    names = []
    for pod, instances in offer.by_pod.items():
        labels = [gpu.instance.label for gpu in instances if gpu.instance is not None] or ["not known which"]
        names.append(f"{pod} ({', '.join([*labels, *(['being deleted'] if pod.terminating else [])])})")
    return first(names)


def _offered_nowhere(resource: str, nodes: Iterable[NodeView]) -> Iterator[Finding]:
    short = resource.partition("/")[2]
    offered: dict[str, list[str]] = {}
    shared: list[str] = []
    for node in nodes:
        for each in node.instances():
            offered.setdefault(each.resource, []).append(f"{len(each.instances)} on {node.name}")
        places = (gpu.instance for gpu in node.candidate.gpus.gpus)
        if any(place is not None and resource_name(place.profile) == short for place in places):
            shared.append(node.name)
    yield note("not-offered", "No node that shares its GPUs offers {resource}.", resource=resource)
    if same := sorted(each for each in offered if each.partition("/")[2] == short):
        text = "Did you mean {resource}, which is offered ({where})?"
        yield note("mistyped-resource", text, resource=same[0], where=first(offered[same[0]]))
        return
    if offered:
        offers = "; ".join(f"{each} ({first(where)})" for each, where in sorted(offered.items()))
        yield note("offered-instead", "The nodes offer {offers}.", offers=offers)
    how = f"the setting mig: whole, or kubectl label node NODE {MIG_LABEL}=whole"
    if shared:
        text = (
            "Instances of this profile are shared by memory ({nodes}): ask for gpu-mem instead, or have them given "
            f"whole ({how})."
        )
        yield note("instances-shared", text, nodes=tuple(shared))
    else:
        yield note(
            "instances-by-setting",
            "A node offers it once a GPU of it has such an instance (nvidia-mig-parted, or nvidia-smi mig -cgi "
            f"PROFILE -C) and instances are given whole: {how}.",
        )


def out_of_service(gpu: ListedGpu) -> str:
    """Return the end of a sentence about a GPU or an instance that is out of service; empty if it is not."""
    return f", which is out of service: {gpu.unhealthy}" if gpu.unhealthy else ""


def held_instances(pod: str, uid: str, node: NodeView | None) -> Iterator[Finding]:
    """Yield the MIG instances that a pod, ``namespace/name``, has on its node, in sentences."""
    for offer in () if node is None else node.instances():
        for holder, gpus in offer.by_pod.items():
            if holder.uid != uid:
                continue
            for gpu in gpus:
                place = "" if gpu.instance is None else f"MIG {gpu.instance.label} {gpu.instance.profile}"
                text, ill = "  GPU {gpu} ({instance}, {uuid}): the whole instance{ill}", out_of_service(gpu)
                yield note("has-instance", text, gpu=gpu.position, instance=place, uuid=gpu.uuid, ill=ill)
            if not gpus:
                text = "  Which instances of {resource} {pod} has is not known yet: its node's agent writes it."
                yield note("instance-unknown", text, resource=offer.resource, pod=pod)
