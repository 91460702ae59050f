"""A whole pod on one node, or why it does not fit there."""

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.contract.nodegpus import AWAY, BY_CLAIMS, ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.gpus import Closeness, Links
from gpu_device_plugin.model.placing import POLICIES, Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate, by_division, candidate, summary
from gpu_device_plugin.scheduler.rules.filter_failure import FilterFailure
from gpu_device_plugin.scheduler.rules.fitting import Fit, after, fit, hardware, room_decides, unfit
from gpu_device_plugin.scheduler.rules.packing import Packer, Packing, groups
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import Usage


def mem(shares: int, gpus: int = 1) -> Demand:
    return Demand(Kind.MEMORY, shares, gpus)


def whole(gpus: int) -> Demand:
    return Demand(Kind.COUNT, gpus)


def asking(*demands: Demand, preferences: GpuSelector = NO_PREFERENCES) -> GpuRequest:
    return GpuRequest(tuple(map(Part, demands)), preferences)


def node(
    *sizes: int,
    used: dict[int, int] | None = None,
    taken: tuple[int, ...] = (),
    unhealthy: tuple[int, ...] = (),
    models: tuple[str, ...] = (),
    share_mib: int | None = 1024,
    policy: str | None = None,
    near: tuple[tuple[int, int], ...] = (),
    cards: dict[int, str] | None = None,
) -> Candidate:
    """A node of GPUs with so many shares, called GPU-0, GPU-1 and so on; `near` ones are linked by NVLink.

    Those of `cards` are MIG instances of the GPUs that it names.
    """
    cards = cards or {}
    gpus = NodeGpus(
        tuple(
            ListedGpu(
                n,
                size,
                f"GPU-{n}",
                models[n] if models else "Tesla T4",
                unhealthy="hot" if n in unhealthy else "",
                instance=ListedInstance(cards[n], 0, n, "1g.10gb", n) if n in cards else None,
            )
            for n, size in enumerate(sizes)
        ),
        share_mib=share_mib,
        links=Links(tuple((a, b, Closeness.NVLINK, 0) for a, b in near)),
        policy=policy,
    )
    return candidate("n", gpus, [Usage(tuple((used or {}).items()), taken)])


def places(ask: GpuRequest, there: Candidate, policy: str = "binpack") -> list[dict[int, int]]:
    """Where each part of a pod comes to lie."""
    found = fit(ask, there, policy)
    assert isinstance(found, Fit)
    assert unfit(ask, there) is None
    assert [placement.demand for placement in found.placements] == [part.demand for part in ask.parts]
    assert {type(number) for placement in found.placements for _, number in placement.shares} <= {int}
    return [dict(placement.shares) for placement in found.placements]


class Refused(NamedTuple):
    """What people read of a refusal, and whether evicting pods would help."""

    sentence: str
    unresolvable: bool


def why(ask: GpuRequest, there: Candidate) -> Refused:
    found = fit(ask, there, "binpack")
    assert isinstance(found, FilterFailure)
    assert unfit(ask, there) == found == fit(ask, there, "spread")
    return Refused(found.sentence, found.unresolvable)


# --- where it fits


def test_who_asks_for_nothing_fits_everywhere() -> None:
    assert fit(GpuRequest(), Candidate("n", NodeGpus(problem="unreadable")), "binpack") == Fit(())
    assert unfit(GpuRequest(), Candidate("n", NodeGpus(problem="unreadable"))) is None


def test_the_policy_chooses_the_gpu() -> None:
    there = node(8, 8, 8, used={0: 1, 1: 4})
    assert places(asking(mem(4)), there, "binpack") == [{1: 4}]
    assert places(asking(mem(4)), there, "spread") == [{2: 4}]


def test_the_pod_chooses_the_policy_before_the_node_and_the_node_before_the_configuration() -> None:
    free, full = [{1: 1}], [{0: 1}]
    for policy, other in (("spread", "binpack"), ("binpack", "spread")):
        expected = free if policy == "spread" else full
        asked = asking(mem(1), preferences=GpuSelector(gpu_policy=policy))
        assert places(asked, node(8, 8, used={0: 1}, policy=other), other) == expected
        assert places(asking(mem(1)), node(8, 8, used={0: 1}, policy=policy), other) == expected
        assert places(asking(mem(1)), node(8, 8, used={0: 1}), policy) == expected


def test_memory_may_be_split_over_several_gpus() -> None:
    assert places(asking(mem(6, gpus=2)), node(8, 2, 3, 4)) == [{2: 3, 3: 3}]


def test_whole_gpus_are_taken_with_all_their_shares_where_nothing_is_used() -> None:
    assert places(asking(whole(2)), node(8, 6, 4, 5, used={0: 1}, taken=(1,))) == [{2: 4, 3: 5}]


