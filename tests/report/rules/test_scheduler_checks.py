"""What keeps kube-scheduler from a node besides its GPUs."""

from typing import Any

import pytest

from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Taint
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import besides, exclusions
from gpu_device_plugin.scheduler.rules.node_constraints import (
    CORDON,
    NO_TERMS,
    Alternative,
    Requirement,
    Terms,
    Toleration,
)
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.findings import facts
from tests.names import COUNT, MEM
from tests.resources import RESOURCES
from tests.views import changed, mig_view, node_view, pod_on

Around = dict[str, Any]
"""Taints and labels."""

FOUR = GpuRequest((Part(Demand(Kind.MEMORY, 4)),))
ONE_GPU = GpuRequest((Part(Demand(Kind.COUNT, 1)),))
DEDICATED = Taint("dedicated", "ml")


def told(node: NodeView, around: Around | None = None, terms: Terms = NO_TERMS, ask: GpuRequest = FOUR) -> list[str]:
    findings = (*exclusions(changed(node, **(around or {})), terms), *besides(node, ask, RESOURCES))
    return facts(findings, "taint label condition terms taken offered resource")


def excluded(terms: Terms) -> list[str]:
    """Return what keeps a pod from a node with these labels."""
    return told(node_view("n", (8,), amounts=({MEM: 8}, {MEM: 8})), {"labels": LABELS}, terms)


def tainted(*taints: Taint) -> Around:
    return {"taints": taints}


def tolerating(*tolerations: Toleration) -> Terms:
    return Terms(tolerations)


def test_nothing_keeps_a_pod_from_a_node_that_is_well() -> None:
    amounts = {MEM: 8, COUNT: 1}
    assert told(node_view("n", (8,), amounts=(amounts, amounts))) == []


def test_a_node_that_is_cordoned_or_not_ready_is_told_once() -> None:
    """The controller puts taints on it as well."""
    around = tainted(Taint(CORDON), Taint("node.kubernetes.io/not-ready", effect="NoExecute"))
    assert told(node_view("n", (8,), ready=False, unschedulable=True), around) == ["cordoned", "not-ready"]


UNREADY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@pytest.mark.parametrize("key", UNREADY)
def test_a_pod_may_tolerate_that_a_node_is_not_ready(key: str) -> None:
    """Kube-scheduler knows it by the taints alone."""
    sick = node_view("n", (8,), ready=False)
    around = tainted(Taint(key), Taint(key, effect="NoExecute"))
    assert told(sick, around, tolerating(Toleration(key, "Exists"))) == []
    assert told(sick, around, tolerating(Toleration("", "Exists"))) == []
    # Every pod tolerates the second for five minutes.
    assert told(sick, around, tolerating(Toleration(key, "Exists", effect="NoExecute"))) == ["not-ready"]


def test_a_node_that_has_just_become_unready_has_no_taint_yet() -> None:
    sick = node_view("n", (8,), ready=False)
    assert told(sick) == told(sick, terms=tolerating(Toleration("other", "Exists"))) == ["not-ready"]
    assert told(sick, terms=tolerating(Toleration(UNREADY[0], "Exists"))) == []


@pytest.mark.parametrize("key", [CORDON, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"])
def test_a_taint_of_a_node_that_is_well_by_now_still_keeps_pods_away(key: str) -> None:
    """The controller takes it off some time after."""
    assert told(node_view("n", (8,)), tainted(Taint(key))) == [f"taint taint={key}:NoSchedule"]


def test_a_pod_may_tolerate_a_cordon() -> None:
    around = tainted(Taint(CORDON))
    assert told(node_view("n", (8,), unschedulable=True), around, tolerating(Toleration(CORDON, "Exists"))) == []


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration("dedicated", "Equal", "ml", "NoSchedule"), True),
        (Toleration("dedicated", "Equal", "ml"), True),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("", "Exists", effect="NoSchedule"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("dedicated", "Equal", "web"), False),
        (Toleration("dedicated", "Exists", effect="NoExecute"), False),
        (Toleration("dedicated", "Gt", "ml"), False),
    ],
)
def test_taints_that_are_not_tolerated_are_named(toleration: Toleration, tolerated: bool) -> None:  # noqa: FBT001
    around = tainted(DEDICATED, Taint("lab", effect="NoExecute"), Taint("soft", effect="PreferNoSchedule"))
    expected = [] if tolerated else ["taint taint=dedicated=ml:NoSchedule"]
    assert told(node_view("n", (8,)), around, tolerating(toleration)) == [*expected, "taint taint=lab:NoExecute"]


