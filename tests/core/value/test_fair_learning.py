"""No namespace can spoil what is learned for the others."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.value.fair_learning import LITTLE, scales_of, studied
from gpu_device_plugin.core.value.node_types import NodeType
from gpu_device_plugin.core.value.workload_mix import PodKind, WorkloadMix

H100 = NodeType((80,) * 8, ("H100",) * 8, 128_000, 1 << 20)
NODES = {H100: 60}
HONEST = tuple(PodKind(size, 1, 2000) for size in (8, 16, 24, 40, 0))
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
    demand = {each: often * each.gpus * (each.shares or 80) for each, often in mix.items()}
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
    ],
)
def test_a_namespace_has_no_more_of_the_demand_than_of_the_memory_in_use(
    demand: dict[str, float], held: dict[str, float], distrusted: tuple[str, ...], scales: dict[str, float]
) -> None:
    assert scales_of(demand, held, distrusted) == pytest.approx(scales)