def test_containers_may_lie_on_different_gpus() -> None:
    """5 + 5 free, and 5 and 4 are wanted: a pod that fits no single GPU."""
    assert places(asking(mem(4), mem(5)), node(5, 5)) == [{1: 4}, {0: 5}]


def test_containers_may_lie_on_one_gpu() -> None:
    assert places(asking(mem(2), mem(2)), node(8, 4)) == [{1: 2}, {1: 2}]
    assert places(asking(mem(2), mem(2)), node(8, 4), "spread") == [{0: 2}, {0: 2}]


def test_a_place_that_leaves_no_room_for_the_rest_is_not_taken() -> None:
    """2 + 2 on GPU 0 and 1, which binpack prefers, leaves 0, 3 and 6 free, into which 5 and 4 do not go."""
    asked = asking(mem(4, gpus=2), mem(5), mem(4))
    for policy in POLICIES:
        assert places(asked, node(2, 5, 6), policy) == [{0: 2, 2: 2}, {1: 5}, {2: 4}]


@pytest.mark.parametrize("used", [{}, {1: 1}], ids=["unused", "in use"])
def test_of_the_places_that_leave_room_for_the_rest_the_policy_likes_the_first_best(used: dict[int, int]) -> None:
    """Spread would take 2 + 2 of GPUs 0 and 1, but the 8 has room on GPU 0 only: GPUs 1 and 2 have the most beside."""
    asked = asking(mem(4, gpus=2), mem(8))
    assert places(asked, node(8, 7 + len(used), 6, 5, used=used), "spread") == [{1: 2, 2: 2}, {0: 8}]


def test_a_place_may_be_on_gpus_that_are_in_use() -> None:
    asked = asking(mem(4, gpus=2), mem(5), mem(4))
    assert places(asked, node(4, 5, 8, used={0: 2, 2: 2})) == [{0: 2, 2: 2}, {1: 5}, {2: 4}]


def test_what_takes_several_gpus_is_placed_first() -> None:
    """3, 5 and 6 are free; if 5 went first, GPU 1 would be full, and the split on GPU 0 and 2."""
    assert places(asking(mem(5), mem(4, gpus=2)), node(3, 5, 6)) == [{2: 5}, {0: 2, 1: 2}]


def test_the_largest_is_placed_first() -> None:
    """If 3 went first, it would be on GPU 0, and 4 on the other."""
    assert places(asking(mem(3), mem(4)), node(4, 6)) == [{1: 3}, {0: 4}]


def test_memory_goes_where_whole_gpus_leave_room() -> None:
    """GPU 0 and 1 are close. Taking them whole would leave nothing: GPU 2 is too small for the memory."""
    there = node(8, 8, 2, near=((0, 1),))
    assert places(asking(mem(4), whole(2)), there) == [{1: 4}, {0: 8, 2: 2}]
    assert places(asking(mem(2), whole(2)), there) == [{2: 2}, {0: 8, 1: 8}]
    shared = node(8, 8, 2, 8, used={3: 5}, near=((0, 1),))
    assert places(asking(mem(4), whole(2)), shared) == [{1: 4}, {0: 8, 2: 2}]


def test_of_the_whole_gpus_that_leave_room_the_policy_likes_the_first_best() -> None:
    """GPU 0 and 1 are close, but one of them has to stay for the 7; of the others spread likes the larger."""
    there = node(8, 8, 6, 5, near=((0, 1),))
    assert places(asking(mem(7), whole(2)), there, "spread") == [{1: 7}, {0: 8, 2: 6}]


def test_a_gpu_out_of_service_is_not_taken() -> None:
    assert places(asking(mem(2)), node(2, 8, unhealthy=(0,))) == [{1: 2}]


def test_after_a_pod_the_node_has_what_the_pod_leaves() -> None:
    """Of GPUs of 8, 8 and 4 one pod takes 3 shares and a whole GPU, and CPU and memory."""
    there = replace(node(8, 8, 4), left=Amounts(1000, 2048))
    found = fit(asking(mem(3), whole(1)), there, "binpack")
    assert isinstance(found, Fit)

    full = after(there, found, Amounts(300, 1024))

    assert [room.free for room in full.rooms] == [0, 8, 1]
    assert [room.unused for room in full.rooms] == [False, True, False]
    assert full.summary == summary(full.rooms)
    assert full.left == Amounts(700, 1024)
    assert after(node(8), Fit(())).left is None, "what is not known stays so"


# --- why it does not fit


@pytest.mark.parametrize("asked", [mem(1), whole(1)])
def test_a_node_whose_gpus_are_not_known_says_what_is_wrong(asked: Demand) -> None:
    assert why(asking(asked), Candidate("n", NodeGpus(problem="it says nonsense"))) == Refused(
        "it says nonsense", unresolvable=True
    )


