"""Decide how a node gives its GPUs to pods: as a device plugin, or to ResourceClaims; never both."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpu_device_plugin.model.contract.keys import SERVE_LABEL

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

AUTO = "auto"
"""A value of setting and label that leaves the choice to us."""
_NAMED = 3
"""The number of holders that a sentence names."""


class ServingMode(StrEnum):
    """How pods get GPUs of a node."""

    DEVICE_PLUGIN = "device-plugin"
    """By limits of the extended resources, which the kubelet allocates."""
    DRA = "dra"
    """By ResourceClaims, which kube-scheduler allocates."""


SERVING_MODES = (AUTO, *ServingMode)
"""The values of setting and label."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The mode in force."""

    mode: ServingMode
    waits: str = ""
    """Why the node has not changed over to the other mode yet, as a sentence without a full stop. While it waits, it
    gives nothing to new pods. Empty: it does not wait."""


def wanted_mode(setting: str, labels: Mapping[str, str]) -> ServingMode:
    """Return the mode that a node's label names, else the setting. `AUTO` is the device plugin for the time being."""
    label = labels.get(SERVE_LABEL, "")
    word = label if label in SERVING_MODES else setting
    return ServingMode.DEVICE_PLUGIN if word == AUTO else ServingMode(word)


def serving(wanted: ServingMode, before: ServingMode | None, holders: Mapping[ServingMode, Collection[str]]) -> Serving:
    """Return the mode in force: the wanted one as soon as nobody holds GPUs in the other.

    `before` is the mode in force until now, None: the agent has just started; `holders` are the pods or claims that
    hold GPUs in each mode, by name.
    """
    (other,) = (mode for mode in ServingMode if mode is not wanted)
    if before is None:
        before = other if holders[other] and not holders[wanted] else wanted
    if before is wanted or not holders[before]:
        return Serving(wanted)
    names = sorted(holders[before])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    hold = "hold" if len(names) > 1 else "holds"
    return Serving(
        before,
        f"this node waits to serve by {wanted} instead of {before}: {', '.join(names[:_NAMED])}{more} still {hold} "
        f"GPUs of it, and new pods get none until {'they have' if len(names) > 1 else 'it has'} ended",
    )
