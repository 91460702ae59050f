"""The objects by which a cluster's autoscaler learns that a node is wanted.

An autoscaler adds nodes for pods that fit on none. So a pod stands for the room that may go to no node that is there,
nor to one with another of its kind: as a template of a CapacityBuffer (``autoscaling.x-k8s.io``), which the Cluster
Autoscaler reads, or, where that is not served, as a pod that no scheduler ever places. It asks for no GPU: the Cluster
Autoscaler takes a node as it is for what a new one will be like, and all GPUs of that may be in use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.core.contract.keys import HOSTNAME, STAND_IN, SWITCH_LABEL, SWITCHED_ON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.core.model.resources import Amounts

Json = dict[str, Any]

SCHEDULER = "gpu-device-plugin-stand-in"
"""The scheduler of these pods, which does not exist."""
PRIORITY_CLASS = "gpu-device-plugin-stand-in"
"""Its value is -10: the Cluster Autoscaler adds no nodes for pods of a lower one."""
IMAGE = "registry.k8s.io/pause:3.10"
_FOR = "gpu-device-plugin/wanted-for"
_MOST_NAMED = 10
_COPIED = ("nodeSelector", "tolerations")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ONE_EACH = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {STAND_IN: "true"}}}
"""No node is to give the room for two of them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Room that one new node is to give."""

    terms: Mapping[str, Any]
    """Of the spec of one of the waiting pods: which nodes it may go to."""
    present: tuple[str, ...] = ()
    """The host names of the nodes that share GPUs already."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of the nodes that can give it."""
    amounts: Amounts | None = None
    """CPU and memory that the node must have left beside."""
    pods: tuple[str, ...] = ()
    """Waiting pods that it is for, with their namespaces."""


def named(wanted: Iterable[Wanted]) -> Mapping[str, Json]:
    """Return what is wanted as the name of an object and the pod template that it has: equal ones are numbered."""
    found: dict[str, Json] = {}
    for each in wanted:
        template = _template(each)
        digest = sha256(json.dumps(template["spec"], sort_keys=True).encode()).hexdigest()[:10]
        number = sum(name.startswith(f"gpu-room-{digest}-") for name in found)
        found[f"gpu-room-{digest}-{number}"] = template
    return found


def terms_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return which nodes a pod may go to, of the JSON of its spec."""
    terms = {key: spec[key] for key in _COPIED if spec.get(key)}
    of_nodes = (spec.get("affinity") or {}).get("nodeAffinity")
    return {**terms, "affinity": {"nodeAffinity": of_nodes}} if of_nodes else terms


def _elsewhere(wanted: Wanted) -> Json:
    """Return the node affinity of the waiting pod, without the nodes that are present."""
    theirs = wanted.terms.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED, {}).get("nodeSelectorTerms") or [
        {}
    ]
    elsewhere = [{"key": HOSTNAME, "operator": "NotIn", "values": list(wanted.present)}] if wanted.present else []
    terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *elsewhere]} for term in theirs]
    # A term without conditions matches no node, a pod without terms every one.
    return {_REQUIRED: {"nodeSelectorTerms": terms}} if elsewhere or theirs != [{}] else {}


def _template(wanted: Wanted) -> Json:
    requests = {}
    if wanted.amounts is not None:
        requests = {"cpu": f"{wanted.amounts.cpu_milli}m", "memory": f"{wanted.amounts.memory_mib}Mi"}
    spec = {
        **wanted.terms,
        "nodeSelector": {**wanted.terms.get("nodeSelector", {}), SWITCH_LABEL: SWITCHED_ON, **wanted.labels},
        "affinity": {"nodeAffinity": _elsewhere(wanted), "podAntiAffinity": {_REQUIRED: [_ONE_EACH]}},
        "schedulerName": SCHEDULER,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "room",
                "image": IMAGE,
                "resources": {"requests": requests},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    shown = ", ".join(wanted.pods[:_MOST_NAMED])
    more = len(wanted.pods) - _MOST_NAMED
    about = f"{shown} and {more} more" if more > 0 else shown
    return {"metadata": {"labels": {STAND_IN: "true"}, "annotations": {_FOR: about}}, "spec": spec}


def pod_of(name: str, namespace: str, template: Json, owners: Sequence[Json]) -> Json:
    """Return a pod that stands for wanted room."""
    meta = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def buffer_of(name: str, namespace: str, template: Json, owners: Sequence[Json], version: str) -> tuple[Json, Json]:
    """Return a PodTemplate and the CapacityBuffer that wants room for one such pod."""
    meta = {**template["metadata"], "name": name, "namespace": namespace, "ownerReferences": list(owners)}
    return (
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template},
        {
            "apiVersion": f"autoscaling.x-k8s.io/{version}",
            "kind": "CapacityBuffer",
            "metadata": meta,
            "spec": {"podTemplateRef": {"name": name}, "replicas": 1},
        },
    )


UNSCHEDULABLE: Mapping[str, Any] = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "It stands for room that the cluster's autoscaler is to provide, and is never placed.",
}
"""The condition of a pod for which an autoscaler adds a node; of other pods a scheduler writes it."""
