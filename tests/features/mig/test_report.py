"""Why a pod that asks for whole MIG instances does not run, and which ones it has."""

from dataclasses import replace

import pytest

from gpu_device_plugin.features.mig.report import asks_for_several, held_instances, holders, instance_facts
from gpu_device_plugin.model.contract.nodegpus import AWAY, BY_CLAIMS, ListedGpu, NodeGpus
from gpu_device_plugin.model.pods import Container, ContainerKind, Pod
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.held_instances import asked_by_profile
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.node_constraints import SchedulingStatus
from tests.findings import facts
from tests.names import MEM
from tests.reporting import why
from tests.resources import RESOURCES
from tests.views import WHOLE, listed_instance, mig_view, node_view, with_instances

SHOW = "nodes free offers where"
CORDONED, TAINTED = note("cordoned", "it is cordoned"), note("taint", "it has a taint")
HAS = "has-instance gpu=0 instance=MIG 0:0 1g.10gb"


def offering(*instances: ListedGpu) -> NodeView:
    return replace(mig_view("a"), candidate=candidate("a", NodeGpus((), instances=instances), ()))


def changed(node: NodeView, *, claims: bool = False, away: bool = False) -> NodeView:
    """Return a node whose agent serves claims, or serves nobody."""
    instances = node.candidate.gpus.instances
    listed = NodeGpus((), instances=instances, claims=claims, away=away, problem=AWAY if away else BY_CLAIMS)
    return replace(node, candidate=candidate(node.name, listed, ()))


def test_the_demand_is_told_by_resource() -> None:
    asked = asked_by_profile({WHOLE: 1, "nvidia.com/mig-1g.20gb": 2})
    assert " and ".join(map(str, asked)) == f"1 of {WHOLE} and 2 of nvidia.com/mig-1g.20gb"
    assert asked_by_profile({}) == ()


def of(
    asked: dict[str, int], nodes: list[NodeView], kept: dict[str, tuple[Finding, ...]] | None = None, show: str = SHOW
) -> list[str]:
    return facts(instance_facts(asked, nodes, kept or {}), show)


def test_nodes_are_told_with_the_pods_that_have_their_instances_the_freest_first() -> None:
    full = mig_view("a", with_instances("x", 0, 1), whole=2)
    part = mig_view("b", with_instances("y", 0), with_instances("z", asks=1), whole=4, ill={3: "XID 94"})
    assert list(map(str, instance_facts({WHOLE: 2}, [full, part, node_view("c", (15,))], {}))) == [
        f"2 nodes offer {WHOLE}, and none has enough free.",
        "  b: 2/4 in use, 0:3 unhealthy (XID 94): default/y (0:0), default/z (not known which)",
        "  a: 2/2 in use: default/x (0:0, 0:1)",
    ]
    assert str(next(instance_facts({WHOLE: 1}, [part], {}))) == f"1 node offers {WHOLE}, and 1 has 1 free one."


@pytest.mark.parametrize(
    ("number", "nodes", "kept", "expected"),
    [
        (
            2,
            [mig_view("a", whole=2), mig_view("b", whole=3)],
            (CORDONED, TAINTED),
            ["instances nodes=2 free=1", "b: 0/3 in use", "a: 0/2 in use; it is cordoned; it has a taint"],
        ),
        (
            1,
            [mig_view("a", whole=2), mig_view("b", with_instances("x", 0), whole=1)],
            (CORDONED,),
            ["instances nodes=2 free=0", "b: 1/1 in use: default/x (0:0)", "a: 0/2 in use; it is cordoned"],
        ),
        (
            1,
            [changed(mig_view("a", whole=2), claims=True), changed(mig_view("b", whole=1), claims=True, away=True)],
            (),
            [
                "instances nodes=2 free=0",
                (
                    "a: 0/2 in use; it allocates them to ResourceClaims (DRA), or through a DeviceClass with this "
                    "extendedResourceName"
                ),
                f"b: 0/1 in use; {AWAY}",
            ],
        ),
    ],
    ids=["several reasons", "one node is full", "no node gives any now"],
)
def test_a_node_to_which_the_pod_may_not_go_comes_last_with_the_reasons(
    number: int, nodes: list[NodeView], kept: tuple[Finding, ...], expected: list[str]
) -> None:
    first, *others = instance_facts({WHOLE: number}, nodes, {"a": kept})
    assert [*facts([first], "nodes free"), *(str(each).strip() for each in others)] == expected


def test_of_many_nodes_some_are_told() -> None:
    many = of({WHOLE: 1}, [mig_view(f"n{n:02}", whole=1) for n in range(23)])
    assert (len(many), many[0], many[-1]) == (22, "instances nodes=23 free=23", "more-nodes nodes=3")
    assert len(of({WHOLE: 1}, [mig_view(f"n{n:02}", whole=1) for n in range(20)])) == 21


