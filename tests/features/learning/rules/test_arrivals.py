"""Pods that come are placed, and their room is given back, as the scheduler extender would."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.learning.rules.arrivals import ByFullness, Placer, Start, asked
from gpu_device_plugin.features.learning.rules.marginal_value import (
    NEVER,
    Appraiser,
    FreeCapacity,
    free_capacity,
    shape_of,
)
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from tests.mixes import A10, KINDS, MIG, T4
from tests.scores import partly_used, score
from tests.searches import learn


@pytest.mark.parametrize("shapes", [(T4, T4, A10, A10, T4), (T4, A10, A10, MIG, MIG)], ids=["GPUs", "MIG"])
def test_nothing_is_lost_when_pods_have_come_and_left(shapes: tuple[NodeType, ...]) -> None:
    nodes = [Start.empty("", shape) for shape in shapes]
    placer = Placer(nodes, KINDS, Appraiser(learn(dict.fromkeys(KINDS, 1.0), Counter(shapes))))
    running: list[int] = []
    rng = random.Random(1)  # noqa: S311 - the same pods every time
    for number in range(300):
        if running and rng.random() < 0.45:
            placer.leave(running.pop(rng.randrange(len(running))))
        placer.come(rng.randrange(len(KINDS)))
        if placer.came[number][1] is not None:
            running.append(number)
    for number, (_, place) in enumerate(placer.came):
        if number in running or place is None:  # one that found no room gives nothing back
            placer.leave(number)
    assert sum(place is not None for _, place in placer.came) > 100
    assert placer.lefts == [node.left for node in nodes]


@pytest.mark.parametrize("policy", ["fit", "binpack", "spread"])
def test_equal_instances_are_taken_of_one_gpu_after_the_other_or_of_all_evenly(policy: str) -> None:
    """Two pods on instances of two GPUs: which do they leave for a pod that takes both instances of a GPU's kind?"""
    four = NodeType((8,) * 4, ("A10",) * 4, 32_000, 131_072, (0, 0, 2, 2))
    placer = Placer([Start.empty("m0", four)], (PodKind(8, 1),), ByFullness(policy))
    where = [placer.place(0) for _ in range(2)]
    assert where == [(0, [0]), (0, [2] if policy == "spread" else [1])]


def test_on_a_node_whose_shape_was_not_learned_no_pod_is_placed() -> None:
    placer = Placer([Start.empty("a0", A10)], (PodKind(5, 1),), Appraiser(learn({PodKind(5, 1): 1.0}, {T4: 1})))
    assert placer.place(0) is None


pods = st.builds(
    PodKind,
    st.sampled_from((0, 1, 3, 5, 8, 16)),
    st.integers(1, 3),
    st.sampled_from((0, 1000, 40_000)),
    st.sampled_from((0, 1 << 20)),
    st.sampled_from((NO_PREFERENCES, GpuSelector(("H100",)), GpuSelector(("A10",)))),
)


@given(
    pods,
    st.lists(
        st.tuples(st.sampled_from((None, "a", "b")), st.sampled_from((8, 16)), st.integers(0, 16)),
        min_size=1,
        max_size=5,
    ).map(lambda gpus: sorted(gpus, key=lambda gpu: gpu[0] or "")),
)
def test_binpack_is_what_the_extender_does(kind: PodKind, gpus: list[tuple[str | None, int, int]]) -> None:
    """The score of a node, and the GPUs that a pod gets there, for any room on GPUs and MIG instances."""
    node, ask, policy = partly_used(gpus), asked(kind), ByFullness("binpack")
    found = fit(ask, node, "binpack")
    enough = kind.cpu_milli <= 32_000 and kind.memory_mib <= 131_072
    seen = policy.appraise(shape_of(node), free_capacity(node))
    gain = policy.gain(kind, seen)
    assert (gain != NEVER) == (isinstance(found, Fit) and enough)
    if gain != NEVER and isinstance(found, Fit):
        assert found.placements[0].positions == tuple(sorted(policy.gpus(kind, seen)))
        assert gain == score(ask, node, "binpack", "binpack")


def test_binpack_places_pods_without_gpus_where_there_is_room() -> None:
    shape, policy = NodeType((), (), 1000, 1000), ByFullness("binpack")

    def fits(kind: PodKind, left: FreeCapacity) -> bool:
        return policy.gain(kind, policy.appraise(shape, left)) != NEVER

    assert fits(PodKind(0, 0, 500), FreeCapacity((), 1000, 1000))
    assert not fits(PodKind(0, 0, 500), FreeCapacity((), 400, 1000))
    assert not fits(PodKind(0, 0, 0, 500), FreeCapacity((), 1000, 400))


def test_binpack_has_no_gpus_where_a_pod_does_not_fit() -> None:
    policy = ByFullness("binpack")
    assert policy.gpus(PodKind(5, 1), policy.appraise(T4, FreeCapacity((0, 0), 32_000, 131_072))) == []
