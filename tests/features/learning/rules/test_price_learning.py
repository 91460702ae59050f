"""What the mix of pods teaches of the room of nodes, and what each pod costs of it."""

from collections.abc import Generator
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_device_plugin.features.learning.rules.marginal_value import (
    CLOSED,
    NEVER,
    UNKNOWN,
    Appraiser,
    FreeCapacity,
    free_capacity,
    ranks_on,
    shape_of,
)
from gpu_device_plugin.features.learning.rules.price_learning import (
    MOST_CELLS,
    MOST_LEVELS,
    MOST_TABLES,
    WANTED,
    Tables,
    learning,
)
from gpu_device_plugin.features.learning.rules.workload_mix import GpuKind, NodeType, PodKind, rounded
from gpu_device_plugin.model.contract.gpu_preferences import NO_PREFERENCES, GpuSelector
from gpu_device_plugin.model.contract.nodegpus import ListedGpu, ListedInstance, NodeGpus
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import candidate
from gpu_device_plugin.scheduler.rules.fitting import Fit, fit
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part
from gpu_device_plugin.scheduler.rules.usage import Usage
from tests.scores import partly_used
from tests.searches import learn
from tests.work import counted

T4 = NodeType((16, 16), ("T4", "T4"), 32_000, 131_072)
MIG = NodeType((16, 8, 8, 8), ("H100",) * 4, 32_000, 131_072, (None, 1, 1, 3))
"""A GPU, and three MIG instances, two of them of one GPU."""
A10 = NodeType((24,), ("A10",), 32_000, 131_072)
MIB = 1024


def of_model(*models: str) -> GpuSelector:
    return GpuSelector(models)


class GpuChoice(NamedTuple):
    """GPUs of a node for a pod, and what the node gains by it."""

    gain: float
    gpus: tuple[int, ...]


def choose(there: Appraiser, kind: PodKind, node_type: NodeType, room: FreeCapacity) -> GpuChoice | None:
    """Return the GPUs on which a pod costs least; None where it does not fit."""
    appraised = there.appraise(node_type, room)
    gain = NEVER if appraised is None else there.gain(kind, appraised)
    return None if appraised is None or gain == NEVER else GpuChoice(gain, tuple(there.gpus(kind, appraised)))


# --- tables


def test_without_pods_every_share_is_worth_the_same() -> None:
    tables = learn({}, {T4: 2, A10: 1})
    assert tables.wanted == {T4: 1.0, A10: 1.0}
    assert tables.packed == {GpuKind(16, "T4"): ((0.0,) * 17,), GpuKind(24, "A10"): ((0.0,) * 25,)}
    assert (tables.levels, tables.prices, tables.cpu_per_share) == ((), {(16, False): {}, (24, False): {}}, 0.0)
    assert tables.unit == (2 * 32 + 24) / 5


def test_without_nodes_there_is_nothing_to_learn() -> None:
    tables = learn({PodKind(4, 1): 1.0}, {})
    assert (tables.wanted, tables.packed, tables.together) == ({}, {}, {})
    assert Appraiser(tables).tables is tables


def test_room_is_worth_the_pods_that_could_be_packed_into_it() -> None:
    """Pods of 5 on GPUs of 16: 15 shares are worth as much as 16, and 4 are worth nothing."""
    packed = learn({PodKind(5, 1): 1.0}, {T4: 1}).packed[GpuKind(16, "T4")][0]
    third = 16 / 3
    assert packed == pytest.approx((0.0,) * 5 + (third,) * 5 + (2 * third,) * 5 + (16.0, 16.0))


def test_without_cpu_for_them_pods_are_worth_less() -> None:
    """Half of the pods ask for 4 CPUs: below, the room is worth half, and nothing without a CPU at all."""
    tables = learn({PodKind(8, 1, 1000): 1.0, PodKind(8, 1, 4000): 1.0}, {T4: 1})
    assert tables.levels == (1000, 4000)
    assert [by_level[16] for by_level in tables.packed[GpuKind(16, "T4")]] == pytest.approx([0.0, 8.0, 16.0])
    assert tables.cpu_per_share == (1000 + 4000) / 16


