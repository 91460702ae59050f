"""The simulator places pods as the rules say."""

import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean

import pytest

from gpu_device_plugin.features.learning.rules.arrivals import Placer, Start
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.programs.simulate.experiment import POLICIES, run
from gpu_device_plugin.programs.simulate.model import Workload, capacity_of, departing, until
from gpu_device_plugin.settings.knobs import UsageError
from tests.mixes import A10, KINDS, MIG, T4

start = Start.empty
NODES = [start("t0", T4), start("t1", T4), start("a0", A10), start("a1", A10), start("t2", T4)]


def workload(number: int = 60, seed: int = 0) -> Workload:
    rng = random.Random(seed)  # noqa: S311 - the same pods every time
    return Workload(KINDS, tuple(rng.randrange(len(KINDS)) for _ in range(number)))


def gives_nothing_twice(policy: str, placing: Callable[[Sequence[Start]], Placer] | None = None) -> None:
    """Let pods come until three times the GPUs are asked for, and leave: what runs never exceeds what there is."""
    nodes = [start(f"t{at}", T4) for at in range(4)]
    pods, stays = departing(workload(), nodes, 3, 3.0)
    outcome = run(policy, nodes, workload(), pods, 3, stays=stays, placing=placing)
    for now in range(0, len(pods), 5):
        running = [at for at in range(now + 1) if outcome.accepted[at] and at + stays[at] > now]
        kinds = [KINDS[pods[at]] for at in running]
        assert sum(outcome.shares[at] for at in running) <= 4 * 32
        assert sum(kind.cpu_milli for kind in kinds) <= 4 * 32_000
        assert sum(kind.shares == 11 for kind in kinds) + sum(kind.gpus for kind in kinds if not kind.shares) <= 8
    assert 0 < outcome.rejected < 1


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_gives_anything_twice(policy: str) -> None:
    gives_nothing_twice(policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_leaves_before_the_arrival_that_is_said(policy: str) -> None:
    """Of one GPU of 16: the first pod is there for the next, and gone for the one after it."""
    only = Start.empty("t0", NodeType((16,), ("T4",), 1000, 1024))
    whole = Workload((PodKind(0, 1),), (0,))
    outcome = run(policy, [only], whole, (0,) * 5, 0, stays=(2, 1, 1, 9, 9))
    assert outcome.accepted == [True, False, True, True, False]
    assert [node.left.frees for node in outcome.nodes] == [(0,)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_fills_a_node_to_the_last_share(policy: str) -> None:
    """Two GPUs of 16: four pods of 8 fit and the fifth does not; then one whole GPU of two."""
    only = [start("t0", T4)]
    halves = run(policy, only, Workload((PodKind(8, 1),), (0,) * 5), (0,) * 5, 0)
    assert halves.accepted == [True] * 4 + [False]
    assert halves.allocated == 1.0
    assert halves.rejected == pytest.approx(0.2)
    both = Workload((PodKind(3, 1), PodKind(0, 1)), (0, 1, 1))
    assert run(policy, only, both, both.pods, 0).accepted == [True, True, False]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_gives_an_instance_as_a_gpu_or_memory_of_two(policy: str) -> None:
    """One GPU and three instances: of two pods for a whole GPU one fits, of those for two GPUs none."""
    only = [start("m0", MIG)]
    pods = Workload((PodKind(0, 1), PodKind(0, 2), PodKind(4, 2), PodKind(8, 1)), (1, 2, 0, 0, 3, 3, 3))
    assert run(policy, only, pods, pods.pods, 0).accepted == [
        False,
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_pod_takes_what_its_models_cpu_and_memory_allow() -> None:
    picky = Workload(
        (PodKind(20, 1, selector=GpuSelector(("A10",))), PodKind(1, 1, 32_001), PodKind(1, 1, 0, 131_073)),
        (0, 0, 0, 1, 2),
    )
    for policy in POLICIES:
        assert run(policy, NODES, picky, picky.pods, 0).accepted == [True, True, False, False, False]


def test_the_figure_is_what_is_allocated_when_so_much_has_been_asked_for() -> None:
    """112 + 32 shares there; the pods of 16 fit six times, whatever comes after."""
    pods = Workload((PodKind(16, 1),), (0,) * 12)
    outcome = run("binpack", NODES, pods, pods.pods, 0)
    assert capacity_of(NODES) == 144
    assert outcome.allocated == pytest.approx(8 * 16 / 144)
    assert outcome.allocated_at(0.5) == pytest.approx(5 * 16 / 144)


def test_without_nodes_nothing_fits() -> None:
    pods = Workload((PodKind(1, 1), PodKind(0, 0)), (0, 1))
    for policy in POLICIES:
        outcome = run(policy, [], pods, pods.pods, 0)
        assert not any(outcome.accepted)
        assert (outcome.allocated, outcome.allocated_at(1.0)) == (0.0, 0.0)


# --- arrivals


def test_pods_come_until_they_have_asked_for_so_much() -> None:
    pods = workload()
    arrivals = until(pods, NODES, 0, 1.3)
    *_, before, demand = accumulate(KINDS[pod].gpus * (KINDS[pod].shares or 144 / 8) for pod in arrivals)
    assert before < 1.3 * 144 <= demand
    assert until(pods, NODES, 0, 1.3) == arrivals
    assert until(pods, NODES, 1, 1.3) != arrivals
    assert sorted(until(pods, NODES, 0, 40.0)[:60]) == sorted(pods.pods)


def test_departing_pods_ask_for_the_load_on_average() -> None:
    """In a lifetime as much comes as the load says; five lifetimes are simulated."""
    listed = workload()
    pods, stays = departing(listed, NODES, 0, 0.9)
    demand = [kind.gpus * (kind.shares or 144 / 8) for kind in KINDS]
    assert sum(demand[pod] for pod in pods) / 5 == pytest.approx(0.9 * 144, rel=0.15)
    assert fmean(stays) == pytest.approx(len(pods) / 5, rel=0.5)
    assert min(stays) >= 1


@pytest.mark.parametrize(
    ("pods", "sentence"),
    [
        (Workload((PodKind(0, 0, 1),), (0,)), "no pod asks for a GPU"),
        (Workload((PodKind(1, 1), PodKind(0, 0)), (0, *(1,) * 20_000)), "more than 1,000,000 of these pods"),
    ],
)
def test_pods_that_would_never_fill_the_nodes_are_refused(pods: Workload, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        until(pods, NODES, 0)
    with pytest.raises(UsageError, match=sentence):
        departing(pods, NODES, 0, 0.9)
