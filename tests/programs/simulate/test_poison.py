"""What one namespace sends does not spoil the placement of everybody else's pods.

60 nodes of 8 GPUs of 80 shares; an honest mix asks for all of them. Before the namespace counted, 400 entries of 41 of
80 shares cost 7 to 14 % of the GPUs, and 800 cost 9 to 14 %.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest

from bench.policies import BestFit
from gpu_device_plugin.features.learning.rules.arrivals import Placer, Start
from gpu_device_plugin.features.learning.rules.marginal_value import Appraiser
from gpu_device_plugin.features.learning.rules.price_learning import Tables
from gpu_device_plugin.features.learning.rules.workload_mix import NodeType, PodKind, WorkloadMix
from gpu_device_plugin.programs.simulate.model import Workload, capacity_of, shares_of, until
from tests.searches import studied

MOST_LOST = 0.005
H100 = NodeType((80,) * 8, ("H100",) * 8, 128_000, 1 << 20)
NODES = [Start.empty(f"n{number}", H100) for number in range(60)]
SIZES = {5: 10, 10: 20, 16: 15, 20: 15, 24: 10, 32: 10, 40: 10, 0: 10}
"""How often each size comes in the honest mix; 0 is a whole GPU."""
KINDS = tuple(PodKind(size, 1, 2000, 8192) for size in SIZES)
HONEST = Workload(KINDS, tuple(at for at, often in enumerate(SIZES.values()) for _ in range(often)))
COUNTS = Counter(node.shape for node in NODES)


def learned(pods: int, sizes: Sequence[int], held: Mapping[str, float]) -> Tables | None:
    """Learn from the honest mix, and from so many pods of another namespace that came before."""
    return taught([("other", [PodKind(size, 1, 2000, 8192) for size in sizes], pods)], held)


def taught(others: Iterable[tuple[str, Sequence[PodKind], int]], held: Mapping[str, float]) -> Tables | None:
    """Learn from the honest mix, and from so many pods of some kinds that came before from each of other namespaces.

    `held` are percents of the cluster.
    """
    mix = WorkloadMix()
    for namespace, kinds, pods in others:
        for number in range(pods):
            mix.add([kinds[number % len(kinds)]], 0.0, namespace)
    for pod in until(HONEST, NODES, 7, 1.0):
        mix.add([KINDS[pod]], 0.0, "team")
    mix.hold({name: capacity_of(NODES) * percent / 100 for name, percent in held.items()}, 0.0)
    return studied(mix, COUNTS).usable


def given_out(tables: Tables | None) -> float:
    """Return the part of the GPUs that the honest mix gets when it has asked for all."""
    given = 0.0
    for seed in (0, 1):
        placer = Placer(NODES, KINDS, BestFit(NODES) if tables is None else Appraiser(tables))
        pods = until(HONEST, NODES, seed, 1.0)
        given += sum(shares_of(KINDS[pod], 80) for pod in pods if placer.place(pod) is not None)
    return given / capacity_of(NODES) / 2


@pytest.fixture(scope="module")
def unspoilt() -> float:
    found = given_out(learned(0, [41], {}))
    assert found > 0.98
    return found


@pytest.mark.parametrize(
    ("pods", "sizes", "held"),
    [
        (400, [41], {"team": 99, "other": 1}),
        (5000, [41], {"team": 99, "other": 1}),
        (400, [3, 79], {"team": 99, "other": 1}),
        (400, [41], {}),
        (5000, [41], {"team": 60, "other": 40}),
        (400, [41, 61, 71], {"team": 75, "other": 25}),
    ],
)
def test_no_namespace_costs_the_others_half_a_percent_of_the_gpus(
    pods: int, sizes: Sequence[int], held: Mapping[str, float], unspoilt: float
) -> None:
    assert given_out(learned(pods, sizes, held)) > unspoilt - MOST_LOST


def many(namespaces: int, pods: int, *sizes: int) -> list[tuple[str, Sequence[PodKind], int]]:
    return [(f"other-{n}", [PodKind(size, 1, 2000, 8192) for size in sizes], pods) for n in range(namespaces)]


@pytest.mark.parametrize(
    ("others", "held"),
    [
        ([("other", [PodKind(1, 1, 64_000, 8192)], 5000)], {"team": 90, "other": 4}),
        ([("other", [PodKind(1, 1, 2000, 512 << 10)], 5000)], {"team": 90, "other": 4}),
        (many(20, 250, 41), {"team": 90, **{f"other-{n}": 0.1 for n in range(20)}}),
        (many(20, 250, 3, 79), {"team": 90, **{f"other-{n}": 0.1 for n in range(20)}}),
        (many(60, 100, 41), {"team": 90}),
        (many(60, 100, 3, 79), {"team": 90}),
        (many(500, 10, 41), {"team": 90}),
        ([("", [PodKind(0, 0, 64_000, 8192)], 5000)], {"team": 90, "": 1}),
        ([("", [PodKind(0, 0, 120_000, 8192)], 5000)], {"team": 90}),
    ],
    ids=[
        "little GPU memory and much CPU",
        "little GPU memory and much memory",
        "20 namespaces that hold 2 %",
        "20 namespaces that hold 2 %, in two sizes",
        "60 namespaces that hold nothing",
        "60 namespaces that hold nothing, in two sizes",
        "500 namespaces that hold nothing",
        "pods without GPUs that hold 1 %",
        "pods without GPUs that hold nothing",
    ],
)
def test_no_owner_of_pods_costs_the_others_half_a_percent_by_more_namespaces_or_other_resources(
    others: Iterable[tuple[str, Sequence[PodKind], int]], held: Mapping[str, float], unspoilt: float
) -> None:
    assert given_out(taught(others, held)) > unspoilt - MOST_LOST


def test_pods_without_gpus_that_run_teach_as_much_as_they_take() -> None:
    """A third of the CPU is theirs: that their room is worth something is learned."""
    kind = PodKind(0, 0, 16_000, 8192)
    found = taught([("", [kind], 500)], {"team": 60, "": 33})
    without = taught([], {"team": 60})
    assert found is not None
    assert without is not None
    assert found != without
