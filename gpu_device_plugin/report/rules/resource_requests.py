"""Explain what resources a pod asks for: whole MIG instances, node by node, and those of a wrong name or unit."""

from __future__ import annotations

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from itertools import islice
from typing import TYPE_CHECKING

from gpu_device_plugin.features.conflicts.rules import OTHERS
from gpu_device_plugin.model.contract.keys import MIG_LABEL
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.mig import is_mig_resource, resource_name
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.finding import Finding, grouped, note
from gpu_device_plugin.report.rules.printing import MOST_NAMED, first

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gpu_device_plugin.model.contract.nodegpus import ListedGpu
    from gpu_device_plugin.model.pods import Container
    from gpu_device_plugin.model.resources import Resource
    from gpu_device_plugin.report.rules.held_instances import Instances
    from gpu_device_plugin.report.rules.node_view import NodeView
    from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest


_OF_OTHERS = ("nvidia.com/*", "amd.com/gpu", "volcano.sh/vgpu-*", *(name for each in OTHERS for name in each.resources))
_PATTERNS_OF_OTHERS: Mapping[str, tuple[str, ...]] = {
    "KAI's and run:ai's": ("gpu-fraction", "gpu-fraction-*", "gpu-memory", "gpu-memory-*", "gpu-compute*"),
    "KAI's": ("kai.scheduler/*",),
    "run:ai's": ("runai/*", "run.ai/*", "*.run.ai/*", "runai-*"),
    "HAMi's": (
        *("hami.io/*", "*.hami.io/*", "4pd.io/*", "nvidia.com/use-gpu*", "nvidia.com/nouse-gpu*"),
        *("nvidia.com/numa-bind", "nvidia.com/vgpu-mode"),
    ),
    "Volcano's": ("volcano.sh/vgpu-*",),
}
"""Patterns of the annotations by which pods ask other systems for a part of a GPU."""
_ANNOTATIONS_OF_OTHERS = {
    system: re.compile("|".join(map(translate, patterns))) for system, patterns in _PATTERNS_OF_OTHERS.items()
}
_MOST_ANNOTATIONS = 1000
"""Of one pod, that are compared with them. The API server takes tens of thousands."""
_SCHEDULERS_OF_OTHERS = ("kai-scheduler*", "runai-scheduler*", "hami-scheduler*", "volcano*")
_OF_A_PROFILE = re.compile(r"mig|[1-7]g\.", re.ASCII)
"""In the name of a resource for a MIG profile, well written or not."""
_LARGEST_GIB = 512
"""More than any GPU has."""
_MOST_NODES = 20
"""Nodes that are explained one by one."""
_DID_YOU_MEAN = "It asks for {resource}, which no agent offers: did you mean {meant}?"
_INSTEAD = {Kind.MEMORY: "{name}: N for N units of the memory of one GPU", Kind.COUNT: "{name}: 1 for a whole GPU"}


def asks_for_others(
    limits: Iterable[str], resources: Iterable[Resource], instances: Iterable[str] = ()
) -> Iterator[Finding]:
    """Yield a correction for each GPU resource that no agent offers; nodes offer the MIG `instances`."""
    of_mig = {name.partition("/")[2]: name for name in sorted(instances)}
    resources = tuple(resources)
    names = [resource.name for resource in resources]
    short = {resource.name.partition("/")[2]: resource.name for resource in resources}
    domains = {resource.name.partition("/")[0] for resource in resources}
    others = [_INSTEAD[resource.kind].format(name=resource.name) for resource in resources]
    others += [f"{name}: 1 for a MIG instance" for name in list(of_mig.values())[:1]]
    instead = " or ".join(others)
    for name in dict.fromkeys(limits):
        domain, _, last = name.partition("/")
        if name in names or is_mig_resource(name):  # nodes may offer these: `instance_facts`
            continue
        if _OF_A_PROFILE.search(last) and (meant := get_close_matches(last, of_mig, n=1, cutoff=0.5)):
            yield note("mistyped-resource", _DID_YOU_MEAN, resource=name, meant=of_mig[meant[0]])
        elif domain in domains:
            if like := get_close_matches(last, short, n=1):
                yield note("mistyped-resource", _DID_YOU_MEAN, resource=name, meant=short[like[0]])
            else:
                text = "It asks for {resource}, which no agent offers: write {instead}."
                yield note("unknown-resource", text, resource=name, instead=instead)
        elif any(fnmatchcase(name, pattern) for pattern in _OF_OTHERS):
            text = "It asks for {resource}, which nodes that share their GPUs do not offer: write {instead}."
            yield note("resource-of-others", text, resource=name, instead=instead)


def annotations_of_others(keys: Iterable[str]) -> tuple[str, ...]:
    """Return those annotations by which other systems that share GPUs are asked for a part of one, a few of them."""
    return tuple(sorted(filter(_whose, islice(keys, _MOST_ANNOTATIONS)))[:MOST_NAMED])


def annotated_for_others(
    annotations: Iterable[str], scheduler: str, resources: Iterable[Resource]
) -> Iterator[Finding]:
    """Yield a correction for the annotations of a system that does not place the pod, as its scheduler is not asked."""
    if any(fnmatchcase(scheduler, pattern) for pattern in _SCHEDULERS_OF_OTHERS):
        return
    instead = " or ".join(_INSTEAD[resource.kind].format(name=resource.name) for resource in resources)
    for annotation in annotations:
        text = (
            "Its annotation {annotation} is {system}: neither {scheduler} nor an agent here reads it. In the limits of "
            "a container write {instead}."
        )
        system = _whose(annotation)
        yield note(
            "annotation-of-others", text, annotation=annotation, system=system, scheduler=scheduler, instead=instead
        )


