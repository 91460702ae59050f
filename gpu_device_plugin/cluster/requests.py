"""The part of a pod's spec that says what it requests, and the sum of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.cluster.quantity import requested_amounts
from gpu_device_plugin.core.model.amounts import NO_AMOUNTS, Amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.quantity import RequestSums

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_SUMMED = 64
"""The requests of pods with more containers are not added up."""
_MOST_REMEMBERED = 1000
"""Different amounts of CPU and memory that pods share; the cache is cleared when it is full."""


class ClaimUse(msgspec.Struct, gc=False):
    """A container's use of one of its pod's claims."""

    name: str = ""


class Resources(msgspec.Struct, gc=False):
    """Limits and requests, as written, and the claims that a container uses."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[ClaimUse] | None = None


class ContainerSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a container that we read."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None

    @property
    def always_restarts(self) -> bool:
        """Whether an init container is a sidecar."""
        return self.restart_policy == "Always"


class _Affinity(msgspec.Struct, rename="camel", gc=False):
    pod_anti_affinity: dict[str, msgspec.Raw] | None = None


class PodClaim(msgspec.Struct, rename="camel", gc=False):
    """A claim of a pod, by its own name or that of a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's spec that we read."""

    node_name: str | None = None
    # In bookmarks the API server writes null here.
    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    affinity: _Affinity | None = None
    overhead: dict[str, Any] | None = None
    resources: Resources | None = None
    resource_claims: list[PodClaim] | None = None


def repels(spec: PodSpec) -> bool:
    """Return whether evicting a pod frees more than its requests: others may then come that it keeps away."""
    return spec.affinity is not None and _REQUIRED in (spec.affinity.pod_anti_affinity or ())


def requests_of(spec: PodSpec, sums: RequestSums) -> Mapping[str, int] | None:
    """Return the requests of a pod; None where they are not added up."""
    init, app = spec.init_containers or (), spec.containers or ()
    if len(init) + len(app) > _MOST_SUMMED:
        return None
    return sums.of(
        ((each.always_restarts, _requested(each.resources)) for each in init),
        (_requested(each.resources) for each in app),
        (spec.resources.requests if spec.resources is not None else None) or {},
        spec.overhead or {},
    )


def _requested(resources: Resources | None) -> Mapping[str, Any]:
    """Return a container's requests; a resource with only a limit counts with its limit."""
    return {} if resources is None else {**(resources.limits or {}), **(resources.requests or {})}


class SharedAmounts:
    """Makes equal amounts one object, since most pods request the same."""

    def __init__(self) -> None:
        self._known: dict[Amounts, Amounts] = {}

    def of(self, requests: Mapping[str, int] | None) -> Amounts:
        """Return the CPU and memory of a sum of requests; none where it is unknown."""
        if not requests:
            return NO_AMOUNTS
        amounts = requested_amounts(requests)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        return self._known.setdefault(amounts, amounts)
