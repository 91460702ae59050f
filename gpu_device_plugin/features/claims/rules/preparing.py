"""Decide whether a node can prepare a claim as the scheduler allocated it, and derive what its containers get."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_device_plugin.features.claims.contract import (
    DRIVER,
    NO_CONFIG,
    Claim,
    Device,
    ParametersError,
    ShareConfig,
    parse_device_name,
    parse_monitor_name,
    share_config,
)
from gpu_device_plugin.features.claims.rules.prepared import PreparedClaim, PreparedDevice
from gpu_device_plugin.model.contract import variables
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.memory import format_mib
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SHARES, SharedGpu, Shares
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import NOTHING, OPTIONAL_NODES, Delivery, Grant, GrantOwner, grant
from gpu_device_plugin.node.rules.node import Node

_Given = tuple[Device, SharedGpu, bool]
"""A device of a claim, its GPU, and whether it is all of a GPU or MIG instance."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What a claim gets of a node."""

    devices: tuple[PreparedDevice, ...]
    device_ids: frozenset[str]
    """What it holds in the ledger."""
    placement: Placement
    """Its GPUs or MIG instances, with the shares of each."""
    config: ShareConfig = NO_CONFIG
    compute: int = 0
    """Percent of the multiprocessors; 0: no limit."""
    admin: bool = False
    """It has access beside those who hold the GPUs, and holds nothing."""
    limit_shares: int | None = None
    """The most shares of its GPU that its containers may use; None: those that it holds."""


def prepare(
    node: Node, claim: Claim, node_name: str, before: PreparedClaim | None = None, *, running: bool = False
) -> Preparation | Refusal:
    """Decide on one claim. What the scheduler allocated is the truth; that it fits is checked all the same.

    A pod that was deleted by force may still run when the scheduler gives its part away, and an agent may have changed
    the share size. The answer is the same however often it is asked for.

    `before` is what was prepared for a claim with this UID. If its containers may be `running`, what it holds counts,
    whatever has become of its GPU.
    """
    gpus = _gpus(node, claim, node_name, running=running)
    if isinstance(gpus, Refusal):
        return gpus
    config = _config(claim, gpus)
    if isinstance(config, Refusal):
        return config
    first, _, whole = gpus[0]
    if first.admin:
        return _beside(gpus, config)
    if not whole and (refusal := _several_instances(claim, gpus)) is not None:
        return refusal
    closed = None if running else next(filter(None, (_closed(node, shared) for _, shared, _ in gpus)), None)
    if closed is not None:
        return closed
    return _whole(node, claim, gpus, before) if whole else _shares(node, claim, gpus, config, before)


def two_claims(pod: Pod, claim: Claim, prepared: Iterable[PreparedClaim]) -> Refusal | None:
    """Refuse a claim of which a container of `pod` would get the variables beside those of one `prepared` before.

    Both say by the same variables which GPUs the container sees and how much it has, and either may win.
    """
    others = {one.name for one in prepared if one.namespace == claim.namespace and one.uid != claim.uid}
    for container, names in pod.claims.items():
        if claim.name in names and (both := sorted(others & set(names))):
            return Refusal(
                RefusalCode.TWO_CLAIMS,
                f"container {container!r} uses claim {both[0]} and claim {claim.name}, which set the same variables; "
                "ask for both by two requests of one claim",
            )
    return None


def _gpus(node: Node, claim: Claim, node_name: str, *, running: bool) -> list[_Given] | Refusal:
    ours = claim.devices_of(DRIVER)
    if not ours:
        return Refusal(
            RefusalCode.UNKNOWN_DEVICE,
            f"claim {claim} has no device of {DRIVER} allocated; delete the pod so that it is scheduled again",
        )
    known = {shared.gpu.uuid.lower(): shared for shared in node.shares.gpus if not shared.gone or running}
    found: list[_Given] = []
    for device in ours:
        if device.pool != node_name:
            return Refusal(
                RefusalCode.OTHER_NODE,
                f"claim {claim} was allocated a GPU of node {device.pool}, and this is {node_name}; use the claim in "
                "pods of that node only, or one claim for each pod",
            )
        watched = parse_monitor_name(device.name)
        shared = known.get((watched or parse_device_name(device.name)).lower())
        if shared is None:
            return Refusal(
                RefusalCode.UNKNOWN_DEVICE,
                f"device {device.name} of claim {claim} is not on this node; delete the pod so that it is scheduled "
                "again",
            )
        if watched and not device.admin:
            return Refusal(
                RefusalCode.BAD_PARAMETERS,
                f"device {device.name} of claim {claim} is for monitoring a GPU that others hold; set adminAccess: "
                "true on the request, in a namespace that allows it",
            )
        # An instance that is only given whole, and the claim's DeviceClass does not say so.
        whole = device.whole or (shared.gpu.instance is not None and SHARES not in shared.offered)
        found.append((device, shared, whole))
    ways = {"beside" if device.admin else _kind(shared) if whole else Kind.MEMORY for device, shared, whole in found}
    if len(ways) > 1:
        return Refusal(
            RefusalCode.BOTH_RESOURCES,
            f"claim {claim} mixes whole GPUs, whole MIG instances, shares of them or admin access, which one set of "
            "variables cannot describe; use one claim for each",
        )
    return found


