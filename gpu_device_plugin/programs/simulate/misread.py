"""Pods that ask for GPUs in a way that is not read here, and how they would be understood."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec

from gpu_device_plugin.kubernetes.objects.decoding import decoded
from gpu_device_plugin.kubernetes.objects.quantity import quantity, whole_quantity
from gpu_device_plugin.kubernetes.objects.requests import Resources
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.programs.simulate.entries import shares_meant
from gpu_device_plugin.programs.simulate.vendor_nodes import HAMI_MEMORY, NVIDIA, OFFERED
from gpu_device_plugin.report.rules.printing import nearest

_GPU = re.compile(r"gpu|nvidia|cuda|mig-|accelerator|npu|mlu|dcu|_nps[0-9]", re.IGNORECASE)
_MEMORY = re.compile(r"mem|vram", re.IGNORECASE)
_MIG = re.compile(r".*/mig-[0-9]g\.([0-9]+)gb.*", re.ASCII)
_ANNOTATIONS = {"gpu-fraction": "KAI Scheduler and run:ai", "gpu-memory": "KAI Scheduler and run:ai"}
_OF_HAMI = frozenset({HAMI_MEMORY, "nvidia.com/gpucores", "nvidia.com/priority"})
"""With HAMi, beside whole GPUs: parts of their memory, which are read, and of their time, which are not simulated."""


class _Container(msgspec.Struct, gc=False):
    name: str = ""
    resources: Resources | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[Any] | None = None


class _Metadata(msgspec.Struct, gc=False):
    annotations: dict[str, Any] | None = None


class _Asking(msgspec.Struct, gc=False):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


def misread(raw: bytes | msgspec.Raw, known: Sequence[Resource]) -> str:
    """Return what of a pod's request for GPUs is not read, and how to write it; empty: it asks for none like that."""
    pod = decoded(raw, _Asking, "pod")
    names = {resource.name: resource for resource in known}
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        resources = container.resources or Resources()
        for why in _of_container(resources.limits or {}, resources.requests or {}, names):
            return why
    memory = _memory_of(known)
    for key, of in _ANNOTATIONS.items():
        if key in (pod.metadata.annotations or {}):
            return f"it asks for a GPU by the annotation {key} of {of}, which is not read; write a limit of {memory}"
    if pod.spec.resource_claims and not any(
        name in names for each in pod.spec.containers or () for name in (each.resources or Resources()).limits or {}
    ):
        return f"it asks for devices by a ResourceClaim, which is not read; write a limit of {memory}"
    return ""


def _of_container(
    limits: Mapping[str, Any], requests: Mapping[str, Any], names: Mapping[str, Resource]
) -> Iterator[str]:
    domains = {name.partition("/")[0] for name in names}
    for name, amount in {**requests, **limits}.items():
        asked = f"it asks for {name[:80]}: {str(amount)[:40]}"
        if name in names:
            yield from _of_amount(asked, str(amount), names[name])
            if name not in limits:
                yield f"{asked}, and only as a request; write it as a limit"
        elif name in _OF_HAMI and NVIDIA in names and NVIDIA in limits:
            continue
        elif _GPU.search(name) or name.partition("/")[0] in domains:
            yield f"{asked}, which is not read; {_nearest(name, names)}"


def _of_amount(asked: str, amount: str, resource: Resource) -> Iterator[str]:
    shares = shares_meant(amount) if resource.kind is Kind.MEMORY else None
    if shares is not None:
        yield f"{asked}, which counts shares, 1 GiB each by default; write {shares}"
    elif whole_quantity(amount) == 0 and resource not in OFFERED:
        yield f"{asked}, which the API server refuses; leave the line out"
    elif whole_quantity(amount) is None:
        value = quantity(amount)
        write = f"{max(1, ceil(value)):,}" if value is not None else "one, such as 8"
        yield f"{asked}, which is no whole number; write {write}"


def _nearest(name: str, names: Mapping[str, Resource]) -> str:
    memory = _memory_of(list(names.values()))
    if mig := _MIG.fullmatch(name):
        return f"write {memory}: {mig[1]} for such a MIG instance"
    if _MEMORY.search(name):
        return f"did you mean {memory}?"
    # A name of one of our domains is mistyped; others have whole GPUs.
    domain = name.partition("/")[0]
    akin = [each for each in names if each.partition("/")[0] == domain]
    count = next((each for each, resource in names.items() if resource.kind is Kind.COUNT), memory)
    return nearest(name, akin, f"did you mean {count}?")


def _memory_of(known: Sequence[Resource]) -> str:
    return next((resource.name for resource in known if resource.kind is Kind.MEMORY), known[0].name)
