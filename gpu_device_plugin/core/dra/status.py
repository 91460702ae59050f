"""Write what a node prepared into the status of a claim, for people and for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.dra import DRIVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.dra.prepared import PreparedClaim


def device_status(claim: PreparedClaim, held: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries of ``status.devices`` for our devices of a claim.

    Args:
        claim: what was prepared.
        held: by the GPU's UUID whether the limit was seen to hold, a `core.model.limits.Held`.
    """
    return [
        {
            "driver": DRIVER,
            "pool": device.pool,
            "device": device.device,
            **({"shareID": device.share_id} if device.share_id else {}),
            "data": {
                "uuid": device.uuid,
                "memoryMiB": device.mib,
                **({"computePercent": device.compute} if device.compute else {}),
                **({} if claim.rung is None else {"limitBy": claim.rung.value}),
                **({"limit": held[device.uuid]} if device.uuid in held else {}),
            },
        }
        for device in claim.devices
    ]


def status_body(claim: PreparedClaim, held: Mapping[str, str]) -> dict[str, Any]:
    """Return the claim as a server-side apply of our part of its status."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": device_status(claim, held)},
    }