def test_a_node_without_gpus_shares_none() -> None:
    assert why(asking(mem(1)), Candidate("n")) == Refused("it shares no GPU", unresolvable=True)
    assert why(asking(mem(1), mem(1)), Candidate("n")) == Refused("it shares no GPU", unresolvable=True)


REASONS: dict[str, tuple[Demand, Candidate, str, bool]] = {
    "the sum does not count": (mem(8), node(8, 8, used={0: 3, 1: 3}), "no GPU has 8 GiB free", False),
    "one is full": (mem(1), node(8, used={0: 8}), "no GPU has 1 GiB free", False),
    "shares of another size": (mem(3), node(4, used={0: 2}, share_mib=256), "no GPU has 768 MiB free", False),
    "the size of a share is not known": (
        mem(3),
        node(4, used={0: 2}, share_mib=None),
        "no GPU has a gpu-mem of 3 free",
        False,
    ),
    "all too small": (mem(9), node(8, 5), "the largest GPU has only 8 GiB", True),
    "too small by a share of unknown size": (
        mem(9),
        node(8, 5, share_mib=None),
        "the largest GPU has only a gpu-mem of 8",
        True,
    ),
    "the largest is out of service": (
        mem(9),
        node(16, 8, 21, unhealthy=(0, 2)),
        "the largest healthy GPU has 8 GiB, and one of 21 GiB is unhealthy",
        True,
    ),
    "one that is too small as well is out of service": (
        mem(9),
        node(8, 7, unhealthy=(1,)),
        "the largest GPU has only 8 GiB",
        True,
    ),
    "all out of service": (mem(1), node(8, 8, unhealthy=(0, 1)), "no healthy GPU", True),
    "no whole one in service": (whole(1), node(8, unhealthy=(0,)), "no healthy GPU", True),
    "all whole": (mem(4), node(8, 8, taken=(0, 1)), "all GPUs are exclusively allocated", False),
    "all whole, two wanted": (mem(4, 2), node(8, 8, taken=(0, 1)), "all GPUs are exclusively allocated", False),
    "large enough are whole": (mem(4), node(8, 2, taken=(0,)), "no GPU has 4 GiB free", False),
    "one of two is full": (mem(8, 2), node(8, 8, used={1: 5}), "fewer than 2 GPUs have 4 GiB free", False),
    "one of two is whole": (mem(8, 2), node(8, 8, taken=(1,)), "fewer than 2 GPUs have 4 GiB free", False),
    "one of two is small": (mem(8, 2), node(8, 3), "fewer than 2 GPUs have 4 GiB", True),
    "fewer than two": (mem(8, 2), node(8), "fewer than 2 GPUs have 4 GiB", True),
    "fewer than two in service": (
        mem(8, 2),
        node(8, 8, unhealthy=(0,)),
        "fewer than 2 healthy GPUs have 4 GiB",
        True,
    ),
    "fewer than three, of which one is in service": (
        mem(12, 3),
        node(8, 8, unhealthy=(0,)),
        "fewer than 3 GPUs have 4 GiB",
        True,
    ),
    "fewer than two, and whole": (mem(8, 2), node(8, taken=(0,)), "fewer than 2 GPUs have 4 GiB", True),
    "a share of it is in use": (whole(1), node(8, used={0: 1}), "no unused GPU", False),
    "in whole use": (whole(1), node(8, taken=(0,)), "no unused GPU", False),
    "one of two is used": (whole(2), node(8, 8, used={1: 1}), "fewer than 2 unused GPUs", False),
    "more whole ones than there are": (whole(3), node(8, 8), "fewer than 3 healthy GPUs", True),
    "more than are in service": (whole(2), node(8, 8, unhealthy=(0,)), "fewer than 2 healthy GPUs", True),
}


@pytest.mark.parametrize(("demand", "there", "sentence", "unresolvable"), REASONS.values(), ids=REASONS)
def test_the_sentence_says_what_is_missing(demand: Demand, there: Candidate, sentence: str, unresolvable: bool) -> None:  # noqa: FBT001  (a table's column)
    assert why(asking(demand), there) == Refused(sentence, unresolvable)


def test_what_can_never_be_is_told_before_what_may_come() -> None:
    """4 GiB would become free, 9 GiB never."""
    assert why(asking(mem(4), mem(9)), node(8, used={0: 6})) == Refused(
        "the largest GPU has only 8 GiB", unresolvable=True
    )
    assert why(asking(mem(4), mem(6)), node(16, used={0: 13})) == Refused("no GPU has 4 GiB free", unresolvable=False)


