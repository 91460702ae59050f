"""Thousands of nodes at once are judged as one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.core.cluster.asking import Ask, Part
from gpu_device_plugin.core.cluster.candidate import Candidate, candidate
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.scoring import score
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.nodegpus import BY_CLAIMS, ListedGpu, ListedInstance, NodeGpus, by_division
from gpu_device_plugin.core.contract.wishes import NO_WISHES, Wishes
from gpu_device_plugin.core.model.gpus import Closeness, Links
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.policy import POLICIES
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.fleet_index.judge import Judge
from gpu_device_plugin.fleet_index.verdicts import UNKNOWN, UNTRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpu_device_plugin.core.cluster.fitting import Unfit


class Cluster:
    """Nodes that come, change and go."""

    def __init__(self, nodes: Iterable[Candidate] = ()) -> None:
        self.candidates: dict[str, Candidate] = {}
        self._changed: list[str] = []
        self._forgotten = 0
        for node in nodes:
            self.put(node)

    def put(self, node: Candidate) -> None:
        self.candidates[node.name] = node
        self._changed.append(node.name)

    def remove(self, name: str) -> None:
        if self.candidates.pop(name, None) is not None:
            self._changed.append(name)

    def forget(self) -> None:
        """Know no more what changed when."""
        self._changed.append("nobody")
        self._forgotten = len(self._changed)

    def changed_since(self, mark: int) -> tuple[int, Sequence[str] | None]:
        changed = None if mark < self._forgotten else sorted(set(self._changed[mark:]))
        return len(self._changed), changed


def verdicts(judge: Judge, ask: Ask, nodes: Iterable[Candidate]) -> list[Unfit | None]:
    return list(judge.verdicts(ask, [node.name for node in nodes]))


def scores(
    judge: Judge, ask: Ask, nodes: Iterable[Candidate], node_policy: str = "binpack", gpu_policy: str = "binpack"
) -> list[int]:
    return list(judge.scores(ask, [node.name for node in nodes], node_policy, gpu_policy))


policies = st.sampled_from(tuple(POLICIES))
maybe = st.none() | policies
few = st.lists(st.sampled_from(("a", "b")), max_size=1).map(tuple)
wishes = st.just(NO_WISHES) | st.builds(
    Wishes,
    use_models=few,
    avoid_models=few,
    use_uuids=st.lists(st.sampled_from(("u0", "u1", "u7")), max_size=1).map(tuple),
    avoid_uuids=st.lists(st.sampled_from(("u0", "u2", "u8")), max_size=1).map(tuple),
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
).map(lambda pairs: Links(tuple(sorted(pairs))))


@st.composite
def gpus(draw: st.DrawFn) -> NodeGpus:
    if draw(st.booleans()) and draw(st.booleans()):
        return by_division(draw(st.integers(0, 20)), draw(st.integers(0, 3)))
    parents = st.none() if draw(st.booleans()) else st.sampled_from((None, "u7", "u8"))
    return NodeGpus(
        tuple(
            ListedGpu(
                position,
                draw(st.sampled_from((4, 8))),
                f"u{position}",
                draw(st.sampled_from(("a", "a", "b"))),
                unhealthy=draw(st.sampled_from(("", "", "", "it is hot"))),
                instance=instance(draw(parents), position),
            )
            for position in range(draw(st.integers(0, 4)))
        ),
        share_mib=draw(st.sampled_from((1024, 2048))),
        links=draw(links),
        instances=draw(st.sampled_from(((), (), (ListedGpu(9, 1, instance=instance("u9", 9)),)))),
    )


def instance(parent: str | None, number: int) -> ListedInstance | None:
    """Return the place of a MIG instance on this GPU; None without one."""
    return None if parent is None else ListedInstance(parent, 0, number, "1g.10gb", number)


@st.composite
def candidates(draw: st.DrawFn, names: st.SearchStrategy[str]) -> Candidate:
    problem = draw(st.sampled_from(("", "", "", "its annotation cannot be read")))
    there = replace(draw(gpus()), policy=draw(maybe), problem=problem)
    if draw(st.sampled_from((False, False, False, True))):
        there = replace(there, claims=True, problem=BY_CLAIMS)
    return candidate(draw(names), there, draw(st.lists(usages, max_size=4)))


NAMES = [f"node-{number}" for number in range(6)]


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
    between = (Links(), Links(((0, 2, Closeness.NVLINK, 0),)))
    known = [
        NodeGpus(gpus, share_mib=share_mib, links=links)
        for gpus in listed
        for share_mib in (1024, 2048)
        for links in between
    ]
    known += [by_division(8 * number, number) for number in (1, 2, 3)]
    return [
        candidate(f"node-{number}", replace(gpus, policy=policy, problem=problem, claims=problem == BY_CLAIMS), usages)
        for number, (gpus, usages, policy, problem) in enumerate(
            product(known, used, (None, "spread"), ("", "its annotation cannot be read", BY_CLAIMS))
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
        Ask(whole(1), Wishes(avoid_uuids=("u1",))),
        Ask((*whole(1), *whole(2))),
        Ask((*whole(1), *whole(1)), Wishes(use_models=("a",))),
        Ask(whole(3)),
        Ask((*whole(1), *memory(6))),
        Ask(),
    ],
    ids=lambda ask: ",".join(f"{p.demand.kind}-{p.demand.amount}-{p.demand.gpus}" for p in ask.parts),
)
def test_nodes_that_differ_in_one_thing_are_told_apart(ask: Ask) -> None:
    """Whichever of them is judged first."""
    nodes = like_nodes()
    right = [unfit(ask, node) for node in nodes]
    values = [score(ask, node, "binpack", "binpack") for node in nodes]
    for step in (1, -1):
        judge = Judge(Cluster(nodes[::step]))
        assert verdicts(judge, ask, nodes) == right
        assert scores(judge, ask, nodes) == values


def test_a_node_that_changed_is_judged_anew() -> None:
    """Every node, in the place of the one before it."""
    for ask in (Ask(memory(5, 3)), Ask(memory(6), Wishes(use_models=("a",))), Ask(whole(2))):
        cluster = Cluster()
        judge = Judge(cluster)
        for node in like_nodes():
            now = replace(node, name="node-0")
            cluster.put(now)
            assert verdicts(judge, ask, [now]) == [unfit(ask, now)]
            assert scores(judge, ask, [now]) == [score(ask, now, "binpack", "binpack")]


def test_a_node_that_nobody_knows_fits_no_pod() -> None:
    judge = Judge(Cluster())
    assert judge.verdicts(Ask(memory(1)), ["node-0"]) == [UNKNOWN]
    assert judge.scores(Ask(memory(1)), ["node-0"], "binpack", "binpack") == [0]
    assert repr(judge) == "<Judge: <NodeTable: 0 nodes, 0 kinds>, remembers 1 pods>"


forgetting = st.just("forget")
changes = forgetting | st.tuples(st.just("remove"), st.sampled_from(NAMES)) | candidates(st.sampled_from(NAMES))
questions = st.tuples(asks, policies, policies)


@settings(max_examples=400)
@given(
    st.lists(candidates(st.sampled_from(NAMES)), max_size=6),
    st.lists(st.tuples(st.lists(changes, max_size=4), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(questions, min_size=4, max_size=4),
)
def test_every_node_is_judged_as_the_core_judges_it_whatever_changed_meanwhile(
    first: list[Candidate],
    rounds: list[tuple[list[str | tuple[str, str] | Candidate], int]],
    pods: list[tuple[Ask, str, str]],
) -> None:
    """Nodes come, change and go, and come again in another's row; pods are asked about again after more or less."""
    cluster = Cluster(first)
    judge = Judge(cluster)
    for changed, number in rounds:
        for change in changed:
            match change:
                case Candidate():
                    cluster.put(change)
                case (_, name):
                    cluster.remove(name)
                case _:
                    cluster.forget()
        there = [cluster.candidates.get(name) for name in NAMES]
        for pod, node_policy, gpu_policy in {0: pods, 1: pods[:1], 2: pods[1:], 3: pods[2:3]}[number]:
            assert list(judge.verdicts(pod, NAMES)) == [UNKNOWN if node is None else unfit(pod, node) for node in there]
            assert list(judge.scores(pod, NAMES, node_policy, gpu_policy)) == [
                0 if node is None else score(pod, node, node_policy, gpu_policy) for node in there
            ]


