"""Policies for comparison, pods that leave again, and traces: what the benches count."""

import os
from math import exp, floor

import pytest

from bench.leaving import run_moving
from bench.openb import allocated, nodes_in_trace, pods_in_trace
from bench.policies import Apart, BestFit, Fgd, placed, placer_on
from gpu_device_plugin.features.learning.rules.arrivals import Placer, Start
from gpu_device_plugin.features.learning.rules.marginal_value import NEVER, FreeCapacity
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.programs.simulate.experiment import POLICIES, run
from gpu_device_plugin.programs.simulate.model import Workload, departing
from tests.mixes import MIG, T4
from tests.programs.simulate.test_placing import NODES, gives_nothing_twice, start, workload


@pytest.mark.parametrize(
    ("policy", "cold"), [("fgd", False), ("bestfit", False), *[(each, True) for each in (*POLICIES, "fgd", "bestfit")]]
)
def test_no_policy_gives_anything_twice(policy: str, *, cold: bool) -> None:
    gives_nothing_twice(policy, lambda nodes: placer_on(nodes, policy, workload(), cold=cold))


@pytest.mark.parametrize("policy", ["spread", "fit"])
def test_moves_give_nothing_twice_and_stay_within_their_budget(policy: str) -> None:
    nodes = [start(f"t{at}", T4) for at in range(6)]
    pods = workload()
    arrivals = departing(pods, nodes, 3, 1.2)
    (without, none), (outcome, moves) = (run_moving(policy, nodes, pods, arrivals, 3, part=part) for part in (0.0, 0.2))
    assert none == 0
    assert without.places == run(policy, nodes, pods, arrivals[0], 3, stays=arrivals[1]).places
    assert 0 < moves <= 0.2 * len(outcome.pods)
    for node in outcome.nodes:
        assert all(0 <= free <= size for free, size in zip(node.left.frees, node.shape.sizes, strict=True))
        assert node.left.cpu_milli >= 0


def test_a_pod_is_moved_so_that_another_finds_room() -> None:
    """Two pods of 5 are on two GPUs of 16 by spread; then one asks for a whole GPU."""
    kinds = (PodKind(5, 1), PodKind(0, 1))
    pods = Workload(kinds, (0, 0, 1))
    for part, accepted, moves in ((0.0, [True, True, False], 0), (0.5, [True, True, True], 1)):
        outcome, moved = run_moving("spread", [start("t0", T4)], pods, ((0, 0, 1), (9, 9, 9)), 0, part=part)
        assert (outcome.accepted, moved) == (accepted, moves)


def test_pods_that_ran_from_the_beginning_stay_where_they_are() -> None:
    nodes = [Start("t0", T4, FreeCapacity((16 - 5, 16 - 5), 32_000, 131_072))]
    kinds = (PodKind(5, 1), PodKind(0, 1))
    outcome, moves = run_moving("spread", nodes, Workload(kinds, (0, 1)), ((0, 1), (9, 9)), 0, part=1.0)
    assert (outcome.accepted, moves) == ([True, False], 0)


@pytest.mark.parametrize("policy", ["fgd", "bestfit"])
def test_a_policy_of_comparison_fits_what_the_others_fit(policy: str) -> None:
    """Two GPUs of 16: four pods of 8 fit and the fifth does not. One GPU and three instances: one pod for a whole GPU.

    Models, CPU and memory count, and without nodes nothing fits.
    """

    def accepted(nodes: list[Start], pods: Workload) -> list[bool]:
        return list(placed(policy, nodes, pods, pods.pods, 0)[0].accepted)

    only = [start("t0", T4)]
    assert accepted(only, Workload((PodKind(8, 1),), (0,) * 5)) == [True] * 4 + [False]
    assert accepted(only, Workload((PodKind(3, 1), PodKind(0, 1)), (0, 1, 1))) == [True, True, False]
    mixed = Workload((PodKind(0, 1), PodKind(0, 2), PodKind(4, 2), PodKind(8, 1)), (1, 2, 0, 0, 3, 3, 3))
    assert accepted([start("m0", MIG)], mixed) == [False, False, True, False, True, True, False]
    picky = Workload(
        (PodKind(20, 1, selector=GpuSelector(("A10",))), PodKind(1, 1, 32_001), PodKind(1, 1, 0, 131_073)),
        (0, 0, 0, 1, 2),
    )
    assert accepted(NODES, picky) == [True, True, False, False, False]
    assert accepted([], Workload((PodKind(1, 1), PodKind(0, 0)), (0, 1))) == [False, False]


def test_pods_without_gpus_go_where_most_is_left_where_the_extender_is_not_asked() -> None:
    nodes = [start("t0", T4), Start("t1", T4, FreeCapacity(T4.sizes, 8000, 16_384))]
    kinds = (PodKind(0, 0, 4000, 8192), PodKind(8, 1, 4000, 8192))
    placer = Placer(nodes, kinds, Apart(BestFit(nodes)))
    for kind in (0, 0, 1):
        placer.come(kind)
    assert placer.came == [(0, (0, ())), (0, (0, ())), (1, (1, [0]))]
    placer.leave(0)
    placer.leave(2)
    assert [left.cpu_milli for left in placer.lefts] == [28_000, 8000]
    assert [left.frees for left in placer.lefts] == [(16, 16), (16, 16)]
    hopeless = Workload((PodKind(0, 0, 99_000), *kinds), (0, 1, 2))
    apart, _ = placed("binpack", nodes, hopeless, hopeless.pods, 0, others_apart=True)
    assert apart.accepted == [False, True, True]


