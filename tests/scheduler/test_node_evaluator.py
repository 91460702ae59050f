"""What the rules say of one node is said of thousands, most of them by a few numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.cordons import Cordon
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.placing import POLICIES
from gpu_device_plugin.scheduler.node_evaluator import UNKNOWN, UNTRIED, NodeEvaluator
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest
from tests.scheduler.candidates import memory, node, view, whole
from tests.scores import score


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


def fitting(evaluator: NodeEvaluator, ask: GpuRequest, names: Sequence[str]) -> list[str]:
    return [each.name for each in evaluator.rows.at(evaluator.search(ask, names).fitting())]


def best(evaluator: NodeEvaluator, ask: GpuRequest, names: Sequence[str], policy: str = "binpack") -> list[str]:
    return evaluator.best(evaluator.search(ask, names), policy, policy)


# --- As the rules say -------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
NODES = (
    None,
    node("", {0: 11}),
    node("", {0: 16}, whole=[1]),
    node("", sizes=(8, 16, 16), models=("T4", "T4", "A10")),
    node("", {1: 3}, sizes=(8, 16, 16), models=("T4", "T4", "A10")),
    node("", sizes=()),
    node("", claims=True),
    node("", divided=True),
    node("", {0: 16}, cordons={1: Cordon("me", "", "dusty")}),
    node("", {0: 2}, cordons={1: Cordon("me", "", "dusty")}),
    node("", {2: 3}, sizes=(16, 8, 4), instances=(1, 2)),
    node("", {0: 11}, models=("A10", "A10")),
    node("", {0: 16, 1: 16}, models=("A10", "A10")),
)
"""What a node may be at one moment."""
PODS = (
    GpuRequest(memory(4)),
    GpuRequest(memory(5, 3)),
    GpuRequest(memory(8), GpuSelector(avoid_models=("A10",))),
    GpuRequest(memory(8, gpus=2), GpuSelector(gpu_policy="spread")),
    GpuRequest(memory(8, gpus=2), GpuSelector(use_models=("A10",))),
    GpuRequest(memory(2), GpuSelector(use_uuids=frozenset({"-1"}))),
    GpuRequest(memory(2), GpuSelector(avoid_uuids=frozenset({"-0"}))),
    GpuRequest((*whole(3), *memory(1))),
    GpuRequest(memory(9, 9, 9)),
    GpuRequest(memory(99)),
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
            expected = [UNKNOWN if it is None else unfit(ask, it) for it in there]
            assert list(evaluator.verdicts(ask, NAMES)) == expected
            assert fitting(evaluator, ask, NAMES) == [
                name for name, why in zip(NAMES, expected, strict=True) if why is None
            ]
            scores = {
                it.name: score(ask, it, policy, policy) for it in there if it and ask.parts and not unfit(ask, it)
            }
            assert best(evaluator, ask, NAMES, policy) == [
                name for name, each in scores.items() if each == max(scores.values())
            ]
            if None not in expected:
                reasons = evaluator.search(ask, NAMES).reasons()
                assert {name: why for why, names in reasons.items() for name in names} == dict(
                    zip(NAMES, expected, strict=True)
                )
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
    assert best(evaluator, GpuRequest(memory(1)), ["a"]) == []
    assert repr(evaluator) == "<NodeEvaluator: 0 nodes, searches for 0 demands>"


def test_the_demands_of_several_containers_asked_about_last_are_remembered() -> None:
    """More than are remembered; the answers stay right."""
    evaluator = NodeEvaluator(view([node("a", {0: 3}, sizes=(8,))]))
    for _ in range(2):
        found = [n for n in range(1, 300) if evaluator.verdicts(GpuRequest(memory(1, n)), ["a"]) == [None]]
        assert found == [1, 2, 3, 4]
    assert repr(evaluator) == "<NodeEvaluator: 1 nodes, searches for 256 demands>"


TIGHT = GpuRequest(memory(20, 21, 38, 65, 15, 54, 9, 17, 19, 12, 9, 40, 12, 2, 53, 13))
"""They fill five GPUs of 80 but for one share, if one finds how."""


def test_a_search_that_is_given_up_refuses_no_other_node_of_the_kind() -> None:
    nodes = [node("a", {0: 2}, sizes=(80,) * 5), node("b", {0: 1}, sizes=(80,) * 5)]
    right = [unfit(TIGHT, each) for each in nodes]
    evaluator = NodeEvaluator(view(nodes))
    assert verdicts(evaluator, TIGHT, nodes) == [right[0], UNTRIED]
    assert verdicts(evaluator, TIGHT, nodes) == right
    assert right[1] is None
    assert right[0] is not None
    assert not right[0].unresolvable


def test_what_was_found_before_counts_also_once_no_steps_are_left() -> None:
    """The first nodes take all steps of the request."""
    hard, easy = different_nodes()[:300], node("easy", sizes=(34, 54, 74, 33))
    nodes = view([*hard, easy])
    evaluator = NodeEvaluator(nodes)
    names = [each.name for each in hard]
    assert evaluator.verdicts(MANY, ["easy"]) == [None]
    found = evaluator.verdicts(MANY, [*names, "easy"])
    assert UNTRIED in found
    assert found[-1] is None


def test_many_pods_whose_search_takes_long_all_come_to_an_end() -> None:
    """Each takes several requests, and they take turns."""
    nodes = different_nodes()[:100]
    evaluator = NodeEvaluator(view(nodes))
    asked = [GpuRequest(memory(*range(1, 16), 16 + more)) for more in range(100)]
    for _ in range(20):
        unfinished = [ask for ask in asked if UNTRIED in verdicts(evaluator, ask, nodes)]
    assert not unfinished


def test_more_kinds_of_hardware_than_are_told_apart_change_no_verdict() -> None:
    nodes = [node(f"n{size}", sizes=(size,)) for size in range(1, 4200)]
    evaluator = NodeEvaluator(view(nodes))
    for ask in (GpuRequest(memory(4100)), GpuRequest(memory(4100), GpuSelector(avoid_models=("A10",)))):
        assert verdicts(evaluator, ask, nodes) == [unfit(ask, each) for each in nodes]
    full = evaluator.search(GpuRequest(memory(5000)), [each.name for each in nodes]).reasons()
    assert {name: why for why, names in full.items() for name in names} == {
        each.name: unfit(GpuRequest(memory(5000)), each) for each in nodes
    }


def test_the_best_is_that_of_the_first_nodes_with_room_and_no_more_than_a_few_are_offered() -> None:
    """Node z is fuller than all others."""
    nodes = [*(node(f"n{number}") for number in range(140)), node("z", {0: 8})]
    evaluator = NodeEvaluator(view(nodes))
    names = [each.name for each in nodes]
    assert best(evaluator, GpuRequest(memory(4)), names) == names[:16]
    assert best(evaluator, GpuRequest(memory(4)), names[20:]) == ["z"]
    assert (
        evaluator.best(evaluator.search(GpuRequest(memory(4)), names[20:]), "binpack", "binpack", besides=["z"])
        == (names[20:36])
    )


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
    assert seen[0].count(8) < seen[1].count(8)  # what was compared is remembered
    assert seen[-1] == [8] * 500
