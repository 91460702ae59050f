"""A node as a pod meets it."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import POLICIES, Demand, Placement, Room, Unplaceable, place
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, Summary, candidate, rooms_of, summary
from gpu_device_plugin.scheduler.rules.usage import Usage


def gpus(*shares: int, unhealthy: int | None = None) -> NodeGpus:
    return NodeGpus(
        tuple(ListedGpu(n, size, unhealthy="hot" if n == unhealthy else "") for n, size in enumerate(shares))
    )


def rooms(sizes: tuple[int, ...], *usages: Usage) -> list[str]:
    """Every room as its free shares, with s where it is in shared and w where it is in whole use."""
    return [f"{room.free}{'s' * room.shared}{'w' * room.whole}" for room in rooms_of(gpus(*sizes), iter(usages))]


def test_a_room_keeps_the_position_of_its_gpu() -> None:
    there = NodeGpus((ListedGpu(2, 8), ListedGpu(5, 8)))
    assert rooms_of(there, [Usage(((5, 3),))]) == (Room(2, 8, 8), Room(5, 8, 5, shared=True))


TAKEN: dict[str, tuple[list[Usage], list[str]]] = {
    "shares": ([Usage(((0, 3),))], ["5s", "8", "4"]),
    "shares of several pods": ([Usage(((0, 3), (1, 1))), Usage(((0, 4),))], ["1s", "7s", "4"]),
    "more shares than there are": ([Usage(((2, 5),))], ["8", "8", "0s"]),
    "a whole GPU": ([Usage(whole=(1,))], ["8", "8w", "4"]),
    "whole GPUs of several pods": ([Usage(whole=(0, 1)), Usage(whole=(2,))], ["8w", "8w", "4w"]),
    "shares of a GPU in whole use": ([Usage(((1, 2),)), Usage(whole=(1,))], ["8", "6sw", "4"]),
    "unplaced shares may be of any GPU": ([Usage(unplaced_shares=5)], ["3s", "3s", "0s"]),
    "unplaced shares of several pods": ([Usage(unplaced_shares=2), Usage(unplaced_shares=1)], ["5s", "5s", "1s"]),
    "unplaced shares beside others": ([Usage(((0, 3),), unplaced_shares=2)], ["3s", "6s", "2s"]),
    "unplaced shares are not of a GPU in whole use": ([Usage(whole=(1,), unplaced_shares=2)], ["6s", "6w", "2s"]),
    "a GPU that was in whole use a moment ago": ([Usage(settling_whole=(1,))], ["8", "0", "4"]),
    "a GPU that was in shared use a moment ago": ([Usage(settling_shares=(1,))], ["8", "8s", "4"]),
    "an unplaced whole GPU may be any": ([Usage(unplaced_gpus=1)], ["8w", "8w", "4w"]),
    "an unplaced whole GPU is none in shared use": ([Usage(((0, 3),), unplaced_gpus=1)], ["5s", "8w", "4w"]),
    "unplaced shares and an unplaced whole GPU": ([Usage((), (), 2, 1)], ["6sw", "6sw", "2sw"]),
    "shares of a GPU that is not listed may be of any": ([Usage(((0, 1), (7, 2)))], ["5s", "6s", "2s"]),
    "both may be any, however many they are": ([Usage(whole=(7,), unplaced_gpus=1)], ["8w", "8w", "4w"]),
    "a whole GPU that is not listed may be any": ([Usage(((0, 1),), whole=(7,))], ["7s", "8w", "4w"]),
}
"""What pods take of three GPUs of 8, 8 and 4 shares, and what room is left."""


@pytest.mark.parametrize(("usages", "left"), TAKEN.values(), ids=TAKEN)
def test_what_pods_take_is_missing(usages: list[Usage], left: list[str]) -> None:
    assert rooms((8, 8, 4), *usages) == left
    assert rooms((8, 8, 4), *usages[::-1]) == left


def test_a_summary_tells_the_numbers() -> None:
    """Free and in shared use are 5 of GPU 0; GPU 1 is unused, GPU 2 in whole use, GPU 3 out of service, GPU 4 full."""
    there = (
        Room(0, 8, 5, shared=True),
        Room(1, 6, 6),
        Room(2, 10, 10, whole=True),
        Room(3, 20, 20, healthy=False),
        Room(4, 4, 0, shared=True),
    )
    found = summary(there)
    assert found == Summary(
        frees=(6, 5, 0), sizes=(10, 8, 6, 4), shared=(5, 0), unused=(1,), used=17, total=28, failed=(20,)
    )
    assert found.best == 6


def test_what_is_out_of_service_counts_for_nothing() -> None:
    there = [Room(0, 8, 3, healthy=False, shared=True), Room(1, 8, 8, healthy=False, whole=True)]
    assert summary(there) == Summary(failed=(8, 8))
    assert Summary().best == 0


def test_a_gpu_in_both_uses_is_in_whole_use() -> None:
    assert summary([Room(0, 8, 6, shared=True, whole=True)]) == Summary(sizes=(8,), used=8, total=8)


def test_a_node_is_told_with_all_that_is_known_of_it() -> None:
    there = replace(gpus(8), policy="spread")
    found = candidate("n", there, [Usage(((0, 3),))])
    assert found == Candidate("n", there, (Room(0, 8, 5, shared=True),), Summary((5,), (8,), (5,), (), 3, 8))
    assert (found.gpus.policy, found.gpus.problem) == ("spread", "")
    nothing = NodeGpus(problem="why")
    assert candidate("n", nothing, [Usage(((0, 3),))]) == Candidate("n", nothing)


# --- MIG instances


def mixed(*parents: str | None, elsewhere: tuple[int, ...] = (), unhealthy: int | None = None) -> NodeGpus:
    """Return GPUs of 80 shares, and MIG instances of 10 where a GPU is named; some more are not given by memory."""

    def place(parent: str | None, at: int) -> ListedInstance | None:
        return None if parent is None else ListedInstance(parent, 0, at, "1g.10gb", at)

    return NodeGpus(
        tuple(
            ListedGpu(n, 10 if parent else 80, unhealthy="hot" if n == unhealthy else "", instance=place(parent, n))
            for n, parent in enumerate(parents)
        ),
        share_mib=1024,
        instances=tuple(ListedGpu(n, 10, instance=place("GPU-z", n)) for n in elsewhere[:1]),
        gone=tuple(ListedGpu(n, 10, instance=place("GPU-z", n)) for n in elsewhere[1:]),
    )


def test_the_instances_of_one_gpu_have_a_number_in_common() -> None:
    """The lowest of their positions."""
    there = mixed("GPU-b", None, "GPU-a", "GPU-b", "GPU-a")
    assert [room.card for room in rooms_of(there, [])] == [0, None, 2, 0, 2]


def test_an_unplaced_whole_gpu_is_no_instance() -> None:
    there = mixed(None, "GPU-a", None)
    assert [room.whole for room in rooms_of(there, [Usage(unplaced_gpus=1)])] == [True, False, True]
    assert [room.free for room in rooms_of(there, [Usage(unplaced_shares=3)])] == [77, 7, 77]


def test_what_lies_on_instances_that_are_not_given_by_memory_takes_nothing_of_the_others() -> None:
    there = mixed(None, "GPU-a", elsewhere=(2, 3))
    assert rooms_of(there, [Usage(((1, 4), (2, 5)), (3,))]) == (Room(0, 80, 80), Room(1, 10, 6, shared=True, card=1))
    (gpu, instance) = rooms_of(there, [Usage(((2, 5), (7, 1)))])
    assert (gpu.free, instance.free) == (79, 9)


def test_a_summary_has_the_gpus_alone_too() -> None:
    """GPU 0 is in use, GPU 1 is not; of the instances 2 and 3 one is in use, and 4 is out of service."""
    there = mixed(None, None, "GPU-a", "GPU-a", "GPU-a", unhealthy=4)
    found = summary(rooms_of(there, [Usage(((0, 50), (2, 4)))]))
    assert found == Summary(
        frees=(80, 30, 10, 6),
        sizes=(80, 80, 10, 10),
        shared=(30, 10, 6),
        unused=(1,),
        used=54,
        total=180,
        failed=(10,),
        of_gpus=Summary((80, 30), (80, 80), (30,), (1,), 50, 160),
    )
    assert found.gpus is found.of_gpus
    assert found.gpus.gpus is found.gpus


# --- nothing is promised twice


@st.composite
def usages_of_three(draw: st.DrawFn) -> Usage:
    position = st.integers(0, 3)  # the last one is not listed
    return Usage(
        tuple(sorted(draw(st.dictionaries(position, st.integers(1, 3), max_size=2)).items())),
        tuple(sorted(draw(st.sets(position, max_size=1)))),
        draw(st.sampled_from([0, 0, 1, 2])),
        draw(st.sampled_from([0, 0, 1])),
    )


demands = st.builds(Demand, st.just(Kind.MEMORY), st.integers(1, 4)) | st.builds(
    Demand, st.just(Kind.COUNT), st.integers(1, 2)
)


@given(st.lists(usages_of_three(), max_size=4), demands, st.sampled_from(sorted(POLICIES)))
def test_what_fits_still_fits_wherever_the_unplaced_turn_out_to_be(
    usages: list[Usage], demand: Demand, policy: str
) -> None:
    """Every share and every GPU whose place is not known is tried on every GPU on which it can be."""
    there = gpus(4, 3, 4)
    found = place(demand, rooms_of(there, usages), POLICIES[policy])
    if isinstance(found, Unplaceable):
        return
    used = {n: sum(shares for u in usages for position, shares in u.shares if position == n) for n in range(3)}
    whole = {position for u in usages for position in u.whole}
    unassigned_usage = sum(u.unplaced_shares for u in usages) + sum(s for u in usages for n, s in u.shares if n == 3)
    loose_gpus = sum(u.unplaced_gpus for u in usages) + (3 in whole)
    for places in product(range(3), repeat=min(unassigned_usage, 6)):
        for others in product(range(3), repeat=min(loose_gpus, 3)):
            shares = {n: used[n] + places.count(n) for n in range(3)}
            taken = {n for n in whole if n < 3} | set(others)
            possible = (
                all(shares[n] <= gpu.shares for n, gpu in enumerate(there.gpus))
                and len(taken) == len(others) + len(whole - {3})
                and not any(shares[n] and n in taken for n in range(3))
            )
            if possible:
                assert fits(found, shares, taken, [gpu.shares for gpu in there.gpus])


def fits(found: Placement, shares: dict[int, int], taken: set[int], sizes: list[int]) -> bool:
    if taken.intersection(found.positions):
        return False
    if found.demand.kind is Kind.COUNT:
        return not any(shares[n] for n in found.positions)
    return all(shares[n] + asked <= sizes[n] for n, asked in found.shares)


def test_of_a_restricted_node_no_more_is_free_than_it_is_restricted_to() -> None:
    """Of GPUs of 8, 8, 8 and 4 shares one is used by 5; it is restricted to 4 shares of two, and the last GPU."""
    node = candidate("n", gpus(8, 8, 8, 4), [Usage(((1, 5),))]).restricted({0: 4, 1: 4, 3: 4})

    assert [room.free for room in node.rooms] == [4, 3, 0, 4]
    assert node.summary == summary(node.rooms)
    assert node.summary.unused == (3,), "a GPU of which a part alone is left is none that a pod may take as a whole"


def test_a_restricted_node_gives_nothing_that_is_out_of_service_or_in_whole_use() -> None:
    node = candidate("n", gpus(8, 8, unhealthy=0), [Usage(whole=(1,))]).restricted({0: 8, 1: 8})

    assert node.summary.frees == ()
    assert node.summary.unused == ()
