"""Derive what the containers of a claim receive, by the device plugin's rules, and write it as a CDI file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.features.claims.contract import CDI_KIND, DRIVER
from gpu_device_plugin.features.limits.rules.limit_grants import parts, weakest
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import NOTHING, OPTIONAL_NODES, GrantOwner, grant

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.features.claims.contract import Claim
    from gpu_device_plugin.features.claims.rules.preparing import Preparation
    from gpu_device_plugin.model.limits import GpuEnforcement
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.rules.container_grants import Delivery, Grant


def refuse_limits(
    preparation: Preparation, shares: Shares, enforcements: Mapping[str, GpuEnforcement]
) -> Refusal | None:
    """Refuse a claim whose memory is not limited as its own parameters require; `enforcements` are by UUID."""
    placement, least = preparation.placement, preparation.config.limits
    if placement.demand.kind is not Kind.MEMORY or preparation.admin or least is None:
        return None
    given = parts(placement.shares, shares, preparation.limit_shares)
    there = weakest(given, enforcements)
    if there.strength < least.strength:
        names = ", ".join(shares.gpus[position].name for position in placement.positions)
        return Refusal(
            RefusalCode.NO_LIMIT,
            f"{names}: the parameters of the claim require limits of {least}, and this node has {there}; choose "
            f"devices by their attribute limits, or ask for less",
        )
    return None


def claim_grant(
    claim: Claim,
    preparation: Preparation,
    shares: Shares,
    delivery: Delivery,
    present: Collection[str] = OPTIONAL_NODES,
    *,
    added: Grant = NOTHING,
) -> Grant:
    """Return what every container of a claim gets; `present` and `added` as for `container_grants.grant`."""
    owner = owner_of(claim, preparation)
    made = grant(preparation.placement, shares, delivery, present=present, owner=owner, added=added)
    if preparation.admin:
        # For programs that look: they see the GPU, and no part of it is theirs to compute on.
        return replace(made, envs={**made.envs, variables.CAPABILITIES: "utility"})
    if not preparation.compute:
        return made
    envs = {**made.envs, variables.COMPUTE_LIMIT: str(preparation.compute)}
    if made.envs.get(variables.LIMITS) == Enforcement.MPS:
        envs[variables.MPS_THREADS] = str(preparation.compute)
    return replace(made, envs=envs)


def owner_of(claim: Claim, preparation: Preparation) -> GrantOwner:
    """Return the owner of a grant: the pod of a claim of one pod. Its containers have it together, so none is named."""
    pod_uid = claim.consumers[0].uid if len(claim.consumers) == 1 else ""
    return GrantOwner(pod_uid, "", preparation.config.frameworks, preparation.limit_shares)


# --- The CDI file -----------------------------------------------------------------------------------------------------

CDI_VERSION = "0.5.0"
"""The oldest version of the format that has all that we write; every runtime with CDI reads it."""


def file_name(uid: str) -> str:
    """Return the name of the CDI file of a claim."""
    return f"{DRIVER}-claim_{uid}.json"


def device_id(uid: str) -> str:
    """Return the CDI name by which a container gets what the claim with this UID was given.

    It is never used again for anything else: runtimes remember what they read.
    """
    return f"{CDI_KIND}={uid}"


def cdi_spec(uid: str, grant: Grant) -> dict[str, Any]:
    """Return the content of the CDI file of a claim: one device with the variables, device nodes and mounts."""
    edits: dict[str, Any] = {"env": [f"{name}={value}" for name, value in sorted(grant.envs.items())]}
    if grant.device_nodes:
        edits["deviceNodes"] = [{"path": path, "permissions": "rw"} for path in grant.device_nodes]
    if grant.mounts:
        edits["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in grant.mounts
        ]
    return {"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [{"name": uid, "containerEdits": edits}]}