def test_containers_that_fit_alone_may_not_fit_together() -> None:
    together = "its GPUs have no room for all containers of the pod together"
    assert why(asking(mem(5), mem(5)), node(8, 8, used={1: 4})) == Refused(together, unresolvable=False)
    assert why(asking(mem(5), mem(5)), node(8)) == Refused(together, unresolvable=True)
    assert why(asking(mem(1), whole(1)), node(8)) == Refused(together, unresolvable=True)
    assert why(asking(mem(1), whole(1)), node(8, 8, taken=(0,))) == Refused(together, unresolvable=False)
    assert why(asking(mem(1), whole(1)), node(8, 8, unhealthy=(0,))) == Refused(together, unresolvable=True)
    assert why(asking(whole(1), whole(1)), node(8, 8, used={0: 1})) == Refused(together, unresolvable=False)
    assert why(asking(mem(5), mem(5)), node(8, taken=(0,))) == Refused(together, unresolvable=True)


# --- nodes of gpushare's own device plugin


def divided(memory: int, count: int) -> Candidate:
    return candidate("n", by_division(memory, count), [])


def test_gpushares_plugin_gives_one_container_memory_of_one_gpu() -> None:
    assert places(asking(mem(4)), divided(30, 2)) == [{0: 4}]
    assert why(asking(mem(16)), divided(30, 2)) == Refused(
        "the largest GPU has only a gpu-mem of 15", unresolvable=True
    )


def test_gpushares_plugin_gives_no_whole_gpus() -> None:
    sentence = "its device plugin does not allocate whole GPUs"
    assert why(asking(whole(1)), divided(30, 2)) == Refused(sentence, unresolvable=True)
    assert why(asking(mem(1), whole(1)), divided(15, 1)) == Refused(sentence, unresolvable=True)


@pytest.mark.parametrize("asked", [asking(mem(2), mem(2)), asking(mem(4, gpus=2))], ids=["two containers", "a split"])
def test_gpushares_plugin_is_told_of_no_second_gpu_and_no_second_container(asked: GpuRequest) -> None:
    """It knows a pod by the sum of what it asks, and its GPU by an annotation with one number."""
    sentence = "its device plugin serves only pods with one container that takes memory of one GPU"
    assert why(asked, divided(30, 2)) == Refused(sentence, unresolvable=True)


def test_where_gpushares_plugin_has_one_gpu_it_gives_that_to_all() -> None:
    assert places(asking(mem(2), mem(2)), divided(15, 1)) == [{0: 2}, {0: 2}]
    assert why(asking(mem(4, gpus=2)), divided(15, 1)).sentence == "fewer than 2 GPUs have a gpu-mem of 2"


# --- what the pod's owner wishes

MIXED = ("Tesla T4", "NVIDIA A10", "NVIDIA A10")


@pytest.mark.parametrize(
    ("preferences", "place"),
    [
        (GpuSelector(), 0),
        (GpuSelector(use_models=("A10",)), 1),
        (GpuSelector(avoid_models=("T4",)), 1),
        (GpuSelector(use_uuids=("GPU-2",)), 2),
        (GpuSelector(use_models=("A10",), avoid_uuids=("GPU-1",)), 2),
    ],
)
def test_a_pod_gets_a_gpu_that_its_annotations_allow(preferences: GpuSelector, place: int) -> None:
    assert places(asking(mem(4), preferences=preferences), node(8, 8, 8, models=MIXED)) == [{place: 4}]


def test_wishes_hold_for_every_container() -> None:
    asked = asking(mem(5), mem(5), preferences=GpuSelector(use_models=("A10",)))
    assert places(asked, node(8, 8, 8, models=MIXED)) == [{1: 5}, {2: 5}]


CHOOSY: dict[str, tuple[Demand, GpuSelector, str, bool]] = {
    "no such model": (
        mem(1),
        GpuSelector(use_models=("H100",)),
        "the pod's annotations allow none of its GPUs",
        True,
    ),
    "too small": (
        mem(9),
        GpuSelector(use_models=("T4",)),
        "the largest GPU has only 8 GiB, among the GPUs that the pod's annotations allow",
        True,
    ),
    "all are allowed": (mem(17), GpuSelector(avoid_models=("H100",)), "the largest GPU has only 16 GiB", True),
}


@pytest.mark.parametrize(("demand", "preferences", "sentence", "unresolvable"), CHOOSY.values(), ids=CHOOSY)
def test_the_sentence_says_that_the_pod_is_choosy(
    demand: Demand,
    preferences: GpuSelector,
    sentence: str,
    unresolvable: bool,  # noqa: FBT001  (a table's column)
) -> None:
    there = node(8, 16, 16, used={0: 4}, unhealthy=(2,), models=MIXED)
    assert why(asking(demand, preferences=preferences), there) == Refused(sentence, unresolvable)