def test_labels_that_the_pod_wants_are_named_where_the_node_has_them_not() -> None:
    wants = Terms(selector={"zone": "a", "gpu": "yes", "arch": "arm64"})
    around = {"labels": {"zone": "a", "arch": "amd64"}}
    assert told(node_view("n", (8,)), around, wants) == ["label label=arch=arm64", "label label=gpu=yes"]


def test_an_agent_that_offers_nothing_is_named() -> None:
    """The kubelet sets allocatable to 0 when the agent is gone, and forgets the capacity minutes later."""
    node = node_view("n", (8,), amounts=({MEM: 8, COUNT: 1}, {MEM: 0, COUNT: 0}))
    assert told(node) == [f"offers-none-now resource={MEM}"]
    assert told(node, ask=ONE_GPU) == [f"offers-none-now resource={COUNT}"]
    assert told(node_view("n", (8,), amounts=({}, {}))) == [f"not-registered resource={MEM}"]
    assert told(node_view("n", (8,), amounts=({MEM: 8}, {}))) == told(node)


def test_a_node_with_nothing_but_shared_instances_is_told_by_these_and_not_by_the_amounts() -> None:
    assert told(mig_view("n", shared=2), ask=ONE_GPU) == []


def test_gpus_in_use_the_other_way_are_no_reason_to_look_for_the_agent() -> None:
    """What is in whole use has no shares to offer, and what is shared is not offered whole."""
    amounts = ({MEM: 8, COUNT: 1}, {MEM: 0, COUNT: 0})
    assert told(node_view("n", (8,), pod_on("a", None, 0), amounts=amounts)) == []
    assert told(node_view("n", (8,), pod_on("a", {0: 1}), amounts=amounts), ask=ONE_GPU) == []


def test_numbers_that_are_smaller_than_what_the_gpus_have_are_named() -> None:
    """8 and 8 shares, of which the kubelet offers 8; 5 are taken, and 4 are wanted of the 11 that seem free."""
    node = node_view("n", (8, 8), pod_on("a", {0: 5}), amounts=({MEM: 16, COUNT: 2}, {MEM: 8, COUNT: 1}))
    assert told(node) == [f"in-use taken=5 offered=8 resource={MEM}"]
    gpus = node_view("n", (8, 8, 8), pod_on("a", None, 0), amounts=({MEM: 16, COUNT: 3}, {MEM: 8, COUNT: 1}))
    assert told(gpus, ask=ONE_GPU) == [f"in-use taken=1 offered=1 resource={COUNT}"]


def test_numbers_that_suffice_or_that_the_gpus_tell_are_not() -> None:
    amounts = ({MEM: 8, COUNT: 1}, {MEM: 8, COUNT: 1})
    assert told(node_view("n", (8,), pod_on("a", {0: 4}), amounts=amounts)) == []
    assert told(node_view("n", (8,), pod_on("a", {0: 6}), amounts=amounts)) == []
    assert told(node_view("n", (8,), pod_on("a", None, 0), amounts=amounts), ask=ONE_GPU) == []
    assert (
        told(node_view("n", (8, 8), amounts=({COUNT: 2}, {COUNT: 2})), ask=GpuRequest((Part(Demand(Kind.COUNT, 3)),)))
        == []
    )