def test_what_is_remembered_has_an_end() -> None:
    """More pods than are remembered, and more kinds of nodes; the answers stay right."""
    cluster = Cluster([candidate("node-a", NodeGpus((ListedGpu(0, 8),)), [Usage(((0, 3),))])])
    judge = Judge(cluster)
    pods = [Ask(memory(shares)) for shares in range(1, 90)]
    for _ in range(2):
        assert [judge.verdicts(pod, ["node-a"]) == [None] for pod in pods] == [shares <= 5 for shares in range(1, 90)]
    assert repr(judge) == "<Judge: <NodeTable: 1 nodes, 1 kinds>, remembers 64 pods>"
    for shares in range(1, 50_010):
        cluster.put(candidate("node-a", NodeGpus((ListedGpu(0, shares),)), ()))
        judge.prepare()
    assert [judge.verdicts(pod, ["node-a"]) for pod in pods] == [[None]] * 89
    cluster.put(candidate("node-a", NodeGpus((ListedGpu(0, 5),)), ()))
    assert [judge.verdicts(pod, ["node-a"]) == [None] for pod in pods] == [shares <= 5 for shares in range(1, 90)]
    assert repr(judge) == "<Judge: <NodeTable: 1 nodes, 10 kinds>, remembers 64 pods>"


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
    nodes = different_nodes()
    judge = Judge(Cluster(nodes))
    right = [unfit(MANY, node) for node in nodes]
    values = [score(MANY, node, "binpack", "binpack") for node in nodes]
    untried = [len(nodes) + 1]
    while untried[-1]:
        found = verdicts(judge, MANY, nodes)
        assert all(answer in (UNTRIED, expected) for answer, expected in zip(found, right, strict=True))
        assert all(one in (0, other) for one, other in zip(scores(judge, MANY, nodes), values, strict=True))
        untried.append(found.count(UNTRIED))
        assert untried[-1] < untried[-2]
    assert len(untried) > 3
    assert scores(judge, MANY, nodes) == values
    assert not UNTRIED.unresolvable


