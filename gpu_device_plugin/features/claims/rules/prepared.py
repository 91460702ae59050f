"""The claims prepared on a node: the devices of each, its state file, its CDI file, and its status in the API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_device_plugin.features.claims.contract import CDI_KIND, DRIVER, Consumer, is_instance
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import parse_id
from gpu_device_plugin.node.rules.container_grants import Grant

VERSION = 1
"""Of the file's format. A later agent may add fields, which an older one ignores."""

_Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
"""Larger numbers are not the same in every reader of JSON."""


class PreparedDevice(msgspec.Struct, frozen=True):
    """One device of a claim."""

    request: str
    pool: str
    device: str
    share_id: str = msgspec.field(name="shareID", default="")
    uuid: str = ""
    """Of its GPU."""
    mib: _Number = 0
    """The memory of the GPU that the claim holds by this device; 0 for access beside others."""
    compute: _Number = 0
    """Percent of the multiprocessors; 0: no limit."""


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim for which the node's containers can be started."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    device_ids: frozenset[str] = frozenset()
    """What it holds in the node's ledger: IDs of shares, or UUIDs of whole GPUs or MIG instances; none with access
    beside others."""
    enforcement: Enforcement | None = None
    """The means by which its containers are limited; None: they have no limit, as with whole GPUs."""
    consumers: tuple[Consumer, ...] = ()
    """The pods that it was reserved for when it was prepared."""
    cdi_names: tuple[str, ...] = ()
    """The CDI names by which its containers get what it holds."""
    cdi: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The content of its CDI file, which is lost at a reboot. It has variables of containers, so it is not shown."""
    limit_mib: int = 0
    """The most MiB of its GPU that each of its containers may use; 0: what it holds."""

    @property
    def kind(self) -> Kind:
        """Whether it holds shares, whole GPUs or whole MIG instances."""
        whole = [name for name in self.device_ids if parse_id(name)[1] is None]
        return Kind.INSTANCE if any(map(is_instance, whole)) else Kind.COUNT if whole else Kind.MEMORY

    def __str__(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def allocation(self, pod_uid: str = "", container: str = "") -> Allocation:
        """Return what a container holds by the claim; the container may be unknown."""
        return Allocation(
            pod_uid,
            container,
            self.kind,
            self.device_ids,
            AllocationSource.CLAIM,
            self.uid,
            self.enforcement,
            self.limit_mib or None,
        )


def claim_allocations(prepared: Iterable[PreparedClaim], pods: Iterable[Pod]) -> tuple[Allocation, ...]:
    """Return what the containers that use prepared claims hold of GPUs, with the name of each container if it is known.

    A claim that no known pod uses counts for the pods that it was prepared for: their GPUs are in use.
    """
    claims = {(claim.namespace, claim.name): claim for claim in prepared if claim.device_ids}
    users = [
        (pod.uid, container, claims[pod.namespace, name])
        for pod in pods
        if not pod.ended
        for container, names in pod.claims.items()
        for name in names
        if (pod.namespace, name) in claims
    ]
    used = {claim.uid for _, _, claim in users}
    users += [
        (consumer.uid, "", claim) for claim in claims.values() if claim.uid not in used for consumer in claim.consumers
    ]
    return tuple(claim.allocation(pod_uid, container) for pod_uid, container, claim in users)


class PreparedFileError(ValueError):
    """The content of a file is no prepared claim; the message names the fault."""


def overlapping(claims: Iterable[PreparedClaim]) -> frozenset[str]:
    """Return the UIDs of the claims that hold a share or a whole GPU of which another one holds something too.

    Containers of two claims must never have the same memory, so at most one of them is what the claim really has.
    """
    holders: dict[str, dict[int | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for claim in claims:
        for uuid, number in map(parse_id, claim.device_ids):
            holders[uuid][number].add(claim.uid)
    found: set[str] = set()
    for numbers in holders.values():
        several = [set().union(*numbers.values())] if None in numbers else list(numbers.values())
        found.update(*(uids for uids in several if len(uids) > 1))
    return frozenset(found)


class _File(msgspec.Struct):
    """The fields of a `PreparedClaim`, with their keys."""

    version: int
    uid: str
    namespace: str
    name: str
    devices: Annotated[tuple[PreparedDevice, ...], Meta(min_length=1)]
    device_ids: frozenset[str] = msgspec.field(name="deviceIDs")
    enforcement: Enforcement | None
    consumers: tuple[Consumer, ...]
    cdi_names: tuple[str, ...] = msgspec.field(name="cdiNames")
    cdi: dict[str, Any]
    limit_mib: _Number = msgspec.field(name="limitMiB", default=0)


_FIELDS = _File.__struct_fields__[1:]


def write_prepared(claim: PreparedClaim) -> str:
    """Return the content of the file of a prepared claim, as JSON."""
    file = _File(VERSION, *(getattr(claim, name) for name in _FIELDS))
    return msgspec.json.encode(file, order="deterministic").decode()


def read_prepared(text: str | bytes, uid: str) -> PreparedClaim:
    """Parse the file of the prepared claim with this UID.

    Raises:
        PreparedFileError: it is damaged, of another version, or of another claim.
    """
    try:
        file = msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PreparedFileError(f"it is damaged ({error})") from error
    if file.version != VERSION:
        raise PreparedFileError(f"it is of version {file.version}, and this agent knows {VERSION}")
    if file.uid != uid:
        raise PreparedFileError("it is of another claim")
    return PreparedClaim(**{name: getattr(file, name) for name in _FIELDS})


# --- Its status in the API --------------------------------------------------------------------------------------------


def status_body(claim: PreparedClaim, held: Mapping[str, str]) -> dict[str, Any]:
    """Return the claim as a server-side apply of our part of its status.

    `held` says by the GPU's UUID whether the limit was seen to hold, with a `model.limits.LimitStatus`.
    """
    devices = [
        {
            "driver": DRIVER,
            "pool": device.pool,
            "device": device.device,
            **({"shareID": device.share_id} if device.share_id else {}),
            "data": {
                "uuid": device.uuid,
                "memoryMiB": device.mib,
                **({"memoryLimitMiB": claim.limit_mib} if claim.limit_mib else {}),
                **({"computePercent": device.compute} if device.compute else {}),
                **({} if claim.enforcement is None else {"limitBy": claim.enforcement.value}),
                **({"limit": held[device.uuid]} if device.uuid in held else {}),
            },
        }
        for device in claim.devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    }


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