def test_of_many_pods_some_are_named_and_of_one_that_ends_this_is_told() -> None:
    (offer,) = mig_view("a", *(with_instances(f"p{n}", n, deleting=n == 0) for n in range(7)), whole=7).instances()
    assert str(holders(offer)) == (
        "default/p0 (0:0, being deleted), default/p1 (0:1), default/p2 (0:2), default/p3 (0:3), default/p4 (0:4) and 2 "
        "more"
    )


@pytest.mark.parametrize(
    ("resource", "nodes", "expected"),
    [
        (
            "nvidia.com/mig-2g.20gb",
            [mig_view("a", whole=3), mig_view("b", whole=2)],
            ["not-offered", f"offered-instead offers={WHOLE} (3 on a, 2 on b)", "instances-by-setting"],
        ),
        ("nvidia.com/mig-2g.20gb", [node_view("a", (15,))], ["not-offered", "instances-by-setting"]),
        (
            "nvidia.com/mig-2g.20gb",
            [
                offering(
                    listed_instance(2, 2, resource="b/mig-2g.10gb"), listed_instance(1, 1, resource="b/mig-1g.10gb")
                )
            ],
            [
                "not-offered",
                "offered-instead offers=b/mig-1g.10gb (1 on a); b/mig-2g.10gb (1 on a)",
                "instances-by-setting",
            ],
        ),
        (WHOLE, [mig_view("a", shared=2), mig_view("b", shared=1)], ["not-offered", "instances-shared nodes=a, b"]),
        (
            "aliyun.com/mig-1g.10gb",
            [mig_view(f"n{n}", whole=1) for n in range(7)],
            [
                "not-offered",
                "offered-under where=1 on n0, 1 on n1, 1 on n2, 1 on n3, 1 on n4 and 2 more",
            ],
        ),
    ],
)
def test_a_profile_that_no_node_offers_is_told_with_those_that_are_offered_and_how_to_get_it(
    resource: str, nodes: list[NodeView], expected: list[str]
) -> None:
    assert of({resource: 1}, nodes) == expected


@pytest.mark.parametrize(
    ("name", "node", "expected"),
    [
        ("one", mig_view("a", with_instances("one", 0), whole=1), [f"{HAS} ill="]),
        ("one", None, []),
        (
            "two",
            mig_view("a", with_instances("one", 0), with_instances("two", asks=1), shared=1, whole=3),
            ["instance-unknown"],
        ),
        (
            "one",
            mig_view("a", with_instances("one", 0), whole=1, ill={0: "XID 94"}),
            [f"{HAS} ill=, which is unhealthy: XID 94"],
        ),
    ],
)
def test_a_pod_on_a_node_is_told_its_instances_or_that_they_are_not_known_yet(
    name: str, node: NodeView | None, expected: list[str]
) -> None:
    assert facts(held_instances(f"default/{name}", f"uid-{name}", node), "gpu instance ill") == expected


SMALL_ONES, LARGE_ONES = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest.mark.parametrize("others", [{"aliyun.com/gpu-mem": 2}, {"aliyun.com/gpu-count": 1}, {LARGE_ONES: 1}])
def test_a_container_cannot_use_instances_beside_other_devices(others: dict[str, int]) -> None:
    findings = asks_for_several([Container("main", ContainerKind.APP, 0, {SMALL_ONES: 1, **others})])
    both = " and ".join(sorted([*others, SMALL_ONES]))
    assert facts(findings, "container resources") == [f"several-resources container='main' resources={both}"]


def test_a_program_may_see_only_one_of_several_instances() -> None:
    findings = asks_for_several([Container("main", ContainerKind.APP, 0, {SMALL_ONES: 2})])
    assert facts(findings, "number resource") == [f"several-instances number=2 resource={SMALL_ONES}"]


@pytest.mark.parametrize(
    "limits",
    [{SMALL_ONES: 1}, {SMALL_ONES: 1, LARGE_ONES: 0}, {"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-count": 1}, {}],
)
def test_one_instance_in_a_container_is_right(limits: dict[str, int]) -> None:
    """And that gpu-mem and gpu-count together are wrong is told elsewhere."""
    assert list(asks_for_several([Container("main", ContainerKind.APP, 0, limits)])) == []


def test_why_no_node_gives_a_pod_its_instances_is_told_first() -> None:
    asks = Pod("u", "default", "web", containers=(Container("main", ContainerKind.APP, 0, {WHOLE: 1}),))
    told = why(asks, SchedulingStatus(), RESOURCES, [node_view("n", (8,))], most=5)
    assert " and ".join(map(str, told.asks)) == f"1 of {WHOLE}"
    assert told.facts[0].code == "not-offered"
    by_shares = replace(asks, containers=(Container("main", ContainerKind.APP, 0, {MEM: 1}),))
    assert "not-offered" not in {fact.code for fact in why(by_shares, SchedulingStatus(), RESOURCES, [], most=5).facts}