def test_gpus_that_more_pods_may_have_are_worth_more() -> None:
    """One third of the demand is for A10 alone, the rest for any: A10 has 24 of 88 shares.

    A share of A10 is asked for 8/24 + 16/88 times, one of T4 16/88; the mean over all shares is 24/88. Half of the
    difference counts.
    """
    tables = learn({PodKind(8, 1, selector=of_model("A10")): 1.0, PodKind(16, 1): 1.0}, {T4: 2, A10: 1})
    mean = 24 / 88
    assert tables.wanted[A10] == pytest.approx(1 + WANTED * ((8 / 24 + 16 / 88) / mean - 1))
    assert tables.wanted[T4] == pytest.approx(1 + WANTED * ((16 / 88) / mean - 1))


def test_pods_that_no_node_can_host_teach_nothing_of_models() -> None:
    tables = learn({PodKind(8, 1, selector=of_model("H100")): 1.0}, {T4: 1, A10: 1})
    assert tables.wanted == {T4: 1.0, A10: 1.0}


def test_unused_gpus_are_worth_more_together_where_pods_of_several_come() -> None:
    """All demand is for pairs: an unused GPU beside another is worth 0.15 of a GPU more, one alone nothing."""
    tables = learn({PodKind(0, 2, 4000): 1.0}, {T4: 1})
    without_cpu, with_cpu = tables.together[T4]
    assert without_cpu == (0.0, 0.0, 0.0)
    assert with_cpu == pytest.approx((0.0, 0.0, 0.15 * 16 * 2))


def test_cpu_is_worth_something_to_pods_without_gpus() -> None:
    """They ask for a third of all CPU; a share goes with 500 thousandths."""
    tables = learn({PodKind(8, 1, 4000): 1.0, PodKind(0, 0, 2000): 1.0}, {T4: 1})
    assert tables.cpu_worth == pytest.approx((0.0, 0.1 / 500 / 3, 0.1 / 500 / 3))


def test_many_amounts_of_cpu_are_a_few_levels() -> None:
    mix = {PodKind(1, 1, cpu): 1.0 for cpu in range(1, 1000)}
    levels = learn(mix, {T4: 1}).levels
    assert (len(levels), levels[0], levels[-1]) == (MOST_LEVELS, 21, 999)


