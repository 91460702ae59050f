"""Allocate devices to ResourceClaims by the rules of kube-scheduler 1.36, of whose expressions it knows one.

First fit: pools of the node, their slices by name, their devices in order. Parts of a device are rounded up to its
policy.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal

from tests.builders import Json
from tests.cluster_double.api_server import ApiServer
from tests.cluster_double.kinds import valid_quantity

_MIB = 1 << 20
_DRIVER = "gpu-device-plugin"
"""The domain of the attribute that a wish may name."""
_WHOLE = {
    "driver": _DRIVER,
    "parameters": {"apiVersion": "gpu-device-plugin/v1", "kind": "GpuShareConfig", "whole": True},
}
"""The parameters of the DeviceClasses of whole devices."""


def exactly(kind: str = "shared-gpu", *, memory: str = "", admin: bool = False, profile: str = "") -> Json:
    """Return what a request of a claim asks for, as the API has it, of the DeviceClass for this type of device.

    `memory` is the part of the device's, `profile` that of a MIG instance; empty: any device will do.
    """
    asked: Json = {"deviceClassName": kind, "allocationMode": "ExactCount", "count": 1}
    if memory:
        asked["capacity"] = {"requests": {"memory": memory}}
    if admin:
        asked["adminAccess"] = True
    if profile:
        expression = f"device.attributes['{_DRIVER}'].profile == '{profile}'"
        asked["selectors"] = [{"cel": {"expression": expression}}]
    return asked


class Allocator:
    """Allocates for one driver, from what an API server double has."""

    def __init__(self, api: ApiServer, driver: str) -> None:
        self._api = api
        self._driver = driver

    def allocate(self, claim: str, node: str, pods: Iterable[tuple[str, str]] = (), namespace: str = "default") -> str:
        """Allocate a claim on a node and reserve it for pods (name, uid); return why that is not possible, or nothing.

        The claim's DeviceClasses have the names of the types of device.
        """
        found = self._api.get("resourceclaims", claim, namespace)
        devices = self._devices(node)
        if devices is None:
            return f"the pool of {node} is incomplete"
        books = self._books()
        results: list[Json] = []
        for request in found["spec"]["devices"]["requests"]:
            exactly = request["exactly"]
            wanted, last = exactly.get("count", 1), -1
            for _ in range(wanted):
                place = next(
                    (
                        number
                        for number, (pool, device) in enumerate(devices)
                        if number > last and books.fits(pool, device, exactly)
                    ),
                    None,
                )
                if place is None:
                    return "cannot allocate all claims"
                last = place
                given = books.take(*devices[place], exactly)
                results.append({"request": request["name"], "driver": self._driver, **given})
        configs = [
            {"source": "FromClass", "requests": [request["name"]], "opaque": _WHOLE}
            for request in found["spec"]["devices"]["requests"]
            if request["exactly"]["deviceClassName"] in {"whole-gpu", "mig"}
        ]
        configs += [{**config, "source": "FromClaim"} for config in found["spec"]["devices"].get("config") or ()]
        status = {
            "allocation": {"devices": {"results": results, **({"config": configs} if configs else {})}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid} for name, uid in pods],
        }
        self._api.patch("resourceclaims", claim, {"status": status}, namespace, "status")
        return ""

    def release(self, claim: str, namespace: str = "default") -> None:
        """Take an allocation back, as the claim's controller does once no pod has the claim reserved."""
        patch = {"status": {"allocation": None, "reservedFor": None, "devices": None}}
        self._api.patch("resourceclaims", claim, patch, namespace, "status")

    def _devices(self, node: str) -> list[tuple[str, Json]] | None:
        """Return the devices of a node's pool, each with the pool's name; None while the pool is incomplete."""
        ours = [
            found["spec"]
            for found in self._api.all("resourceslices")
            if (found["spec"]["driver"], found["spec"].get("nodeName")) == (self._driver, node)
        ]
        newest = max((spec["pool"]["generation"] for spec in ours), default=0)
        current = [spec for spec in ours if spec["pool"]["generation"] == newest]
        if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
            return None
        return [(spec["pool"]["name"], device) for spec in current for device in spec.get("devices") or ()]

    def _books(self) -> _Books:
        books = _Books()
        for found in self._api.all("resourceclaims"):
            allocation = (found.get("status") or {}).get("allocation") or {}
            for result in (allocation.get("devices") or {}).get("results") or ():
                if result["driver"] == self._driver and not result.get("adminAccess"):
                    consumed = (result.get("consumedCapacity") or {}).get("memory")
                    books.note(result["pool"], result["device"], consumed)
        return books


class _Books:
    """What is taken of the devices."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], Decimal] = {}
        """Bytes of each device; of one that is taken alone without end."""

    def note(self, pool: str, name: str, consumed: str | None) -> None:
        """Take note of an allocation; `consumed` None: of all of a device."""
        amount = Decimal("inf") if consumed is None else valid_quantity(consumed)
        self._taken[pool, name] = self._taken.get((pool, name), Decimal(0)) + amount

    def fits(self, pool: str, device: Json, exactly: Json) -> bool:
        """Return whether a request can have (a part of) a device."""
        name = device["name"]
        if not _selected(device, exactly):
            return False
        if exactly.get("adminAccess"):
            return True
        if any(taint["effect"] != "None" for taint in device.get("taints") or ()):
            return False
        used = self._taken.get((pool, name), Decimal(0))
        if not device.get("allowMultipleAllocations"):
            return not used
        return used + _part(device, exactly) <= valid_quantity(device["capacity"]["memory"]["value"])

    def take(self, pool: str, device: Json, exactly: Json) -> Json:
        """Take (a part of) a device that fits, and return the allocation's result."""
        name = device["name"]
        result: Json = {"pool": pool, "device": name}
        if exactly.get("adminAccess"):
            return result | {"adminAccess": True}
        if not device.get("allowMultipleAllocations"):
            self.note(pool, name, None)
            return result
        consumed = f"{int(_part(device, exactly)) // _MIB}Mi"
        self.note(pool, name, consumed)
        return result | {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": consumed, "compute": "0"}}


def _selected(device: Json, exactly: Json) -> bool:
    """Return whether a device is of the class that a request names, and of the profile that it may select."""
    profile = device["attributes"].get("profile", {}).get("string")
    expression = f"device.attributes['{_DRIVER}'].profile == '{profile}'"
    selectors = exactly.get("selectors") or ()
    kind = device["attributes"]["type"]["string"]
    if exactly["deviceClassName"] in {"whole-gpu", "mig"}:
        kind = device["attributes"].get("whole", {}).get("string", kind)
    return kind == exactly["deviceClassName"] and all(
        selector["cel"]["expression"] == expression for selector in selectors
    )


def _part(device: Json, exactly: Json) -> Decimal:
    """Return the memory that a request takes of a device: rounded up by the policy."""
    policy = device["capacity"]["memory"]["requestPolicy"]
    asked = ((exactly.get("capacity") or {}).get("requests") or {}).get("memory")
    if asked is None:
        return valid_quantity(policy["default"])
    valid = policy["validRange"]
    least = valid_quantity(valid["min"])
    over = max(Decimal(0), valid_quantity(asked) - least)
    if "step" not in valid:
        return least + over
    step = valid_quantity(valid["step"])
    return least + (over / step).to_integral_value(ROUND_CEILING) * step