def test_choosy_containers_that_do_not_fit_together_are_told_so() -> None:
    there = node(8, 8, 8, models=MIXED, used={1: 4})
    asked = asking(mem(5), mem(5), preferences=GpuSelector(use_models=("A10",)))
    together = "its GPUs have no room for all containers of the pod together"
    assert why(asked, there) == Refused(
        f"{together}, among the GPUs that the pod's annotations allow", unresolvable=False
    )


def test_groups_differ_by_more_than_which_of_a_kind_they_take() -> None:
    assert list(groups(["ab", "c"], 2)) == [("a", "b"), ("a", "c")]
    assert list(groups(["a", "bcd"], 1)) == [("a",), ("b",)]
    assert list(groups(["ab", "c"], 0)) == [()]
    assert list(groups(["ab", "c"], 4)) == []


# --- how long it takes


def test_many_containers_that_do_not_fit_are_given_up() -> None:
    """Ten that ask 3 do not fit onto eight GPUs with 5 free; there are 8^10 ways to try."""
    there = node(*(5,) * 8)
    assert why(asking(*[mem(3)] * 10), there).sentence.startswith("its GPUs have no room for all containers")
    different = node(*range(20, 36, 2))
    too_much = asking(*(mem(n) for n in range(14, 24)), mem(13), mem(13))
    assert why(too_much, different).sentence.startswith("its GPUs have no room for all containers")


def test_a_crowd_of_gpus_is_no_crowd_of_ways() -> None:
    """Half of 24 equal GPUs can be taken whole in 2.7 million ways, all of which leave the same."""
    assert why(asking(whole(12), whole(12), mem(1)), node(*(4,) * 24)).unresolvable


@pytest.mark.parametrize("policy", POLICIES)
def test_many_containers_that_just_fit_are_placed(policy: str) -> None:
    """Each of four GPUs takes 5 and 3: sixteen shares of either kind would not go together otherwise."""
    found = fit(asking(*[mem(3), mem(5)] * 4), node(8, 8, 8, 8), policy)
    assert isinstance(found, Fit)
    assert [placement.shares for placement in found.placements[1::2]] == [((n, 5),) for n in range(4)]


def test_what_was_tried_in_vain_is_not_tried_again() -> None:
    """5 + 2 + 2 + 2, 5 + 4, 4 + 4 and four times 2 fill four GPUs. Who tries everything twice gives up before."""
    amounts = (5, 5, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2)
    found = fit(asking(*map(mem, amounts)), node(8, 11, 9, 8), "binpack")
    assert isinstance(found, Fit)
    for gpu, size in enumerate((8, 11, 9, 8)):
        assert sum(dict(placement.shares).get(gpu, 0) for placement in found.placements) == size


def test_what_is_too_much_in_all_is_not_tried() -> None:
    """They ask 52, and the GPUs have 51."""
    amounts = (7, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 1)
    assert Packer([mem(amount) for amount in amounts])((11, 10, 11, 14, 5), ()) == Packing(None, 0)


def test_who_may_try_only_so_often_gives_up_then() -> None:
    assert Packer(list(map(mem, PIECES)))(FULL, FULL, most_steps=7) == Packing(None, 7)
    assert Packer([mem(3), mem(5)])((8,), (), most_steps=2) == Packing(((8,), (3,)), 2)


FULL = (46, 73, 84, 63, 83)
PIECES = (24, 5, 17, 34, 4, 35, 14, 30, 40, 37, 7, 19, 68, 1, 14)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_takes_long_to_place_as_the_policy_likes_is_placed_all_the_same(policy: str) -> None:
    """The pieces are 24 + 5 + 17, 34 + 4 + 35 and so on, which fill the GPUs to the last share."""
    asked, there = asking(*map(mem, PIECES)), node(*FULL)
    assert unfit(asked, there) is None
    found = fit(asked, there, policy)
    assert isinstance(found, Fit)
    assert [placement.demand.amount for placement in found.placements] == list(PIECES)
    for gpu, size in enumerate(FULL):
        assert sum(dict(placement.shares).get(gpu, 0) for placement in found.placements) == size


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_gpus_beside_them_are_placed_too(policy: str) -> None:
    """The smallest two are taken whole, and 2 + 2 shares of the two with 3, one of which is in use already."""
    asked, there = asking(*map(mem, PIECES), whole(2), mem(4, gpus=2)), node(*FULL, 3, 2, 2, 3, used={8: 1})
    found = fit(asked, there, policy)
    assert isinstance(found, Fit)
    assert unfit(asked, there) is None
    assert len(found.placements[-2].positions) == len(found.placements[-1].positions) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_placed_all_the_same_is_not_on_gpus_that_cannot_be_had(policy: str) -> None:
    """GPU 0 is out of service and GPU 1 in whole use; they have what the smallest would have to give."""
    asked, there = asking(*map(mem, PIECES), whole(1)), node(2, 73, *FULL, 2, unhealthy=(0,), taken=(1,))
    found = fit(asked, there, policy)
    assert isinstance(found, Fit)
    assert found.placements[-1].shares == ((7, 2),)
    assert {at for placement in found.placements for at in placement.positions} == set(range(2, 8))


