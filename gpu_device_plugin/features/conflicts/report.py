"""What pods ask of other systems that share GPUs, and what they should ask for here instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from itertools import islice
from typing import TYPE_CHECKING

from gpu_device_plugin.features.conflicts import ConflictSettings
from gpu_device_plugin.features.conflicts.rules import OTHERS, Detection
from gpu_device_plugin.model.mig import is_mig_resource
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.report.rules.finding import Finding, error, grouped, literal, note, ok, warning
from gpu_device_plugin.report.rules.printing import MOST_NAMED
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings


_OF_OTHERS = ("nvidia.com/*", "amd.com/*", "volcano.sh/vgpu-*", *(name for each in OTHERS for name in each.resources))
_ANNOTATIONS_OF_OTHERS = {
    system: re.compile("|".join(map(translate, patterns)))
    for system, patterns in {
        "KAI's and run:ai's": ("gpu-fraction", "gpu-fraction-*", "gpu-memory", "gpu-memory-*", "gpu-compute*"),
        "KAI's": ("kai.scheduler/*",),
        "run:ai's": ("runai/*", "run.ai/*", "*.run.ai/*", "runai-*"),
        "HAMi's": (
            *("hami.io/*", "*.hami.io/*", "4pd.io/*", "nvidia.com/use-gpu*", "nvidia.com/nouse-gpu*"),
            *("nvidia.com/numa-bind", "nvidia.com/vgpu-mode"),
        ),
        "Volcano's": ("volcano.sh/vgpu-*",),
    }.items()
}
"""The annotations by which pods ask other systems for a part of a GPU."""
_MOST_ANNOTATIONS = 1000
"""Of one pod, that are compared with them. The API server takes tens of thousands."""
_SCHEDULERS_OF_OTHERS = ("kai-scheduler*", "runai-scheduler*", "hami-scheduler*", "volcano*")
_OF_A_PROFILE = re.compile(r"mig|[1-7]g\.", re.ASCII)
"""In the name of a resource for a MIG profile, well written or not."""
_DID_YOU_MEAN = "It asks for {resource}, which no agent offers: did you mean {meant}?"
_INSTEAD = {
    Kind.MEMORY: ("write-memory", "{name}: N for N shares of one GPU"),
    Kind.COUNT: ("write-count", "{name}: 1 for a whole GPU"),
}


def _instead(resources: Iterable[Resource], instances: Iterable[str] = ()) -> Finding:
    """Return what a container may ask for, as the end of a sentence."""
    ways = [note(*_INSTEAD[resource.kind], name=resource.name) for resource in resources]
    ways += [note("write-instance", "{name}: 1 for a MIG instance", name=name) for name in instances]
    return note("ways", "{ways:+ or }", ways=tuple(ways))


def asks_for_others(
    limits: Iterable[str], resources: Iterable[Resource], instances: Iterable[str] = ()
) -> Iterator[Finding]:
    """Yield a correction for each GPU resource that no agent offers; nodes offer the MIG `instances`."""
    of_mig = {name.partition("/")[2]: name for name in sorted(instances)}
    resources = tuple(resources)
    names = [resource.name for resource in resources]
    short = {resource.name.partition("/")[2]: resource.name for resource in resources}
    domains = {resource.name.partition("/")[0] for resource in resources}
    instead = _instead(resources, list(of_mig.values())[:1])
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
    instead = _instead(resources)
    for annotation in annotations:
        text = (
            "Its annotation {annotation} is {system}: neither {scheduler} nor an agent here reads it. In the limits of "
            "a container write {instead}."
        )
        whose = _whose(annotation)
        systems = tuple(each.removesuffix("'s") for each in whose.split(" and "))
        system = note("whose", literal(whose), systems=systems)
        yield note(
            "annotation-of-others", text, annotation=annotation, system=system, scheduler=scheduler, instead=instead
        )


def _whose(annotation: str) -> str:
    """Return the system that reads an annotation; empty: none of those known here."""
    return next((system for system, pattern in _ANNOTATIONS_OF_OTHERS.items() if pattern.match(annotation)), "")


def asks_others(
    _: Pod, status: SchedulingStatus, resources: Sequence[Resource], offered: Collection[str]
) -> Iterator[Finding]:
    """Yield what a pod asks of other systems that share GPUs."""
    yield from asks_for_others(status.limits, resources, offered)
    yield from annotated_for_others(annotations_of_others(status.annotations), status.scheduler, resources)


def others(detected: Iterable[tuple[Detection, str]]) -> Iterator[Finding]:
    """Check that nobody else was detected who hands out the GPUs of nodes that share them, given with their names."""
    found = grouped((sighting.other, name) for sighting, name in detected)
    for other, names in found.items():
        text = "{other} hands out GPUs too, on {nodes}"
        yield error("other-plugin", text, other.off, other=other.name, nodes=names)
    if not found:
        yield ok("no-other-plugin", "no other plugin hands out GPUs of labelled nodes")


def others_here(settings: NodeSettings, found: Iterable[Detection]) -> Iterator[Finding]:
    """Check the same on one node."""
    for sighting in found:
        if settings.of(ConflictSettings).allow_other_plugins:
            advice = "make sure that each has GPUs of its own: --exclude-gpus"
            yield warning("other-plugin-allowed", "{problem}, which is allowed", advice, problem=sighting.finding)
        else:
            text = "{problem}, so the agent shares none"
            yield error("other-plugin", text, sighting.other.off, problem=sighting.finding)
    if not found:
        yield ok("no-other-plugin", "no other plugin hands out GPUs here")
