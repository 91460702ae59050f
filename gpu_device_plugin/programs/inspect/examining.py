"""`kubectl inspect gpushare doctor`: examine the cluster as far as the rights of the user reach."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from gpu_device_plugin.core.telling.diagnosing import examine
from gpu_device_plugin.core.telling.diagnosing_cluster import CHECKS
from gpu_device_plugin.core.telling.diagnosing_partly import examine_partly
from gpu_device_plugin.programs.inspect.doctor import symptoms_in
from gpu_device_plugin.programs.inspect.kubectl import GRANT, ClusterUnreadableError
from gpu_device_plugin.view.reading import gpu_pods

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from gpu_device_plugin.core.model.resources import Resource
    from gpu_device_plugin.core.telling.diagnosing import Finding
    from gpu_device_plugin.programs.inspect.kubectl import Kubectl

_NODES, _PODS = "/api/v1/nodes", "/api/v1/pods"
_UNFINISHED = ("status.phase!=Succeeded", "status.phase!=Failed")


def findings(kubectl: Kubectl, resources: Sequence[Resource]) -> tuple[Finding, ...]:
    """Examine the cluster, as far as the rights of the user reach.

    Raises:
        ClusterUnreadableError: nodes or pods cannot be read for another reason than a missing right, or not even the
            pods of the user's namespace can.
    """
    missing: list[str] = []
    raw_nodes = _if_allowed(kubectl, "nodes", _NODES, (), missing)
    raw_pods = _if_allowed(kubectl, "pods", _PODS, _UNFINISHED, missing)
    namespace = ""
    if raw_pods is None:
        namespace = kubectl.namespace()
        raw_pods = kubectl.items(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods", _UNFINISHED)
    found = symptoms_in(kubectl, resources, raw_nodes or (), raw_pods)
    if not missing:
        return examine(CHECKS, found)
    pods = [pod for pod, _ in gpu_pods(raw_pods, resources)]
    return examine_partly(found, pods, missing, GRANT, nodes=raw_nodes is not None, namespace=namespace)


def _if_allowed(
    kubectl: Kubectl, kind: str, path: str, fields: Sequence[str], missing: list[str]
) -> list[msgspec.Raw] | None:
    """Return all objects of a kind, or None without the right to list them, which is added to `missing`."""
    try:
        return kubectl.items(path, fields)
    except ClusterUnreadableError:
        if not (right := kubectl.denied(kind)):
            raise
        missing.append(right)
        return None
