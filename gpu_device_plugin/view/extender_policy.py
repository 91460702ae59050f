"""The policy by which a cluster's extender chooses a GPU on nodes without a policy of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import SettingsError
from gpu_device_plugin.settings.sources import Sources, Text, Texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_device_plugin.view.objects import ConfigMap

CONFIGURATION = "gpushare-extender"
"""The ConfigMap of the extender in our manifests; they may be applied in any namespace."""
_FILE = "default.yaml"


@dataclass(frozen=True, slots=True)
class Policy:
    """A name in `POLICIES`, and its origin."""

    name: str
    assumed: str = ""
    """Why the built-in policy is assumed, as the end of a sentence; empty: `name` is configured."""


def assumed(why: str = "") -> Policy:
    """Return the built-in policy, and why it is assumed, as the end of a sentence."""
    return Policy(ExtenderSettings().gpu_policy, why)


def policy_in(found: Sequence[ConfigMap]) -> Policy:
    """Return the policy that the ConfigMap among `found`, those named `CONFIGURATION`, sets.

    Flags and environment variables of the extender, which take precedence, are not visible here.
    """
    if len(found) != 1:
        places = ", ".join(sorted(one.metadata.namespace for one in found)) or "no namespace"
        return assumed(f"there is a ConfigMap {CONFIGURATION} in {places}, instead of in one namespace")
    where = f"{found[0].metadata.namespace}/{CONFIGURATION}, {_FILE}"
    text = Text(where, (found[0].data or {}).get(_FILE, "").encode())
    try:
        return Policy(Sources(ExtenderSettings, {}, {}).read(texts=Texts(text)).gpu_policy)
    except SettingsError as error:
        return assumed(f"the ConfigMap {CONFIGURATION} cannot be used ({error})")
