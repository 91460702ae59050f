"""What the rules say of one node is cached for thousands, until a node changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.learning.rules.marginal_value import shape_of
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import NO_LINKS, Closeness, Links
from gpu_device_plugin.model.placing import POLICIES, Demand
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts, Kind
from gpu_device_plugin.scheduler.node_evaluator import UNKNOWN, UNTRIED, NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.scores import score
from tests.searches import learn
from tests.work import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpu_device_plugin.features.learning.rules.price_learning import Tables
    from gpu_device_plugin.scheduler.rules.fitting import FilterFailure

ROOM = Amounts(32_000, 131_072)


def node(
    name: str,
    used: Mapping[int, int] | None = None,
    *,
    sizes: Sequence[int] = (16, 16),
    models: Sequence[str] = (),
    requested: Amounts = NO_AMOUNTS,
    whole: Sequence[int] = (),
    links: Links = NO_LINKS,
    claims: bool = False,
) -> Candidate:
    """Return a node of 32 CPUs with shares in use by position, and GPUs in whole use; or one that serves claims."""
    listed = zip(sizes, models or ["T4"] * len(sizes), strict=True)
    gpus = NodeGpus(
        tuple(ListedGpu(at, size, f"{name}-{at}", model) for at, (size, model) in enumerate(listed)),
        share_mib=1024,
        links=links,
        claims=claims,
        problem=BY_CLAIMS if claims else "",
    )
    return candidate(name, gpus, [Usage(tuple((used or {}).items()), tuple(whole))], ROOM, [requested])


def view(nodes: Iterable[Candidate] = ()) -> View:
    made = View(lambda: None)
    for each in nodes:
        made.put(each.name, each)
    return made


def memory(*shares: int, gpus: int = 1) -> tuple[Part, ...]:
    return tuple(Part(Demand(Kind.MEMORY, amount, gpus)) for amount in shares)


def whole(gpus: int = 1) -> tuple[Part, ...]:
    return (Part(Demand(Kind.COUNT, gpus)),)


def verdicts(evaluator: NodeEvaluator, ask: GpuRequest, nodes: Iterable[Candidate]) -> list[FilterFailure | None]:
    return list(evaluator.verdicts(ask, [each.name for each in nodes]))


def scores(
    evaluator: NodeEvaluator,
    ask: GpuRequest,
    nodes: Iterable[Candidate],
    node_policy: str = "binpack",
    gpu_policy: str = "binpack",
) -> list[int]:
    return list(evaluator.scores(ask, [each.name for each in nodes], node_policy, gpu_policy))


# --- What is cached ---------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
NODES = (
    None,
    node("", {0: 11}),
    node("", {0: 16}, whole=[1]),
    node("", sizes=(8, 16, 16), models=("T4", "T4", "A10")),
    node("", {1: 3}, sizes=(8, 16, 16), models=("T4", "T4", "A10")),
    node("", sizes=()),
    node("", claims=True),
)
"""What a node may be at one moment."""
PODS = (
    GpuRequest(memory(4)),
    GpuRequest(memory(5, 3)),
    GpuRequest(memory(8), GpuSelector(avoid_models=("A10",))),
    GpuRequest(memory(8, gpus=2), GpuSelector(gpu_policy="spread")),
    GpuRequest(whole(2)),
    GpuRequest((*whole(), *memory(12))),
    GpuRequest(),
)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NODES)),
            st.lists(st.sampled_from(PODS), max_size=3),
            st.sampled_from(sorted(POLICIES)),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_node_is_judged_as_it_is_now_whatever_it_was_before(
    rounds: list[tuple[dict[str, Candidate | None], list[GpuRequest], str]],
) -> None:
    """Nodes come, change and go, and come again in another's row; pods are asked about again after more or less."""
    nodes = view()
    evaluator = NodeEvaluator(nodes)
    for changes, pods, policy in rounds:
        for name, state in changes.items():
            nodes.put(name, None if state is None else replace(state, name=name))
        there = [nodes.candidates.get(name) for name in NAMES]
        for ask in pods:
            assert list(evaluator.verdicts(ask, NAMES)) == [UNKNOWN if it is None else unfit(ask, it) for it in there]
            assert list(evaluator.scores(ask, NAMES, policy, policy)) == [
                0 if it is None else score(ask, it, policy, policy) for it in there
            ]


