"""Read the parameters that a ResourceClaim or a DeviceClass carries for our driver, `GpuShareConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.dra import API_VERSION, CONFIG_KIND
from gpu_device_plugin.core.model.limits import CHOOSABLE, Enforcement
from gpu_device_plugin.core.node.limits.container_grants import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.resource_claims import Claim

_FIELDS = ("limits", "computePercent", "frameworks")
_SHOWN = 64
"""Most characters of a stranger's word that a message repeats."""


class ParametersError(ValueError):
    """Parameters that cannot be used; the message is a sentence without a full stop that names the fault."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """The parameters of the devices of one request."""

    limits: Enforcement | None = None
    """The weakest means of limiting memory that will do; None: whatever the node has."""
    compute: int | None = None
    """Percent of the multiprocessors; None: what the claim took of them, or no limit."""
    frameworks: tuple[str, ...] = ()
    """Names in `core.node.limits.container_grants`."""


NO_CONFIG = ShareConfig()


def share_config(claim: Claim, request: str) -> ShareConfig:
    """Return the parameters for the devices of one request: each field from the claim, else from the DeviceClass.

    Raises:
        ParametersError: some of them cannot be used.
    """
    merged: dict[str, Any] = {}
    for each in claim.parameters:
        if not each.requests or request in each.requests:
            merged |= _fields(each.values, "its DeviceClass" if each.of_class else "the claim")
    return ShareConfig(merged.get("limits"), merged.get("computePercent"), merged.get("frameworks", ()))


def _fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the parameters of one author, and return their fields."""
    version, kind = values.get("apiVersion"), values.get("kind")
    if (version, kind) != (API_VERSION, CONFIG_KIND):
        raise ParametersError(
            f"{where} has parameters that are not of apiVersion {API_VERSION} and kind {CONFIG_KIND}, but of "
            f"{_said(version)} and {_said(kind)}"
        )
    unknown = sorted(key for key in values if key not in {"apiVersion", "kind", *_FIELDS})
    if unknown:
        raise ParametersError(f"{where} has the parameter {_said(unknown[0])}, and there are only {', '.join(_FIELDS)}")
    found: dict[str, Any] = {}
    if "limits" in values:
        if values["limits"] not in CHOOSABLE:
            raise ParametersError(f"{where} has limits {_said(values['limits'])}; write one of {', '.join(CHOOSABLE)}")
        found["limits"] = Enforcement(values["limits"])
    if "computePercent" in values:
        percent = values["computePercent"]
        if type(percent) is not int or not 1 <= percent <= 100:
            raise ParametersError(f"{where} has computePercent {_said(percent)}; write a whole number from 1 to 100")
        found["computePercent"] = percent
    if "frameworks" in values:
        names = values["frameworks"]
        if not isinstance(names, list) or not all(isinstance(name, str) and name in VARIABLES for name in names):
            raise ParametersError(
                f"{where} has frameworks {_said(names)}; write a list of some of {', '.join(VARIABLES)}"
            )
        found["frameworks"] = tuple(name for name in VARIABLES if name in names)
    return found


def _said(value: object) -> str:
    """Return a stranger's value for a message, without anything that could control a terminal."""
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
