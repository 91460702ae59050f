"""Find the containers that use prepared claims, as the kubelet's checkpoint shows those with devices of plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.admitting import Refused, Why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.core.dra.prepared import PreparedClaim
    from gpu_device_plugin.core.model.claims import Claim
    from gpu_device_plugin.core.model.pods import Pod

UNKNOWN_CONTAINER = ""
"""The name of the container of a claim whose pod is not known (yet)."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A container, and the claim that it uses."""

    pod_uid: str
    container: str
    claim: PreparedClaim


def holders(prepared: Iterable[PreparedClaim], pods: Iterable[Pod]) -> tuple[Holder, ...]:
    """Return the containers that use prepared claims and hold something of a GPU by them.

    A claim that no known pod uses counts for the pods that it was prepared for: their GPUs are in use.
    """
    claims = {(claim.namespace, claim.name): claim for claim in prepared if claim.device_ids}
    found: list[Holder] = []
    for pod in pods:
        if not pod.ended:
            found += [
                Holder(pod.uid, container, claims[pod.namespace, name])
                for container, names in pod.claims.items()
                for name in names
                if (pod.namespace, name) in claims
            ]
    used = {holder.claim.uid for holder in found}
    found += [
        Holder(consumer.uid, UNKNOWN_CONTAINER, claim)
        for claim in claims.values()
        if claim.uid not in used
        for consumer in claim.consumers
    ]
    return tuple(found)


def two_claims(pod: Pod, claim: Claim, prepared: Iterable[PreparedClaim]) -> Refused | None:
    """Refuse a claim of which a container would get the variables beside those of another claim.

    Both say by the same variables which GPUs the container sees and how much it has, and either may win.

    Args:
        pod: a pod that uses the claim.
        claim: the claim that is to be prepared.
        prepared: those that were prepared before.
    """
    others = {one.name for one in prepared if one.namespace == claim.namespace and one.uid != claim.uid}
    for container, names in pod.claims.items():
        if claim.name in names and (both := sorted(others & set(names))):
            return Refused(
                Why.TWO_CLAIMS,
                f"container {container!r} uses claim {both[0]} and claim {claim.name}, which set the same variables; "
                "ask for both by two requests of one claim",
            )
    return None
