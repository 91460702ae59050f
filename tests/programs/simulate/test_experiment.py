"""Policies side by side, and how many nodes are needed."""

from __future__ import annotations

import pytest

from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import (
    MOST_NODES,
    REJECTED,
    Plan,
    fewest,
    nodes_needed,
    shuffled,
    simulate,
)
from gpu_device_plugin.programs.simulate.model import Workload
from gpu_device_plugin.programs.simulate.run import POLICIES
from gpu_device_plugin.programs.simulate.sources import Inputs
from gpu_device_plugin.settings.knobs import UsageError


def inputs(nodes: str, pods: str, *, ordered: bool = False) -> Inputs:
    return Inputs(nodes_in(nodes), Workload.of(pods_in(pods)), ordered)


def unseen(_policy: str, _part: float) -> None:
    pass


def test_every_policy_places_the_same_pods_in_the_same_orders() -> None:
    found = simulate(Plan(POLICIES, seeds=2), inputs("2x mem=10", "2x mem=7; 2x mem=3"), unseen)
    assert tuple(found) == POLICIES
    orders = {tuple(tuple(outcome.pods) for outcome in outcomes) for outcomes in found.values()}
    assert len(orders) == 1
    assert all(outcome.policy == policy for policy, outcomes in found.items() for outcome in outcomes)


def test_pods_with_an_order_come_in_it() -> None:
    (outcome,) = simulate(Plan(("binpack",), seeds=1), inputs("mem=10", "mem=6; mem=5; mem=4", ordered=True), unseen)[
        "binpack"
    ]
    assert list(outcome.pods) == [0, 1, 2]
    assert outcome.accepted.tolist() == [True, False, True]
    assert outcome.allocated == 1.0
    assert outcome.rejected == pytest.approx(5 / 15)


def test_a_run_ends_with_the_first_pod_that_finds_no_room() -> None:
    """Three pods of 3 fit on a GPU of 10, and the fourth does not."""
    (outcome,) = simulate(Plan(("fit",), seeds=1, until=REJECTED), inputs("mem=10", "mem=3"), unseen)["fit"]
    assert outcome.accepted.tolist() == [True, True, True, False]


def test_pods_come_until_they_have_asked_for_so_much() -> None:
    """Ten pods of 3 are the first that ask for 1.5 times 20."""
    (outcome,) = simulate(Plan(("spread",), seeds=1, until=1.5), inputs("2x mem=10", "mem=3"), unseen)["spread"]
    assert len(outcome.pods) == 10
    assert outcome.allocated == 0.9


def test_pods_leave_and_their_room_is_given_again() -> None:
    """Half of one GPU is asked for over 5 lifetimes by pods that take it all: more come than fit at once."""
    (outcome,) = simulate(Plan(("fit",), seeds=1, departures=0.9), inputs("20x mem=10", "10x mem=10"), unseen)["fit"]
    assert outcome.accepted.sum() > 20


def test_progress_goes_from_nothing_to_everything() -> None:
    seen: list[tuple[str, float]] = []
    simulate(Plan(("fit", "fgd"), seeds=2), inputs("mem=10", "mem=3"), lambda *each: seen.append(each))
    parts = [part for _, part in seen]
    assert (parts[0], parts[-1], parts == sorted(parts)) == (0.0, 1.0, True)
    assert {policy for policy, _ in seen} == {"fit", "fgd"}


def test_a_seed_orders_pods_always_alike() -> None:
    workload = Workload((), tuple(range(50)))
    assert shuffled(workload, 1) == shuffled(workload, 1)
    assert shuffled(workload, 1) != shuffled(workload, 2)
    assert sorted(shuffled(workload, 1).pods) == list(range(50))


# --- How many nodes ---------------------------------------------------------------------------------------------------


def test_the_nodes_needed_may_be_more_than_the_sums_say() -> None:
    """Four pods of 6 ask for 24 of GPUs of 10, which 3 nodes have, but no two fit together."""
    (found,) = nodes_needed(Plan(("fit",), seeds=2), inputs("mem=10", "4x mem=6"), unseen)
    assert (found.least, found.by_seed, found.nodes) == (3, (4, 4), 4)


@pytest.mark.parametrize(
    ("pods", "least"),
    [("4x mem=5", 2), ("3x count=1", 3), ("5x mem=1 cpu=3", 4), ("5x mem=1 memory=3Gi", 4), ("cpu=1", 1)],
)
def test_sums_of_each_resource_bound_the_nodes_from_below(pods: str, least: int) -> None:
    (found,) = nodes_needed(Plan(("binpack",), seeds=1), inputs("mem=10 cpu=4 memory=4Gi", pods), unseen)
    assert found.least == least


@pytest.mark.parametrize(("answer", "least"), [(13, 3), (3, 3), (4, 3), (1, 1), (MOST_NODES, 7)])
def test_the_fewest_are_found_whatever_the_start(answer: int, least: int) -> None:
    assert fewest(lambda number: number >= answer, least) == answer


def test_a_search_that_finds_nothing_ends() -> None:
    assert fewest(lambda _number: False, 1) is None
    assert fewest(lambda _number: False, 0, 5) is None


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        ("mem=10; mem=20", "mem=3", "the nodes are of 2 kinds"),
        ("mem=10", "mem=3; mem=11", "asks for mem=11 does not fit on an empty node"),
        ("mem=10", "30000x mem=10", "30,000 nodes are needed by the sums alone"),
    ],
)
def test_a_question_without_an_answer_is_explained(nodes: str, pods: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        nodes_needed(Plan(("fit",)), inputs(nodes, pods), unseen)
    assert said in str(error.value)


def test_whole_gpus_need_nodes_with_gpus_and_not_with_instances() -> None:
    """Each node has one GPU and seven instances; three pods want a GPU, and 22 more an instance each."""
    (found,) = nodes_needed(
        Plan(("binpack",), seeds=1),
        inputs("gpus=2 mem=80 mig=1g.10gb*7 divided=1", "3x count=1; 22x mem=9"),
        unseen,
    )
    assert (found.nodes, found.least) == (4, 3)
