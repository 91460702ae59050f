"""Read the extender's policy from the cluster, if the user may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.programs.inspect.kubectl import ClusterUnreadableError, items
from gpu_device_plugin.view.objects import ConfigMap
from gpu_device_plugin.view.policy import CONFIGURATION, assumed, policy_in

if TYPE_CHECKING:
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl
    from gpu_device_plugin.view.policy import Policy

_PATH = f"/api/v1/configmaps?fieldSelector=metadata.name%3D{CONFIGURATION}"


def gpu_policy(kubectl: Kubectl) -> Policy:
    """Read the extender's ConfigMap, if the user may; otherwise assume the built-in policy."""
    try:
        return policy_in(items(kubectl, _PATH, ConfigMap))
    except ClusterUnreadableError as error:
        return assumed(f"the ConfigMap {CONFIGURATION} cannot be read ({error})")
    except UnreadableObjectError:
        return assumed(f"the ConfigMap {CONFIGURATION} is not of the Kubernetes API's form")
