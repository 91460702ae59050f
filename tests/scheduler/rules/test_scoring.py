"""How well a node suits a pod."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import BY_CLAIMS, ListedGpu, NodeGpus
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.placing import POLICIES, Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from gpu_device_plugin.scheduler.rules.packing import Effort, TooLongError
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.scoring import MIDDLE, Scorer, connected
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.scores import score


def mem(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def whole(gpus: int) -> Demand:
    return Demand(Kind.COUNT, gpus)


def asking(*demands: Demand, **selector: str) -> GpuRequest:
    return GpuRequest(tuple(map(Part, demands)), GpuSelector(**selector))  # type: ignore[arg-type]  # policies are all that is wished


def node(
    *sizes: int,
    used: dict[int, int] | None = None,
    taken: tuple[int, ...] = (),
    unhealthy: tuple[int, ...] = (),
    policy: str | None = None,
    closeness: dict[tuple[int, int], int] | None = None,
) -> Candidate:
    gpus = tuple(
        ListedGpu(n, size, f"GPU-{n}", unhealthy="hot" if n in unhealthy else "") for n, size in enumerate(sizes)
    )
    usage = Usage(tuple((used or {}).items()), taken)
    links = Links(tuple((a, b, Closeness(v // 100), v % 100) for (a, b), v in (closeness or {}).items()))
    return candidate("n", NodeGpus(gpus, share_mib=1024, policy=policy, links=links), [usage])


BINPACK: dict[str, tuple[Demand, Candidate, int]] = {
    # 6 parts of 10 say how full the node gets, and 4 whether a GPU is spared.
    "an empty node": (mem(4), node(8, 8), round(6 * 4 / 16)),
    "a GPU that is in use": (mem(4), node(8, 8, used={0: 2}), round(6 * 6 / 16 + 4)),
    "a GPU that is in use and too full": (mem(4), node(8, 8, used={0: 6}), round(6 * 10 / 16)),
    "filled to the brim": (mem(4), node(8, used={0: 4}), 10),
    "an unused GPU, the others whole": (mem(4), node(8, 8, taken=(1,)), round(6 * 12 / 16)),
    "GPUs out of service do not count": (mem(4), node(8, 80, used={0: 4}, unhealthy=(1,)), 10),
    "a whole GPU alone is as well connected as can be": (whole(1), node(8, 8), round(6 * 8 / 16 + 4)),
    "two that are not connected": (whole(2), node(8, 8), 6),
    "two that are, by as much as counts": (whole(2), node(8, 8, closeness={(0, 1): 700}), 10),
    "more NVLinks count no more": (whole(2), node(8, 8, closeness={(0, 1): 718}), 10),
    "more NVLinks count no more, as a fuller node shows": (
        whole(2),
        node(8, 8, 8, 8, 8, closeness={(0, 1): 799}),
        round(6 * 16 / 40 + 4),
    ),
    "two that are half as close": (whole(2), node(8, 8, closeness={(0, 1): 350}), 8),
    "three, two of which are connected": (whole(3), node(8, 8, 8, closeness={(0, 1): 700}), round(6 + 4 / 3)),
    "a split over two in use": (mem(4, 2), node(8, 8, used={0: 2, 1: 2}), round(6 * 8 / 16 + 4)),
    "a split over one in use": (mem(4, 2), node(8, 8, used={0: 2}), round(6 * 6 / 16 + 2)),
    "a small GPU counts as an average one, and no node is more than full": (whole(1), node(2, 14, used={1: 14}), 10),
    "it does not fit": (mem(7), node(8, 8, used={0: 2, 1: 2}), 0),
    "it does not fit whole": (whole(2), node(8, 8, used={0: 2}), 0),
    "no GPU": (mem(1), node(), 0),
    "no GPU in service": (mem(1), node(8, unhealthy=(0,)), 0),
}
"""What is asked, of which node, and the score."""


@pytest.mark.parametrize(("demand", "there", "points"), BINPACK.values(), ids=BINPACK)
def test_binpack_likes_full_nodes_and_spares_unused_gpus(demand: Demand, there: Candidate, points: int) -> None:
    assert score(asking(demand), there, "binpack", "binpack") == points


SPREAD: dict[str, tuple[Demand, Candidate, int]] = {
    "an empty node": (mem(4), node(8, 8), round(10 * 12 / 16)),
    "a node in use": (mem(4), node(8, 8, used={0: 2}), round(10 * 10 / 16)),
    "filled to the brim": (mem(4), node(8, used={0: 4}), 0),
    "a whole GPU": (whole(1), node(8, 8), 5),
    "a small whole GPU of a node that is full but for it": (whole(1), node(2, 14, used={1: 14}), 0),
    "how they are connected does not count": (whole(2), node(8, 8, 8, 8, closeness={(0, 1): 700}), 5),
    "it does not fit": (mem(7), node(8, used={0: 2}), 0),
}


@pytest.mark.parametrize(("demand", "there", "points"), SPREAD.values(), ids=SPREAD)
def test_spread_likes_what_remains_free(demand: Demand, there: Candidate, points: int) -> None:
    for gpu_policy in POLICIES:
        assert score(asking(demand), there, "spread", gpu_policy) == points


def test_who_asks_for_nothing_is_suited_by_no_node_in_particular() -> None:
    assert score(GpuRequest(), node(8), "binpack", "binpack") == 0


def test_containers_count_together() -> None:
    """GPU 1 is in use and takes the memory, GPU 2 is taken whole and alone: nothing is spoiled. 2 + 4 + 8 of 24."""
    there = node(8, 8, 8, used={1: 2})
    assert score(asking(mem(4), whole(1)), there, "binpack", "binpack") == round(6 * 14 / 24 + 4)
    assert score(asking(mem(4), mem(8)), there, "binpack", "binpack") == round(6 * 14 / 24 + 2)
    assert score(asking(mem(4), whole(1)), node(8, 8), "binpack", "binpack") == round(6 * 12 / 16 + 2)


def test_of_what_a_pod_could_spoil_each_pair_of_whole_gpus_is_one_part() -> None:
    """GPU 0 is in use and takes the memory; the three pairs of the others are not connected. 2 + 4 + 24 of 32."""
    there = node(8, 8, 8, 8, used={0: 2})
    assert score(asking(mem(4), whole(3)), there, "binpack", "binpack") == round(6 * 30 / 32 + 4 / 4)


def test_a_gpu_that_the_pod_refuses_spares_none() -> None:
    """GPU 0 is in use, and yet the pod has to open GPU 1; how full the node gets is told by all of its GPUs."""
    there, refusing = node(8, 8, used={0: 2}), GpuRequest((Part(mem(4)),), GpuSelector(avoid_uuids=("GPU-0",)))
    assert score(refusing, there, "binpack", "binpack") == round(6 * 6 / 16)


def test_the_pod_chooses_the_policy_before_the_configuration() -> None:
    empty, full = node(8, 8), node(8, 8, used={0: 4})
    for policy, other in (("binpack", "spread"), ("spread", "binpack")):
        asked = asking(mem(4), node_policy=policy)
        assert [score(asked, there, other, "binpack") for there in (empty, full)] == [
            score(asking(mem(4)), there, policy, "binpack") for there in (empty, full)
        ]


def test_who_spreads_over_gpus_spares_none() -> None:
    """Of 16 shares 6 are used then, on one GPU or on two."""
    there = node(8, 8, used={0: 2})
    assert score(asking(mem(4)), there, "binpack", "spread") == round(6 * 6 / 16)
    assert score(asking(mem(4), gpu_policy="spread"), there, "binpack", "binpack") == round(6 * 6 / 16)
    assert score(asking(mem(4)), node(8, 8, used={0: 2}, policy="spread"), "binpack", "binpack") == round(6 * 6 / 16)
    assert score(asking(mem(4), gpu_policy="binpack"), there, "binpack", "spread") == round(6 * 6 / 16 + 4)


# --- how well whole GPUs are connected


@given(st.sets(st.integers(0, 11), min_size=1), st.data())
def test_how_well_gpus_are_connected_is_how_well_the_group_is_that_a_pod_gets(
    unused: set[int], data: st.DataObject
) -> None:
    """Also on a machine with more groups of GPUs than are compared."""
    levels = st.sampled_from(Closeness)
    closeness = {pair: data.draw(levels) * 100 for pair in combinations(range(12), 2)}
    there = node(*[8] * 12, taken=tuple(set(range(12)) - unused), closeness=closeness)
    amount = data.draw(st.integers(1, len(unused)))
    found = fit(asking(whole(amount)), there, "binpack")
    assert isinstance(found, Fit)
    pairs = [closeness[pair] / 700 for pair in combinations(found.placements[0].positions, 2)] or [1.0]
    assert connected(there.gpus.links, there.summary.unused, amount, {}) == pytest.approx(sum(pairs) / len(pairs))


def test_groups_that_were_compared_are_remembered_up_to_a_bound() -> None:
    linked = node(8, 8, 8, closeness={(0, 1): 700})
    groups: dict[tuple[Links, tuple[int, ...], int], float] = {}
    for amount in (2, 3, 2):
        connected(linked.gpus.links, (0, 1, 2), amount, groups)
    assert {amount: round(value, 3) for (_, _, amount), value in groups.items()} == {2: 1.0, 3: 0.333}
    for other in range(10_000):
        connected(linked.gpus.links, (0, other + 3), 2, groups)
    assert len(groups) < 10


# --- which of two nodes

nodes = st.builds(
    lambda used, taken: node(8, 8, 8, 8, used=used, taken=tuple(taken - used.keys())),
    st.dictionaries(st.integers(0, 3), st.integers(1, 8)),
    st.sets(st.integers(0, 3)),
)
demands = (
    st.builds(mem, st.integers(1, 8))
    | st.builds(mem, st.sampled_from([2, 4]), st.just(2))
    | st.builds(whole, st.integers(1, 3))
)
asks = st.builds(asking, demands) | st.builds(asking, demands, demands)
policies = st.sampled_from(sorted(POLICIES))


@given(asks, nodes, policies, policies)
def test_a_score_is_within_bounds_and_nothing_where_the_pod_does_not_fit(
    ask: GpuRequest, there: Candidate, node_policy: str, gpu_policy: str
) -> None:
    points = score(ask, there, node_policy, gpu_policy)
    assert 0 <= points <= 10
    if not isinstance(fit(ask, there, gpu_policy), Fit):
        assert points == 0


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 8))
def test_of_two_nodes_binpack_likes_the_fuller_and_spread_the_emptier(asked: int, one: int, other: int) -> None:
    """The second GPU is as empty on both, and takes the memory."""
    fuller, emptier = (node(8, 8, used={0: n} if n else {}, taken=()) for n in (max(one, other), min(one, other)))
    pod = asking(mem(asked), gpu_policy="spread")
    assert score(pod, fuller, "binpack", "binpack") >= score(pod, emptier, "binpack", "binpack")
    assert score(pod, fuller, "spread", "binpack") <= score(pod, emptier, "spread", "binpack")


@pytest.mark.parametrize("asked", range(1, 5))
def test_of_two_equally_full_nodes_binpack_likes_the_one_where_no_gpu_is_opened(asked: int) -> None:
    """Eight of 24 shares are used: on two GPUs, that have room, or on one, which is full."""
    halves, one = node(8, 8, 8, used={0: 4, 1: 4}), node(8, 8, 8, used={0: 8})
    assert (
        score(asking(mem(asked)), halves, "binpack", "binpack")
        == score(asking(mem(asked)), one, "binpack", "binpack") + 4
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sizes", [(), (8,), (8, 8)])
def test_a_node_on_which_kube_scheduler_allocates_is_in_the_middle(policy: str, sizes: tuple[int, ...]) -> None:
    """How full it is, we do not know."""
    gpus = tuple(ListedGpu(n, size, f"GPU-{n}") for n, size in enumerate(sizes))
    there = candidate("n", NodeGpus(gpus, 1024, claims=True, problem=BY_CLAIMS), ())
    assert score(asking(whole(1)), there, policy, "binpack") == MIDDLE == 5
    assert score(asking(mem(1)), there, policy, "binpack") == 0
    assert score(GpuRequest(), there, policy, "binpack") == 0


def test_what_there_is_no_time_to_look_at_is_estimated() -> None:
    """Links cost a step, and so do nodes of which some GPUs are not allowed.

    Two of three unused GPUs, which NVLink connects: 4 points for that, and 4 for a node that gets two thirds full.
    """
    linked = node(8, 8, 8, closeness={(0, 1): 700})
    scorer = Scorer(asking(whole(2)), "binpack", "binpack", Effort(1))
    assert (scorer.score(linked), scorer.score(linked), scorer.estimate(linked)) == (8, 8, 4)
    with pytest.raises(TooLongError):
        scorer.score(node(8, 8, 8, 8))
    picky = Scorer(GpuRequest((Part(mem(4)),), GpuSelector(avoid_uuids=("GPU-0",))), "binpack", "binpack", Effort(1))
    mixed = node(8, 8, used={0: 4})
    assert (picky.score(mixed), picky.estimate(mixed)) == (3, 7)
    with pytest.raises(TooLongError):
        picky.score(mixed)


def test_one_whole_gpu_has_no_links_to_look_at() -> None:
    """However many nodes are scored."""
    scorer = Scorer(asking(whole(1)), "binpack", "binpack", Effort(1))
    assert [scorer.score(node(8)) for _ in range(1000)] == [10] * 1000
