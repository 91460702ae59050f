"""Under the policy fit, thousands of nodes at once are scored by what each gains, as the core appraises one by one."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.core.cluster.asking import Ask, Part
from gpu_device_plugin.core.cluster.candidate import Candidate, candidate
from gpu_device_plugin.core.cluster.fitting import unfit
from gpu_device_plugin.core.cluster.usage import Usage
from gpu_device_plugin.core.contract.nodegpus import BY_CLAIMS, ListedGpu, NodeGpus
from gpu_device_plugin.core.contract.wishes import Wishes
from gpu_device_plugin.core.model.amounts import Amounts
from gpu_device_plugin.core.model.gpus import NO_LINKS, Closeness, Links
from gpu_device_plugin.core.model.placing import Demand
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.worth.appraising import Appraiser
from gpu_device_plugin.core.worth.candidates import left_on, shape_of
from gpu_device_plugin.core.worth.learning import Tables, learn
from gpu_device_plugin.core.worth.mix import PodKind, kinds_of
from gpu_device_plugin.fleet_index.judge import Judge
from tests.fleet_index.test_judge import Cluster, instance
from tests.work import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIX = {PodKind(3, 1, 2000, 8192): 3.0, PodKind(8, 1, 4000, 16384): 1.0, PodKind(0, 2, 16000, 65536): 0.5}
ROOM = Amounts(32_000, 131_072)


def node(
    name: str,
    used: Mapping[int, int] | None = None,
    *,
    sizes: Sequence[int] = (16, 16),
    models: Sequence[str] = ("T4", "T4"),
    room: Amounts | None = ROOM,
    requested: Amounts = Amounts(),  # noqa: B008 - it is frozen
    whole: Sequence[int] = (),
    broken: Sequence[int] = (),
    links: Links = NO_LINKS,
    claims: bool = False,
    parents: Sequence[str | None] = (),
) -> Candidate:
    """Return a node with shares in use by position, and GPUs in whole use; or one that serves claims.

    With `parents`, those that name one are MIG instances of it.
    """
    gpus = NodeGpus(
        tuple(
            ListedGpu(
                at,
                size,
                f"{name}-{at}",
                model,
                unhealthy="XID 79" if at in broken else "",
                instance=instance(parents[at], at) if parents else None,
            )
            for at, (size, model) in enumerate(zip(sizes, models, strict=True))
        ),
        share_mib=1024,
        links=links,
        claims=claims,
        problem=BY_CLAIMS if claims else "",
    )
    return candidate(name, gpus, [Usage(tuple((used or {}).items()), tuple(whole))], room, [requested])


def asking(shares: int = 0, gpus: int = 1, wishes: Wishes | None = None) -> Ask:
    """Return the demand for shares of each of some GPUs, or for whole ones."""
    demand = Demand(Kind.MEMORY, shares * gpus, gpus) if shares else Demand(Kind.COUNT, gpus)
    return Ask((Part(demand),), wishes or Wishes())


def learn_at_once(judge: Judge, tables: Tables | None) -> None:
    for _ in judge.learned(tables):
        pass


def learned(nodes: Iterable[Candidate], mix: Mapping[PodKind, float] = MIX) -> Tables:
    """Return what a mix teaches on these nodes."""
    shapes = [shape_of(each) for each in nodes]
    return learn(mix, {shape: shapes.count(shape) for shape in shapes if shape.sizes})


def judging(nodes: Sequence[Candidate], mix: Mapping[PodKind, float] = MIX) -> Judge:
    judge = Judge(Cluster(nodes))
    learn_at_once(judge, learned(nodes, mix))
    return judge


def expected(nodes: Sequence[Candidate], ask: Ask, amounts: Amounts, mix: Mapping[PodKind, float]) -> list[int]:
    """Return the scores as their definition says: 10 for the best, and 0 to 9 in proportion for the others.

    A node on which kube-scheduler allocates the pod's GPUs has 5.
    """
    appraiser = Appraiser(learned(nodes, mix))
    gains: list[float | None] = []
    for each in nodes:
        fits = each.rooms and not each.gpus.claims and unfit(ask, each) is None
        choices = [
            appraiser.choose(kind, shape_of(each), left_on(each)) if fits else None
            for kind in kinds_of(ask, amounts.cpu_milli, amounts.memory_mib)
        ]
        gains.append(None if None in choices else sum(choice.gain for choice in choices if choice is not None))
    there = [gain for gain in gains if gain is not None]
    best, worst = max(there, default=0), min(there, default=0)
    return [
        (5 if each.gpus.claims and unfit(ask, each) is None else 0)
        if gain is None
        else 10
        if gain >= best - 1e-9
        else floor(9 * (gain - worst) / (best - worst) + 1e-12)
        for each, gain in zip(nodes, gains, strict=True)
    ]


def about(found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether scores are equal, but for one that lies between two by the last digit of a float."""
    return all(a == b or (abs(a - b) == 1 and 10 not in {a, b}) for a, b in zip(found, wanted, strict=True))


