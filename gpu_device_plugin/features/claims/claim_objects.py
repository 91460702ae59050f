"""Decode ResourceClaims and ResourceSlices of the Kubernetes API into the compact values that we keep."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from gpu_device_plugin.features.claims.contract import (
    COMPUTE,
    DRIVER,
    MEMORY,
    RESOURCE_CLAIMS,
    TAKE_WHOLE,
    Claim,
    Consumer,
    Device,
    DeviceRequest,
    Parameters,
)
from gpu_device_plugin.features.claims.rules.pool import Content, Present
from gpu_device_plugin.kubernetes.objects.api_objects import readable
from gpu_device_plugin.kubernetes.objects.decoding import ObjectKind, ObjectMeta, decoded, named
from gpu_device_plugin.kubernetes.objects.quantity import whole_quantity
from gpu_device_plugin.kubernetes.objects.requests import LONGEST_NAME, LONGEST_UID, fits

if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.kubectl import Access

GROUP = "resource.k8s.io"
CLAIMS = ObjectKind(RESOURCE_CLAIMS, group=GROUP)
SLICES = ObjectKind("resourceslices", group=GROUP)
_CLASSES = ObjectKind("deviceclasses", group=GROUP)

_MIB = 1 << 20


class _Shape(msgspec.Struct, rename="camel", gc=False):
    pass


class _ClassSpec(_Shape):
    extended_resource_name: str | None = None


class _DeviceClass(_Shape):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


class _Capacity(_Shape):
    requests: dict[str, Any] | None = None


class _Exactly(_Shape):
    name: str = ""
    device_class_name: str = ""
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    capacity: _Capacity | None = None


class _Request(_Shape):
    name: str = ""
    exactly: _Exactly | None = None
    first_available: list[_Exactly] | None = None


class _Opaque(_Shape):
    driver: str = ""
    parameters: Any = None


class _Config(_Shape):
    requests: list[str] | None = None
    opaque: _Opaque | None = None
    source: str = ""


class _Asked(_Shape):
    requests: list[_Request] | None = None


class _Spec(_Shape):
    devices: _Asked | None = None


class _Result(_Shape, rename={"share_id": "shareID", "admin_access": "adminAccess", "consumed": "consumedCapacity"}):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = None
    admin_access: bool | None = None
    consumed: dict[str, Any] | None = None


class _Given(_Shape):
    results: list[_Result] | None = None
    config: list[_Config] | None = None


class _Allocation(_Shape):
    devices: _Given | None = None


class _Consumer(_Shape):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(_Shape):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Claim(_Shape):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Pool(_Shape):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _SliceSpec(_Shape):
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[dict[str, Any]] | None = None


class _Slice(_Shape):
    metadata: ObjectMeta
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)


def read_claim(raw: bytes | msgspec.Raw) -> Claim:
    """Return a ResourceClaim. An amount that is no quantity counts as absent. Raises UnreadableObjectError."""
    claim = decoded(raw, _Claim, "ResourceClaim")
    meta, status = named(claim.metadata, "ResourceClaim"), claim.status
    given = _Given() if status.allocation is None else status.allocation.devices or _Given()
    asked = _Asked() if claim.spec.devices is None else claim.spec.devices
    parameters = _parameters(given.config or ())
    return Claim(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        created=meta.creation_timestamp or "",
        deleting=meta.deletion_timestamp is not None,
        requests=tuple(_request(one) for one in asked.requests or ()),
        allocated=status.allocation is not None,
        devices=tuple(_device(one, parameters) for one in given.results or ()),
        parameters=tuple(parameters),
        consumers=tuple(
            Consumer(one.uid, one.name)
            for one in status.reserved_for or ()
            if one.resource == "pods" and fits(one.uid, LONGEST_UID) and fits(one.name, LONGEST_NAME)
        ),
        resource_version=meta.resource_version,
    )


def read_slice(raw: bytes | msgspec.Raw) -> Present:
    """Return a ResourceSlice. Raises UnreadableObjectError."""
    found = decoded(raw, _Slice, "ResourceSlice")
    meta, spec, pool = named(found.metadata, "ResourceSlice"), found.spec, found.spec.pool
    content: Content = {"devices": spec.devices or []}
    return Present(
        meta.name, meta.resource_version, pool.generation, pool.resource_slice_count, content, meta.uid, pool.name
    )


def _request(request: _Request) -> DeviceRequest:
    asked = request.exactly or next(iter(request.first_available or ()), None) or _Exactly()
    amounts = {} if asked.capacity is None else asked.capacity.requests or {}
    return DeviceRequest(
        name=request.name,
        device_class=asked.device_class_name,
        memory_mib=_mib(amounts),
        compute=_compute(amounts),
        count=0 if asked.allocation_mode == "All" else 1 if asked.count is None else asked.count,
        admin=asked.admin_access is True,
    )


def _device(result: _Result, parameters: list[Parameters]) -> Device:
    amounts, request = result.consumed or {}, _base(result.request)
    says = [each.values.get(TAKE_WHOLE) for each in parameters if not each.requests or request in each.requests]
    return Device(
        request=request,
        driver=result.driver,
        pool=result.pool,
        name=result.device,
        share_id=result.share_id or "",
        memory_mib=_mib(amounts),
        compute=_compute(amounts),
        admin=result.admin_access is True,
        # The claim's own word comes after its class's, and counts.
        undivided=next((word for word in reversed(says) if word is not None), False) is True,
    )


def _parameters(configs: list[_Config] | tuple[()]) -> list[Parameters]:
    ours = [
        Parameters(
            values=config.opaque.parameters if isinstance(config.opaque.parameters, dict) else {},
            requests=frozenset(map(_base, config.requests or ())),
            of_class=config.source == "FromClass",
        )
        for config in configs
        if config.opaque is not None and config.opaque.driver == DRIVER
    ]
    return sorted(ours, key=lambda each: not each.of_class)


def _base(request: str) -> str:
    """Return the name of a request without that of its alternative, ``request/alternative``."""
    return request.partition("/")[0]


def _amount(amounts: dict[str, Any], name: str) -> int | None:
    # A capacity may be written with its driver's domain.
    found = amounts.get(name, amounts.get(f"{DRIVER}/{name}"))
    return None if found is None else whole_quantity(str(found))


def _mib(amounts: dict[str, Any]) -> int | None:
    value = _amount(amounts, MEMORY)
    return None if value is None else -(-value // _MIB)


def _compute(amounts: dict[str, Any]) -> int:
    return _amount(amounts, COMPUTE) or 0


ABSENT = f"this cluster has none ({GROUP}/v1 comes with Kubernetes 1.34)"
"""Why ResourceClaims cannot be read where the API server does not know them."""


def unseen(why: str) -> str:
    """Return what is missing without claims, as a sentence without its full stop."""
    return f"ResourceClaims are not shown, so GPU usage may be under-reported: {why}"


def read_shown_claim(raw: msgspec.Raw) -> Claim:
    """Read a ResourceClaim from its JSON, without what it says to drivers: up to 320 KiB that nobody is shown.

    Raises:
        UnreadableObjectError: it is none.
    """
    return replace(read_claim(raw), parameters=())


async def every_claim(access: Access, *_: object) -> tuple[Claim, ...]:
    """Return all claims that can be read. Raises ApiError."""
    return tuple(readable(await access.items(CLAIMS), read_claim, "a ResourceClaim", []))


async def our_slices(access: Access, *_: object) -> tuple[Present, ...]:
    """Return the slices of our driver. Raises ApiError, and UnreadableObjectError."""
    return tuple(map(read_slice, await access.items(SLICES, [f"spec.driver={DRIVER}"])))


async def extended_resources(access: Access, *_: object) -> dict[str, str]:
    """Return the extended resource of each DeviceClass by the name of the class, empty: none.

    Raises ApiError, and UnreadableObjectError.
    """
    found = await access.every(_CLASSES, _DeviceClass)
    return {each.metadata.name: each.spec.extended_resource_name or "" for each in found}
