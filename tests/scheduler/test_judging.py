"""Thousands of nodes at once are judged as one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.core.asking import Ask, Part
from gpu_device_plugin.core.candidate import Candidate, candidate
from gpu_device_plugin.core.fitting import unfit
from gpu_device_plugin.core.gpus import Closeness
from gpu_device_plugin.core.nodegpus import ListedGpu, NodeGpus, by_division
from gpu_device_plugin.core.placing import Demand
from gpu_device_plugin.core.policy import POLICIES
from gpu_device_plugin.core.resources import Kind
from gpu_device_plugin.core.scoring import score
from gpu_device_plugin.core.usage import Usage
from gpu_device_plugin.core.wishes import NO_WISHES, Wishes
from gpu_device_plugin.scheduler.judging import UNTRIED, Judge

policies = st.sampled_from(tuple(POLICIES))
maybe = st.none() | policies
few = st.lists(st.sampled_from(("a", "b")), max_size=1).map(tuple)
wishes = st.just(NO_WISHES) | st.builds(
    Wishes,
    use_models=few,
    avoid_models=few,
    use_uuids=st.lists(st.sampled_from(("u0", "u1")), max_size=1).map(tuple),
    avoid_uuids=st.lists(st.sampled_from(("u0", "u2")), max_size=1).map(tuple),
    gpu_policy=maybe,
    node_policy=maybe,
)
demands = (
    st.integers(1, 9).map(lambda shares: Demand(Kind.MEMORY, shares))
    | st.tuples(st.integers(1, 5), st.integers(2, 3)).map(lambda each: Demand(Kind.MEMORY, each[0] * each[1], each[1]))
    | st.integers(1, 4).map(lambda gpus: Demand(Kind.COUNT, gpus))
)
asks = st.builds(lambda parts, wished: Ask(tuple(map(Part, parts)), wished), st.lists(demands, max_size=3), wishes)
usages = st.builds(
    Usage,
    shares=st.dictionaries(st.integers(0, 4), st.integers(1, 5), max_size=2).map(
        lambda used: tuple(sorted(used.items()))
    ),
    whole=st.sets(st.integers(0, 4), max_size=1).map(lambda taken: tuple(sorted(taken))),
    unplaced_shares=st.sampled_from((0, 0, 0, 2)),
    unplaced_gpus=st.sampled_from((0, 0, 0, 1)),
)
links = st.lists(
    st.tuples(st.integers(0, 1), st.integers(2, 3), st.sampled_from((Closeness.NVLINK, Closeness.SYSTEM)), st.just(0)),
    max_size=2,
    unique_by=lambda link: link[:2],
).map(lambda pairs: tuple(sorted(pairs)))


@st.composite
def gpus(draw: st.DrawFn) -> NodeGpus:
    if draw(st.booleans()) and draw(st.booleans()):
        return by_division(draw(st.integers(0, 20)), draw(st.integers(0, 3)))
    between = draw(links)
    return NodeGpus(
        tuple(
            ListedGpu(
                position,
                draw(st.sampled_from((4, 8))),
                f"u{position}",
                draw(st.sampled_from(("a", "a", "b"))),
                unhealthy=draw(st.sampled_from(("", "", "", "it is hot"))),
            )
            for position in range(draw(st.integers(0, 4)))
        ),
        share_mib=draw(st.sampled_from((1024, 2048))),
        links=between,
        _closeness={(a, b): level * 100 for a, b, level, _ in between},
    )


@st.composite
def nodes(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(1, 6))
    return [
        candidate(
            f"node-{number}",
            draw(gpus()),
            draw(st.lists(usages, max_size=4)),
            draw(maybe),
            draw(st.sampled_from(("", "", "", "its annotation cannot be read"))),
        )
        for number in range(count)
    ]


def like_nodes() -> list[Candidate]:
    """Nodes each of which differs from many others in one thing only."""
    used = [
        (),
        (Usage(((0, 5),)),),
        (Usage(((0, 5),)), Usage(((1, 3),))),
        (Usage(((0, 3),)), Usage(((1, 2),))),
        (Usage(((1, 5),)), Usage(((2, 5),))),
        (Usage(((0, 8),)), Usage(((1, 8),)), Usage(((2, 8),))),
        (Usage(whole=(0,)),),
        (Usage(whole=(0, 1, 2)),),
    ]
    listed = [
        tuple(ListedGpu(at, size, f"u{at}", model, unhealthy=bad if at == 1 else "") for at, size in enumerate(sizes))
        for sizes in ((), (8,), (8, 8), (8, 8, 8), (8, 4, 8))
        for model in ("a", "b")
        for bad in ("", "it is hot")
    ]
    near = ((0, 2, Closeness.NVLINK, 0),)
    between: list[tuple[tuple[tuple[int, int, Closeness, int], ...], dict[tuple[int, int], int]]]
    between = [((), {}), (near, {(0, 2): 700})]
    known = [
        NodeGpus(gpus, share_mib=share_mib, links=links, _closeness=closeness)
        for gpus in listed
        for share_mib in (1024, 2048)
        for links, closeness in between
    ]
    known += [by_division(8 * number, number) for number in (1, 2, 3)]
    return [
        candidate(f"node-{number}", gpus, usages, policy, problem)
        for number, (gpus, usages, policy, problem) in enumerate(
            product(known, used, (None, "spread"), ("", "its annotation cannot be read"))
        )
    ]


def memory(*shares: int, gpus: int = 1) -> tuple[Part, ...]:
    return tuple(Part(Demand(Kind.MEMORY, amount, gpus)) for amount in shares)


def whole(gpus: int) -> tuple[Part, ...]:
    return (Part(Demand(Kind.COUNT, gpus)),)


@pytest.mark.parametrize(
    "ask",
    [
        Ask(memory(3)),
        Ask(memory(6)),
        Ask(memory(9)),
        Ask(memory(3), Wishes(gpu_policy="spread")),
        Ask(memory(6), Wishes(gpu_policy="spread")),
        Ask(memory(6), Wishes(node_policy="spread")),
        Ask(memory(6), Wishes(use_models=("a",))),
        Ask(memory(6), Wishes(avoid_models=("a",), gpu_policy="spread")),
        Ask(memory(6), Wishes(use_uuids=("u1",))),
        Ask(memory(3, 3), Wishes(use_models=("b",))),
        Ask(memory(6, gpus=2)),
        Ask(memory(6, gpus=2), Wishes(gpu_policy="spread")),
        Ask(memory(5, 3)),
        Ask(memory(5, 3), Wishes(node_policy="spread")),
        Ask(memory(3, 6)),
        Ask(memory(5, 3, 3)),
        Ask((*memory(2), *memory(8, gpus=2))),
        Ask(whole(1)),
        Ask(whole(2)),
        Ask(whole(2), Wishes(node_policy="spread")),
        Ask(whole(2), Wishes(use_models=("a",))),
        Ask(whole(3)),
        Ask((*whole(1), *memory(6))),
        Ask(),
    ],
    ids=lambda ask: ",".join(f"{p.demand.kind}-{p.demand.amount}-{p.demand.gpus}" for p in ask.parts),
)
def test_nodes_that_differ_in_one_thing_are_told_apart(ask: Ask) -> None:
    """Whichever of them is judged first."""
    nodes = like_nodes()
    verdicts = [unfit(ask, node) for node in nodes]
    values = [score(ask, node, "binpack", "binpack") for node in nodes]
    for step in (1, -1):
        judge = Judge()
        verdict = judge.verdict(ask)
        assert [verdict(node) for node in nodes[::step]] == verdicts[::step]
        # A pod that wants whole GPUs beside memory is not placed on so many nodes at once.
        for first in range(0, len(nodes), 100):
            value = judge.score(ask, "binpack", "binpack")
            some = slice(first, first + 100)
            assert [value(node) for node in nodes[::step][some]] == values[::step][some]


def test_a_node_that_changed_is_judged_anew() -> None:
    """Every node, in the place of the one before it."""
    for ask in (Ask(memory(5, 3)), Ask(memory(6), Wishes(use_models=("a",))), Ask(whole(2))):
        judge = Judge()
        verdict, value = judge.verdict(ask), judge.score(ask, "binpack", "binpack")
        for node in like_nodes():
            now = replace(node, name="node-0")
            assert verdict(now) == unfit(ask, now)
            assert value(now) == score(ask, now, "binpack", "binpack")


@settings(max_examples=400, deadline=None)
@given(nodes(), st.lists(asks, min_size=1, max_size=4), policies, policies)
def test_every_node_is_judged_as_the_core_judges_it(
    cluster: list[Candidate], pods: list[Ask], node_policy: str, gpu_policy: str
) -> None:
    """All nodes and pods share one memory, and each is asked about twice: no answer gets where it does not belong."""
    judge = Judge()
    judge.prepare(cluster)
    for _ in range(2):
        for pod in pods:
            verdict, value = judge.verdict(pod), judge.score(pod, node_policy, gpu_policy)
            assert [verdict(node) for node in cluster] == [unfit(pod, node) for node in cluster]
            assert [value(node) for node in cluster] == [score(pod, node, node_policy, gpu_policy) for node in cluster]


def test_what_is_remembered_has_an_end() -> None:
    """More pods than are remembered, and more nodes, under names that come once; the answers stay right."""
    judge = Judge()
    small = candidate("node-a", NodeGpus((ListedGpu(0, 8),)), [Usage(((0, 3),))])
    pods = [Ask((Part(Demand(Kind.MEMORY, shares)),)) for shares in range(1, 60)]
    for _ in range(2):
        assert [judge.verdict(pod)(small) is None for pod in pods] == [shares <= 5 for shares in range(1, 60)]
    assert repr(judge) == "<Judge: remembers 32 pods>"
    group = Ask((Part(Demand(Kind.COUNT, 1)),))
    idle = [candidate(f"idle-{number}", NodeGpus((ListedGpu(0, 8),)), ()) for number in range(50_001)]
    assert {judge.score(group, "binpack", "binpack")(node) for node in idle} == {10}
    sizes = [candidate("node-a", NodeGpus((ListedGpu(0, shares),)), ()) for shares in range(1, 50_002)]
    assert {judge.score(pods[0], "spread", "spread")(node) for node in sizes} <= set(range(11))


# --- How much one request tries ---------------------------------------------------------------------------------------

MANY = Ask(memory(*range(1, 17)))
"""Sixteen containers that want 136 shares together."""


def different_nodes() -> list[Candidate]:
    """A thousand nodes with room for it on four GPUs, none like another."""
    sizes = [(34 + a, 54 + b, 74 + c, 33) for a in range(10) for b in range(10) for c in range(10)]
    return [
        candidate(f"node-{number}", NodeGpus(tuple(ListedGpu(at, size) for at, size in enumerate(there))), ())
        for number, there in enumerate(sizes)
    ]


def test_what_is_not_tried_in_time_does_not_pass_and_the_next_request_comes_further() -> None:
    nodes, judge = different_nodes(), Judge()
    right = [unfit(MANY, node) for node in nodes]
    untried = []
    for _ in range(20):
        verdict = judge.verdict(MANY)
        found = [verdict(node) for node in nodes]
        assert all(answer in (UNTRIED, expected) for answer, expected in zip(found, right, strict=True))
        untried.append(found.count(UNTRIED))
    assert untried[0] > untried[1] > untried[2]
    assert untried[-1] == 0
    assert not UNTRIED.lasting


def test_nodes_with_as_much_room_are_tried_once() -> None:
    """Five thousand of one kind: there is no time to try all of them, and no need."""
    first = different_nodes()[0]
    verdict = Judge().verdict(MANY)
    assert {verdict(replace(first, name=f"node-{number}")) for number in range(5000)} == {unfit(MANY, first)}


def test_nodes_for_which_there_is_no_time_are_scored_by_how_full_they_get() -> None:
    """A whole GPU and 3 shares of two GPUs with 8 fill 11 of 16: binpack gives 4 of 6 points, and none for the rest."""
    pods = Ask((*whole(1), *memory(3)))
    nodes = [
        candidate(f"node-{number}", NodeGpus((ListedGpu(0, 8), ListedGpu(1, 8)), driver=f"{number}"), ())
        for number in range(400)
    ]
    judge = Judge()
    right = score(pods, nodes[0], "binpack", "binpack")
    seen = []
    for _ in range(3):
        value = judge.score(pods, "binpack", "binpack")
        seen.append([value(node) for node in nodes])
    assert right > 4
    assert set(seen[0]) == {right, 4}
    assert seen[-1] == [right] * 400


def test_nodes_that_have_not_been_asked_about_for_long_are_forgotten() -> None:
    """The cluster's machines are replaced again and again; the answers stay right for who comes back."""
    asked, judge = Ask(memory(6), Wishes(use_models=("a",))), Judge()
    there = NodeGpus((ListedGpu(0, 8, model="a"), ListedGpu(1, 4, model="b")))
    for wave in range(12):
        verdict = judge.verdict(asked)
        assert {verdict(candidate(f"node-{wave}-{number}", there, ())) for number in range(10_000)} == {None}
    full = candidate("node-0-0", there, [Usage(((0, 8),))])
    assert judge.verdict(asked)(full) == unfit(asked, full)
