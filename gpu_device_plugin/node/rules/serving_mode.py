"""How a node gives its GPUs to pods: as a device plugin, or to ResourceClaims; never both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpu_device_plugin.model.contract.keys import SERVE_LABEL

AUTO = "auto"
"""A value of setting and label that leaves the choice to us."""


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
