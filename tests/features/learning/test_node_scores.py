"""By what was learned thousands of nodes are scored, each again only when it has changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from gpu_device_plugin.features.learning.node_scores import NodeScores, NodeTypes
from gpu_device_plugin.features.learning.rules.marginal_value import shape_of
from gpu_device_plugin.features.learning.rules.price_learning import Tables
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.resources import NO_AMOUNTS, Amounts
from gpu_device_plugin.scheduler.node_evaluator import NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.changes import View
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from tests.scheduler.candidates import memory, node, view, whole
from tests.searches import learn
from tests.work import counted

MIX = {PodKind(3, 1, 2000, 8192): 3.0, PodKind(8, 1, 4000, 16384): 1.0, PodKind(0, 2, 16000, 65536): 0.5}


def learned(nodes: Iterable[Candidate], mix: Mapping[PodKind, float] = MIX) -> Tables:
    """Return what a mix teaches on these nodes."""
    node_types = [shape_of(each) for each in nodes]
    return learn(mix, {node_type: node_types.count(node_type) for node_type in node_types if node_type.sizes})


def scoring(nodes: View) -> NodeScores:
    evaluator = NodeEvaluator(nodes)
    evaluator.ranker = scored = NodeScores(evaluator)
    return scored


def learn_at_once(scored: NodeScores, tables: Tables | None) -> None:
    for _ in scored.learned(tables):
        pass


def judging(nodes: Sequence[Candidate], mix: Mapping[PodKind, float] = MIX) -> NodeScores:
    scored = scoring(view(nodes))
    learn_at_once(scored, learned(nodes, mix))
    return scored


def fits(scored: NodeScores, ask: GpuRequest, names: str, amounts: Amounts = NO_AMOUNTS) -> list[int]:
    """Return the scores by the policy `fit`."""
    return list(scored.evaluator.scores(ask, names.split(), "fit", "fit", amounts))


def best(scored: NodeScores, ask: GpuRequest, names: str, amounts: Amounts = NO_AMOUNTS) -> list[str]:
    """Return the best nodes by the policy `fit`."""
    return scored.evaluator.best(scored.evaluator.search(ask, names.split()), "fit", "fit", amounts)


def test_until_something_is_learned_fit_scores_like_binpack() -> None:
    nodes = [node("a", {0: 8}), node("b")]
    scored = scoring(view(nodes))
    assert fits(scored, GpuRequest(memory(4)), "a b") == list(
        NodeEvaluator(view(nodes)).scores(GpuRequest(memory(4)), ["a", "b"], "binpack", "binpack")
    )
    assert fits(scored, GpuRequest(), "a b", Amounts(4000)) == [0, 0]


def test_a_pod_that_wants_another_policy_gets_it() -> None:
    """Spread gives the empty node 10 - 10 * 4/32 = 9, and the half full one 10 - 10 * 20/32 = 4."""
    scored = judging([node("a", {0: 16}), node("b")])
    assert fits(scored, GpuRequest(memory(4), GpuSelector(node_policy="spread")), "a b") == [4, 9]


def test_the_rest_of_a_gpu_that_nothing_else_fits_is_filled_first() -> None:
    """Pods of 5 and 11 come, of a GPU of 16. A rest of 5 serves only the small pod; another GPU serves both."""
    mix = {PodKind(5, 1): 1.0, PodKind(11, 1): 1.0}
    scored = judging([node("rest", {0: 11, 1: 16}), node("whole", {1: 16})], mix)
    assert fits(scored, GpuRequest(memory(5)), "rest whole") == [10, 0]
    assert best(scored, GpuRequest(memory(5)), "whole rest") == ["rest"]


def test_free_shares_into_which_no_usual_pod_fits_are_stranded() -> None:
    """Pods of 5 and 11 come, of GPUs of 16: of 3 free shares all are stranded, of 16 none."""
    nodes = [node("rest", {0: 13, 1: 16}), node("full", {0: 16, 1: 16}), node("free")]
    scored = judging(nodes, {PodKind(5, 1): 1.0, PodKind(11, 1): 1.0})
    assert {each.name: round(shares, 6) for each, shares in scored.stranded()} == {
        "rest": 3.0,
        "full": 0.0,
        "free": 0.0,
    }
    assert list(scoring(view(nodes)).stranded()) == []


def test_without_cpu_for_the_pods_that_come_all_free_shares_are_stranded() -> None:
    nodes = [node("a"), node("b")]
    scored = judging(nodes, {PodKind(5, 1, 4000): 1.0})
    poor = [replace(each, left=Amounts(1000, 1 << 22)) for each in nodes]
    without = scoring(view(poor))
    learn_at_once(without, learned(poor, {PodKind(5, 1, 4000): 1.0}))
    assert all(shares < 1 for _, shares in scored.stranded())
    assert [round(shares) for _, shares in without.stranded()] == [32, 32]


def test_unused_gpus_that_pods_of_several_want_are_not_stranded() -> None:
    """Nothing but pods of two whole GPUs comes: with one of two unused there is none."""
    scored = judging([node("both"), node("one", {0: 4})], {PodKind(0, 2): 1.0})
    assert {each.name: round(shares) for each, shares in scored.stranded()} == {"both": 0, "one": 28}


def test_a_node_that_is_not_known_and_one_without_room_score_nothing() -> None:
    scored = judging([node("full", {0: 16, 1: 16}), node("free")])
    assert fits(scored, GpuRequest(memory(4)), "free nobody full") == [10, 0, 0]
    assert fits(scored, GpuRequest(memory(4)), "nobody") == [0]
    assert fits(scored, GpuRequest(memory(4)), "") == []
    assert fits(judging([]), GpuRequest(memory(4)), "a") == [0]


def test_a_node_of_a_new_shape_scores_nothing_until_it_is_learned() -> None:
    nodes = view([node("a")])
    scored = scoring(nodes)
    learn_at_once(scored, learned([node("a")]))
    before = scored.outdated
    large = node("large", sizes=(80, 80, 80), models=("H100",) * 3)
    nodes.put("large", large)
    assert fits(scored, GpuRequest(memory(4)), "a large") == [10, 0]
    assert fits(scored, GpuRequest(), "a large") == [10, 0]
    assert (before, scored.outdated) == (False, True)
    assert scored.node_types() == {shape_of(node("a")): 1, shape_of(large): 1}
    learn_at_once(scored, learned([node("a"), large]))
    assert not scored.outdated
    assert fits(scored, GpuRequest(memory(40)), "a large") == [0, 10]


def test_nodes_without_gpus_teach_nothing_and_are_no_reason_to_learn_again() -> None:
    nodes = view([node("a")])
    scored = scoring(nodes)
    learn_at_once(scored, learned([node("a")]))
    nodes.put("cpu", node("cpu", sizes=()))
    nodes.put("a", node("a", {0: 1}))
    assert (scored.outdated, scored.node_types()) == (False, {shape_of(node("a")): 1})
    nodes.put("a", None)
    assert scored.node_types() == {}


def test_of_equal_nodes_the_one_with_the_closest_gpus_is_best() -> None:
    """All have three unused GPUs; NVLink connects two of near."""
    links = Links(((0, 1, Closeness.NVLINK, 2), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    plain = Links(((0, 1, Closeness.NODE, 0), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    nodes = [node(name, sizes=(16,) * 3, links=links if name == "near" else plain) for name in ("far", "near", "away")]
    scored = judging(nodes)
    assert fits(scored, GpuRequest(whole(2)), "far near away") == [9, 10, 9]
    assert best(scored, GpuRequest(whole(2)), "far near away") == ["near"]
    assert best(scored, GpuRequest(whole(1)), "far near away") == ["far", "near", "away"]
    assert fits(scored, GpuRequest(whole(1)), "far near away") == [10, 10, 10]


def test_what_a_pod_requests_decides_too() -> None:
    """With 30 CPUs it has room on one node only, whose score is then the best."""
    scored = judging([node("busy", {0: 8}, requested=Amounts(16_000)), node("idle")])
    assert fits(scored, GpuRequest(memory(4)), "busy idle", Amounts(1000))[0] == 10
    assert fits(scored, GpuRequest(memory(4)), "busy idle", Amounts(30_000)) == [0, 10]
    for cpus in range(20):
        fits(scored, GpuRequest(memory(4)), "busy idle", Amounts(cpus * 1000))
    assert fits(scored, GpuRequest(memory(4)), "busy idle", Amounts(30_000)) == [0, 10]


@pytest.mark.parametrize(
    ("several", "largest"),
    [(GpuRequest(memory(1, 4, 2)), GpuRequest(memory(4))), (GpuRequest((*memory(5), *whole())), GpuRequest(whole()))],
    ids=["memory", "a whole GPU"],
)
def test_a_pod_of_several_containers_is_appraised_by_its_largest_part_with_all_cpu(
    several: GpuRequest, largest: GpuRequest
) -> None:
    scored = judging([node("a", {0: 4}), node("b"), node("c", {0: 9}, requested=Amounts(20_000))])
    assert fits(scored, several, "a b c", Amounts(4000)) == fits(scored, largest, "a b c", Amounts(4000))


def test_a_pod_without_gpus_belongs_on_a_node_without_gpus() -> None:
    """On busy it takes CPU beside GPUs that are taken anyway, on idle beside GPUs that need it."""
    mix = {PodKind(8, 1, 8000): 1.0, PodKind(0, 0, 4000): 1.0}
    scored = judging([node("cpu", sizes=()), node("busy", {0: 16, 1: 16}), node("idle")], mix)
    cpu, busy, idle, nobody = fits(scored, GpuRequest(), "cpu busy idle nobody", Amounts(4000))
    assert cpu == 10 > busy > idle
    assert nobody == 0
    assert best(scored, GpuRequest(), "idle nobody busy cpu", Amounts(4000)) == ["cpu"]
    assert best(scored, GpuRequest(), "idle busy", Amounts(4000)) == ["busy"]
    assert best(scored, GpuRequest(), "nobody", Amounts(4000)) == []
    assert best(scoring(view([node("a")])), GpuRequest(), "a") == []


def test_nodes_that_serve_claims_are_in_the_middle_and_change_no_other_score() -> None:
    """Shares fit there not at all. Nothing is learned for their GPUs, which no limit can ask for."""
    nodes = [node("a", {0: 8}), node("b"), node("c", {0: 4, 1: 4})]
    served = node("served", sizes=(80,), models=("H100",), claims=True)
    alone, scored = judging(nodes), judging([*nodes, served])
    assert best(scored, GpuRequest(whole()), "served") == ["served"]
    for ask, there in ((GpuRequest(whole()), 5), (GpuRequest(memory(4)), 0), (GpuRequest(), 5)):
        assert best(scored, ask, "served a b c") == best(alone, ask, "a b c")
        assert fits(scored, ask, "a b c served") == [*fits(alone, ask, "a b c"), there]
    assert scored.node_types() == alone.node_types()
    assert not scored.outdated


def test_nodes_of_which_nothing_is_known_but_that_they_serve_claims_come_before_those_that_gain_nothing() -> None:
    """Of two GPUs the pod would take, one is out of service: kube-scheduler knows whether it has another."""
    closed = node("closed", sizes=(80, 80), models=("H100",) * 2, claims=True, cordons={0: Cordon()})
    short = node("short", requested=Amounts(30_000))
    scored = judging([node("a"), short, closed])
    assert best(scored, GpuRequest(whole(2)), "closed") == ["closed"]
    assert best(scored, GpuRequest(whole(2)), "short closed", Amounts(4000)) == ["closed"]
    assert best(scored, GpuRequest(whole(2)), "short", Amounts(4000)) == ["short"]
    assert fits(scored, GpuRequest(whole(2)), "short closed", Amounts(4000)) == [0, 5]


def test_taking_over_what_was_learned_is_many_small_steps() -> None:
    """300 nodes of 60 shapes, whose tables have 17 levels; until the last step the old tables are in force."""
    nodes = [node(f"n{at}", sizes=(40 + at % 60,) * 4, models=(f"model {at % 60}",) * 4) for at in range(300)]
    tables = learned(nodes, {PodKind(1 + at, 1, 1000 * at): 1.0 for at in range(17)})
    scored = scoring(view(nodes))
    scored.evaluator.prepare()
    steps = scored.learned(tables)
    before = fits(scored, GpuRequest(memory(4)), "n0 n59")
    taken = 0
    while True:
        with counted(6000):
            try:
                next(steps)
            except StopIteration:
                break
        assert fits(scored, GpuRequest(memory(4)), "n0 n59") == before
        taken += 1
    assert taken > 15
    assert fits(scored, GpuRequest(memory(4)), "n0 n59") != before
    assert not scored.outdated


def test_a_node_that_comes_while_tables_are_taken_over_is_appraised_too() -> None:
    nodes = view([node(f"n{at}") for at in range(40)])
    scored, tables = scoring(nodes), learned([node("a")])
    steps = scored.learned(tables)
    next(steps)
    nodes.put("b", node("b", {0: 11}))
    nodes.put("new", node("new", sizes=(80, 80, 80), models=("H100",) * 3))
    scored.evaluator.prepare()
    for _ in steps:
        pass
    assert scored.outdated
    afterwards = scoring(nodes)
    learn_at_once(afterwards, tables)
    both = [fits(each, GpuRequest(memory(5), NO_PREFERENCES), "n0 b new") for each in (scored, afterwards)]
    assert both == [[0, 10, 0]] * 2


def test_nodes_may_change_while_they_are_appraised_also_if_another_reader_is_the_first_to_know() -> None:
    nodes = [node(f"n{at}") for at in range(40)]
    shown = view(nodes)
    scored = scoring(shown)
    others = NodeTypes(shown)
    steps = scored.learned(learned(nodes))
    next(steps)
    for each in nodes:
        shown.put(each.name, node(each.name, sizes=(16, 16, 16)))
    assert list(others.count().values()) == [40]
    for _ in steps:
        pass
    assert scored.outdated
