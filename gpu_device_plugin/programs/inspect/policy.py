"""The policy by which a cluster's extender chooses a GPU on nodes without a policy of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError
from gpu_device_plugin.programs.inspect.objects import ConfigMap, items
from gpu_device_plugin.settings.extender import ExtenderSettings
from gpu_device_plugin.settings.knobs import SettingsError
from gpu_device_plugin.settings.sources import Sources, Text, Texts

if TYPE_CHECKING:
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl

_CONFIGURATION = "gpushare-extender"
"""The ConfigMap of the extender in our manifests; they may be applied in any namespace."""
_FILE = "default.yaml"
_PATH = f"/api/v1/configmaps?fieldSelector=metadata.name%3D{_CONFIGURATION}"


@dataclass(frozen=True, slots=True)
class Policy:
    """A name in `POLICIES`, and its origin."""

    name: str
    assumed: str = ""
    """Why the built-in policy is assumed, as the end of a sentence; empty: `name` is configured."""


def gpu_policy(kubectl: Kubectl) -> Policy:
    """Read the extender's ConfigMap, if the user may; its flags and environment variables are not visible here."""
    built_in = ExtenderSettings().gpu_policy
    try:
        found = items(kubectl, _PATH, ConfigMap)
    except ClusterUnreadableError as error:
        return Policy(built_in, f"the ConfigMap {_CONFIGURATION} cannot be read ({error})")
    except UnreadableObjectError:
        return Policy(built_in, f"the ConfigMap {_CONFIGURATION} is not of the Kubernetes API's form")
    if len(found) != 1:
        places = ", ".join(sorted(one.metadata.namespace for one in found)) or "no namespace"
        return Policy(built_in, f"there is a ConfigMap {_CONFIGURATION} in {places}, instead of in one namespace")
    where = f"{found[0].metadata.namespace}/{_CONFIGURATION}, {_FILE}"
    text = Text(where, (found[0].data or {}).get(_FILE, "").encode())
    try:
        return Policy(Sources(ExtenderSettings, {}, {}).read(texts=Texts(text)).gpu_policy)
    except SettingsError as error:
        return Policy(built_in, f"the ConfigMap {_CONFIGURATION} cannot be used ({error})")
