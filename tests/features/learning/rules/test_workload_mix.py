"""How often each kind of pod comes."""

from collections import UserDict
from collections.abc import ValuesView

import pytest

from gpu_device_plugin.features.learning.rules.fair_learning import due
from gpu_device_plugin.features.learning.rules.workload_mix import (
    HALF_LIFE_S,
    MOST_KINDS,
    MOST_WISHES,
    PodKind,
    WorkloadMix,
    joined,
    kinds_of,
    largest_kind,
)
from gpu_device_plugin.model.contract.gpu_preferences import GpuSelector
from gpu_device_plugin.model.placing import Demand
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, Part

A, B = PodKind(4, 1), PodKind(8, 1)


def filled(
    kind: PodKind, number: int, every_s: float, mix: WorkloadMix | None = None, since: float = 0.0
) -> WorkloadMix:
    mix = mix or WorkloadMix()
    for n in range(number):
        mix.add([kind], since + n * every_s)
    return mix


def parts_of(mix: WorkloadMix) -> dict[PodKind, float]:
    """Return each kind with its part of all pods."""
    return joined(mix.by_namespace().values())


def test_a_mix_without_pods_has_no_parts() -> None:
    assert (parts_of(WorkloadMix()), len(WorkloadMix()), WorkloadMix().arrivals) == ({}, 0, 0)


def test_pods_that_come_together_count_the_same() -> None:
    mix = filled(A, 3, 0.0)
    mix.add([B], 0.0)
    assert parts_of(mix) == {A: 0.75, B: 0.25}
    assert (len(mix), mix.arrivals) == (2, 4)


def test_on_a_busy_cluster_a_pod_counts_half_after_six_hours() -> None:
    """A pod every 36 s are 600 in six hours; the last of A weighs nearly twice its first."""
    mix = filled(A, 1, 0.0)
    filled(B, 600, 36.0, mix, since=36.0)
    assert parts_of(mix)[A] == pytest.approx(1 / sum(2 ** (36.0 * n / HALF_LIFE_S) for n in range(601)))


def test_a_mix_of_yesterday_counts_a_sixteenth_on_a_busy_cluster() -> None:
    mix = filled(A, 2400, 36.0)
    filled(B, 2400, 36.0, mix, since=86_400.0)
    parts = parts_of(mix)
    assert parts[A] / parts[B] == pytest.approx(1 / 16, rel=0.01)


def test_a_quiet_cluster_forgets_by_pods_and_not_by_time() -> None:
    """Ten pods a day: after ten days a hundred have come, and those before count half."""
    mix = filled(A, 1, 0.0)
    filled(B, 100, 8640.0, mix, since=8640.0)
    assert parts_of(mix)[A] == pytest.approx(1 / sum(2 ** (n / 100) for n in range(101)))


def test_one_pod_after_a_long_time_does_not_outweigh_all_others() -> None:
    mix = filled(A, 50, 1.0)
    mix.add([B], 10**9)
    assert parts_of(mix)[B] < 0.03


def test_a_pod_from_before_the_latest_counts_like_the_latest() -> None:
    mix = filled(A, 1, 0.0)
    mix.add([A], 1000.0)
    mix.add([B], 0.0)
    latest = 2 ** min(1000.0 / HALF_LIFE_S, 0.01)
    assert parts_of(mix)[B] == pytest.approx(latest / (1 + 2 * latest))


def test_weights_never_grow_without_end() -> None:
    """After 41 half-lives all weights are scaled, and the parts stay what they are."""
    mix = filled(A, 4200, HALF_LIFE_S)
    filled(B, 100, HALF_LIFE_S, mix, since=4200 * HALF_LIFE_S)
    assert sum(parts_of(mix).values()) == pytest.approx(1.0)
    assert parts_of(mix)[B] == pytest.approx(0.5, abs=0.01)


def test_the_rarest_kinds_are_forgotten_when_there_are_too_many() -> None:
    mix = filled(A, 10, 0.0)
    for number in range(2 * MOST_KINDS):
        mix.add([PodKind(1, 1, number)], 0.0)
    assert len(mix) == MOST_KINDS
    assert A in parts_of(mix)
    assert mix.arrivals == 10 + 2 * MOST_KINDS


def test_a_pod_of_sixteen_parts_counts_as_one_pod() -> None:
    mix = WorkloadMix()
    mix.add([PodKind(41, 1)] * 15 + [B], 0.0)
    mix.add([A], 0.0)
    assert parts_of(mix) == {PodKind(41, 1): 15 / 32, B: 1 / 32, A: 0.5}
    assert mix.arrivals == 2


def test_a_namespace_with_ever_new_kinds_pushes_out_its_own() -> None:
    """A team has twenty kinds; somebody else sends twice as many as are kept, each more often."""
    mix = WorkloadMix()
    team = [PodKind(1, 1, 10**6 + number) for number in range(20)]
    for kind in team:
        mix.add([kind], 0.0, "team")
    for number in range(2 * MOST_KINDS):
        for _ in range(3):
            mix.add([PodKind(1, 1, number)], 0.0, "other")
    assert len(mix) <= 2 * MOST_KINDS
    assert set(mix.by_namespace()["team"]) == set(team)


