"""Read from a pod which ResourceClaims its containers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.cluster.requests import PodSpec


class _ClaimStatus(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    resource_claim_name: str | None = None


class _Mapping(msgspec.Struct, rename="camel", gc=False):
    container_name: str = ""


class _ExtendedClaim(msgspec.Struct, rename="camel", gc=False):
    """The claim that kube-scheduler made for limits of extended resources."""

    resource_claim_name: str = ""
    request_mappings: list[_Mapping] | None = None


class ClaimStatuses(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's status that names the claims that were made for it."""

    resource_claim_statuses: list[_ClaimStatus] | None = None
    extended_resource_claim_status: _ExtendedClaim | None = None


def claims_of(spec: PodSpec, status: ClaimStatuses) -> Mapping[str, tuple[str, ...]]:
    """Return the names of the ResourceClaims of each container; those of templates are known once they were made."""
    extended = status.extended_resource_claim_status
    if not spec.resource_claims and extended is None:
        return {}
    made = {one.name: one.resource_claim_name for one in status.resource_claim_statuses or ()}
    names = {one.name: one.resource_claim_name or made.get(one.name) for one in spec.resource_claims or ()}
    found: dict[str, tuple[str, ...]] = {}
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        used = () if container.resources is None else container.resources.claims or ()
        own = tuple(dict.fromkeys(name for use in used if (name := names.get(use.name))))
        if extended is not None and any(
            each.container_name == container.name for each in extended.request_mappings or ()
        ):
            own = (*own, extended.resource_claim_name)
        if own:
            found[container.name] = own
    return found