# --- where kube-scheduler allocates


def by_claims(*models: str, away: bool = False) -> Candidate:
    """A node that serves claims, with GPUs of these models called GPU-0, GPU-1 and so on."""
    gpus = tuple(ListedGpu(n, 8, f"GPU-{n}", model) for n, model in enumerate(models))
    return candidate("n", NodeGpus(gpus, 1024, claims=True, away=away, problem=AWAY if away else BY_CLAIMS), ())


@pytest.mark.parametrize("demands", [(whole(1),), (whole(1), whole(1)), (whole(3),)])
@pytest.mark.parametrize("models", [(), ("T4",), ("T4", "A10")])
def test_whole_gpus_of_a_node_that_serves_claims_are_for_kube_scheduler_to_allocate(
    demands: tuple[Demand, ...], models: tuple[str, ...]
) -> None:
    """Also where fewer GPUs are listed: which are free, and whether there are enough, kube-scheduler has found out."""
    assert fit(asking(*demands), by_claims(*models), "binpack") == Fit(())
    assert unfit(asking(*demands), by_claims(*models)) is None


@pytest.mark.parametrize("demands", [(mem(1),), (mem(1), whole(1)), (mem(2, 2),)])
def test_shares_of_a_node_that_serves_claims_are_not_given_out_by_limits(demands: tuple[Demand, ...]) -> None:
    assert why(asking(*demands), by_claims("T4", "T4")) == Refused(BY_CLAIMS, unresolvable=True)


def test_no_pod_goes_to_a_node_that_serves_claims_while_its_agent_is_away() -> None:
    assert why(asking(whole(1)), by_claims("T4", away=True)) == Refused(AWAY, unresolvable=True)


@pytest.mark.parametrize(
    ("preferences", "sentence"),
    [
        (
            GpuSelector(use_models=("T4",)),
            "kube-scheduler allocates its GPUs through ResourceClaims (DRA) and may choose any, and ",
        ),
        (
            GpuSelector(avoid_uuids=("GPU-1",)),
            "kube-scheduler allocates its GPUs through ResourceClaims (DRA) and may choose ",
        ),
        (GpuSelector(use_models=("H100",)), "the pod's annotations allow none of its GPUs"),
    ],
)
def test_wishes_that_kube_scheduler_would_not_keep_exclude_a_node_that_serves_claims(
    preferences: GpuSelector, sentence: str
) -> None:
    found = why(asking(whole(1), preferences=preferences), by_claims("T4", "A10"))
    assert found.sentence.startswith(sentence)
    assert found.unresolvable


def test_wishes_that_every_gpu_of_a_node_meets_are_kept_by_any_choice() -> None:
    assert unfit(asking(whole(1), preferences=GpuSelector(use_models=("T4",))), by_claims("T4", "T4")) is None


# --- What many nodes have in common


def test_where_more_than_room_decides_is_told() -> None:
    assert room_decides(node(8, 8, used={0: 8}))
    assert not any(map(room_decides, (node(), divided(30, 2), Candidate("n", NodeGpus(problem=AWAY)))))


def test_instances_have_reasons_of_their_own() -> None:
    assert hardware(node(1, 1, cards={0: "GPU-8", 1: "GPU-8"})) is None


DEMANDS = st.builds(mem, st.sampled_from([2, 4, 6, 12]))
NODES = st.lists(
    st.builds(
        lambda sizes, used, unhealthy, share_mib: node(
            *sizes,
            used={n: min(size, used) for n, size in enumerate(sizes)},
            unhealthy=tuple(n for n in unhealthy if n < len(sizes)),
            share_mib=share_mib,
        ),
        st.lists(st.sampled_from([3, 4]), min_size=1, max_size=3),
        st.integers(0, 4),
        st.sets(st.integers(0, 2)),
        st.sampled_from([1024, 512]),
    ),
    min_size=2,
    max_size=12,
)


@given(asked=st.builds(whole, st.integers(1, 3)) | DEMANDS, gpus=st.integers(1, 2), nodes=NODES)
def test_what_is_alike_has_the_same_reason(asked: Demand, gpus: int, nodes: list[Candidate]) -> None:
    ask = asking(asked if asked.kind is Kind.COUNT else mem(asked.amount, gpus))
    reasons: dict[object, FilterFailure] = {}
    for one in nodes:
        found = unfit(ask, one)
        if found is not None:
            assert reasons.setdefault(hardware(one), found) == found


