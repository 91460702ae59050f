"""Derive what the containers of a claim get, by the same rules as for containers with devices of the plugin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.contract import variables
from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.admitting import Refused, Why
from gpu_device_plugin.core.node.extra_grant import Owner
from gpu_device_plugin.core.node.grants import OPTIONAL_NODES, grant, parts
from gpu_device_plugin.core.node.limit_grants import refusal

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_device_plugin.core.dra.preparing import Preparation
    from gpu_device_plugin.core.model.claims import Claim
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.extra_grant import Part
    from gpu_device_plugin.core.node.grants import Delivery, Grant
    from gpu_device_plugin.core.node.limit_grants import Means


def refuse_limits(claim: Claim, preparation: Preparation, shares: Shares, delivery: Delivery) -> Refused | None:
    """Refuse a claim whose memory is not limited as the administrator, or its own parameters, require."""
    placement, means = preparation.placement, delivery.means
    if placement.demand.kind is not Kind.MEMORY or preparation.admin:
        return None
    given = parts(placement.shares, shares)
    names = ", ".join(shares.gpus[position].name for position in placement.positions)
    if why := refusal(given, means, _owner(claim, preparation)):
        return Refused(Why.NO_LIMIT, f"{names}: {why}")
    least = preparation.config.limits
    weakest = min((_rung(part, means) for part in given), key=lambda rung: rung.strength)
    if least is not None and weakest.strength < least.strength:
        return Refused(
            Why.NO_LIMIT,
            f"{names}: the parameters of the claim require limits of {least}, and this node has {weakest}; choose "
            f"devices by their attribute limits, or ask for less",
        )
    return None


def claim_grant(
    claim: Claim,
    preparation: Preparation,
    shares: Shares,
    delivery: Delivery,
    present: Collection[str] = OPTIONAL_NODES,
) -> Grant:
    """Return what every container of a claim gets.

    Args:
        claim: the claim.
        preparation: what it has of the node.
        shares: the node's GPUs.
        delivery: the ways in which containers of this node get their GPUs.
        present: see `grants.grant`.
    """
    made = grant(preparation.placement, shares, delivery, present=present, owner=_owner(claim, preparation))
    if preparation.admin:
        # For programs that look: they see the GPU, and no part of it is theirs to compute on.
        return replace(made, envs={**made.envs, variables.CAPABILITIES: "utility"})
    if not preparation.compute:
        return made
    envs = {**made.envs, variables.COMPUTE_LIMIT: str(preparation.compute)}
    if made.envs.get(variables.LIMITS) == Rung.MPS:
        envs[variables.MPS_THREADS] = str(preparation.compute)
    return replace(made, envs=envs)


def _rung(part: Part, means: Means) -> Rung:
    """Return what keeps a claim within its part of one GPU or instance."""
    if part.partition:
        return Rung.PARTITION
    return means.rungs[part.uuid].rung if part.uuid in means.rungs else Rung.ADVISORY


def _owner(claim: Claim, preparation: Preparation) -> Owner:
    """Return the owner of a grant: the pod of a claim of one pod. Its containers have it together, so none is named."""
    pod_uid = claim.consumers[0].uid if len(claim.consumers) == 1 else ""
    return Owner(pod_uid, "", preparation.config.frameworks)
