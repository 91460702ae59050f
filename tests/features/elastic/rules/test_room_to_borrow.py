"""Of GPUs that are alike, a pod that may borrow memory gets the one with more room to borrow."""

import pytest

from gpu_device_plugin.features.elastic.rules.promising import with_room_to_borrow
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.scheduler.rules.candidate import Candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from tests.scheduler.rules.test_fitting import asking, mem, node, whole

BORROWING: dict[str, tuple[tuple[Demand, ...], Candidate, dict[int, int], int]] = {
    "the one with the least in use": ((mem(4),), node(8, 8, 8), {0: 900, 1: 700, 2: 800}, 1),
    "of equal ones the one that was chosen": ((mem(4),), node(8, 8), {0: 700, 1: 700}, 0),
    "none that is fuller by what pods are guaranteed": ((mem(4),), node(8, 8, used={0: 1}), {0: 900, 1: 0}, 0),
    "none of another model": ((mem(4),), node(8, 8, models=("A10", "T4")), {0: 900, 1: 0}, 0),
    "none of unknown use": ((mem(4),), node(8, 8), {0: 900}, 0),
    "not left if its own use is unknown": ((mem(4),), node(8, 8), {1: 0}, 0),
    "none but those that the pod allows": ((mem(4),), node(8, 8, models=("A10", "T4")), {0: 900, 1: 0}, 0),
    "no other MIG instance": ((mem(4),), node(8, 8, cards={0: "a", 1: "b"}), {0: 900, 1: 0}, 0),
    "not for whole GPUs": ((whole(1),), node(8, 8), {0: 900, 1: 0}, 0),
    "not for parts of several": ((mem(4, 2),), node(8, 8, 8), {0: 900, 1: 0, 2: 0}, 0),
    "not for several parts": ((mem(4), mem(3)), node(8, 8), {0: 900, 1: 0}, 0),
}
"""What is asked, where, how much memory is in use on each GPU, and the first GPU that the pod gets."""


@pytest.mark.parametrize(("demands", "there", "used", "first"), BORROWING.values(), ids=BORROWING)
def test_a_pod_that_borrows_gets_of_equal_gpus_the_one_with_the_most_free_memory(
    demands: tuple[Demand, ...], there: Candidate, used: dict[int, int], first: int
) -> None:
    asked = asking(*demands)
    found = fit(asked, there, "binpack")
    assert isinstance(found, Fit)
    chosen = with_room_to_borrow(found, asked, there, used)
    assert chosen.placements[0].positions[0] == first
    assert [each.demand for each in chosen.placements] == list(demands)