def test_nodes_of_which_only_some_gpus_are_allowed_are_not_tried_for_longer() -> None:
    """Each has a fifth GPU of a model that the pod does not want."""
    picky = Ask(MANY.parts, Wishes(avoid_models=("b",)))
    unwanted = ListedGpu(4, 200, model="b")
    nodes = [candidate(node.name, NodeGpus((*node.gpus.gpus, unwanted)), ()) for node in different_nodes()[::5]]
    judge = Judge(Cluster(nodes))
    right = [unfit(picky, node) for node in nodes]
    seen = [verdicts(judge, picky, nodes) for _ in range(20)]
    assert UNTRIED in seen[0]
    assert seen[-1] == right


def test_nodes_with_as_much_room_are_tried_once() -> None:
    """Five thousand of one kind: there is no time to try all of them, and no need."""
    first = different_nodes()[0]
    nodes = [replace(first, name=f"node-{number}") for number in range(5000)]
    assert set(verdicts(Judge(Cluster(nodes)), MANY, nodes)) == {unfit(MANY, first)}


def test_groups_for_which_there_is_no_time_are_scored_as_if_they_were_not_connected() -> None:
    """Two GPUs of three, each node with links of its own. Two thirds full then: 4 of 6 points, and 4 for NVLink."""
    pods = Ask(whole(2))
    nodes = [
        candidate(
            f"node-{number}",
            NodeGpus(
                tuple(ListedGpu(at, 8) for at in range(3)),
                links=Links(((0, 1, Closeness.NVLINK, 1 + number % 90), (1, 2, Closeness.NODE, number // 90))),
            ),
            (),
        )
        for number in range(500)
    ]
    judge = Judge(Cluster(nodes))
    seen = [scores(judge, pods, nodes) for _ in range(4)]
    assert {score(pods, node, "binpack", "binpack") for node in nodes} == {8}
    assert set(seen[0]) == {8, 4}
    assert seen[0].count(8) < seen[1].count(8)
    assert seen[-1] == [8] * 500