@given(asked=st.lists(st.builds(whole, st.integers(1, 3)) | DEMANDS, min_size=2, max_size=4), nodes=NODES)
def test_on_alike_nodes_a_pod_of_several_parts_is_as_impossible(asked: list[Demand], nodes: list[Candidate]) -> None:
    """Whatever is free, if it would not fit on the emptied node; else by what its numbers say of the parts."""
    reasons: dict[object, FilterFailure] = {}
    packer = Packer(asking(*asked).demands)
    verdicts = [(hardware(one), packer.too_large(one.summary), unfit(asking(*asked), one)) for one in nodes]
    never = {alike: why for alike, _, why in verdicts if why is not None and why.unresolvable}
    for alike, place, found in verdicts:
        if alike in never:
            assert found == never[alike]
        elif place is not None:
            assert found is not None
            assert reasons.setdefault((alike, place), found) == found


# --- MIG instances

ONE = {0: "GPU-8", 1: "GPU-8", 2: "GPU-8"}
"""Three instances of one GPU."""
TWO_CARDS = {0: "GPU-8", 1: "GPU-8", 2: "GPU-9", 3: "GPU-9"}


def test_each_container_gets_an_instance_of_its_own_or_shares_one() -> None:
    there = node(10, 10, 10, cards=ONE)
    assert places(asking(mem(9), mem(8), mem(10)), there) == [{1: 9}, {2: 8}, {0: 10}]
    assert places(asking(mem(4), mem(6)), there) == [{0: 4}, {0: 6}]


def test_no_container_gets_memory_of_two_instances() -> None:
    there = node(10, 10, 10, cards=ONE)
    assert why(asking(mem(12)), there) == Refused("the largest MIG instance has only 10 GiB", unresolvable=True)
    assert why(asking(mem(12, gpus=2)), there) == Refused(
        "it has MIG instances only, and no container can use several of them", unresolvable=True
    )


def test_a_pod_takes_whole_gpus_and_instances_at_once() -> None:
    there = node(80, 10, 10, 80, cards={1: "GPU-8", 2: "GPU-8"})
    assert places(asking(mem(8), whole(2), mem(9)), there) == [{2: 8}, {0: 80, 3: 80}, {1: 9}]
    assert places(asking(mem(20, gpus=2), mem(10), mem(10)), there) == [{0: 10, 3: 10}, {1: 10}, {2: 10}]


def test_what_only_gpus_can_serve_gets_them() -> None:
    """Memory of two GPUs takes 70 of each; only the rest of one has room for 20, and the instances for 10."""
    there = node(80, 10, 10, 90, cards={1: "GPU-8", 2: "GPU-8"})
    assert places(asking(mem(20), mem(140, gpus=2), mem(10)), there) == [{3: 20}, {0: 70, 3: 70}, {1: 10}]
    assert places(asking(mem(20), mem(160, gpus=2)), node(80, 80, 20, cards={2: "GPU-8"})) == [{2: 20}, {0: 80, 1: 80}]
    assert why(asking(mem(20), mem(160, gpus=2)), node(80, 80, 10, 80, used={3: 70}, cards={2: "GPU-8"})) == Refused(
        "its GPUs have no room for all containers of the pod together", unresolvable=False
    )


def test_a_whole_gpu_is_never_an_instance() -> None:
    assert why(asking(whole(1)), node(10, 10, 10, cards=ONE)) == Refused(
        "it has MIG instances only, none of its GPUs is whole", unresolvable=True
    )
    there = node(80, 10, 10, cards={1: "GPU-8", 2: "GPU-8"})
    assert why(asking(whole(2)), there) == Refused("fewer than 2 healthy GPUs", unresolvable=True)
    assert places(asking(whole(1)), there) == [{0: 80}]
    busy = node(80, 10, used={0: 1}, cards={1: "GPU-8"})
    assert why(asking(whole(1)), busy) == Refused("no unused GPU", unresolvable=False)


