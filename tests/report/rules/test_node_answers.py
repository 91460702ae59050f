"""Why a pod does not fit, in words."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpu_device_plugin.features.report_features import REPORT
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules import node_answers
from gpu_device_plugin.report.rules.extension import ReportPoints
from gpu_device_plugin.report.rules.finding import Finding, note
from gpu_device_plugin.report.rules.node_answers import describe, explain, explain_briefly
from gpu_device_plugin.report.rules.node_view import NodeView
from gpu_device_plugin.report.rules.pod_causes import Kept
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from tests.names import MEM
from tests.reporting import answers
from tests.resources import RESOURCES
from tests.views import node_view, pod_on


def wanting(*demands: Demand, preferences: GpuSelector | None = None) -> GpuRequest:
    parts = tuple(map(Part, demands))
    return GpuRequest(parts) if preferences is None else GpuRequest(parts, preferences)


def mem(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def whole(gpus: int) -> Demand:
    return Demand(Kind.COUNT, gpus)


def clauses(*words: str) -> tuple[Finding, ...]:
    return tuple(note("clause", each) for each in words)


def all_asked(
    ask: GpuRequest, nodes: Iterable[NodeView], kept: Mapping[str, Kept]
) -> Iterable[tuple[NodeView, GpuRequest, Kept]]:
    return [(node, ask, kept.get(node.name, Kept())) for node in nodes]


def told(ask: GpuRequest, *nodes: NodeView, most: int = 10, **besides: tuple[str, ...]) -> list[str]:
    kept = {name: Kept(besides=clauses(*why)) for name, why in besides.items()}
    return [*map(str, explain(answers(all_asked(ask, nodes, kept), "binpack", most), most))]


def order(ask: GpuRequest, *nodes: NodeView, excluded: str = "", **besides: tuple[str, ...]) -> list[str]:
    kept = {name: Kept(besides=clauses(*why)) for name, why in besides.items()} | {
        excluded: Kept(clauses("the pod wants another"))
    }
    return [answer.node.name for answer in answers(all_asked(ask, nodes, kept), "binpack", 10)]


def test_a_node_that_the_pod_excludes_comes_last_and_says_so() -> None:
    """One fits and is excluded, one never fits, one lacks 1 GiB."""
    nodes = node_view("a", (8,)), node_view("b", (2,)), node_view("c", (8,), pod_on("x", {0: 5}))
    assert order(wanting(mem(4)), *nodes, excluded="a") == ["c", "b", "a"]
    assert order(wanting(mem(4)), *nodes, excluded="b") == ["a", "c", "b"]
    kept = {"a": Kept(clauses("the pod requires the label")), "b": Kept(clauses("it is cordoned"), clauses("one more"))}
    lines = [*map(str, explain(answers(all_asked(wanting(mem(4)), nodes, kept), "binpack", 10), 10))]
    assert [line for line in lines if line[:3] in {"a: ", "b: ", "c: "} or "Besides" in line] == [
        "c: no GPU has 4 GiB free",
        "a: its GPUs have room, but the pod requires the label",
        "b: it is cordoned; the largest GPU has only 2 GiB",
        "  Besides, one more.",
    ]


def test_each_gpu_says_why_it_does_not_serve_and_who_is_on_it() -> None:
    """8 are wanted: GPU 0 has 5 free, GPU 1 is whole, GPU 2 is too small, GPU 3 is out of service."""
    there = node_view(
        "n",
        (15, 15, 7, 15),
        pod_on("a", {0: 4}, deleting=True),
        pod_on("ml/b", {0: 6}, priority=100),
        pod_on("train", None, 1),
        unhealthy={3: "XID 79: off the bus"},
    )
    both = "default/a (4 GiB, being deleted), ml/b (6 GiB)"
    assert told(wanting(mem(8)), there) == [
        "",
        "n: no GPU has 8 GiB free",
        "  GPU  UUID  MODEL     FREE             FOR THIS POD                    HELD BY",
        f"  0    0     Tesla T4  5 GiB of 15 GiB  too little free                 {both}",
        "  1    1     Tesla T4  none of 15 GiB   exclusively allocated           default/train (whole)",
        "  2    2     Tesla T4  7 GiB of 7 GiB   too small                       -",
        "  3    3     Tesla T4  none of 15 GiB   unhealthy: XID 79: off the bus  -",
        "  There would be room if this pod ended: default/a (4 GiB, priority 0, being deleted).",
    ]


def test_a_node_with_room_says_which_gpu_it_would_be() -> None:
    """Binpack takes GPU 1, which has less free."""
    there = node_view("n", (8, 8), pod_on("a", {1: 2}), share_mib=None)
    assert told(wanting(mem(4)), there, n=("it is cordoned", "it is not ready")) == [
        "",
        "n: its GPUs have room, but it is cordoned; it is not ready",
        "  GPU  UUID  MODEL  FREE    FOR THIS POD     HELD BY",
        "  0    -     -      8 of 8  has room         -",
        "  1    -     -      6 of 8  would be chosen  default/a (2)",
    ]
    assert told(wanting(mem(4)), there)[1] == "n: its GPUs have room"


def test_what_else_keeps_a_pod_away_stands_beside_what_is_lacking() -> None:
    lines = told(wanting(mem(9)), node_view("n", (8,)), n=("it is cordoned",))
    assert lines[1:3] == ["n: the largest GPU has only 8 GiB", "  Besides, it is cordoned."]
    assert lines[-1] == "  Even if all its pods ended, there would be no room."


def test_pods_on_unknown_gpus_are_named() -> None:
    there = node_view(
        "n",
        (8, 8),
        pod_on("lost", unassigned_usage=3, loose_gpus=1),
        pod_on("gone", {7: 2}),
        pod_on("x", loose_gpus=2),
    )
    lines = told(wanting(whole(1)), there)
    counts = "on an unknown GPU, and counts on every GPU that it may be on."
    assert lines[5:8] == [
        f"  default/gone has 2 GiB {counts}",
        f"  default/lost has 3 GiB and 1 whole {counts}",
        f"  default/x has 2 whole {counts}",
    ]
    assert lines[8] == (
        "  There would be room if these 3 pods ended: default/gone (2 GiB, priority 0), "
        "default/lost (3 GiB, 1 whole, priority 0), default/x (2 whole, priority 0)."
    )


def test_gpus_that_the_annotations_do_not_allow_say_so() -> None:
    ask = wanting(mem(4), preferences=GpuSelector(avoid_uuids=("GPU-0",)))
    lines = told(ask, node_view("n", (8, 8), pod_on("a", {1: 8})))
    assert [line.split("  ")[-2].strip() or line for line in lines[3:4]] == ["not allowed by its annotations"]
    assert "too little free" in lines[4]
    other = wanting(mem(4), preferences=GpuSelector(use_models=("A100",)))
    assert "not allowed by its annotations" in told(other, node_view("n", (8,)))[3]


def test_a_gpu_with_room_for_a_part_of_the_pod() -> None:
    """Containers of 8 and 4; GPU 0 has 5 free and GPU 1 has 3."""
    there = node_view("n", (8, 8), pod_on("a", {0: 3}), pod_on("b", {1: 5}))
    lines = told(wanting(mem(8), mem(4)), there)
    assert ("  has room for some of it  " in lines[3], "  too little free  " in lines[4]) == (True, True)


def test_a_node_whose_gpus_cannot_be_read_has_no_table() -> None:
    assert told(wanting(mem(4)), node_view("n", (), problem="its annotation is not JSON")) == [
        "",
        "n: its annotation is not JSON",
        "  Even if all its pods ended, there would be no room.",
    ]


def test_the_nearest_node_comes_first() -> None:
    """With room; with room but cordoned; fewest and then smallest pods to end; unresolvable."""
    nodes = [
        node_view("a", (7,)),
        node_view("b", (8,), pod_on("x", {0: 5}), pod_on("y", {0: 3})),
        node_view("c", (8,), pod_on("x", {0: 5})),
        node_view("d", (8,), pod_on("x", {0: 4})),
        node_view("e", (8,)),
        node_view("f", (8,)),
        node_view("g", (8,), pod_on("x", None, 0)),
    ]
    assert order(wanting(mem(8)), *nodes, e=("it is cordoned",)) == ["f", "e", "d", "c", "g", "b", "a"]
    assert order(wanting(whole(1)), *nodes[1:4]) == ["d", "c", "b"]


def behind_twenty_with_room(ask: GpuRequest, *nodes: NodeView) -> list[str]:
    """The order of nodes for which nobody finds out who would have to end: twenty others are nearer."""
    names = order(ask, *(node_view(f"room{n:02}", (8, 8)) for n in range(20)), *nodes)
    assert all(name.startswith("room") for name in names[:20])
    return names[20:]


def test_behind_the_nearest_the_nodes_that_lack_the_least_come_first() -> None:
    """8 are wanted: 6 are lacking on a, 3 on b, and all of them on c."""
    nodes = [node_view(name, (8,), pod_on("x", {0: shares})) for name, shares in (("a", 6), ("b", 3), ("c", 8))]
    assert behind_twenty_with_room(wanting(mem(8)), *nodes) == ["b", "a", "c"]


def test_what_two_containers_lack_is_added_up() -> None:
    """6 and 6 are wanted. On a the emptiest GPU has 5, which is one too little for each; on b it has 6."""
    nodes = [node_view(name, (8, 8), pod_on("x", {0: 8, 1: n})) for name, n in (("a", 3), ("b", 2))]
    assert behind_twenty_with_room(wanting(mem(6), mem(6)), *nodes) == ["b", "a"]


def test_a_whole_gpu_that_is_lacking_counts_as_large_as_the_largest() -> None:
    """Two are wanted. Lacking are two of 8 on a, one of 8 on b, two of 3 on c and one of 24 on d."""
    nodes = [
        node_view("a", (8, 8), pod_on("x", {0: 1, 1: 1})),
        node_view("b", (8, 8), pod_on("x", {0: 1})),
        node_view("c", (3, 3), pod_on("x", {0: 1, 1: 1})),
        node_view("d", (24, 1), pod_on("x", {1: 1})),
    ]
    assert behind_twenty_with_room(wanting(whole(2)), *nodes) == ["c", "b", "a", "d"]


def test_nothing_is_lacking_where_each_container_alone_has_room() -> None:
    """One GPU and 3 shares are wanted. On a no unused GPU; on b GPU 0 would serve either, but not both."""
    nodes = [node_view("a", (4, 4), pod_on("x", {0: 1, 1: 1})), node_view("b", (8, 8), pod_on("x", {1: 8}))]
    assert behind_twenty_with_room(wanting(whole(1), mem(3)), *nodes) == ["b", "a"]


def test_of_many_nodes_only_the_nearest_are_told_one_by_one() -> None:
    """60 nodes of which one has room, 39 have none and 20 are too small."""
    nodes = [node_view(f"n{n:02}", (8,), pod_on("x", {0: 8})) for n in range(39)]
    nodes += [node_view(f"s{n:02}", (4,)) for n in range(20)]
    lines = told(wanting(mem(8)), *nodes, node_view("room", (8,)), most=2)
    assert lines[:8] == [
        "",
        "60 nodes share GPUs:",
        "  39  no GPU has 8 GiB free",
        "  20  the largest GPU has only 4 GiB",
        "  1   its GPUs have room",
        "",
        "The nearest 2 of them:",
        "",
    ]
    assert [line for line in lines[8:] if line and line[0] != " "] == [
        "room: its GPUs have room",
        "n00: no GPU has 8 GiB free",
    ]


def demand(*of: Any) -> str:
    """Return the words of a demand."""
    return " and ".join(map(str, describe(*of)))


def test_what_a_pod_asks_is_said_in_memory_where_shares_are_of_one_size() -> None:
    one = [node_view("a", (8,)), node_view("broken", (), share_mib=None)]
    assert demand(wanting(mem(8)), RESOURCES, one) == "8 GiB of one GPU"
    assert demand(wanting(mem(8, 2), whole(1)), RESOURCES, one) == ("8 GiB split evenly over 2 GPUs and one whole GPU")
    two = [*one, node_view("b", (8,), share_mib=256)]
    assert demand(wanting(mem(8), whole(2)), RESOURCES, two) == f"{MEM}: 8 of one GPU and 2 whole GPUs"
    assert demand(wanting(mem(8)), RESOURCES, [node_view("b", (8,), share_mib=None)]) == f"{MEM}: 8 of one GPU"


# --- In one screen ----------------------------------------------------------------------------------------------------


def briefly(ask: GpuRequest, *nodes: NodeView, height: int = 22, **besides: tuple[str, ...]) -> list[str]:
    kept = {name: Kept(besides=clauses(*why)) for name, why in besides.items()}
    return explain_briefly(answers(all_asked(ask, nodes, kept), "binpack", 10), height)


def test_of_one_node_gpus_with_equal_verdicts_share_a_line() -> None:
    there = node_view(
        "n",
        (15,) * 4,
        pod_on("a", {0: 9}),
        pod_on("b", {1: 9}),
        pod_on("c", None, 2),
        pod_on("d", unassigned_usage=1),
    )
    assert briefly(wanting(mem(8)), there, n=("its agent restarts",)) == [
        "",
        "n: its GPUs have room, but its agent restarts",
        "  GPU 0-1  Tesla T4  5 GiB of 15 GiB free   too little free",
        "  GPU 2    Tesla T4  none of 15 GiB free    exclusively allocated",
        "  GPU 3    Tesla T4  14 GiB of 15 GiB free  would be chosen",
        "  default/d has 1 GiB on an unknown GPU, and counts on every GPU that it may be on.",
    ]


def test_of_many_nodes_reasons_are_counted_whatever_their_numbers_and_the_nearest_told() -> None:
    full = [node_view(f"full-{at:03}", (15,), pod_on(f"a{at}", {0: 10})) for at in range(600)]
    small = [node_view(f"small-{at:03}", (2 + at % 5,)) for at in range(400)]
    lines = briefly(wanting(mem(8)), *full, *small)
    assert lines[:4] == [
        "",
        "1000 nodes share GPUs:",
        "  600  no GPU has 8 GiB free",
        "  400  the largest GPU has only … GiB",
    ]
    assert lines[5] == "full-000: no GPU has 8 GiB free"
    assert lines[7] == "  There would be room if this pod ended: default/a0 (10 GiB, priority 0)."
    assert lines[-1] == "996 more nodes: --all-nodes shows each, GPU by GPU."
    assert len(lines) <= 22


def test_in_a_very_small_terminal_the_nearest_node_is_told_all_the_same() -> None:
    nodes = [
        node_view("a", (7,)),
        node_view("b", (15,), pod_on("x", {0: 10})),
        node_view("c", (15,), unhealthy={0: "XID"}),
    ]
    lines = briefly(wanting(mem(8)), *nodes, height=3, b=("it is odd",))
    assert lines[2:4] == ["  1  no GPU has 8 GiB free", "  2  for other reasons"]
    assert "  Besides, it is odd." in lines
    assert lines[-1] == "2 more nodes: --all-nodes shows each, GPU by GPU."
    assert briefly(wanting(mem(8)), *nodes[:2], height=3)[-1] == "1 more node: --all-nodes shows each, GPU by GPU."


def test_no_gpu_is_named_where_the_extender_chooses_by_what_it_has_learned() -> None:
    """Binpack would take GPU 1; by the pods that come, the policy `fit` may take either. One alone is no choice."""

    def verdicts(policy: str, *sizes: int, preferences: GpuSelector | None = None) -> list[str]:
        there = node_view("n", sizes, pod_on("a", {1: 2}), share_mib=None)
        lines = [*map(str, explain(answers([(there, wanting(mem(4), preferences=preferences), Kept())], policy, 1), 1))]
        return [" ".join(line.split()[6:8]) for line in lines[3:]]

    assert verdicts("binpack", 8, 8) == ["has room", "would be"]
    assert verdicts("fit", 8, 8) == ["has room", "has room"]
    assert verdicts("fit", 3, 8) == ["too small", "would be"]
    assert verdicts("fit", 8, 8, preferences=GpuSelector(gpu_policy="spread")) == ["would be", "has room"]


def test_where_kube_scheduler_allocates_no_room_is_promised_and_no_gpu_chosen() -> None:
    """Node a serves claims, node b limits."""
    a, b = node_view("a", (8,)), node_view("b", (8,))
    gpus = replace(a.candidate.gpus, claims=True, problem=BY_CLAIMS)
    a = replace(a, candidate=replace(a.candidate, gpus=gpus))
    lines = told(wanting(whole(1)), a, b, a=("it is cordoned",))
    assert [line for line in lines if line[:3] in {"a: ", "b: "}] == [
        "b: its GPUs have room",
        "a: kube-scheduler allocates its GPUs through ResourceClaims (DRA), but it is cordoned",
    ]
    assert "".join(lines).count("would be chosen") == 1
    assert f"a: {BY_CLAIMS}" in told(wanting(mem(4)), a, b)


def test_without_the_feature_that_knows_nothing_is_said_of_pods_that_would_have_to_end() -> None:
    asked = [(node_view("a", (8,), pod_on("p", {0: 8})), GpuRequest((Part(Demand(Kind.MEMORY, 4)),)), Kept())]
    for features, said in ((REPORT, True), (ReportPoints(), False)):
        told = "\n".join(map(str, explain(node_answers.answers(asked, "binpack", 1, features), 1)))
        assert ("There would be room if this pod ended" in told) is said