def test_a_gpu_of_many_shares_is_priced_in_cells() -> None:
    """40,000 shares of 1 MiB in 128 cells of 312.5: a pod of 10,000 takes exactly 32, one of 10,001 takes 33."""
    large = NodeType((40_000,), ("A100",), 32_000, 131_072)
    tables = learn({PodKind(10_000, 1): 1.0}, {large: 1})
    assert tables.prices == {(40_000, False): {MOST_CELLS // 4: pytest.approx(0.25)}}
    appraiser = Appraiser(tables)
    assert choose(appraiser, PodKind(10_000, 1), large, FreeCapacity((10_000,), 0, 0)) is not None
    assert learn({PodKind(10_001, 1): 1.0}, {large: 1}).prices[40_000, False].keys() == {33}
    values = [placement_value(appraiser, large, FreeCapacity((free,), 0, 0)) for free in (9_999, 10_000)]
    assert values[1] - values[0] > 9_000


def test_learning_takes_many_steps_so_that_others_can_run_between_them() -> None:
    steps = learning({PodKind(size, 1, size): 1.0 for size in range(1, 17)}, {T4: 1})
    assert sum(1 for _ in steps) > 100


# --- appraising


def placement_value(appraiser: Appraiser, node_type: NodeType, left: FreeCapacity) -> float:
    """Return the worth of a node whose shape was learned."""
    room = appraiser.appraise(node_type, left)
    assert room is not None
    return room.placement_value


def appraiser(mix: dict[PodKind, float], *node_types: NodeType) -> Appraiser:
    return Appraiser(learn(mix, dict.fromkeys(node_types, 1)))


def left(*frees: int, cpu: int = 32_000, memory: int = 131_072) -> FreeCapacity:
    return FreeCapacity(frees, cpu, memory)


@pytest.mark.parametrize(
    ("mix", "room", "shares"),
    [
        ({PodKind(5, 1): 1.0}, left(3, 4), 7.0),
        ({PodKind(5, 1): 1.0}, left(5, 9), 0.0 + 9 - 16 / 3),
        ({PodKind(5, 1): 1.0}, left(16, CLOSED), 0.0),
        ({PodKind(5, 1, 4000): 1.0}, left(16, 9, cpu=1000), 25.0),
        ({PodKind(0, 2, 4000): 1.0}, left(16, 16), 0.0),
        ({PodKind(0, 2, 4000): 1.0}, left(16, 15), 31.0),
    ],
)
def test_free_shares_beyond_what_could_be_packed_are_stranded(
    mix: dict[PodKind, float], room: FreeCapacity, shares: float
) -> None:
    """Of GPUs of 16, a pod of 5 is worth a third; pods of two GPUs need both unused, and all need their CPU."""
    found = appraiser(mix, T4).appraise(T4, room)
    assert found is not None
    assert found.stranded == pytest.approx(shares)


def test_a_pod_takes_the_gpu_that_loses_least() -> None:
    """Pods of 5 and 11 come: 5 of a rest of 5 cost nothing else; of a rest of 11 they cost the larger pod."""
    there = appraiser({PodKind(5, 1): 1.0, PodKind(11, 1): 1.0}, T4)
    found = choose(there, PodKind(5, 1), T4, left(11, 5))
    assert found is not None
    assert found.gpus == (1,)


def test_a_pod_that_does_not_fit_gets_nothing() -> None:
    there = appraiser({PodKind(8, 1): 1.0}, T4)
    assert choose(there, PodKind(8, 1), T4, left(7, 7)) is None
    assert choose(there, PodKind(8, 2), T4, left(16, 7)) is None
    assert choose(there, PodKind(0, 2), T4, left(16, 15)) is None
    assert choose(there, PodKind(8, 1, 2000), T4, left(16, 16, cpu=1999)) is None
    assert choose(there, PodKind(8, 1, 0, 64), T4, left(16, 16, memory=63)) is None
    assert choose(there, PodKind(8, 1, selector=of_model("A10")), T4, left(16, 16)) is None
    assert choose(there, PodKind(8, 1), T4, left(CLOSED, CLOSED)) is None


def test_whole_gpus_are_the_first_unused_ones_that_are_allowed() -> None:
    mixed = NodeType((16, 24, 24), ("T4", "A10", "A10"), 32_000, 131_072)
    there = appraiser({PodKind(0, 1): 1.0}, mixed)
    for kind, gpus in (
        (PodKind(0, 1), (0,)),
        (PodKind(0, 2, selector=of_model("A10")), (1, 2)),
        (PodKind(0, 1, selector=GpuSelector((), ("T4",))), (1,)),
    ):
        found = choose(there, kind, mixed, left(16, 24, 24))
        assert found is not None
        assert found.gpus == gpus


def test_a_pod_without_gpus_takes_cpu_alone() -> None:
    there = appraiser({PodKind(8, 1, 4000): 1.0, PodKind(0, 0, 2000): 1.0}, T4)
    found = choose(there, PodKind(0, 0, 2000), T4, left(16, 16))
    assert found is not None
    assert (found.gpus, found.gain < 0) == ((), True)


def test_of_two_nodes_the_fuller_one_is_better_where_nothing_else_decides() -> None:
    """Whole GPUs only: each costs the same, and the node with fewer left is filled first."""
    there = appraiser({PodKind(0, 1): 1.0}, T4)
    fuller, emptier = (choose(there, PodKind(0, 1), T4, each) for each in (left(16, 0), left(16, 16)))
    assert fuller is not None
    assert emptier is not None
    assert fuller.gain > emptier.gain


# --- MIG instances


def test_only_memory_of_one_gpu_is_learned_for_instances() -> None:
    """Of GPUs of 8 a pod of 8 or a whole GPU take all; of instances of 8 only the pod of 8 does."""
    mix = {PodKind(8, 1): 1.0, PodKind(0, 1): 1.0, PodKind(3, 2): 1.0}
    both = NodeType((8, 8), ("H100", "H100"), 32_000, 131_072, (None, 1))
    tables = learn(mix, {both: 1})
    assert tables.prices.keys() == {(8, False), (8, True)}
    assert tables.prices[8, True] == {8: pytest.approx(1.0)}
    assert tables.prices[8, False].keys() == {3, 8}
    instance, gpu = (tables.packed[GpuKind(8, "H100", instance=instance)][0] for instance in (True, False))
    assert instance == pytest.approx((0.0,) * 8 + (8.0,))
    assert gpu[3] > 0


def test_what_only_gpus_can_serve_makes_instances_no_more_wanted() -> None:
    """Pairs of whole GPUs come: the node with two is worth more, and the instances of the other count for nothing."""
    two = NodeType((16, 16), ("H100",) * 2, 32_000, 131_072)
    tables = learn({PodKind(0, 2): 1.0}, {two: 1, MIG: 1})
    assert tables.unit == 16.0
    assert (tables.wanted[two], tables.wanted[MIG]) == pytest.approx((1 + WANTED * (72 / 32 - 1), 1 - WANTED))
    assert [len(by_unused) for by_unused in (*tables.together[two], *tables.together[MIG])] == [3, 2]


def test_one_whole_gpu_is_wanted_of_a_node_as_far_as_it_has_gpus() -> None:
    """The demand of 16 is spread over the 32 shares of GPUs: MIG has 40 shares, 16 of which are those of a GPU."""
    other = NodeType((16,), ("H100",), 32_000, 131_072)
    tables = learn({PodKind(0, 1): 1.0}, {other: 1, MIG: 1})
    mean = 16 / 56
    assert tables.wanted[other] == pytest.approx(1 + WANTED * (16 / 32 / mean - 1))
    assert tables.wanted[MIG] == pytest.approx(1 + WANTED * (16 / 32 * 16 / 40 / mean - 1))


def test_where_there_are_instances_only_the_mean_one_is_the_unit() -> None:
    only = NodeType((8, 16), ("H100",) * 2, 32_000, 131_072, (0, 0))
    assert learn({PodKind(4, 1): 1.0}, {only: 2}).unit == 12.0


def test_a_shape_knows_its_gpus_from_its_instances() -> None:
    assert (MIG.whole, MIG.whole_shares, T4.whole, T4.whole_shares) == (1, 16, 2, 32)
    assert T4.cards == (None, None)
    assert MIG.gpus == (GpuKind(16, "H100"), *[GpuKind(8, "H100", instance=True)] * 3)
    for kind, hosted in (
        (PodKind(8, 1), True),
        (PodKind(0, 1), True),
        (PodKind(0, 2), False),
        (PodKind(4, 2), False),
        (PodKind(0, 0, 1000), True),
    ):
        assert MIG.hosts(kind) == hosted
    assert not NodeType((8,), ("H100",), 32_000, 131_072, (0,)).hosts(PodKind(0, 1))


def test_whole_gpus_and_memory_of_several_are_not_taken_of_instances() -> None:
    two = NodeType((8, 8, 8, 8), ("H100",) * 4, 32_000, 131_072, (0, None, 0, None))
    there = appraiser({PodKind(0, 1): 1.0, PodKind(4, 1): 1.0, PodKind(4, 2): 1.0}, two)
    for kind, gpus in ((PodKind(0, 1), (1,)), (PodKind(0, 2), (1, 3)), (PodKind(4, 2), (1, 3))):
        found = choose(there, kind, two, left(8, 8, 8, 8))
        assert found is not None
        assert found.gpus == gpus
    assert choose(there, PodKind(0, 3), two, left(8, 8, 8, 8)) is None
    assert choose(there, PodKind(4, 2), two, left(8, 8, 8, 3)) is None


def test_an_instance_more_or_less_in_use_changes_nothing_for_pods_of_several_gpus() -> None:
    there = appraiser({PodKind(0, 2): 1.0}, MIG, T4)
    assert there.tables.together[MIG][0] == (0.0, 0.0)
    assert placement_value(there, MIG, left(16, 8, 8, 8)) - placement_value(
        there, MIG, left(16, 0, 8, 8)
    ) == pytest.approx(8 * there.tables.wanted[MIG])


def test_a_node_with_instances_has_the_shape_that_it_would_have_empty() -> None:
    places = (None, "GPU-b", "GPU-a", "GPU-b")
    there = NodeGpus(
        tuple(
            ListedGpu(
                at + 5, 8, model="H100", instance=None if place is None else ListedInstance(place, 0, at, "1g.10gb", at)
            )
            for at, place in enumerate(places)
        )
    )
    node = candidate("n", there, [Usage(((6, 3),))])
    assert shape_of(node).cards == (None, 1, 2, 1)
    assert free_capacity(node).frees == (8, 5, 8, 8)


mig_kinds = st.builds(PodKind, st.sampled_from((0, 1, 3, 4, 8)), st.integers(1, 2), st.sampled_from((0, 1000)))


@given(
    st.dictionaries(mig_kinds, st.floats(0.1, 10), min_size=1, max_size=4),
    mig_kinds,
    st.lists(
        st.tuples(st.sampled_from((None, "GPU-a", "GPU-b")), st.sampled_from((4, 8)), st.integers(0, 8)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_the_extender_binds_to_the_gpus_that_cost_least(
    mix: dict[PodKind, float],
    kind: PodKind,
    gpus: list[tuple[str | None, int, int]],
    broken: bool,  # noqa: FBT001
) -> None:
    """What places a pod on one node and what appraises the node choose the same GPUs for memory."""
    node = partly_used(gpus, broken=broken)
    node_type, room = shape_of(node), free_capacity(node)
    assume(kind.shares)
    there = appraiser(mix, node_type)
    chosen = choose(there, kind, node_type, room)
    demand = Demand(Kind.MEMORY, kind.shares * kind.gpus, kind.gpus)
    found = fit(GpuRequest((Part(demand),)), node, "fit", ranks_on(there, node, Amounts(kind.cpu_milli)))
    assert isinstance(found, Fit) == (chosen is not None)
    if isinstance(found, Fit) and chosen is not None:
        assert found.placements[0].positions == tuple(sorted(chosen.gpus))


kinds = st.builds(
    PodKind,
    st.sampled_from((0, 1, 3, 5, 8, 16)),
    st.integers(0, 2),
    st.sampled_from((0, 1000, 4000)),
    st.sampled_from((0, 4 * MIB)),
    st.sampled_from((NO_PREFERENCES, of_model("T4"), of_model("A10"))),
).map(lambda kind: kind if kind.gpus else PodKind(0, 0, kind.cpu_milli, kind.memory_mib))
mixes = st.dictionaries(kinds, st.floats(0.1, 10), min_size=1, max_size=5)


@given(mixes, st.tuples(st.integers(0, 16), st.integers(0, 16)), st.integers(0, 32), st.integers(0, 128), st.data())
def test_worth_never_rises_by_taking(
    mix: dict[PodKind, float], frees: tuple[int, int], cpus: int, gibs: int, data: st.DataObject
) -> None:
    """Shares of a GPU, CPU or memory: having less of anything is never worth more."""
    there = appraiser(mix, T4, A10)
    one, other = frees
    before = left(one, other, cpu=cpus * 1000, memory=gibs * MIB)
    what = data.draw(st.sampled_from(("shares", "cpu", "memory")))
    after = FreeCapacity(
        (data.draw(st.integers(0, one)) if what == "shares" else one, other),
        data.draw(st.integers(0, cpus)) * 1000 if what == "cpu" else before.cpu_milli,
        data.draw(st.integers(0, gibs)) * MIB if what == "memory" else before.memory_mib,
    )
    assert placement_value(there, T4, after) <= placement_value(there, T4, before) + 1e-9


@given(mixes, kinds, st.lists(st.integers(-1, 16), min_size=2, max_size=2))
def test_the_gpus_of_a_node_are_interchangeable(mix: dict[PodKind, float], kind: PodKind, frees: list[int]) -> None:
    there = appraiser(mix, T4)
    marginal_values = [choose(there, kind, T4, left(*each)) for each in permutations(frees)]
    assert [None if gain is None else pytest.approx(gain.gain) for gain in marginal_values[::-1]] == [
        None if gain is None else gain.gain for gain in marginal_values
    ]


@given(mixes, kinds, st.lists(st.integers(-1, 16), min_size=2, max_size=2), st.integers(0, 32))
def test_the_gain_is_the_difference_of_the_worths(
    mix: dict[PodKind, float], kind: PodKind, frees: list[int], cpus: int
) -> None:
    there = appraiser(mix, T4)
    before = left(*frees, cpu=cpus * 1000)
    found = choose(there, kind, T4, before)
    assume(found is not None)
    assert isinstance(found, GpuChoice)
    after = FreeCapacity(
        tuple(free - (kind.shares or free) if at in found.gpus else free for at, free in enumerate(before.frees)),
        before.cpu_milli - kind.cpu_milli,
        before.memory_mib - kind.memory_mib,
    )
    assert min(0, *after.frees) >= CLOSED
    idle = there.tables.idle_cpu * after.cpu_milli + there.tables.idle_share * after.shares
    assert found.gain == pytest.approx(placement_value(there, T4, after) - placement_value(there, T4, before) - idle)


# --- how much work it is


def hostile(number: int, names: int = 64) -> GpuSelector:
    """As many and as long names as annotations may have; one of them is of every model."""
    avoid = tuple(f"avoid-{number}-{at}-".ljust(60, "x") for at in range(names))
    return GpuSelector((*avoid[1:], "model"), avoid)


def steps(made: Generator[None, None, Tables]) -> tuple[Tables, int]:
    """Return what steps make, and the most lines that one of them runs."""
    most = 0
    while True:
        with counted(5_000_000) as work:
            try:
                next(made)
            except StopIteration as end:
                return end.value, max(most, work.done)
        most = max(most, work.done)


LINES = 60_000
"""Two to three milliseconds."""


def test_no_step_of_learning_is_much_work_whatever_the_pods_wish() -> None:
    """512 kinds with wishes of 8 KB, half of them of several GPUs, on nodes of 24 models."""
    nodes = {NodeType((40,) * 4, (f"NVIDIA model {at}",) * 4, 32_000 + 4096 * at, 131_072): 5 for at in range(24)}
    selector = [hostile(number) for number in range(32)]
    mix = {
        PodKind(1 + at % 40, 1 + at % 2, 100 * at, 1000, selector[at % 32] if at % 4 else hostile(at % 32)): 1.0
        for at in range(512)
    }
    tables, most = steps(learning(mix, nodes))
    assert len(tables.packed) == 24
    assert most < LINES


def test_wishes_are_compared_with_the_models_of_a_large_cluster_step_by_step() -> None:
    """64 names of a pod, and 200 models."""
    nodes = {NodeType((8,), (f"NVIDIA model {at}",), 32_000, 131_072): 1 for at in range(200)}
    _, most = steps(learning({PodKind(1, 1, 1000, 1000, hostile(0)): 1.0}, nodes))
    assert most < LINES


def test_the_largest_knapsack_is_one_step() -> None:
    """A GPU of more cells than are told apart, and pods of every size."""
    mix = {PodKind(80 * size, 1, selector=hostile(0)): 1.0 for size in range(1, MOST_CELLS + 1)}
    node_type = NodeType((80 * MOST_CELLS,), ("model",), 32_000, 131_072)
    made = learning(mix, {node_type: 1})
    for _ in range(20):
        with counted(LINES):
            next(made)


def test_many_kinds_of_gpus_share_the_tables_that_may_be_computed() -> None:
    nodes = {NodeType((8,), (f"model {at}",), 32_000, 131_072): 1 for at in range(MOST_TABLES // 4)}
    tables = learn({PodKind(1, 1, cpu, selector=of_model("model")): 1.0 for cpu in range(1, 100)}, nodes)
    assert len(tables.levels) == 4
    assert tables.levels[-1] == 99


def test_pods_without_gpus_do_not_push_out_the_amounts_of_cpu_that_others_ask_for() -> None:
    """A pod of every amount of CPU up to 900 thousandths, and ten pods with GPUs."""
    with_gpus = {PodKind(1, 1, 1000 * cpu): 1.0 for cpu in range(1, 11)}
    levels = learn({**with_gpus, **{PodKind(cpu_milli=cpu): 1.0 for cpu in range(1, 901)}}, {T4: 1}).levels
    assert len(levels) <= MOST_LEVELS
    assert {1000 * cpu for cpu in range(1, 11)} <= set(levels)


def test_pods_without_gpus_alone_have_amounts_of_cpu() -> None:
    assert learn({PodKind(cpu_milli=cpu): 1.0 for cpu in range(1, 4)}, {T4: 1}).levels == (1, 2, 3)


# --- nodes of a cluster


def gpus(*sizes: int, broken: int | None = None) -> NodeGpus:
    return NodeGpus(
        tuple(
            ListedGpu(at, size, f"u{at}", "T4", unhealthy="XID 79" if at == broken else "")
            for at, size in enumerate(sizes)
        )
    )


def test_a_node_has_the_shape_that_it_would_have_empty() -> None:
    node = candidate(
        "n", gpus(16, 16, 16, broken=2), [Usage(((0, 5),), (1,))], Amounts(31_850, 130_900), [Amounts(850, 900)]
    )
    assert shape_of(node) == NodeType((16, 16, 16), ("T4",) * 3, 31_744, 131_072)
    assert free_capacity(node) == FreeCapacity((11, 0, CLOSED), 31_000, 130_000)


def test_a_node_that_does_not_say_has_more_than_enough() -> None:
    node = candidate("n", gpus(16), [])
    assert (shape_of(node).cpu_milli, free_capacity(node).memory_mib) == (UNKNOWN.cpu_milli, UNKNOWN.memory_mib)


def test_a_node_that_serves_claims_has_no_gpu_for_limits() -> None:
    node = candidate("n", replace(gpus(16, 16), claims=True), [], Amounts(32_000, 131_072))
    assert shape_of(node) == NodeType((), (), 32_256, 131_072)
    assert free_capacity(node) == FreeCapacity((), 32_000, 131_072)


@pytest.mark.parametrize(
    ("amount", "nearest"), [(0, 0), (63, 63), (64, 64), (65, 66), (127, 128), (130, 132), (96_000, 96_256)]
)
def test_machines_of_one_type_have_one_shape(amount: int, nearest: int) -> None:
    """Six binary digits: between 64 and 128 every second number, between 65,536 and 131,072 every 2,048th."""
    assert rounded(amount) == nearest


def test_a_gpu_ranks_by_what_the_node_loses_with_it() -> None:
    """Pods of 5 and 11 come; GPU 1 has a rest of 5, and GPU 2 is unused."""
    node = candidate("n", gpus(16, 16, 16), [Usage(((0, 5), (1, 11)))], Amounts(32_000, 131_072))
    there = Appraiser(learn({PodKind(5, 1): 1.0, PodKind(11, 1): 1.0}, {shape_of(node): 1}))
    ranks = ranks_on(there, node, Amounts(1000, 0))
    assert ranks is not None
    assert min(node.rooms, key=ranks(Demand(Kind.MEMORY, 5))).position == 1
    used, unused = node.rooms[1:]
    whole = ranks(Demand(Kind.COUNT, 1))
    assert whole(unused) > whole(used) > 0


def test_on_a_node_of_an_unknown_shape_there_is_no_rank() -> None:
    there = Appraiser(learn({PodKind(5, 1): 1.0}, {T4: 1}))
    assert ranks_on(there, candidate("n", gpus(16), []), Amounts()) is None
    assert choose(there, PodKind(5, 1), A10, left(24)) is None


def test_a_shape_hosts_what_fits_on_it_empty() -> None:
    mixed = NodeType((16, 24), ("T4", "A10"), 8000, 1024)
    assert mixed.hosts(PodKind(16, 2, 8000, 1024))
    assert mixed.hosts(PodKind(0, 2))
    assert not mixed.hosts(PodKind(17, 2))
    assert not mixed.hosts(PodKind(0, 1, 8001))
    assert not mixed.hosts(PodKind(0, 1, 0, 1025))
    assert not mixed.hosts(PodKind(20, 1, selector=of_model("T4")))
    assert mixed.hosts(PodKind(20, 1, selector=GpuSelector((), ("T4",))))


def test_gpus_of_one_size_share_their_prices_and_not_their_pods() -> None:
    """Of pods of 8 half may have an L4, and all a T4."""
    two = NodeType((16, 16), ("L4", "T4"), 32_000, 131_072)
    tables = learn({PodKind(8, 1): 1.0, PodKind(8, 1, selector=of_model("T4")): 1.0}, {two: 1})
    assert tables.prices == {(16, False): {8: pytest.approx(0.5)}}
    assert [tables.packed[GpuKind(16, model)][0][16] for model in ("L4", "T4")] == pytest.approx([8.0, 16.0])
