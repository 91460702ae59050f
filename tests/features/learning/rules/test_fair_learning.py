"""No namespace can spoil what is learned for the others."""

from collections.abc import Mapping

import pytest

from gpu_device_plugin.features.learning.rules.fair_learning import LITTLE, Trial, scales_of, trying
from gpu_device_plugin.features.learning.rules.price_learning import Dominance, Tables
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, WorkloadMix
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from tests.searches import learn, studied
from tests.work import counted

H100 = NodeType((80,) * 8, ("H100",) * 8, 128_000, 1 << 20)
NODES = {H100: 60}
HONEST = tuple(PodKind(size, 1, 2000) for size in (8, 16, 24, 40, 0))
MIX = dict.fromkeys(HONEST, 1.0)
POISON = PodKind(41, 1, 2000)


def mixed(team: int, other: int = 0, kind: PodKind = POISON) -> WorkloadMix:
    """Return the mix of so many pods of a team's five kinds, and of another namespace's one."""
    mix = WorkloadMix()
    for _ in range(other):
        mix.add([kind], 0.0, "other")
    for number in range(team):
        mix.add([HONEST[number % 5]], 0.0, "team")
    return mix


def part(mix: dict[PodKind, float], kind: PodKind) -> float:
    measure = Dominance.of(NODES)
    demand = {each: often * measure.kind(each) for each, often in mix.items()}
    return demand.get(kind, 0.0) / sum(demand.values())


def test_pods_of_one_namespace_teach_what_they_ask_for() -> None:
    study = studied(mixed(100), NODES)
    assert (study.pods, study.distrusted) == (100, ())
    assert study.mix == dict.fromkeys(HONEST, pytest.approx(0.2))
    assert study.usable is study.tables


def test_pods_that_held_little_count_little_however_many_came() -> None:
    mix = mixed(500, 5000)
    mix.hold({"team": 990.0, "other": 10.0}, 0.0)
    study = studied(mix, NODES)
    assert part(dict(study.mix), POISON) == pytest.approx(LITTLE)
    assert study.distrusted == ()
    assert study.usable is not None


def test_a_namespace_that_would_cost_the_others_gpus_is_distrusted() -> None:
    """It holds a third of the GPUs, with pods beside which nobody else's fit."""
    mix = mixed(500, 400)
    mix.hold({"team": 20.0, "other": 10.0}, 0.0)
    study = studied(mix, NODES)
    assert study.distrusted == ("other",)
    assert part(dict(study.mix), POISON) == pytest.approx(LITTLE)
    assert not study.trial.failed


def test_a_namespace_whose_pods_fit_beside_those_of_others_is_not() -> None:
    study = studied(mixed(500, 400, PodKind(10, 1, 2000)), NODES)
    assert study.distrusted == ()
    assert part(dict(study.mix), PodKind(10, 1, 2000)) > 0.1


def test_where_binpack_gives_out_more_nothing_learned_is_used() -> None:
    """Nodes of one GPU: by their prices pods of 53 and 24 keep GPUs from pods that want one whole."""
    mix = WorkloadMix()
    for _ in range(20):
        for kind in (PodKind(0, 1), PodKind(53, 1), PodKind(24, 1), PodKind(0, 1, 2000), PodKind(4, 1, 500)):
            mix.add([kind], 0.0)
    study = studied(mix, {NodeType((80,), ("T4",), 128_000, 1 << 18): 61})
    assert study.trial.fit < study.trial.binpack - 0.01
    assert study.usable is None


@pytest.mark.parametrize(
    ("demand", "held", "distrusted", "scales"),
    [
        ({}, {}, (), {}),
        ({"a": 80, "b": 20}, {}, (), {"a": 1, "b": 1}),
        ({"a": 80, "b": 20}, {"a": 9, "b": 1}, (), {"a": 1, "b": 80 / 9 / 20}),
        ({"a": 80, "b": 20}, {"a": 1, "b": 1}, (), {"a": 0.25, "b": 1}),
        ({"a": 80, "b": 20}, {"a": 3, "c": 7}, (), {"a": 1, "b": LITTLE / (1 - LITTLE) * 80 / 20}),
        ({"a": 98.5, "b": 1.5}, {"a": 1}, (), {"a": 1, "b": 1}),
        ({"a": 50, "b": 50}, {"a": 1, "b": 1}, ("b",), {"a": 1, "b": LITTLE / (1 - LITTLE)}),
        ({"a": 5, "without GPUs": 0}, {"a": 1}, (), {"a": 1, "without GPUs": 1}),
        ({"a": 60, "b": 30, "c": 10}, {"a": 1, "b": 1, "c": 8}, (), {"a": 1 / 48, "b": 1 / 24, "c": 1}),
        # Those that hold little share one part, however many they are; without a demand none is counted.
        (
            {"a": 40, "b": 30, "c": 30, "d": 0},
            {"a": 1},
            (),
            {"a": 1, **dict.fromkeys("bc", LITTLE / 2 / (1 - LITTLE) * 40 / 30), "d": 1},
        ),
        (
            {"a": 50, "b": 25, "c": 25},
            {"a": 1, "b": 1},
            ("b",),
            {"a": 1, **dict.fromkeys("bc", LITTLE / 2 / (1 - LITTLE) * 2)},
        ),
    ],
)
def test_a_namespace_has_no_more_of_the_demand_than_of_the_memory_in_use(
    demand: dict[str, float], held: dict[str, float], distrusted: tuple[str, ...], scales: dict[str, float]
) -> None:
    assert scales_of(demand, held, distrusted) == pytest.approx(scales)