def _several_instances(claim: Claim, gpus: Collection[_Given]) -> Refusal | None:
    """Refuse parts of a MIG instance together with parts of anything else: CUDA shows a program one instance."""
    there = {shared.position: shared for _, shared, _ in gpus}
    if len(there) < 2 or all(shared.gpu.instance is None for shared in there.values()):
        return None
    names = " and ".join(there[position].name for position in sorted(there))
    return Refusal(
        RefusalCode.SEVERAL_INSTANCES,
        f"claim {claim} was allocated shares of {names}, and no program can use a MIG instance together with another "
        "one or with a GPU; ask for one device, for several of one instance by the constraint matchAttribute: "
        "gpu-device-plugin/uuid, or for shares of several GPUs by devices without the attribute profile",
    )


def _cannot_borrow(claim: Claim, gpus: Collection[_Given]) -> Refusal | None:
    """Refuse a limit of memory beside anything but a part of one GPU."""
    parts = not any(device.admin or whole or shared.gpu.instance is not None for device, shared, whole in gpus)
    if parts and len({shared.position for _, shared, _ in gpus}) == 1:
        return None
    return Refusal(
        RefusalCode.BAD_PARAMETERS,
        f"claim {claim} has the parameter memoryLimit, which works only for shares of a single GPU, not for whole "
        "GPUs, MIG instances, shares of them, or shares of several GPUs; leave memoryLimit out",
    )