def test_of_a_node_that_cannot_be_read_nothing_is_reckoned() -> None:
    assert told(node_view("n", (), problem="its annotation is not JSON", amounts=({}, {}))) == []


# --- Node affinity ----------------------------------------------------------------------------------------------------

LABELS = {"zone": "a", "gpus": "8", "odd": "8 GPUs"}


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("none", "In", ("a",)), False),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("zone", "NotIn", ("b",)), True),
        (Requirement("none", "NotIn", ("a",)), True),
        (Requirement("zone", "Exists"), True),
        (Requirement("none", "Exists"), False),
        (Requirement("none", "DoesNotExist"), True),
        (Requirement("zone", "DoesNotExist"), False),
        (Requirement("gpus", "Gt", ("7",)), True),
        (Requirement("gpus", "Gt", ("8",)), False),
        (Requirement("gpus", "Lt", ("9",)), True),
        (Requirement("gpus", "Lt", ("8",)), False),
        (Requirement("gpus", "Gt", ("-1",)), True),
        (Requirement("odd", "Gt", ("7",)), False),
        (Requirement("none", "Lt", ("7",)), False),
        (Requirement("gpus", "Gt", ("7", "6")), False),
        (Requirement("gpus", "Lt", ("9" * 5000,)), False),
        (Requirement("zone", "Resembles", ("b",)), True),
    ],
)
def test_a_requirement_is_one_of_kubernetes(requirement: Requirement, holds: bool) -> None:  # noqa: FBT001
    terms = Terms(affinity=(Alternative((requirement,)),))
    assert excluded(terms) == ([] if holds else [f"affinity condition={requirement}"])


def test_one_kind_of_node_is_enough_and_all_that_it_says_has_to_be_so() -> None:
    here, elsewhere = Requirement("zone", "In", ("a",)), Requirement("zone", "In", ("b", "c"))
    named, other = Requirement("metadata.name", "In", ("n",)), Requirement("metadata.name", "In", ("m",))
    for allowed in ((Alternative((elsewhere,)), Alternative((here,))), (Alternative((here,), (named,)),)):
        assert excluded(Terms(affinity=allowed)) == []
    both = Terms(affinity=(Alternative((here, elsewhere)),))
    assert excluded(both) == ["affinity condition=zone In (b, c)"]
    fields = Terms(affinity=(Alternative((here,), (other,)),))
    assert excluded(fields) == ["affinity condition=metadata.name In (m)"]


def test_what_says_nothing_allows_no_node() -> None:
    kinds = (Alternative((Requirement("zone", "In", ("b",)),)), Alternative((Requirement("none", "Exists"),)))
    assert excluded(Terms(affinity=(*kinds, Alternative()))) == ["affinity-terms terms=2"]
    assert excluded(Terms(affinity=())) == ["affinity-terms terms=0"]


def test_the_sentences_say_what_the_pod_requires_of_the_node() -> None:
    labels = Terms(selector={"gpu": "yes"}, affinity=(Alternative((Requirement("none", "Exists"),)),))
    assert list(map(str, exclusions(changed(node_view("n", (8,)), taints=(DEDICATED,)), labels))) == [
        "the pod does not tolerate its taint dedicated=ml:NoSchedule",
        "the pod requires the node label gpu=yes",
        "the pod's node affinity requires none Exists",
    ]


def test_the_terms_of_a_pod_are_counted_entry_by_entry() -> None:
    """Two tolerations and one label; two conditions, one of them with two values, and a field with one."""
    affinity = (
        Alternative((Requirement("zone", "In", ("a", "b")), Requirement("gpus", "Exists"))),
        Alternative(fields=(Requirement("metadata.name", "In", ("n1",)),)),
    )
    assert Terms().entries == 0
    assert Terms((Toleration("a"), Toleration("b")), {"zone": "a"}, affinity).entries == 3 + 3 + 3