models = st.sampled_from(("T4", "A10"))


@st.composite
def nodes_of_a_cluster(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for name in ("a", "b", "c", "d")[: draw(st.integers(1, 4))]:
        sizes = draw(st.lists(st.sampled_from((4, 16, 300)), max_size=4))
        used = {at: draw(st.integers(0, size)) for at, size in enumerate(sizes)}
        found.append(
            node(
                name,
                used,
                sizes=sizes,
                models=[draw(models) for _ in sizes],
                room=draw(st.none() | st.just(ROOM)),
                requested=Amounts(draw(st.integers(0, 33)) * 1000, draw(st.integers(0, 140)) * 1024),
                whole=[at for at in used if not used[at] and draw(st.booleans())],
                broken=[at for at in used if draw(st.integers(0, 5)) == 0],
                claims=draw(st.integers(0, 3)) == 0,
                parents=[draw(st.sampled_from((None, "GPU-a", "GPU-b"))) for _ in sizes] if draw(st.booleans()) else (),
            )
        )
    return found


asks = st.builds(
    lambda shares, gpus, use, avoid: asking(shares, gpus, Wishes(use_models=use, avoid_models=avoid)),
    st.sampled_from((0, 1, 3, 8, 200)),
    st.integers(1, 2),
    st.lists(models, max_size=1).map(tuple),
    st.lists(models, max_size=1).map(tuple),
)
amounts_of_pods = st.builds(Amounts, st.sampled_from((0, 2000, 30_000)), st.sampled_from((0, 8192)))
mixes = st.dictionaries(
    st.builds(
        PodKind,
        st.sampled_from((0, 1, 3, 8)),
        st.integers(1, 2),
        st.sampled_from((0, 1000, 4000)),
        st.sampled_from((0, 8192)),
    ),
    st.integers(1, 5).map(float),
    max_size=4,
)


@settings(max_examples=200)
@given(
    st.lists(nodes_of_a_cluster(), min_size=2, max_size=3),
    st.lists(st.tuples(asks, amounts_of_pods), min_size=1, max_size=3),
    mixes,
)
def test_every_node_is_scored_by_what_the_core_says_that_it_gains(
    states: list[list[Candidate]], pods: list[tuple[Ask, Amounts]], mix: dict[PodKind, float]
) -> None:
    """Nodes come, change and go between the requests; what is learned stays until it is learned again."""
    cluster = Cluster()
    judge = Judge(cluster)
    for nodes in states:
        for name in cluster.candidates.keys() - {each.name for each in nodes}:
            cluster.remove(name)
        for each in nodes:
            cluster.put(each)
        learn_at_once(judge, learned(nodes, mix))
        for ask, amounts in pods:
            found = list(judge.scores(ask, [each.name for each in nodes], "fit", "fit", amounts))
            assert about(found, expected(nodes, ask, amounts, mix)), (found, expected(nodes, ask, amounts, mix))


def scores(judge: Judge, ask: Ask, names: str, amounts: Amounts = Amounts()) -> list[int]:  # noqa: B008 - it is frozen
    return list(judge.scores(ask, names.split(), "fit", "fit", amounts))


def test_until_something_is_learned_fit_scores_like_binpack() -> None:
    nodes = [node("a", {0: 8}), node("b")]
    judge = Judge(Cluster(nodes))
    assert list(judge.scores(asking(4), ["a", "b"], "fit", "fit")) == list(
        judge.scores(asking(4), ["a", "b"], "binpack", "binpack")
    )


def test_a_pod_that_wants_another_policy_gets_it() -> None:
    """Spread gives the empty node 10 - 10 * 4/32 = 9, and the half full one 10 - 10 * 20/32 = 4."""
    judge = judging([node("a", {0: 16}), node("b")])
    assert scores(judge, asking(4, wishes=Wishes(node_policy="spread")), "a b") == [4, 9]


def test_the_rest_of_a_gpu_that_nothing_else_fits_is_filled_first() -> None:
    """Pods of 5 and 11 come, of a GPU of 16. A rest of 5 serves only the small pod; another GPU serves both."""
    mix = {PodKind(5, 1): 1.0, PodKind(11, 1): 1.0}
    judge = judging([node("rest", {0: 11, 1: 16}), node("whole", {1: 16})], mix)
    assert scores(judge, asking(5), "rest whole") == [10, 0]


def test_a_node_that_nobody_knows_and_one_without_room_score_nothing() -> None:
    judge = judging([node("full", {0: 16, 1: 16}), node("free")])
    assert scores(judge, asking(4), "free nobody full") == [10, 0, 0]
    assert scores(judge, asking(4), "nobody") == [0]
    assert scores(judge, asking(4), "") == []


def test_without_any_node_there_is_nothing_to_score() -> None:
    judge = judging([])
    assert scores(judge, asking(4), "a") == [0]


def outdated(judge: Judge) -> bool:
    return judge.outdated


def test_a_node_of_a_new_shape_scores_nothing_until_it_is_learned() -> None:
    cluster = Cluster([node("a")])
    judge = Judge(cluster)
    learn_at_once(judge, learned([node("a")]))
    assert not outdated(judge)
    large = node("large", sizes=(80, 80, 80), models=("H100",) * 3)
    cluster.put(large)
    assert scores(judge, asking(4), "a large") == [10, 0]
    assert outdated(judge)
    assert judge.shapes() == {shape_of(node("a")): 1, shape_of(large): 1}
    learn_at_once(judge, learned([node("a"), large]))
    assert not outdated(judge)
    assert scores(judge, asking(40), "a large") == [0, 10]


def test_nodes_without_gpus_teach_nothing_and_are_no_reason_to_learn_again() -> None:
    cluster = Cluster([node("a")])
    judge = Judge(cluster)
    learn_at_once(judge, learned([node("a")]))
    cluster.put(node("cpu", sizes=(), models=()))
    judge.prepare()
    assert (judge.outdated, len(judge.shapes())) == (False, 1)


def test_of_equal_nodes_the_one_with_the_closest_gpus_is_best() -> None:
    """All have three unused GPUs; NVLink connects two of near."""
    links = Links(((0, 1, Closeness.NVLINK, 2), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    plain = Links(((0, 1, Closeness.NODE, 0), (0, 2, Closeness.NODE, 0), (1, 2, Closeness.NODE, 0)))
    nodes = [
        node(name, sizes=(16,) * 3, models=("T4",) * 3, links=links if name == "near" else plain)
        for name in ("far", "near", "away")
    ]
    judge = judging(nodes)
    assert scores(judge, asking(gpus=2), "far near away") == [9, 10, 9]
    assert scores(judge, asking(gpus=1), "far near away") == [10, 10, 10]


def test_the_tables_stay_when_the_index_is_built_anew() -> None:
    cluster = Cluster([node("a", {0: 8}), node("b")])
    judge = Judge(cluster)
    learn_at_once(judge, learned(list(cluster.candidates.values())))
    before = scores(judge, asking(4), "a b")
    cluster.forget()
    assert scores(judge, asking(4), "a b") == before


def test_what_a_pod_requests_decides_too() -> None:
    """With 30 CPUs it has room on one node only, whose score is then the best."""
    judge = judging([node("busy", {0: 8}, requested=Amounts(16_000)), node("idle")])
    assert scores(judge, asking(4), "busy idle", Amounts(1000))[0] == 10
    assert scores(judge, asking(4), "busy idle", Amounts(30_000)) == [0, 10]
    for cpus in range(20):
        scores(judge, asking(4), "busy idle", Amounts(cpus * 1000))
    assert scores(judge, asking(4), "busy idle", Amounts(30_000)) == [0, 10]


def test_a_pod_of_several_containers_is_appraised_by_its_largest_part_with_all_cpu() -> None:
    nodes = [node("a", {0: 4}), node("b"), node("c", {0: 9, 1: 3}, requested=Amounts(20_000))]
    judge = judging(nodes)
    several = Ask(tuple(Part(Demand(Kind.MEMORY, amount)) for amount in (1, 4, 2)))
    assert scores(judge, several, "a b c", Amounts(4000)) == expected(nodes, asking(4), Amounts(4000), MIX)
    whole = Ask((Part(Demand(Kind.MEMORY, 5)), Part(Demand(Kind.COUNT, 1))))
    assert scores(judge, whole, "a b") == expected(nodes[:2], asking(gpus=1), Amounts(), MIX)


def test_a_pod_without_gpus_belongs_on_a_node_without_gpus() -> None:
    """On busy it takes CPU beside GPUs that are taken anyway, on idle beside GPUs that need it."""
    mix = {PodKind(8, 1, 8000): 1.0, PodKind(0, 0, 4000): 1.0}
    nodes = [node("cpu", sizes=(), models=()), node("busy", {0: 16, 1: 16}), node("idle")]
    judge = judging(nodes, mix)
    found = scores(judge, Ask(), "cpu busy idle nobody", Amounts(4000))
    assert found[0] == 10
    assert found[1] > found[2]
    assert found[3] == 0
    assert max(found[1:]) < 10


def test_a_pod_without_gpus_has_no_score_before_something_is_learned() -> None:
    judge = Judge(Cluster([node("a"), node("b")]))
    assert scores(judge, Ask(), "a b", Amounts(4000)) == [0, 0]


def test_nodes_that_serve_claims_are_in_the_middle_and_change_no_other_score() -> None:
    """Shares fit there not at all. Nothing is learned for their GPUs, which no limit can ask for."""
    nodes = [node("a", {0: 8}), node("b"), node("c", {0: 4, 1: 4})]
    served = node("served", sizes=(80,), models=("H100",), claims=True)
    alone, judge = judging(nodes), judging([*nodes, served])
    for ask, there in ((asking(gpus=1), 5), (asking(4), 0), (Ask(), 5)):
        assert scores(judge, ask, "a b c served") == [*scores(alone, ask, "a b c"), there]
    assert judge.shapes() == alone.shapes()
    assert not outdated(judge)


def test_taking_over_what_was_learned_is_many_small_steps() -> None:
    """300 nodes of 60 shapes, whose tables have 17 levels; until the last step the old tables are in force."""
    nodes = [node(f"n{at}", sizes=(40 + at % 60,) * 4, models=(f"model {at % 60}",) * 4) for at in range(300)]
    tables = learned(nodes, {PodKind(1 + at, 1, 1000 * at): 1.0 for at in range(17)})
    judge = Judge(Cluster(nodes))
    judge.prepare()
    steps = judge.learned(tables)
    taken = 0
    while True:
        with counted(5000):
            try:
                next(steps)
            except StopIteration:
                break
        assert judge._appraised is None
        taken += 1
    assert taken > 60
    assert judge._appraised is not None
    assert judge._appraised.gains.complete


def test_a_node_that_comes_while_tables_are_taken_over_is_appraised_too() -> None:
    cluster = Cluster([node("a")])
    judge, tables = Judge(cluster), learned([node("a")])
    steps = judge.learned(tables)
    next(steps)
    cluster.put(node("b", {0: 11}))
    cluster.put(node("new", sizes=(80, 80, 80), models=("H100",) * 3))
    judge.prepare()
    for _ in steps:
        pass
    assert judge.outdated
    afterwards = Judge(cluster)
    learn_at_once(afterwards, tables)
    small = Ask((Part(Demand(Kind.MEMORY, 5)),))
    both = [each.scores(small, ["a", "b", "new"], "fit", "fit") for each in (judge, afterwards)]
    assert both == [[0, 10, 0]] * 2