BESIDE = {1: "GPU-8"}
SENTENCES: dict[str, tuple[GpuRequest, Candidate, str, bool]] = {
    "the GPU is full, and so is the instance": (
        asking(mem(5)),
        node(80, 10, used={0: 76, 1: 6}, cards=BESIDE),
        "no GPU or MIG instance has 5 GiB free",
        False,
    ),
    "instances only": (
        asking(mem(5)),
        node(10, 10, used={0: 6, 1: 6}, cards=TWO_CARDS),
        "no MIG instance has 5 GiB free",
        False,
    ),
    "too large for all": (
        asking(mem(81)),
        node(80, 10, cards=BESIDE),
        "the largest GPU or MIG instance has only 80 GiB",
        True,
    ),
    "the GPU has failed": (
        asking(mem(11)),
        node(80, 10, cards=BESIDE, unhealthy=(0,)),
        "the largest healthy GPU or MIG instance has 10 GiB, and one of 80 GiB is unhealthy",
        True,
    ),
    "all have failed": (
        asking(mem(1)),
        node(80, 10, cards=BESIDE, unhealthy=(0, 1)),
        "no healthy GPU or MIG instance",
        True,
    ),
    "all instances have failed": (
        asking(mem(1)),
        node(10, cards=ONE, unhealthy=(0,)),
        "no healthy MIG instance",
        True,
    ),
    "all GPUs have failed": (
        asking(whole(1)),
        node(80, 10, cards=BESIDE, unhealthy=(0,)),
        "no healthy GPU",
        True,
    ),
    "the pod may have the instances alone": (
        asking(whole(1), preferences=GpuSelector(use_uuids=frozenset({"GPU-8"}))),
        node(80, 10, cards=BESIDE),
        "it has MIG instances only, none of its GPUs is whole, among the GPUs that the pod's annotations allow",
        True,
    ),
}


@pytest.mark.parametrize(("ask", "there", "sentence", "unresolvable"), SENTENCES.values(), ids=SENTENCES)
def test_the_reason_names_what_the_node_has(
    ask: GpuRequest,
    there: Candidate,
    sentence: str,
    unresolvable: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert why(ask, there) == Refused(sentence, unresolvable)


def test_a_node_that_gives_its_instances_whole_says_so() -> None:
    instance = ListedGpu(0, 10, instance=ListedInstance("GPU-8", 0, 0, "1g.10gb", 7, "aliyun.com/mig-1g.10gb"))
    for ask in (asking(mem(1)), asking(whole(1))):
        assert why(ask, candidate("n", NodeGpus(share_mib=1024, instances=(instance,)), [])) == Refused(
            "its MIG instances are allocated whole, through the resources of their profiles, and it shares no GPU",
            unresolvable=True,
        )


def test_the_uuid_of_a_gpu_in_mig_mode_means_its_instances() -> None:
    there = node(10, 10, 10, 10, cards=TWO_CARDS)
    for preferences, taken in (
        (GpuSelector(use_uuids=frozenset({"GPU-9"})), 2),
        (GpuSelector(use_uuids=frozenset({"GPU-3"})), 3),
        (GpuSelector(avoid_uuids=frozenset({"GPU-8"})), 2),
        (GpuSelector(avoid_uuids=frozenset({"GPU-0"})), 1),
        (GpuSelector(use_uuids=frozenset({"GPU-9"}), avoid_uuids=frozenset({"GPU-2"})), 3),
    ):
        assert places(asking(mem(4), preferences=preferences), there) == [{taken: 4}]


def test_a_second_part_keeps_to_the_same_gpu_or_leaves_it() -> None:
    """Both take all of an instance; of four that are free two are of each GPU."""
    there = node(10, 10, 10, 10, cards=TWO_CARDS)
    assert places(asking(mem(10), mem(10)), there, "binpack") == [{0: 10}, {1: 10}]
    assert places(asking(mem(10), mem(10)), there, "spread") == [{0: 10}, {2: 10}]


def test_an_instance_and_a_gpu_with_as_much_room_are_not_mistaken_for_each_other() -> None:
    """Many parts make the search for the best places give up, so that they are placed as they were packed."""
    amounts = (5, 5, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2)
    there = node(8, 8, 11, 9, 8, cards={0: "GPU-8"})
    found = fit(asking(whole(1), *map(mem, amounts)), there, "binpack")
    assert isinstance(found, Fit)
    ((position, _),) = found.placements[0].shares
    assert position in {1, 4}
    split = fit(asking(mem(16, gpus=2), *map(mem, amounts)), node(8, 8, 8, 11, 9, 8, 8, cards={0: "GPU-8"}), "binpack")
    assert isinstance(split, Fit)
    assert 0 not in split.placements[0].positions


def test_a_packing_puts_memory_of_several_gpus_on_gpus() -> None:
    assert Packer([mem(8, gpus=2)])((4, 4), (), (9, 9)) == Packing(((4, 4),), 1)
    assert Packer([mem(8, gpus=2)])((4,), (), (9, 9)).taken is None
    assert Packer([mem(8, gpus=2), mem(9)])((4, 4), (), (9,)).taken == ((4, 4), (9,))
    assert Packer([mem(8, gpus=2), mem(10)])((4, 4), (), (9,)) == Packing(None, 0)
    assert Packer([mem(4), mem(9)])((4,), (), (9,)).taken == ((9,), (4,))