# --- FGD and BestFit


def fragments(shape: NodeType, left: FreeCapacity, mix: dict[PodKind, float]) -> float:
    """Return the mean of what each kind of pod cannot use of a node's free GPUs, worked out one by one."""
    lost = 0.0
    for kind, part in mix.items():
        usable = 0
        if kind.cpu_milli <= left.cpu_milli and kind.gpus:
            each = [
                free
                for free, size in zip(left.frees, shape.sizes, strict=True)
                if (free >= kind.shares if kind.shares else free == size)
            ]
            usable = sum(each) if len(each) >= kind.gpus else 0
        lost += part * (sum(left.frees) - usable)
    return lost


def test_fgd_takes_the_gpu_by_which_fragments_grow_least() -> None:
    mix = {PodKind(5, 1, 2000): 0.5, PodKind(0, 1, 4000): 0.3, PodKind(8, 2, 2000): 0.2}
    for frees in ((16, 11), (5, 16), (9, 8), (16, 16), (5, 6)):
        left = FreeCapacity(frees, 6000, 131_072)
        fgd = Fgd(mix)
        node = fgd.appraise(T4, left)
        for kind in (PodKind(5, 1, 2000), PodKind(5, 1, 5000)):
            options = {
                at: fragments(T4, left.after(kind, (at,)), mix) for at, free in enumerate(frees) if free >= kind.shares
            }
            (taken,) = fgd.gpus(kind, node)
            assert options[taken] == pytest.approx(min(options.values()))
            grown = min(options.values()) - fragments(T4, left, mix)
            assert fgd.gain(kind, node) == floor(100 / (1 + exp(grown / 16)))


def test_bestfit_prefers_the_node_with_least_left_and_its_fullest_gpu() -> None:
    lefts = (FreeCapacity((16, 16), 32_000, 1), FreeCapacity((16, 7), 32_000, 1), FreeCapacity((4, 16), 8000, 1))
    best_fit = BestFit([Start("t", T4, left) for left in lefts])
    seen = [best_fit.appraise(T4, left) for left in lefts]
    assert max(seen, key=lambda node: best_fit.gain(PodKind(5, 1, 1000), node)) == seen[2]
    assert [best_fit.gpus(PodKind(5, 1, 1000), node) for node in seen[1:]] == [[1], [1]]
    assert max(best_fit.gain(PodKind(17, 1), node) for node in seen) == NEVER


PUBLISHED = {
    ("fgd", "default"): 95.39,
    ("fgd", "gpushare40"): 94.15,
    ("fgd", "gpushare100"): 86.90,
    ("fgd", "multigpu50"): 97.18,
    ("fgd", "gpuspec33"): 94.55,
    ("bestfit", "default"): 93.08,
    ("bestfit", "gpushare40"): 91.69,
    ("bestfit", "gpushare100"): 85.01,
    ("bestfit", "multigpu50"): 95.74,
    ("bestfit", "gpuspec33"): 93.09,
}


@pytest.mark.skipif("OPENB" not in os.environ, reason="set OPENB to the folder with the traces of openb")
@pytest.mark.parametrize(("policy", "trace"), PUBLISHED)
def test_published_figures_are_reproduced(policy: str, trace: str) -> None:
    """Weng et al. have them at 130 %, as means of ten runs; the mean of five of ours is within 0.3."""
    assert allocated(trace, policy, range(200, 205)) == pytest.approx(PUBLISHED[policy, trace], abs=0.3)


# --- Traces of openb

POD_COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos"


def test_a_pod_of_a_trace_takes_hundredths_of_a_gpu_or_whole_gpus() -> None:
    rows = [
        "a,4000,100,1,455,,LS",
        "b,0,7,1,1000,T4|P100,BE",
        "c,1,1,8,1000,,LS",
        "d,1,1,0,0,,LS",
        "e,4000,100,1,455,,LS",
    ]
    workload = pods_in_trace([POD_COLUMNS, *rows])
    assert workload.pods == (0, 1, 2, 3, 0)
    assert workload.kinds == (
        PodKind(46, 1, 4000, 100),
        PodKind(0, 1, 100, 7, GpuSelector(("P100", "T4"))),
        PodKind(0, 8, 1, 1),
        PodKind(0, 0, 1, 1),
    )


def test_a_node_of_a_trace_has_gpus_of_a_hundred_shares() -> None:
    (node,) = nodes_in_trace(["sn,cpu_milli,memory_mib,gpu,model", "n0,96000,786432,2,V100M32"])
    assert (node.name, node.shape.sizes, node.shape.models) == ("n0", (100, 100), ("V100M32", "V100M32"))
    assert (node.left.cpu_milli, node.left.memory_mib) == (96_000, 786_432)