def _whose(annotation: str) -> str:
    """Return the system that reads an annotation; empty: none of those known here."""
    return next((system for system, pattern in _ANNOTATIONS_OF_OTHERS.items() if pattern.match(annotation)), "")


def asks_for_several(containers: Iterable[Container]) -> Iterator[Finding]:
    """Yield a correction for each container whose MIG instances hide other devices of it, or one another.

    The kubelet sets each variable once, so that of two resources with NVIDIA_VISIBLE_DEVICES one is lost; and many
    drivers show a CUDA program only one of several instances.
    """
    for container in containers:
        asked = {name: number for name, number in container.limits.items() if number}
        instances = [name for name in asked if is_mig_resource(name)]
        if instances and len(asked) > 1:
            text = (
                "Container {container} asks for {resources}: each of them sets NVIDIA_VISIBLE_DEVICES, and the "
                "container sees one of them. Ask for each in a container of its own."
            )
            yield note("several-resources", text, container=repr(container.name), resources=" and ".join(sorted(asked)))
        elif instances and asked[instances[0]] > 1:
            yield note(
                "several-instances",
                "Container {container} asks for {number} of {resource}: drivers before R570 show a CUDA program only "
                "one of several MIG instances. Ask for a larger profile, or for one instance in each container.",
                container=repr(container.name),
                number=asked[instances[0]],
                resource=instances[0],
            )


def asks_in_mib(
    asked: GpuRequest, resources: Iterable[Resource], nodes: Collection[NodeView] | None
) -> Iterator[Finding]:
    """Yield a correction if a pod asks for more units than any GPU has, and the number looks like MiB.

    Where the nodes are unknown (None), a unit is assumed to be 1 GiB.
    """
    name = next((resource.name for resource in resources if resource.kind is Kind.MEMORY), "")
    amount = max(
        (part.demand.amount // part.demand.gpus for part in asked.parts if part.demand.kind is Kind.MEMORY), default=0
    )
    sizes = {MIB_PER_GIB} if nodes is None else {node.candidate.gpus.share_mib for node in nodes} - {None}
    if len(sizes) != 1:
        return
    share_mib = sizes.pop() or MIB_PER_GIB
    every = (gpu.shares for node in nodes or () for gpu in node.candidate.gpus.gpus)
    shares = _LARGEST_GIB if nodes is None else max(every, default=0)
    units = -(-amount // share_mib)
    if units <= shares < amount and amount * 2 >= share_mib:  # fewer MiB are not a plausible demand
        usual = " unless configured otherwise" if nodes is None else ""
        text = (
            f"It asks for {{amount}} units, which are {{unit}} each{usual}: no GPU has as much. If {{amount}} MiB are "
            "meant, write {resource}: {units}."
        )
        yield note("asks-in-mib", text, amount=amount, unit=format_mib(share_mib), resource=name, units=units)


def asked_by_profile(asked: Mapping[str, int]) -> str:
    """Return what a pod asks for of MIG instances, as the end of a sentence."""
    return " and ".join(f"{number} of {resource}" for resource, number in sorted(asked.items()))


def instance_facts(
    asked: Mapping[str, int], nodes: Sequence[NodeView], kept: Mapping[str, tuple[Finding, ...]]
) -> Iterator[Finding]:
    """Yield why no node gives a pod its MIG instances: first of all of them together, then node by node.

    `asked` has the number by resource; `kept` has by node why kube-scheduler does not consider it for the pod.
    """
    by_claims = "it gives them to ResourceClaims (DRA), or by a DeviceClass with this extendedResourceName"
    away: dict[str, list[str]] = {}
    for node in nodes:
        gpus = node.candidate.gpus
        gives_none = by_claims if gpus.claims and not gpus.away else gpus.problem
        away[node.name] = [*map(str, kept.get(node.name, ())), *([gives_none] if gives_none else [])]
    for resource, number in sorted(asked.items()):
        offers = [(node.name, each) for node in nodes for each in node.instances() if each.resource == resource]
        if not offers:
            yield from _offered_nowhere(resource, nodes)
            continue
        # The nearest first: those with the most free instances.
        offers.sort(key=lambda offer: (bool(away[offer[0]]), -offer[1].free, offer[0]))
        free = sum(each.free >= number and not away[name] for name, each in offers)
        has = "{free:has|have} {number:free one}" if free else "none has enough free"
        text = f"{{nodes:node offers|nodes offer}} {{resource}}, and {has}."
        yield note("instances", text, nodes=len(offers), resource=resource, free=free, number=number)
        for name, each in offers[:_MOST_NODES]:
            yield note("instances-of-node", "  {node}: {use}", node=name, use="; ".join([in_use(each), *away[name]]))
        if (more := len(offers) - _MOST_NODES) > 0:
            yield note("more-nodes", "  and {nodes} more.", nodes=more)


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


def _offered_nowhere(resource: str, nodes: Collection[NodeView]) -> Iterator[Finding]:
    short = resource.partition("/")[2]
    offers = ((each.resource, f"{len(each.instances)} on {node.name}") for node in nodes for each in node.instances())
    offered = grouped(offers)
    places = ((node.name, gpu.instance) for node in nodes for gpu in node.candidate.gpus.gpus)
    shared = dict.fromkeys(name for name, place in places if place and resource_name(place.profile) == short)
    yield note("not-offered", "No node that shares its GPUs offers {resource}.", resource=resource)
    if same := sorted(each for each in offered if each.partition("/")[2] == short):
        text = "Did you mean {resource}, which is offered ({where})?"
        yield note("mistyped-resource", text, resource=same[0], where=first(offered[same[0]]))
        return
    if offered:
        told = "; ".join(f"{each} ({first(where)})" for each, where in sorted(offered.items()))
        yield note("offered-instead", "The nodes offer {offers}.", offers=told)
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
