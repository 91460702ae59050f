"""Policies side by side, and how many nodes are needed."""

import pytest

from gpu_device_plugin.programs.simulate.entries import nodes_in, pods_in
from gpu_device_plugin.programs.simulate.experiment import (
    MOST_NODES,
    Plan,
    fewest,
    nodes_needed,
    simulate,
)
from gpu_device_plugin.programs.simulate.model import Inputs, Workload
from gpu_device_plugin.settings.knobs import UsageError


def inputs(nodes: str, pods: str, *, ordered: bool = False) -> Inputs:
    return Inputs(nodes_in(nodes), Workload.of(pods_in(pods)), ordered)


def unseen(_policy: str, _part: float) -> None:
    pass


def test_pods_with_an_order_come_in_it() -> None:
    (outcome,) = simulate(Plan(("binpack",), seeds=1), inputs("mem=10", "mem=6; mem=5; mem=4", ordered=True), unseen)[
        "binpack"
    ]
    assert list(outcome.pods) == [0, 1, 2]
    assert outcome.accepted == [True, False, True]
    assert outcome.allocated == 1.0
    assert outcome.rejected == pytest.approx(5 / 15)


def test_progress_goes_from_nothing_to_everything() -> None:
    seen: list[tuple[str, float]] = []
    simulate(Plan(("fit", "spread"), seeds=2), inputs("mem=10", "mem=3"), lambda *each: seen.append(each))
    parts = [part for _, part in seen]
    assert (parts[0], parts[-1], parts == sorted(parts)) == (0.0, 1.0, True)
    assert {policy for policy, _ in seen} == {"fit", "spread"}


# --- How many nodes ---------------------------------------------------------------------------------------------------


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


def test_more_nodes_than_can_be_are_not_looked_for() -> None:
    with pytest.raises(UsageError, match="30,000 nodes are needed by the sums alone"):
        nodes_needed(Plan(("fit",)), inputs("mem=10", "30000x mem=10"), unseen)


def test_whole_gpus_need_nodes_with_gpus_and_not_with_instances() -> None:
    """Each node has one GPU and seven instances; three pods want a GPU, and 22 more an instance each."""
    (found,) = nodes_needed(
        Plan(("binpack",), seeds=1),
        inputs("gpus=2 mem=80 mig=1g.10gb*7 divided=1", "3x count=1; 22x mem=9"),
        unseen,
    )
    assert (found.nodes, found.least) == (4, 3)
