"""The benches sample nodes as kube-scheduler does, and says which pods fit on no node of their sample."""

import random

import pytest

from bench.policies import BestFit, Fgd, SamplingPlacer, nodes_to_find, passes, placed
from gpu_device_plugin.features.learning.rules.arrivals import ByFullness, Policy, Start
from gpu_device_plugin.features.learning.rules.marginal_value import NEVER, Appraiser, FreeCapacity
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.programs.simulate.experiment import gpu_nodes
from gpu_device_plugin.programs.simulate.model import Workload
from tests.searches import learn

T4 = NodeType((16, 16), ("T4", "T4"), 32_000, 131_072)
MIXED = NodeType((16, 24, 8, 8), ("T4", "A10", "A30", "A30"), 32_000, 131_072, (None, None, 2, 2))
"""Two GPUs, and two MIG instances of a third."""
NO_GPU = PodKind(0, 0, 1000)


@pytest.mark.parametrize(
    ("nodes", "percentage", "expected"),
    [
        (0, 2, 0),
        (99, 2, 99),
        (100, 2, 100),
        (1213, 2, 100),
        (6000, 2, 120),
        (6099, 2, 121),
        (1213, 100, 1213),
        # Adaptive: 50 % less 1 % for every 125 nodes, at least 5 %.
        (99, 0, 99),
        (150, 0, 100),
        (1213, 0, 497),
        (5000, 0, 500),
        (15_000, 0, 750),
    ],
)
def test_so_many_nodes_are_looked_for(nodes: int, percentage: int, expected: int) -> None:
    assert nodes_to_find(nodes, percentage) == expected


def test_a_sample_begins_where_the_last_one_ended() -> None:
    """Of 250 nodes 100 are looked for. The pod with a GPU passes over the nodes 50 to 59, which have none left."""
    nodes = [Start("n", T4, FreeCapacity((0, 0) if 50 <= at < 60 else (16, 16), 32_000, 131_072)) for at in range(250)]
    sampling = SamplingPlacer(nodes, (PodKind(1, 1), NO_GPU), ByFullness("binpack"), 2)
    every = [*range(250), *range(250)]
    assert sampling.sample(0) == every[:50] + every[60:110]
    assert sampling.sample(1) == every[110:210]
    assert sampling.sample(1) == every[210:310]
    # Nothing between the last node that fits and the first that is too many is looked at again.
    assert sampling.sample(0) == every[60:160]
    assert sampling.sample(1) == every[160:260]
    assert sampling.sample(0) == every[10:50] + every[60:120]


def test_the_start_stays_where_no_node_is_too_many() -> None:
    """All nodes were looked at, which brings kube-scheduler back to where it began."""
    nodes = [Start.empty("n", T4) for _ in range(102)]
    sampling = SamplingPlacer(nodes, (PodKind(33, 1), NO_GPU), ByFullness("binpack"), 2)
    assert sampling.sample(1) == [*range(100)]
    assert not sampling.sample(0)
    assert sampling.sample(1) == [100, 101, *range(98)]


@pytest.mark.parametrize(
    ("frees", "pod", "expected"),
    [
        ((9, 9, -1, 8), PodKind(16, 1), True),
        ((9, 9, -1, 8), PodKind(13, 2), True),
        ((9, 9, -1, 8), PodKind(27, 1), False),
        ((16, 24, 8, 8), PodKind(0, 2), True),
        ((16, 24, 8, 8), PodKind(0, 3), False),
        ((15, 24, 8, 8), PodKind(0, 2), False),
        ((16, 24, 8, 8), PodKind(0, 1, selector=GpuSelector(("H100",))), True),
        ((-1, 0, 0, 0), PodKind(0, 1), False),
        ((0, 0, 0, 0), PodKind(0, 0, 32_000, 131_072), True),
        ((16, 24, 8, 8), PodKind(1, 1, 32_001), False),
        ((16, 24, 8, 8), PodKind(1, 1, 0, 131_073), False),
    ],
)
def test_a_node_passes_by_its_sums(frees: tuple[int, ...], pod: PodKind, *, expected: bool) -> None:
    assert passes(pod, MIXED, FreeCapacity(frees, 32_000, 131_072)) == expected


def test_a_pod_that_fits_on_no_node_of_its_sample_gets_another_one() -> None:
    """150 nodes have 10 shares in all and 5 on a GPU, the last one room for three pods: in or out of the sample."""
    lefts = [FreeCapacity((5, 5), 32_000, 131_072)] * 150 + [FreeCapacity((8, 16), 32_000, 131_072)]
    nodes = [Start("n", T4, left) for left in lefts]
    placer, again = (SamplingPlacer(nodes, (PodKind(8, 1),), ByFullness("binpack"), 2) for _ in range(2))
    assert [150 in placer.sample(0) for _ in range(3)] == [False, True, False]
    assert [again.place(0) for _ in range(3)] == [(150, [0]), (150, [1]), (150, [1])]
    assert again.missed == [True, False, True]
    assert again.place(0) is None


def test_what_is_missed_is_counted_by_arrival() -> None:
    """Of 301 nodes one has room for four pods of 8, and all pass: two of three samples of 100 are without it."""
    nodes = [Start(f"n{at}", T4, FreeCapacity((7, 7), 32_000, 131_072)) for at in range(300)] + [
        Start.empty("empty", T4)
    ]
    pods = Workload((PodKind(8, 1),), (0,) * 6)
    for percentage, misses in ((2, (2, 3)), (100, (0,))):
        outcome, missed = placed("fit", nodes, pods, pods.pods, 0, percentage=percentage)
        assert outcome.accepted == [True] * 4 + [False] * 2
        assert sum(missed) in misses
        assert not any(missed[4:])


def test_of_all_nodes_every_one_that_fits_is_in_the_sample_in_the_order_of_nodes() -> None:
    """So with 100 % a policy chooses the first of the best nodes, whatever pods came before."""
    picky = PodKind(20, 1, 500, 64, GpuSelector(("A10",)))
    kinds = (PodKind(5, 1, 500), PodKind(11, 1, 500), PodKind(0, 1, 900), PodKind(0, 2), PodKind(8, 2), NO_GPU, picky)
    rng = random.Random(0)  # noqa: S311 - the same pods every time
    nodes = [Start.empty(f"n{at}", rng.choice((T4, MIXED))) for at in range(130)]
    mix = dict.fromkeys(kinds, 1.0)
    policies: tuple[Policy, ...] = (
        Appraiser(learn(mix, gpu_nodes(nodes))),
        Fgd(mix),
        BestFit(nodes),
        *(ByFullness(name) for name in ("binpack", "spread")),
    )
    placer = SamplingPlacer(nodes, kinds, policies[0], 100)
    for came in range(600):
        at = rng.randrange(len(kinds))
        if not came % 20:
            sample = placer.sample(at)
            assert sample == sorted(sample)
            for policy in policies:
                placer.follow(policy)
                assert {row for row, score in enumerate(placer.scores(at)) if score > NEVER} <= {*sample}
            placer.follow(policies[0])
        placer.place(at)
