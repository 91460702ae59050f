"""The objects by which an autoscaler learns that nodes are wanted."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.rules.node_kinds import Needs, NodeKind
from gpu_device_plugin.features.capacity.rules.node_requests import (
    PRIORITY_CLASS,
    SCHEDULER,
    UNSCHEDULABLE,
    Wanted,
    buffer_of,
    common_terms,
    named,
    pod_of,
)
from gpu_device_plugin.model.contract.keys import STAND_IN
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Alternative, Requirement, Terms, Toleration
from tests.scheduler.rules.test_fitting import asking, mem, node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PRODUCT = "gpu-device-plugin/product"
ZONE = Alternative((Requirement("zone", "In", ("a",)),))
ON_NODE = Alternative((), (Requirement("metadata.name", "NotIn", ("n0",)),))
EXISTS = Toleration("nvidia.com/gpu", "Exists")
TERMS = Terms((EXISTS,), {"pool": "gpu"}, (ZONE, ON_NODE, Alternative()))
ELSEWHERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
OWNERS = [{"apiVersion": "v1", "kind": "Pod", "name": "extender", "uid": "1"}]


def wanted(*pods: str, **changed: Any) -> Wanted:
    return replace(Wanted(TERMS, {}, ("n1", "n2"), pods), **changed)


def template(each: Wanted) -> dict[str, Any]:
    (found,) = named([each]).values()
    return found


def of_nodes(each: Wanted) -> Any:
    affinity = template(each)["spec"]["affinity"]["nodeAffinity"]
    return affinity[REQUIRED]["nodeSelectorTerms"] if affinity else None


def test_a_stand_in_has_the_terms_of_the_pods_and_fits_on_no_node_that_is_there_and_on_none_with_another() -> None:
    """A term without conditions matches no node, and would match all of the others."""
    spec = template(wanted())["spec"]

    assert spec["nodeSelector"] == {"pool": "gpu", "gpushare": "true"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert of_nodes(wanted()) == [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}, ELSEWHERE]},
        {
            "matchExpressions": [ELSEWHERE],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}],
        },
    ]
    assert spec["affinity"]["podAntiAffinity"][REQUIRED] == [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {STAND_IN: "true"}}}
    ]
    assert of_nodes(wanted(terms=NO_TERMS)) == [{"matchExpressions": [ELSEWHERE]}]


def test_without_nodes_a_stand_in_has_the_pods_terms_alone() -> None:
    one = replace(TERMS, affinity=(ZONE,))

    assert of_nodes(wanted(present=(), terms=one)) == [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    ]
    assert of_nodes(wanted(present=(), terms=NO_TERMS)) is None


def test_nodes_whose_gpus_are_of_no_use_are_left_out_by_their_labels() -> None:
    unlike = wanted(unlike={PRODUCT: ["T4", "V100"]}, present=(), terms=NO_TERMS)

    assert of_nodes(unlike) == [{"matchExpressions": [{"key": PRODUCT, "operator": "NotIn", "values": ["T4", "V100"]}]}]
    assert unlike.may_be.affinity == (Alternative((Requirement(PRODUCT, "NotIn", ("T4", "V100")),)),)
    assert wanted().may_be == TERMS


def test_a_stand_in_asks_for_nothing_that_anybody_could_use() -> None:
    made = template(wanted("default/a", "default/b"))

    spec, meta = made["spec"], made["metadata"]
    (container,) = spec["containers"]
    assert meta["labels"] == {STAND_IN: "true"}
    assert meta["annotations"]["gpu-device-plugin/wanted-for"] == "default/a, default/b"
    assert "resources" not in container
    assert (spec["schedulerName"], spec["priorityClassName"]) == (SCHEDULER, PRIORITY_CLASS)
    assert spec["automountServiceAccountToken"] is False
    assert spec["terminationGracePeriodSeconds"] == 0
    # Namespaces that enforce the restricted Pod Security Standard take it.
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_of_many_pods_the_first_ten_are_named() -> None:
    pods = [f"default/p{n}" for n in range(12)]

    assert template(wanted(*pods))["metadata"]["annotations"]["gpu-device-plugin/wanted-for"] == (
        f"{', '.join(pods[:10])} and 2 more"
    )
    ten = template(wanted(*pods[:10]))["metadata"]["annotations"]["gpu-device-plugin/wanted-for"]
    assert ten == ", ".join(pods[:10])


def test_equal_ones_are_numbered_and_a_name_stays_while_nodes_come() -> None:
    """Another extender that becomes active finds what it wants under the names that it would give."""
    other = Terms(selector={"pool": "other"})
    first = named([wanted("default/a"), wanted(terms=other), wanted("default/b")])
    again = named([wanted("default/z", present=("n1", "n2", "n3")), wanted(), wanted("default/y", terms=other)])

    assert len(first) == 3
    assert first.keys() == again.keys()
    assert all(name.startswith("gpu-room-") and len(name) <= 63 for name in first)
    assert named([wanted()]).keys() < first.keys()
    assert not named([wanted(unlike={PRODUCT: ["T4"]})]).keys() & first.keys(), "it is for other kinds of nodes"
    assert named([]) == {}


def test_what_is_asked_under_a_name_is_told_by_an_annotation() -> None:
    def asked(each: Wanted) -> str:
        return str(template(each)["metadata"]["annotations"][STAND_IN])

    assert asked(wanted("default/a")) == asked(wanted("default/b"))
    assert len({asked(wanted()), asked(wanted(present=("n1",))), asked(wanted(unlike={PRODUCT: ["T4"]}))}) == 3


KIND = NodeKind(
    node=node(8), labels={"zone": "a", "pool": "gpu"}, taints=(Taint("dedicated", "gpu"), Taint("nvidia.com/gpu"))
)
ANY = Toleration(operator="Exists")


@pytest.mark.parametrize(
    ("terms", "common"),
    [
        ([TERMS], TERMS),
        (
            [Terms((ANY,)), Terms((ANY,), {"pool": "gpu"})],
            Terms(
                (
                    ANY,
                    Toleration("dedicated", "Equal", "gpu", "NoSchedule"),
                    Toleration("nvidia.com/gpu", "Equal", "", "NoSchedule"),
                ),
                {"pool": "gpu"},
            ),
        ),
        (
            [
                Terms((ANY,), affinity=(Alternative((Requirement("zone", "In", ("b",)),)), ZONE)),
                Terms((ANY,), affinity=(ON_NODE,)),
            ],
            Terms(
                (
                    ANY,
                    Toleration("dedicated", "Equal", "gpu", "NoSchedule"),
                    Toleration("nvidia.com/gpu", "Equal", "", "NoSchedule"),
                ),
                affinity=(Alternative(ZONE.labels, ON_NODE.fields),),
            ),
        ),
        (
            [Terms((ANY, EXISTS), affinity=(ZONE,)), Terms((ANY,), affinity=(ZONE,))],
            Terms(
                (
                    ANY,
                    Toleration("dedicated", "Equal", "gpu", "NoSchedule"),
                    Toleration("nvidia.com/gpu", "Equal", "", "NoSchedule"),
                ),
                affinity=(ZONE,),
            ),
        ),
    ],
)
def test_pods_that_share_a_node_have_terms_in_common_that_the_kind_of_node_meets(
    terms: list[Terms], common: Terms
) -> None:
    found = common_terms(terms, [KIND])

    assert found == common
    assert len(terms) == 1 or KIND.allows(Needs(asking(mem(1)), found))


def test_pods_that_share_a_node_may_go_to_every_kind_that_each_of_them_may_go_to_whichever_comes_first() -> None:
    """Each kind meets another of their alternatives: where one group is full, the autoscaler goes on to the next."""
    in_b = Alternative((Requirement("zone", "In", ("b",)),))
    kinds = [KIND, replace(KIND, labels={"zone": "b"}, taints=())]
    terms = [Terms((ANY,), affinity=(ZONE, in_b)), Terms((ANY, EXISTS), affinity=(in_b, ZONE, ON_NODE))]

    found = common_terms(terms, kinds)
    assert all(kind.allows(Needs(asking(mem(1)), found)) for kind in kinds)
    assert not replace(KIND, labels={"zone": "c"}).allows(Needs(asking(mem(1)), found))
    assert common_terms(reversed(terms), list(reversed(kinds))) == found, "the name of what is asked for stays"


def test_however_many_terms_a_pod_has_what_is_asked_stays_below_the_limit_of_the_api_and_allows_what_fits() -> None:
    """Each term names all nodes that are there; etcd takes 1.5 MiB."""
    zones = tuple(Alternative((Requirement("zone", "In", (f"z{n}",)),)) for n in range(40))
    hosts = tuple(f"gke-cluster-1-gpu-pool-2-0123abcd-{n:04}" for n in range(5000))
    kinds = [replace(KIND, labels={"zone": zone}) for zone in ("z20", "z39")]

    pods = Terms((ANY,), affinity=zones)
    fitting = of_nodes(wanted(terms=common_terms([pods], kinds), present=hosts))
    assert [each["matchExpressions"][0]["values"] for each in fitting] == [["z20"], ["z39"]]
    for asked in (fitting, of_nodes(wanted(terms=pods, present=hosts))):
        assert len(json.dumps(asked)) < 1_000_000


def test_a_pod_stands_for_the_room_or_a_buffer_with_a_template_does() -> None:
    made = template(wanted("default/a"))

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