def test_after_more_changes_than_are_logged_every_node_is_judged_again() -> None:
    nodes = view([node("a"), node("gone")])
    evaluator = NodeEvaluator(nodes)
    assert list(evaluator.verdicts(GpuRequest(memory(16)), ["a", "gone"])) == [None, None]
    nodes.put("gone", None)
    nodes.put("a", node("a", {0: 1, 1: 1}))
    for number in range(10_001):
        nodes.put(f"n{number}", node("n", sizes=()))
    answers = evaluator.verdicts(GpuRequest(memory(16)), ["a", "gone", "n1"])
    assert answers[0] == unfit(GpuRequest(memory(16)), node("a", {0: 1, 1: 1}))
    assert answers[1] == UNKNOWN
    assert answers[2] == unfit(GpuRequest(memory(16)), node("n", sizes=()))


def test_a_node_that_is_not_known_fits_no_pod() -> None:
    evaluator = NodeEvaluator(view())
    assert evaluator.verdicts(GpuRequest(memory(1)), ["a"]) == [UNKNOWN]
    assert evaluator.scores(GpuRequest(memory(1)), ["a"], "binpack", "binpack") == [0]
    assert repr(evaluator) == "<NodeEvaluator: 0 nodes, remembers 1 pods>"


def test_the_pods_asked_about_last_are_remembered() -> None:
    """More pods than are remembered; the answers stay right."""
    evaluator = NodeEvaluator(view([node("a", {0: 3}, sizes=(8,))]))
    for _ in range(2):
        fitting = [shares for shares in range(1, 90) if evaluator.verdicts(GpuRequest(memory(shares)), ["a"]) == [None]]
        assert fitting == [1, 2, 3, 4, 5]
    assert repr(evaluator) == "<NodeEvaluator: 1 nodes, remembers 64 pods>"


# --- How much one request tries ---------------------------------------------------------------------------------------

MANY = GpuRequest(memory(*range(1, 17)))
"""Sixteen containers that want 136 shares together."""


def different_nodes(*, unwanted: bool = False) -> list[Candidate]:
    """Return a thousand nodes with room for `MANY` on four GPUs, none like another; or with a fifth of model b."""
    all_sizes = [(34 + a, 54 + b, 74 + c, 33) for a in range(10) for b in range(10) for c in range(10)]
    more, models = ((200,), ("a", "a", "a", "a", "b")) if unwanted else ((), ())
    return [node(f"node-{number}", sizes=(*sizes, *more), models=models) for number, sizes in enumerate(all_sizes)]


def test_what_is_not_tried_in_time_does_not_pass_and_the_next_request_comes_further() -> None:
    nodes = different_nodes()
    evaluator = NodeEvaluator(view(nodes))
    right = [unfit(MANY, each) for each in nodes]
    values = [score(MANY, each, "binpack", "binpack") for each in nodes]
    untried = [len(nodes) + 1]
    while untried[-1]:
        found = verdicts(evaluator, MANY, nodes)
        assert all(answer in (UNTRIED, expected) for answer, expected in zip(found, right, strict=True))
        assert all(one in (0, other) for one, other in zip(scores(evaluator, MANY, nodes), values, strict=True))
        untried.append(found.count(UNTRIED))
        assert untried[-1] < untried[-2]
    assert len(untried) > 3
    assert scores(evaluator, MANY, nodes) == values
    assert not UNTRIED.unresolvable


def test_nodes_of_which_only_some_gpus_are_allowed_are_not_tried_for_longer() -> None:
    picky = GpuRequest(MANY.parts, GpuSelector(avoid_models=("b",)))
    nodes = different_nodes(unwanted=True)[::5]
    evaluator = NodeEvaluator(view(nodes))
    right = [unfit(picky, each) for each in nodes]
    seen = [verdicts(evaluator, picky, nodes) for _ in range(20)]
    assert UNTRIED in seen[0]
    assert seen[-1] == right