def _limit_shares(
    claim: Claim, config: ShareConfig, amounts: Mapping[int, int], shares: Shares
) -> int | Refusal | None:
    """Return `Preparation.limit_shares`; refuse a limit below the amount that was allocated."""
    if config.memory_limit_mib is None:
        return None
    ((position, count),) = amounts.items()
    wanted = -(-config.memory_limit_mib // shares.share_mib)
    if wanted < count:
        return Refusal(
            RefusalCode.BAD_PARAMETERS,
            f"claim {claim} has memoryLimit {format_mib(config.memory_limit_mib)}, and was allocated "
            f"{format_mib(count * shares.share_mib)}; write a limit of at least that amount, or none",
        )
    most = min(wanted, len(shares.gpus[position].shares))
    return None if most == count else most


def _config(claim: Claim, gpus: Collection[_Given]) -> ShareConfig | Refusal:
    try:
        configs = {share_config(claim, request) for request in {device.request for device, _, _ in gpus}}
    except ParametersError as error:
        return Refusal(RefusalCode.BAD_PARAMETERS, f"{error}; correct the parameters of claim {claim} for {DRIVER}")
    if len(configs) > 1:
        return Refusal(
            RefusalCode.BAD_PARAMETERS,
            f"the requests of claim {claim} have different parameters for {DRIVER}, and its containers get one limit; "
            "use one claim for each",
        )
    config = configs.pop()
    return (None if config.memory_limit_mib is None else _cannot_borrow(claim, gpus)) or config


def _beside(gpus: Collection[_Given], config: ShareConfig) -> Preparation:
    devices = tuple(_prepared(device, shared, 0, 0) for device, shared, _ in gpus)
    placement = _placement(Kind.COUNT, {shared.position: len(shared.shares) for _, shared, _ in gpus})
    return Preparation(devices, frozenset(), placement, config, admin=True)


def _whole(node: Node, claim: Claim, gpus: Collection[_Given], before: PreparedClaim | None) -> Preparation | Refusal:
    held = frozenset() if before is None else before.device_ids
    for device, shared, _ in gpus:
        mib = device.memory_mib
        if device.undivided and mib and mib < node.shares.share_mib * len(shared.shares):
            return Refusal(
                RefusalCode.BAD_PARAMETERS,
                f"claim {claim} asks for all of a GPU and for {format_mib(mib)} at once, and was allocated no more; "
                "let it name no memory, and choose the size of its GPU by an expression",
            )
        use = node.use(shared)
        if shared.gpu.uuid not in held and (use.whole or use.shares):
            return _taken(shared)
    devices = tuple(_prepared(device, shared, shared.gpu.total_mib, 0) for device, shared, _ in gpus)
    kind = next(_kind(shared) for _, shared, _ in gpus)
    placement = _placement(kind, {shared.position: len(shared.shares) for _, shared, _ in gpus})
    return Preparation(devices, frozenset(shared.gpu.uuid for _, shared, _ in gpus), placement)


def _shares(
    node: Node, claim: Claim, gpus: Collection[_Given], config: ShareConfig, before: PreparedClaim | None
) -> Preparation | Refusal:
    share_mib = node.shares.share_mib
    amounts: dict[int, int] = defaultdict(int)
    devices = []
    for device, shared, _ in gpus:
        count = -(-(device.memory_mib or 0) // share_mib)
        amounts[shared.position] += count
        compute = device.compute if config.compute is None else config.compute
        devices.append(_prepared(device, shared, count * share_mib, compute))
    found: set[str] = set()
    for position, count in amounts.items():
        shared = node.shares.gpus[position]
        own = [] if before is None else [name for name in shared.shares if name in before.device_ids]
        fenced = node.reserved_share_numbers(shared)
        free = [name for n, name in enumerate(shared.shares) if name not in node.ledger.id_states and n not in fenced]
        if node.use(shared).whole:
            return _taken(shared)
        if len(own) + len(free) < count:
            return Refusal(
                RefusalCode.NO_ROOM,
                f"{shared.name} has {format_mib(len(free) * share_mib)} free, and claim {claim} was allocated "
                f"{format_mib(count * share_mib)} of it: a container that has ended for the API server may still "
                "run; this is retried",
            )
        found.update([*own, *free][:count])
    percent = max(device.compute for device in devices)
    limit = _limit_shares(claim, config, amounts, node.shares)
    if isinstance(limit, Refusal):
        return limit
    placement = _placement(Kind.MEMORY, amounts)
    return Preparation(tuple(devices), frozenset(found), placement, config, percent, limit_shares=limit)


def _closed(node: Node, shared: SharedGpu) -> Refusal | None:
    """Refuse a GPU that can give nothing now."""
    name, uuid = shared.name, shared.gpu.uuid
    if why := node.block(uuid).everyone:
        return Refusal(RefusalCode.UNHEALTHY, f"{name} is unhealthy: {why}")
    if uuid in node.ledger.held_by_other_resource:
        return Refusal(
            RefusalCode.OTHER_RESOURCE,
            f"{name} is in use through {node.ledger.held_by_other_resource[uuid]}; this is retried",
        )
    if not node.ledger.certain:
        return Refusal(
            RefusalCode.RECORDS_UNREADABLE,
            "the kubelet's checkpoint cannot be read, so nothing proves that this GPU is free; the log of the GPU "
            "agent on this node says what to do",
        )
    return None


def _taken(shared: SharedGpu) -> Refusal:
    why = f"{shared.name} is still in use by another claim or container; this is retried"
    return Refusal(RefusalCode.IN_WHOLE_USE, why)


def _prepared(device: Device, shared: SharedGpu, mib: int, compute: int) -> PreparedDevice:
    return PreparedDevice(device.request, device.pool, device.name, device.share_id, shared.gpu.uuid, mib, compute)


def _kind(shared: SharedGpu) -> Kind:
    return Kind.COUNT if shared.gpu.instance is None else Kind.INSTANCE


def _placement(kind: Kind, amounts: Mapping[int, int]) -> Placement:
    amount = Counter(amounts).total() if kind is Kind.MEMORY else len(amounts)
    return Placement(Demand(kind, amount, len(amounts)), tuple(sorted(amounts.items())))


# --- What its containers get ------------------------------------------------------------------------------------------


def refuse_limits(preparation: Preparation, shares: Shares, given: Enforcement | None) -> Refusal | None:
    """Refuse a claim whose memory is not limited as its own parameters require; `given` is what its grant names."""
    placement, least = preparation.placement, preparation.config.limits
    if placement.demand.kind is not Kind.MEMORY or preparation.admin or least is None:
        return None
    there = given or Enforcement.ADVISORY
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
