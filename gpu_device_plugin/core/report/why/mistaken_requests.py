"""Correct pods that seem to ask for the wrong resource or in the wrong unit."""

from __future__ import annotations

import re
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from itertools import islice
from typing import TYPE_CHECKING

from gpu_device_plugin.core.report.finding import Finding, note
from gpu_device_plugin.core.report.text.printing import MOST_NAMED
from gpu_device_plugin.features.conflicts.rules import OTHERS
from gpu_device_plugin.model.memory import MIB_PER_GIB, format_mib
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpu_device_plugin.core.cluster.node_report import NodeView
    from gpu_device_plugin.core.cluster.pod_demand import Ask
    from gpu_device_plugin.model.pods import Container
    from gpu_device_plugin.model.resources import Resource

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
        if name in names or is_mig_resource(name):  # nodes may offer these: `mig_explanations`
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


def asks_in_mib(asked: Ask, resources: Iterable[Resource], nodes: Iterable[NodeView] | None) -> Iterator[Finding]:
    """Yield a correction if a pod asks for more units than any GPU has, and the number looks like MiB.

    Where the nodes are unknown (None), a unit is assumed to be 1 GiB.
    """
    name = next((resource.name for resource in resources if resource.kind is Kind.MEMORY), "")
    amount = max(
        (part.demand.amount // part.demand.gpus for part in asked.parts if part.demand.kind is Kind.MEMORY), default=0
    )
    # The most shares of one GPU, by the size of a share.
    most = {MIB_PER_GIB: _LARGEST_GIB} if nodes is None else _most_shares(nodes)
    if len(most) != 1:
        return
    ((share_mib, shares),) = most.items()
    units = -(-amount // share_mib)
    if units <= shares < amount and amount * 2 >= share_mib:  # fewer MiB are not a plausible demand
        usual = " unless configured otherwise" if nodes is None else ""
        text = (
            f"It asks for {{amount}} units, which are {{unit}} each{usual}: no GPU has as much. If {{amount}} MiB are "
            "meant, write {resource}: {units}."
        )
        yield note("asks-in-mib", text, amount=amount, unit=format_mib(share_mib), resource=name, units=units)


def _most_shares(nodes: Iterable[NodeView]) -> dict[int, int]:
    most: dict[int, int] = {}
    for node in nodes:
        share_mib = node.candidate.gpus.share_mib
        if share_mib is not None:
            most[share_mib] = max(most.get(share_mib, 0), *(gpu.shares for gpu in node.candidate.gpus.gpus), 0)
    return most
