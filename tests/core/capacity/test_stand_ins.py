"""The objects by which an autoscaler learns that a node is wanted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.core.capacity.stand_ins import (
    PRIORITY_CLASS,
    SCHEDULER,
    UNSCHEDULABLE,
    Wanted,
    buffer_of,
    named,
    pod_of,
    terms_of,
)
from gpu_device_plugin.core.contract.keys import STAND_IN
from gpu_device_plugin.core.model.resources import Amounts

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
AFFINITY: dict[str, Any] = {REQUIRED: {"nodeSelectorTerms": [ZONES, {"matchFields": []}]}}
ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
TERMS: dict[str, Any] = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": AFFINITY},
}
OWNERS = [{"apiVersion": "v1", "kind": "Pod", "name": "extender", "uid": "1"}]


def wanted(cpu_milli: int = 500, *pods: str, **changed: Any) -> Wanted:
    return replace(Wanted(TERMS, ("n1", "n2"), amounts=Amounts(cpu_milli, 64), pods=pods), **changed)


def template(each: Wanted) -> dict[str, Any]:
    (found,) = named([each]).values()
    return found


def test_of_a_pod_only_what_says_to_which_nodes_it_may_go_is_copied() -> None:
    """Affinity to other pods would have the autoscaler look for those; volumes and images are nobody's business."""
    spec = {
        **TERMS,
        "affinity": {"nodeAffinity": AFFINITY, "podAffinity": {"requiredDuringScheduling": []}},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}],
        "containers": [{"image": "secret", "env": [{"name": "PASSWORD", "value": "hunter2"}]}],
        "priority": 1000,
    }
    assert terms_of(spec) == TERMS


@pytest.mark.parametrize(
    "spec", [{}, {"nodeSelector": {}, "tolerations": None, "affinity": None}, {"affinity": {"podAffinity": {}}}]
)
def test_a_pod_without_terms_has_none(spec: dict[str, Any]) -> None:
    assert terms_of(spec) == {}


def test_a_stand_in_fits_on_no_node_that_is_there_and_on_none_with_another() -> None:
    affinity = template(wanted())["spec"]["affinity"]
    of_nodes = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]

    assert [term["matchExpressions"][-1] for term in of_nodes] == [ELSEWHERE, ELSEWHERE]
    assert of_nodes[0]["matchExpressions"][:-1] == ZONES["matchExpressions"]
    assert affinity["podAntiAffinity"][REQUIRED] == [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {STAND_IN: "true"}}}
    ]
    assert template(wanted(terms={}))["spec"]["affinity"]["nodeAffinity"] == {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ELSEWHERE]}]}
    }


def test_without_nodes_a_stand_in_has_the_pods_terms_alone() -> None:
    theirs = template(wanted(present=()))["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]

    assert theirs == [ZONES, {"matchFields": [], "matchExpressions": []}]
    assert template(wanted(present=(), terms={}))["spec"]["affinity"]["nodeAffinity"] == {}


def test_a_stand_in_asks_for_nothing_that_anybody_could_use() -> None:
    made = template(wanted(16, "default/a", "default/b"))

    spec, meta = made["spec"], made["metadata"]
    (container,) = spec["containers"]
    assert meta["labels"] == {STAND_IN: "true"}
    assert meta["annotations"] == {"gpu-device-plugin/wanted-for": "default/a, default/b"}
    assert container["resources"] == {"requests": {"cpu": "16m", "memory": "64Mi"}}
    assert spec["tolerations"] == TERMS["tolerations"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == (SCHEDULER, PRIORITY_CLASS)
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 0
    # Namespaces that enforce the restricted Pod Security Standard take it.
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_cpu_and_memory_that_the_pods_need_beside_are_requested_and_not_limited() -> None:
    (container,) = template(wanted(amounts=Amounts(1500, 2048)))["spec"]["containers"]
    (free,) = template(wanted(amounts=None))["spec"]["containers"]

    assert container["resources"] == {"requests": {"cpu": "1500m", "memory": "2048Mi"}}
    assert free["resources"] == {"requests": {}}


def test_labels_of_the_type_of_node_stand_beside_the_selector_of_the_pod() -> None:
    made = template(wanted(labels={"gpu-device-plugin/product": "A100"}))
    alone = template(wanted(labels={"gpu-device-plugin/product": "A100"}, terms={}))

    assert made["spec"]["nodeSelector"] == {"pool": "gpu", "gpushare": "true", "gpu-device-plugin/product": "A100"}
    assert alone["spec"]["nodeSelector"] == {"gpushare": "true", "gpu-device-plugin/product": "A100"}
    assert TERMS["nodeSelector"] == {"pool": "gpu"}, "the terms are the pod's, and shared"


def test_of_many_pods_the_first_ten_are_named() -> None:
    pods = [f"default/p{n}" for n in range(12)]

    assert template(wanted(16, *pods))["metadata"]["annotations"]["gpu-device-plugin/wanted-for"] == (
        f"{', '.join(pods[:10])} and 2 more"
    )
    ten = template(wanted(16, *pods[:10]))["metadata"]["annotations"]["gpu-device-plugin/wanted-for"]
    assert ten == ", ".join(pods[:10])


def test_equal_rooms_are_numbered_and_names_depend_on_nothing_but_the_room() -> None:
    """Another extender that becomes active finds what it wants under the names that it would give."""
    first = named([wanted(16, "default/a"), wanted(8), wanted(16, "default/b")])
    again = named([wanted(16, "default/z"), wanted(16), wanted(8, "default/y")])

    assert len(first) == 3
    assert first.keys() == again.keys()
    assert all(name.startswith("gpu-room-") and len(name) <= 63 for name in first)
    assert named([wanted(16)]).keys() < first.keys()
    assert named([]) == {}


def test_a_pod_stands_for_the_room_or_a_buffer_with_a_template_does() -> None:
    made = template(wanted(16, "default/a"))

    pod = pod_of("gpu-room-1", "gpushare", made, OWNERS)
    of_template, buffer = buffer_of("gpu-room-1", "gpushare", made, OWNERS, "v1beta1")

    meta = {**made["metadata"], "name": "gpu-room-1", "namespace": "gpushare", "ownerReferences": OWNERS}
    assert pod == {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"]}
    assert of_template == {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": made}
    assert buffer["apiVersion"] == "autoscaling.x-k8s.io/v1beta1"
    assert buffer["metadata"] == meta
    assert buffer["spec"] == {"podTemplateRef": {"name": "gpu-room-1"}, "replicas": 1}
    assert json.loads(json.dumps([pod, of_template, buffer])) == [pod, of_template, buffer]


def test_the_condition_is_that_of_a_pod_that_a_scheduler_could_not_place() -> None:
    """The Cluster Autoscaler looks for exactly these."""
    assert {key: UNSCHEDULABLE[key] for key in ("type", "status", "reason")} == {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
    }