def test_nodes_with_as_much_room_are_tried_once() -> None:
    """Five thousand of one kind: there is no time to try all of them, and no need."""
    first = different_nodes()[0]
    nodes = [replace(first, name=f"node-{number}") for number in range(5000)]
    assert set(verdicts(NodeEvaluator(view(nodes)), MANY, nodes)) == {unfit(MANY, first)}


def test_groups_for_which_there_is_no_time_are_scored_as_if_they_were_not_connected() -> None:
    """Two GPUs of three, each node with links of its own. Two thirds full then: 4 of 6 points, and 4 for NVLink."""
    nodes = [
        node(
            f"node-{number}",
            sizes=(8, 8, 8),
            links=Links(((0, 1, Closeness.NVLINK, 1 + number % 90), (1, 2, Closeness.NODE, number // 90))),
        )
        for number in range(500)
    ]
    evaluator = NodeEvaluator(view(nodes))
    seen = [scores(evaluator, GpuRequest(whole(2)), nodes) for _ in range(4)]
    assert {score(GpuRequest(whole(2)), each, "binpack", "binpack") for each in nodes} == {8}
    assert set(seen[0]) == {8, 4}
    assert seen[0].count(8) < seen[1].count(8)
    assert seen[-1] == [8] * 500


# --- The policy fit ---------------------------------------------------------------------------------------------------

MIX = {PodKind(3, 1, 2000, 8192): 3.0, PodKind(8, 1, 4000, 16384): 1.0, PodKind(0, 2, 16000, 65536): 0.5}


def learned(nodes: Iterable[Candidate], mix: Mapping[PodKind, float] = MIX) -> Tables:
    """Return what a mix teaches on these nodes."""
    node_types = [shape_of(each) for each in nodes]
    return learn(mix, {node_type: node_types.count(node_type) for node_type in node_types if node_type.sizes})


def learn_at_once(evaluator: NodeEvaluator, tables: Tables | None) -> None:
    for _ in evaluator.learned(tables):
        pass


def judging(nodes: Sequence[Candidate], mix: Mapping[PodKind, float] = MIX) -> NodeEvaluator:
    evaluator = NodeEvaluator(view(nodes))
    learn_at_once(evaluator, learned(nodes, mix))
    return evaluator


def fits(evaluator: NodeEvaluator, ask: GpuRequest, names: str, amounts: Amounts = NO_AMOUNTS) -> list[int]:
    """Return the scores by the policy `fit`."""
    return list(evaluator.scores(ask, names.split(), "fit", "fit", amounts))


def test_until_something_is_learned_fit_scores_like_binpack() -> None:
    nodes = [node("a", {0: 8}), node("b")]
    evaluator = NodeEvaluator(view(nodes))
    assert fits(evaluator, GpuRequest(memory(4)), "a b") == scores(evaluator, GpuRequest(memory(4)), nodes)
    assert fits(evaluator, GpuRequest(), "a b", Amounts(4000)) == [0, 0]


def test_a_pod_that_wants_another_policy_gets_it() -> None:
    """Spread gives the empty node 10 - 10 * 4/32 = 9, and the half full one 10 - 10 * 20/32 = 4."""
    evaluator = judging([node("a", {0: 16}), node("b")])
    assert fits(evaluator, GpuRequest(memory(4), GpuSelector(node_policy="spread")), "a b") == [4, 9]


def test_the_rest_of_a_gpu_that_nothing_else_fits_is_filled_first() -> None:
    """Pods of 5 and 11 come, of a GPU of 16. A rest of 5 serves only the small pod; another GPU serves both."""
    mix = {PodKind(5, 1): 1.0, PodKind(11, 1): 1.0}
    evaluator = judging([node("rest", {0: 11, 1: 16}), node("whole", {1: 16})], mix)
    assert fits(evaluator, GpuRequest(memory(5)), "rest whole") == [10, 0]


def test_free_shares_into_which_no_usual_pod_fits_are_stranded() -> None:
    """Pods of 5 and 11 come, of GPUs of 16: of 3 free shares all are stranded, of 16 none."""
    nodes = [node("rest", {0: 13, 1: 16}), node("full", {0: 16, 1: 16}), node("free")]
    evaluator = judging(nodes, {PodKind(5, 1): 1.0, PodKind(11, 1): 1.0})
    assert {each.name: round(shares, 6) for each, shares in evaluator.stranded()} == {
        "rest": 3.0,
        "full": 0.0,
        "free": 0.0,
    }
    assert list(NodeEvaluator(view(nodes)).stranded()) == []


def test_without_cpu_for_the_pods_that_come_all_free_shares_are_stranded() -> None:
    nodes = [node("a"), node("b")]
    evaluator = judging(nodes, {PodKind(5, 1, 4000): 1.0})
    poor = [replace(each, left=Amounts(1000, 1 << 22)) for each in nodes]
    without = NodeEvaluator(view(poor))
    learn_at_once(without, learned(poor, {PodKind(5, 1, 4000): 1.0}))
    assert all(shares < 1 for _, shares in evaluator.stranded())
    assert [round(shares) for _, shares in without.stranded()] == [32, 32]


def test_unused_gpus_that_pods_of_several_want_are_not_stranded() -> None:
    """Nothing but pods of two whole GPUs comes: with one of two unused there is none."""
    evaluator = judging([node("both"), node("one", {0: 4})], {PodKind(0, 2): 1.0})
    assert {each.name: round(shares) for each, shares in evaluator.stranded()} == {"both": 0, "one": 28}


def test_a_node_that_is_not_known_and_one_without_room_score_nothing() -> None:
    evaluator = judging([node("full", {0: 16, 1: 16}), node("free")])
    assert fits(evaluator, GpuRequest(memory(4)), "free nobody full") == [10, 0, 0]
    assert fits(evaluator, GpuRequest(memory(4)), "nobody") == [0]
    assert fits(evaluator, GpuRequest(memory(4)), "") == []
    assert fits(judging([]), GpuRequest(memory(4)), "a") == [0]


def test_a_node_of_a_new_shape_scores_nothing_until_it_is_learned() -> None:
    nodes = view([node("a")])
    evaluator = NodeEvaluator(nodes)
    learn_at_once(evaluator, learned([node("a")]))
    before = evaluator.outdated
    large = node("large", sizes=(80, 80, 80), models=("H100",) * 3)
    nodes.put("large", large)
    assert fits(evaluator, GpuRequest(memory(4)), "a large") == [10, 0]
    assert fits(evaluator, GpuRequest(), "a large") == [10, 0]
    assert (before, evaluator.outdated) == (False, True)
    assert evaluator.node_types() == {shape_of(node("a")): 1, shape_of(large): 1}
    learn_at_once(evaluator, learned([node("a"), large]))
    assert not evaluator.outdated
    assert fits(evaluator, GpuRequest(memory(40)), "a large") == [0, 10]


def test_nodes_without_gpus_teach_nothing_and_are_no_reason_to_learn_again() -> None:
    nodes = view([node("a")])
    evaluator = NodeEvaluator(nodes)
    learn_at_once(evaluator, learned([node("a")]))
    nodes.put("cpu", node("cpu", sizes=()))
    nodes.put("a", node("a", {0: 1}))
    assert (evaluator.outdated, evaluator.node_types()) == (False, {shape_of(node("a")): 1})
    nodes.put("a", None)
    assert evaluator.node_types() == {}


def test_of_equal_nodes_the_one_with_the_closest_gpus_is_best() -> None:
    """All have three unused GPUs; NVLink connects two of near."""
    links = Links(((0, 1, Closeness.NVLINK, 2), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    plain = Links(((0, 1, Closeness.NODE, 0), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    nodes = [node(name, sizes=(16,) * 3, links=links if name == "near" else plain) for name in ("far", "near", "away")]
    evaluator = judging(nodes)
    assert fits(evaluator, GpuRequest(whole(2)), "far near away") == [9, 10, 9]
    assert fits(evaluator, GpuRequest(whole(1)), "far near away") == [10, 10, 10]


def test_what_a_pod_requests_decides_too() -> None:
    """With 30 CPUs it has room on one node only, whose score is then the best."""
    evaluator = judging([node("busy", {0: 8}, requested=Amounts(16_000)), node("idle")])
    assert fits(evaluator, GpuRequest(memory(4)), "busy idle", Amounts(1000))[0] == 10
    assert fits(evaluator, GpuRequest(memory(4)), "busy idle", Amounts(30_000)) == [0, 10]
    for cpus in range(20):
        fits(evaluator, GpuRequest(memory(4)), "busy idle", Amounts(cpus * 1000))
    assert fits(evaluator, GpuRequest(memory(4)), "busy idle", Amounts(30_000)) == [0, 10]


@pytest.mark.parametrize(
    ("several", "largest"),
    [(GpuRequest(memory(1, 4, 2)), GpuRequest(memory(4))), (GpuRequest((*memory(5), *whole())), GpuRequest(whole()))],
    ids=["memory", "a whole GPU"],
)
def test_a_pod_of_several_containers_is_appraised_by_its_largest_part_with_all_cpu(
    several: GpuRequest, largest: GpuRequest
) -> None:
    evaluator = judging([node("a", {0: 4}), node("b"), node("c", {0: 9}, requested=Amounts(20_000))])
    assert fits(evaluator, several, "a b c", Amounts(4000)) == fits(evaluator, largest, "a b c", Amounts(4000))


def test_a_pod_without_gpus_belongs_on_a_node_without_gpus() -> None:
    """On busy it takes CPU beside GPUs that are taken anyway, on idle beside GPUs that need it."""
    mix = {PodKind(8, 1, 8000): 1.0, PodKind(0, 0, 4000): 1.0}
    evaluator = judging([node("cpu", sizes=()), node("busy", {0: 16, 1: 16}), node("idle")], mix)
    cpu, busy, idle, nobody = fits(evaluator, GpuRequest(), "cpu busy idle nobody", Amounts(4000))
    assert cpu == 10 > busy > idle
    assert nobody == 0


def test_nodes_that_serve_claims_are_in_the_middle_and_change_no_other_score() -> None:
    """Shares fit there not at all. Nothing is learned for their GPUs, which no limit can ask for."""
    nodes = [node("a", {0: 8}), node("b"), node("c", {0: 4, 1: 4})]
    served = node("served", sizes=(80,), models=("H100",), claims=True)
    alone, evaluator = judging(nodes), judging([*nodes, served])
    for ask, there in ((GpuRequest(whole()), 5), (GpuRequest(memory(4)), 0), (GpuRequest(), 5)):
        assert fits(evaluator, ask, "a b c served") == [*fits(alone, ask, "a b c"), there]
    assert evaluator.node_types() == alone.node_types()
    assert not evaluator.outdated


def test_taking_over_what_was_learned_is_many_small_steps() -> None:
    """300 nodes of 60 shapes, whose tables have 17 levels; until the last step the old tables are in force."""
    nodes = [node(f"n{at}", sizes=(40 + at % 60,) * 4, models=(f"model {at % 60}",) * 4) for at in range(300)]
    tables = learned(nodes, {PodKind(1 + at, 1, 1000 * at): 1.0 for at in range(17)})
    evaluator = NodeEvaluator(view(nodes))
    evaluator.prepare()
    steps = evaluator.learned(tables)
    before = fits(evaluator, GpuRequest(memory(4)), "n0 n59")
    taken = 0
    while True:
        with counted(6000):
            try:
                next(steps)
            except StopIteration:
                break
        assert fits(evaluator, GpuRequest(memory(4)), "n0 n59") == before
        taken += 1
    assert taken > 15
    assert fits(evaluator, GpuRequest(memory(4)), "n0 n59") != before
    assert not evaluator.outdated


def test_a_node_that_comes_while_tables_are_taken_over_is_appraised_too() -> None:
    nodes = view([node(f"n{at}") for at in range(40)])
    evaluator, tables = NodeEvaluator(nodes), learned([node("a")])
    steps = evaluator.learned(tables)
    next(steps)
    nodes.put("b", node("b", {0: 11}))
    nodes.put("new", node("new", sizes=(80, 80, 80), models=("H100",) * 3))
    evaluator.prepare()
    for _ in steps:
        pass
    assert evaluator.outdated
    afterwards = NodeEvaluator(nodes)
    learn_at_once(afterwards, tables)
    both = [fits(each, GpuRequest(memory(5), NO_PREFERENCES), "n0 b new") for each in (evaluator, afterwards)]
    assert both == [[0, 10, 0]] * 2
