"""Which pods may be moved, why the others may not, and how moves change the nodes."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.features.capacity.rules.movable import (
    Evictability,
    Fits,
    PlannedNode,
    PlannedPod,
    Residents,
    UnmovableReason,
    after,
    why_it_stays,
)
from gpu_device_plugin.features.capacity.rules.plans import plan_each, settled
from gpu_device_plugin.model.nodes import NodeRecord
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.pods import Container, ContainerKind, Owner, Pod
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.node_constraints import NO_TERMS, Terms
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from gpu_device_plugin.scheduler.rules.usage import NOTHING, GpuConsumer, Usage
from tests.features.capacity.rules.clusters import node, resident
from tests.names import COUNT, MEM
from tests.resources import RESOURCES
from tests.searches import plan

BY_SET = Owner("ReplicaSet", "web-5d8", "owner", "apps/v1")
MAIN = Container("main", ContainerKind.APP, 0, {MEM: 4})
WEB = Pod("uid", "ns", "web", node_name="n", owner=BY_SET, containers=(MAIN,), amounts=Amounts(1000, 1))
ON_0 = Usage(((0, 4),))


def stays(pod: Pod = WEB, usage: Usage = ON_0, allowed: int = 1, **facts: Any) -> UnmovableReason | None:
    return why_it_stays(pod, usage, Evictability(**facts), {"ns/one": allowed}, frozenset({MEM, COUNT}))


@pytest.mark.parametrize(
    ("changes", "facts", "why"),
    [
        ({}, {}, None),
        ({"deleting": True}, {}, UnmovableReason.ENDING),
        ({"phase": "Failed"}, {}, UnmovableReason.ENDING),
        ({"owner": None}, {}, UnmovableReason.NO_CONTROLLER),
        ({"owner": None}, {"safe_to_evict": True}, UnmovableReason.NO_CONTROLLER),
        ({"owner": replace(BY_SET, kind="Node")}, {}, UnmovableReason.STATIC),
        ({"owner": replace(BY_SET, kind="DaemonSet")}, {}, UnmovableReason.DAEMON_SET),
        ({}, {"safe_to_evict": False}, UnmovableReason.FORBIDDEN),
        ({}, {"local_storage": True}, UnmovableReason.STORAGE),
        ({}, {"local_storage": True, "safe_to_evict": True}, None),
        ({}, {"claims_volumes": True}, UnmovableReason.VOLUME),
        ({}, {"claims_volumes": True, "safe_to_evict": True}, None),
        ({}, {"neighbours": True}, UnmovableReason.NEIGHBOURS),
        ({"requests": None}, {}, UnmovableReason.NEIGHBOURS),
        ({"requests": {"cpu": 1, "ephemeral-storage": 1, "rdma/hca": 1}}, {}, UnmovableReason.RESOURCES),
        ({"requests": {"cpu": 1, "memory": 1, "ephemeral-storage": 1}}, {}, None),
        (
            {"containers": (MAIN, replace(MAIN, name="mig", limits={"nvidia.com/mig-1g.10gb": 1}))},
            {},
            UnmovableReason.RESOURCES,
        ),
        ({}, {"budgets": ("ns/one",)}, None),
        ({}, {"budgets": ("ns/other",)}, UnmovableReason.BUDGET),
        ({}, {"budgets": ("ns/one", "ns/other")}, UnmovableReason.BUDGETS),
    ],
)
def test_why_a_pod_stays(changes: dict[str, Any], facts: dict[str, Any], why: UnmovableReason | None) -> None:
    assert stays(replace(WEB, **changes), **facts) is why


def test_pods_on_unknown_gpus_and_those_of_used_up_budgets_stay() -> None:
    assert stays(usage=Usage(unplaced_shares=4)) is UnmovableReason.UNPLACED
    assert stays(usage=NOTHING) is UnmovableReason.UNPLACED
    assert stays(allowed=0, budgets=("ns/one",)) is UnmovableReason.BUDGET


def test_pods_with_equal_terms_share_the_nodes_that_these_allow() -> None:
    nodes = [NodeRecord("n", "n", labels={"zone": "a"}, ready=True), NodeRecord("m", "m", ready=True)]
    made = Residents(nodes, RESOURCES, {})
    selective = Evictability(terms=Terms(selector={"zone": "a"}))
    there = GpuConsumer("uid", ON_0, namespace="ns", name="web")
    one, two = (made.of(WEB, selective, there) for _ in range(2))
    assert one.nodes is two.nodes
    assert (one.nodes, one.stays, one.pod, str(one)) == (frozenset({"n"}), None, there, "ns/web")
    assert made.allowed(NO_TERMS) == {"n", "m"}


def test_a_pod_that_waits_has_nothing_yet_and_no_reason_to_stay() -> None:
    made = Residents([NodeRecord("n", "n", ready=True)], RESOURCES, {"ns/one": 1})
    waiting = made.of(replace(WEB, node_name="", owner=None), Evictability(budgets=("ns/one",)))
    assert (waiting.pod.usage, waiting.stays, waiting.budget) == (NOTHING, None, "ns/one")
    assert waiting.ask.parts[0].demand == Demand(Kind.MEMORY, 4)


def test_a_pod_whose_demand_no_node_can_meet_stays() -> None:
    both = replace(WEB, containers=(replace(MAIN, limits={MEM: 4, COUNT: 1}),))
    made = Residents([], RESOURCES, {}).of(both, Evictability(), GpuConsumer("uid", ON_0))
    assert (made.stays, made.ask) == (UnmovableReason.RESOURCES, GpuRequest())


# --- Moves -----------------------------------------------------------------------------------------------------------


def on(site: PlannedNode, name: str, *demands: Demand, **more: Any) -> PlannedNode:
    made = resident(name, demands, site, **more)
    assert made is not None
    return site.changed(come=made)


def waiting(name: str, *demands: Demand, priority: int = 0) -> PlannedPod:
    made = resident(name, demands, node("any", [64] * 8), priority=priority)
    assert made is not None
    return replace(made, pod=replace(made.pod, usage=NOTHING))


FOUR, FIVE, WHOLE = Demand(Kind.MEMORY, 4), Demand(Kind.MEMORY, 5), Demand(Kind.COUNT, 1)


def test_after_moves_every_pod_is_where_the_last_of_them_brought_it() -> None:
    """Of 2 GPUs of 8 each has 3 free: for 5 more, the pod of 5 must leave for the other node."""
    sites = (on(on(node("a", [8, 8]), "p", FIVE), "q", FIVE), node("b", [8]))
    found = plan(sites, Fits(waiting("w", FIVE).ask))
    assert found == ()
    found = plan(sites, Fits(waiting("w", FIVE).ask, nodes=frozenset({"a"})))
    assert [(str(move.pod), move.origin, move.node, move.shares) for move in found or ()] == [
        ("ns/p", "a", "b", {0: 5})
    ]
    then = after(sites, found or ())
    assert [[str(each) for each in site.residents] for site in then] == [["ns/q"], ["ns/p"]]
    assert [[room.free for room in site.node.rooms] for site in then] == [[8, 3], [3]]


def test_each_plan_begins_where_the_one_before_ends() -> None:
    """Two nodes of one GPU: the first pod gets the whole GPU for which the other pods move together."""
    sites = (on(node("a", [8]), "p", FOUR), on(node("b", [8]), "q", FOUR))
    small, large, other = waiting("small", FOUR), waiting("large", WHOLE, priority=5), waiting("other", WHOLE)
    found = list(plan_each(sites, [other, small, large], {"": 0}))
    assert [str(pod) for pod, _, _ in found] == ["ns/large", "ns/other", "ns/small"]
    assert [one and len(one) for _, one, _ in found] == [1, None, None]
    (last,) = {tuple(site.node.summary.frees for site in now) for _, _, now in found[1:]}
    assert sorted(last) == [(), (0,)]
    equal = list(plan_each(sites, [large, replace(large), replace(large)], {}))
    assert [one and len(one) for _, one, _ in equal] == [1, None, None]


def test_a_pod_that_fits_nowhere_changes_nothing() -> None:
    sites = (on(node("a", [8]), "p", FOUR),)
    assert settled(sites, waiting("w", WHOLE)) == sites
