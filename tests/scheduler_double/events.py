"""Which writes make kube-scheduler try a pod again that fitted nowhere (eventhandlers.go and backend/queue of 1.36)."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from gpu_device_plugin.testing.cluster.cluster_kinds import NODES, PODS
from gpu_device_plugin.testing.cluster.cluster_store import Change
from tests.builders import Json
from tests.scheduler_double.nodes import AFFINITY, CORDON, EXTENDER, FIT, counts_on_a_node

_PARTS: Mapping[str, Callable[[Json], Any]] = MappingProxyType(
    {
        "taints": lambda node: node["spec"].get("taints") or [],
        "allocatable": lambda node: node.get("status", {}).get("allocatable", {}),
        "labels": lambda node: node["metadata"].get("labels", {}),
        "annotations": lambda node: node["metadata"].get("annotations", {}),
        # When a condition was reported last does not matter: the kubelet does so all the time.
        "conditions": lambda node: {
            one["type"]: one.get("status") for one in node.get("status", {}).get("conditions", [])
        },
    }
)
"""Changes of a node that are events to the queue."""
_HEARD: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # An extender cannot say what its refusals depend on, so that every event is taken for one.
        EXTENDER: frozenset(
            {*_PARTS, "uncordoned", "node added", "node deleted", "pod assigned", "pod changed", "pod gone", "itself"}
        ),
        FIT: frozenset({"node added", "allocatable", "pod gone"}),
        AFFINITY: frozenset({"node added", "labels"}),
        CORDON: frozenset({"node added", "uncordoned", "taints"}),
    }
)
"""The events after which a pod is tried again that one of the plugins refused."""


def may_help(pod: Json, refused_by: Iterable[str], change: Change) -> bool:
    """Whether a pod that these plugins refused is tried again after this write."""
    happened = _events(pod["metadata"]["uid"], change)
    return any(_HEARD[plugin] & happened for plugin in refused_by)


def _events(uid: str, change: Change) -> frozenset[str]:
    """Return what a write means to the queue, in which the pod `uid` waits; writes of other kinds are no events."""
    before, after = change.before, change.after
    if change.served is NODES:
        if before is None or after is None:
            return frozenset({"node added" if before is None else "node deleted"})
        uncordoned = before["spec"].get("unschedulable") and not after["spec"].get("unschedulable")
        changed = frozenset(what for what, part in _PARTS.items() if part(before) != part(after))
        return changed | {"uncordoned"} if uncordoned else changed
    if change.served is not PODS:
        return frozenset()
    if after is not None and after["metadata"]["uid"] == uid:
        return frozenset({"itself"})
    was, stays = counts_on_a_node(before), counts_on_a_node(after)
    if not was and not stays:
        return frozenset()  # other pods that wait are nobody's business
    return frozenset({"pod gone" if not stays else "pod changed" if was else "pod assigned"})