def test_namespaces_that_hold_nothing_push_out_no_kinds_and_wishes_of_others_however_many_they_are() -> None:
    """Every namespace keeps a kind, and somebody may have thousands of them."""
    mix, plain = WorkloadMix(), [PodKind(1, 1, number) for number in range(20)]
    choosy = [PodKind(2, 1, selector=GpuSelector((f"T{number}",))) for number in range(20)]
    mix.hold({"team": 90.0, "small": 1.0}, 0.0)
    for kind in (*plain, *choosy):
        mix.add([kind], 0.0, "team")
    for number in range(3 * MOST_KINDS):
        preferences = GpuSelector((f"model {number}",)) if number % 3 == 0 else GpuSelector()
        mix.add([PodKind(1 + number % 80, 1, 7, selector=preferences)] * 2, 0.0, f"other-{number}")
    assert set(mix.by_namespace()["team"]) == {*plain, *choosy}
    others = [kind for name, kinds in mix.by_namespace().items() if name != "team" for kind in kinds]
    mix._forget()
    assert set(mix.by_namespace()["team"]) == {*plain, *choosy}
    assert len(others) <= 2 * MOST_KINDS


def test_what_all_namespaces_hold_is_added_up_once_however_many_they_are() -> None:
    class Held(UserDict[str, float]):
        sums = 0

        def values(self) -> ValuesView[float]:
            self.sums += 1
            return super().values()

    mix = WorkloadMix()
    mix.held = held = Held({f"team-{number}": 1.0 for number in range(100)})
    mix._forget()
    assert held.sums == 1


def test_few_different_wishes_are_kept_and_each_once() -> None:
    """They are 8 KB each."""
    mix = WorkloadMix()
    for number in range(2 * MOST_WISHES):
        mix.add([PodKind(4, 1, selector=GpuSelector((f"model {number}",)))], 0.0, "other")
    for shares in range(1, 4):
        mix.add([PodKind(shares, 1, selector=GpuSelector(("T4",)))], 0.0, "team")
    kept = {id(kind.selector): kind.selector for kind in parts_of(mix)}
    assert len(kept) <= 2 * MOST_WISHES
    assert list(kept.values()).count(GpuSelector(("T4",))) == 1
    assert len(mix.by_namespace()["team"]) == 3


def test_what_namespaces_hold_is_a_mean_in_which_the_last_hours_count_most() -> None:
    """Six hours later what was held counts half."""
    mix = WorkloadMix()
    mix.hold({"a": 80.0, "b": 40.0}, 1000.0)
    assert mix.held == {"a": 80.0, "b": 40.0}
    mix.hold({"a": 80.0, "c": 10.0}, 1000.0 + HALF_LIFE_S)
    assert mix.held == pytest.approx({"a": 80.0, "b": 20.0, "c": 5.0})
    mix.hold({"a": 80.0}, 1000.0 + 60 * HALF_LIFE_S)
    assert mix.held == pytest.approx({"a": 80.0})
    mix.hold({"evil": 10.0**6}, 1000.0 + 60 * HALF_LIFE_S)
    assert mix.held == pytest.approx({"a": 80.0})


def test_a_pod_is_a_kind_for_each_part_that_gets_gpus_of_its_own() -> None:
    """The first has all CPU and memory of the pod, so that they count once."""
    parts = (Part(Demand(Kind.MEMORY, 8, 2)), Part(Demand(Kind.COUNT, 3)), Part(Demand(Kind.MEMORY, 5)))
    models = GpuSelector(use_models=("T4",), avoid_models=("A10",))
    preferences = GpuSelector(("T4",), ("A10",), frozenset({"GPU-1"}), frozenset(), "spread", "spread")
    beside = Amounts(2000, 64)
    assert kinds_of(GpuRequest(parts, preferences), beside) == kinds_of(GpuRequest(parts, models), beside)
    assert kinds_of(GpuRequest(parts, models), beside) == (
        PodKind(4, 2, 2000, 64, models),
        PodKind(0, 3, 0, 0, models),
        PodKind(5, 1, 0, 0, models),
    )
    assert kinds_of(GpuRequest(), Amounts(500, 16)) == (PodKind(0, 0, 500, 16),)


@pytest.mark.parametrize(
    ("arrivals", "learned_from", "age_s", "outdated", "now"),
    [
        (19, 0, 0.0, False, False),
        (19, 0, 0.0, True, False),
        (20, 0, 0.0, False, True),
        (29, 20, 3599.0, False, False),
        (30, 20, 0.0, False, True),
        (21, 20, 3600.0, False, True),
        (20, 20, 9999.0, False, False),
        (20, 20, 0.0, True, True),
    ],
)
def test_it_is_time_to_learn(arrivals: int, learned_from: int, age_s: float, *, outdated: bool, now: bool) -> None:
    assert due(arrivals, learned_from, age_s, outdated=outdated) is now


def test_the_largest_part_of_a_pod_stands_for_it_with_all_its_cpu() -> None:
    """A whole GPU is larger than any memory."""
    memory, whole = (Part(Demand(Kind.MEMORY, amount)) for amount in (4, 9)), Part(Demand(Kind.COUNT, 1))
    parts = tuple(memory)
    assert largest_kind(GpuRequest(parts), Amounts(2000, 64)) == PodKind(9, 1, 2000, 64)
    assert largest_kind(GpuRequest((*parts, whole)), Amounts(2000, 64)) == PodKind(0, 1, 2000, 64)
    assert largest_kind(GpuRequest(), Amounts(500, 16)) == PodKind(0, 0, 500, 16)