# --- What namespaces hold says something only where enough runs


@pytest.mark.parametrize(("percent", "usable"), [(0.5, False), (1.5, True)])
def test_where_too_few_of_the_pods_run_that_came_nothing_learned_is_used(percent: float, *, usable: bool) -> None:
    """An owner of one pod on an empty cluster would hold half of what is in use."""
    mix = mixed(100, 100)
    mix.hold({"team": 38_400 * percent / 100, "gone": 30_000.0}, 0.0)
    study = studied(mix, NODES)
    assert study.running == pytest.approx(percent / 100)
    assert (study.few_run, study.usable is not None) == (not usable, usable)


def test_where_nobody_is_known_to_hold_anything_all_that_came_counts() -> None:
    study = studied(mixed(100), NODES)
    assert (study.running, study.few_run) == (None, False)
    assert studied(mixed(100), {}).running is None


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (PodKind(8, 1), 8),
        (PodKind(8, 2), 16),
        (PodKind(0, 2), 160),
        (PodKind(8, 1, 64_000), 320),
        (PodKind(8, 1, 0, 1 << 18), 160),
        (PodKind(0, 0, 12_800), 64),
        (PodKind(), 0),
    ],
)
def test_a_pod_counts_by_the_resource_of_which_it_takes_most(kind: PodKind, size: float) -> None:
    assert Dominance.of({H100: 60, NodeType((), (), 1 << 40, 1 << 40): 3}).kind(kind) == pytest.approx(size)


def test_on_a_cluster_without_gpus_every_pod_has_a_size() -> None:
    measure = Dominance.of({NodeType((), (), 1000, 1000): 3})
    assert (measure.shares, measure.kind(PodKind(3, 1, 1000))) == (0, 3)


# --- What was learned is tried beside `binpack` on a few empty nodes


def tried(tables: Tables, mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]) -> Trial:
    steps = trying(tables, mix, nodes)
    while True:
        try:
            with counted(20_000):
                next(steps)
        except StopIteration as end:
            found: Trial = end.value
            return found


def test_tables_from_these_pods_pass() -> None:
    trial = tried(learn(MIX, {H100: 60}), MIX, {H100: 60})
    assert trial.fit > 0.97
    assert not trial.failed


def test_tables_from_pods_that_are_just_too_large_for_two_fail() -> None:
    """A pod of 41 of 80 shares leaves 39: tables that expect it put pods of up to 39 on every unused GPU."""
    trial = tried(learn({**MIX, POISON: 2.0}, {H100: 60}), MIX, {H100: 60})
    assert trial.fit < trial.binpack - 0.05
    assert trial.failed


def test_chance_may_make_the_better_policy_lose_by_a_little() -> None:
    assert not Trial(0.952, 0.955).failed
    assert Trial(0.94, 0.955).failed


@pytest.mark.parametrize(
    ("mix", "nodes"),
    [
        ({}, {H100: 1}),
        (MIX, {}),
        ({PodKind(0, 0, 500): 1.0}, {H100: 1}),
        (MIX, {NodeType((), (), 1000, 1000): 3}),
    ],
)
def test_without_pods_or_gpus_there_is_nothing_to_lose(
    mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]
) -> None:
    assert tried(learn(mix, nodes), mix, nodes) == Trial(0.0, 0.0)


def test_of_tiny_pods_fewer_gpus_are_filled() -> None:
    """A thousand pods of one share fill no more than twelve GPUs of 80."""
    tiny = {PodKind(1, 1): 1.0}
    assert tried(learn(tiny, {H100: 60}), tiny, {H100: 60}) == Trial(1.0, 1.0)


def test_pods_that_fit_nowhere_count_for_neither_policy() -> None:
    mix = {PodKind(40, 1): 1.0, PodKind(40, 1, selector=GpuSelector(("A10",))): 1.0}
    trial = tried(learn(mix, {H100: 60}), mix, {H100: 60})
    assert trial.fit == trial.binpack == pytest.approx(0.5, abs=0.1)
