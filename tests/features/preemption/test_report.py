"""Which pods would have to end."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.preemption.report import ends_needed
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.contract.nodegpus import ListedInstance
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.report.rules.node_view import Ends, NodeView
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.fitting import unfit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import GpuConsumer
from tests.features.preemption.occupants import occupants
from tests.views import node_view, pod_on


def wanting(*demands: Demand, preferences: GpuSelector | None = None) -> GpuRequest:
    parts = tuple(map(Part, demands))
    return GpuRequest(parts) if preferences is None else GpuRequest(parts, preferences)


def mem(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def whole(gpus: int) -> Demand:
    return Demand(Kind.COUNT, gpus)


def names(ends: Ends) -> list[str]:
    assert not ends.none
    return [pod.name for pod in ends.pods]


NO_ROOM = Ends((), none=True)
ENDS: dict[str, tuple[Demand, tuple[int, ...], str, str | None]] = {
    "nobody where there is room": (mem(4), (8,), "a4@0", ""),
    "nobody where no GPU is large enough": (mem(9), (8, 8), "a4@0", None),
    "one pod rather than two": (mem(8), (8, 8), "a1@0 b1@0 c4@1", "c"),
    "then those with the least memory": (mem(8), (15, 15), "a6@0 b4@0 c7@1 d3@1", "d"),
    "then who ends anyway": (mem(8), (8, 8), "a4@0 b4@1/9-", "b"),
    "then the least important": (mem(8), (8, 8), "a4@0/5 b4@1/1", "b"),
    "then by name": (mem(8), (8, 8), "b4@0 a4@1", "a"),
    "of equal pods on one GPU the least important": (mem(12), (15,), "a3@0/9 b3@0 c3@0/1", "bc"),
    "of equal pods on one GPU who ends anyway": (mem(4), (8,), "a4@0 b4@0/9-", "b"),
    "the set whose most important pod is the least important": (mem(8), (8, 8), "a4@0/9 b4@0/1 c4@1/5 d4@1/5", "cd"),
    # Too much was given away: GPU 0 is whole with a, and b has shares of it too.
    "who has the GPU whole, whatever else is on it": (mem(4), (8,), "a*@0 b4@0", "a"),
    "and who else is in the way": (mem(5), (8,), "a*@0 b4@0", "ab"),
    "for whole GPUs the emptiest ones": (whole(2), (8, 8, 8), "a1@0 b1@0 c8@1 d*@2", "cd"),
    "a whole GPU may be a small one": (whole(2), (1, 8), "a1@0 b1@1", "ab"),
    "a pod on two GPUs": (mem(14, gpus=2), (8, 8), "a4@0,4@1 b1@0", "a"),
    "a pod on three GPUs": (whole(2), (8, 8, 8), "a1@0,1@1,*@2", "a"),
    "a pod of which nobody knows the GPU": (mem(4), (8, 8), "a6@? b3@1", "a"),
    "a pod on GPUs that the node does not list": (mem(8), (8,), "a2@3,*@4", "a"),
}
"""What is asked of which GPUs, the pods there, and those that would have to end."""


@pytest.mark.parametrize(("demand", "sizes", "pods", "ended"), ENDS.values(), ids=ENDS)
def test_the_fewest_pods_with_the_least_memory_would_have_to_end(
    demand: Demand, sizes: tuple[int, ...], pods: str, ended: str | None
) -> None:
    ends = ends_needed(wanting(demand), node_view("n", sizes, *occupants(pods)))
    assert (None if ends.none else "".join(pod.name for pod in ends.pods)) == ended


def test_equal_pods_are_not_compared_with_each_other() -> None:
    """32 of 64 that all have the same: as many sets as nobody can compare, and all the same."""
    pods = tuple(pod_on(f"p{n:02}", {0: 1}) for n in range(64))
    assert ends_needed(wanting(mem(32)), node_view("n", (64,), *pods)) == Ends(pods[:32], shares=32)


def test_gpus_that_the_pod_does_not_want_are_not_cleared() -> None:
    there = node_view("n", (8, 8), pod_on("a", {0: 1}), pod_on("b", {1: 8}))
    assert names(ends_needed(wanting(mem(8), preferences=GpuSelector(use_uuids=("GPU-1",))), there)) == ["b"]
    assert names(ends_needed(wanting(mem(8), preferences=GpuSelector(use_models=("T4",))), there)) == ["a"]
    assert ends_needed(wanting(mem(8), preferences=GpuSelector(avoid_models=("T4",))), there) == NO_ROOM


def test_nothing_that_ends_helps_where_the_agent_is_away() -> None:
    """Its GPUs are known from before."""
    assert (
        ends_needed(wanting(mem(8)), node_view("n", (8,), pod_on("a", {0: 8}), problem="its agent has ended"))
        == NO_ROOM
    )


def test_groups_of_gpus_need_not_be_compared_where_no_pod_is_on_two() -> None:
    """Sixteen GPUs, of which the even ones have three pods and the odd ones four, and eight of them are wanted."""
    pods = [pod_on(f"p{gpu:02}-{n}", {gpu: n + 1}) for gpu in range(16) for n in range(4 if gpu % 2 else 3)]
    ends = ends_needed(wanting(whole(8)), node_view("n", (80,) * 16, *pods))
    assert not ends.none
    assert {pod.name[:3] for pod in ends.pods} == {f"p{gpu:02}" for gpu in range(0, 16, 2)}
    assert len(ends.pods) == 24
    taken = [pod_on(f"p{gpu:02}", None, gpu) for gpu in range(16)]
    assert ends_needed(wanting(whole(8)), node_view("n", (8,) * 16, *taken)) == Ends(tuple(taken[:8]), shares=64)


def test_a_set_that_several_groups_of_gpus_need_is_compared_once() -> None:
    """4 of 8 GPUs are 70 groups. Two of the emptiest hold the same pod, so that it and two more are enough.

    Any two of the 12 pods are 66 sets, and with the two of each group reckoned anew 15 times 70.
    """
    pods = [pod_on(f"p{gpu}-{n}", {gpu: n + 1}) for gpu in range(2, 8) for n in range(1 if gpu < 4 else 2)]
    ends = ends_needed(wanting(whole(4)), node_view("n", (8,) * 8, *pods, pod_on("both", {0: 1, 1: 1})))
    assert not ends.none
    assert [pod.name for pod in ends.pods] == ["both", "p2-0", "p3-0"]


def test_of_many_groups_of_gpus_one_that_needs_the_fewest_is_found() -> None:
    """As above, with a pod on GPUs 0 and 2, so that not only six have the fewest pods, of 12,870 groups.

    To clear 0, 2, 4 to 14 costs 25 pods, which is the least.
    """
    pods = [pod_on(f"p{gpu:02}-{n}", {gpu: n + 1}) for gpu in range(16) for n in range(4 if gpu % 2 else 3)]
    ends = ends_needed(wanting(whole(8)), node_view("n", (80,) * 16, *pods, pod_on("two", {0: 1, 2: 1})))
    assert not ends.none
    assert len(ends.pods) == 25


def test_among_too_many_groups_the_emptiest_that_serve_are_found() -> None:
    """Six of 16 GPUs are out of service, and four are wanted, of 1,820 groups.

    GPUs 6 to 9 have two small pods each, of which one is on 6 and on 7; the other six have three large ones each.
    """
    small = [pod_on(f"s{gpu}-{n}", {gpu: 1}) for gpu in range(6, 10) for n in range(1 if gpu < 8 else 2)]
    large = [pod_on(f"l{gpu}-{n}", {gpu: 5}) for gpu in range(10, 16) for n in range(3)]
    both = pod_on("both", {6: 1, 7: 1})
    there = node_view("n", (80,) * 16, *small, *large, both, unhealthy=dict.fromkeys(range(6), "too hot"))
    assert ends_needed(wanting(whole(4)), there) == Ends((both, *small), shares=8)


def test_among_too_many_groups_too_the_name_decides_between_equals() -> None:
    """16 GPUs of two shares are full, and one share of each of eight is wanted."""
    pods = [pod_on(f"p{gpu:02}-{n}", {gpu: 1}) for gpu in range(16) for n in range(2)]
    found = ends_needed(wanting(mem(8, gpus=8)), node_view("n", (2,) * 16, *pods))
    assert names(found) == [f"p{gpu:02}-0" for gpu in range(8)]


def test_of_many_pods_on_one_gpu_the_fewest_are_named() -> None:
    """One GPU of 820, full with forty pods of 1 to 40. 700 are wanted: 120 may stay, which are the 15 smallest."""
    pods = [pod_on(f"p{n:02}", {0: n}) for n in range(1, 41)]
    ends = ends_needed(wanting(mem(700)), node_view("n", (820,), *pods))
    assert not ends.none
    assert len(ends.pods) == 25
    assert ends.shares == 700


@st.composite
def _nodes(draw: st.DrawFn) -> NodeView:
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    positions = st.integers(0, len(sizes))  # one more than there are
    simple = draw(st.booleans())  # each pod is on one GPU that there is
    one = st.integers(0, len(sizes) - 1)
    pods = []
    for n in range(draw(st.integers(0, 5))):
        priority = draw(st.integers(0, 1))
        if simple:
            whole = draw(st.sampled_from([False, False, True]))
            where, shares = draw(one), draw(st.integers(1, 4))
            taken, gpus = ({}, [where]) if whole else ({where: shares}, [])
            pods.append(pod_on(f"p{n}", taken, *gpus, priority=priority))
        else:
            taken = draw(st.dictionaries(positions, st.integers(1, 4), max_size=2))
            unassigned_usage, loose_gpus = draw(st.sampled_from([(0, 0), (0, 0), (2, 0), (0, 1)]))
            gpus = [*draw(st.frozensets(positions, max_size=1))]
            pods.append(
                pod_on(
                    f"p{n}",
                    taken,
                    *gpus,
                    unassigned_usage=unassigned_usage,
                    loose_gpus=loose_gpus,
                    priority=priority,
                )
            )
    unhealthy = {0: "too hot"} if draw(st.booleans()) else {}
    parents = draw(st.dictionaries(one, st.sampled_from(("GPU-8", "GPU-9")), max_size=2))
    return with_instances(node_view("n", sizes, *pods, unhealthy=unhealthy), parents)


def with_instances(node: NodeView, parents: Mapping[int, str]) -> NodeView:
    """Return a node of which some are MIG instances, given the UUIDs of their GPUs by position."""
    listed = (
        replace(gpu, instance=ListedInstance(parents[gpu.position], 0, gpu.position, "1g.10gb", gpu.position))
        if gpu.position in parents
        else gpu
        for gpu in node.candidate.gpus.gpus
    )
    gpus = replace(node.candidate.gpus, gpus=tuple(listed))
    return replace(node, candidate=candidate(node.name, gpus, [pod.usage for pod in node.pods]))


def test_for_a_whole_gpu_pods_on_instances_may_stay() -> None:
    pods = small, large = pod_on("a", {0: 1}), pod_on("b", {1: 8})
    node = with_instances(node_view("n", (8, 8), *pods), {0: "GPU-9"})
    assert ends_needed(wanting(whole(1)), node) == Ends((large,), shares=8)
    assert ends_needed(wanting(mem(8)), node) == Ends((small,), shares=1)
    assert ends_needed(wanting(mem(8, 2)), node) == NO_ROOM


_ASKS = st.builds(
    wanting,
    st.one_of(
        st.builds(mem, st.integers(1, 6)), st.just(mem(4, 2)), st.builds(whole, st.integers(1, 2)), st.just(mem(6, 2))
    ),
    preferences=st.sampled_from([None, GpuSelector(avoid_uuids=("GPU-1",))]),
) | st.builds(wanting, st.builds(mem, st.integers(1, 4)), st.builds(mem, st.integers(1, 4)))


@settings(max_examples=120)
@given(_nodes(), _ASKS)
def test_the_set_makes_room_and_is_at_most_one_larger_than_the_smallest(node: NodeView, ask: GpuRequest) -> None:
    """Compared with every set of the node's pods, of which there are at most 32."""

    def fits(ended: tuple[GpuConsumer, ...]) -> bool:
        usages = [pod.usage for pod in node.pods if pod not in ended]
        return unfit(ask, candidate("n", node.candidate.gpus, usages)) is None

    enough = [some for size in range(len(node.pods) + 1) for some in combinations(node.pods, size) if fits(some)]
    ends = ends_needed(ask, node)
    if not enough:
        assert ends == NO_ROOM
        return
    assert not ends.none
    assert fits(ends.pods)
    assert len(ends.pods) <= len(enough[0]) + 1
    assert not any(fits(tuple(pod for pod in ends.pods if pod is not stays)) for stays in ends.pods)

    def shares(pods: tuple[GpuConsumer, ...]) -> int:
        found = 0
        for pod in pods:
            found += sum(s for _, s in pod.usage.shares) + pod.usage.unplaced_shares
            sizes = {gpu.position: gpu.shares for gpu in node.candidate.gpus.gpus}
            largest = max(sizes.values())
            found += sum(sizes.get(at, largest) for at in pod.usage.whole) + pod.usage.unplaced_gpus * largest
        return found

    assert ends.shares == shares(ends.pods)


@pytest.mark.parametrize("order", [1, -1])
def test_the_answer_does_not_depend_on_who_comes_first(order: int) -> None:
    """GPU 0 has 2, 3 and 2 of 9 in use, GPU 1 has 3, 2 and 3, GPU 2 has 2, 3 and 2; 5 are wanted."""
    pods = [pod_on(f"p{n}", {n % 3: 2 + n % 2}) for n in range(9)]
    there = node_view("n", (9, 9, 9), *pods[::order])
    assert names(ends_needed(wanting(mem(5)), there)) == ["p3"]
