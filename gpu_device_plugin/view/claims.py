"""ResourceClaims as people's tools show them: those that could be read, and a sentence for those that could not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.cluster.claims import GROUP, read_claim

if TYPE_CHECKING:
    from collections.abc import Iterable

    import msgspec

    from gpu_device_plugin.core.model.claims import Claim

ABSENT = f"this cluster has none ({GROUP}/v1 comes with Kubernetes 1.34)"
"""Why ResourceClaims cannot be read where the API server does not know them."""


def readable_claims(raw_claims: Iterable[msgspec.Raw]) -> tuple[list[Claim], list[str]]:
    """Return claims, and a sentence for each that cannot be read.

    Args:
        raw_claims: ResourceClaims as JSON.
    """
    found, warnings = [], []
    for raw in raw_claims:
        try:
            found.append(read_claim(raw))
        except UnreadableObjectError as error:
            warnings.append(f"a ResourceClaim is left out: {error}")
    return found, warnings


def unseen(why: str) -> str:
    """Return what is missing without claims, as a sentence without its full stop.

    Args:
        why: why claims cannot be read.
    """
    return f"ResourceClaims are not shown, so GPUs may be fuller than they seem: {why}"
