"""Learn from the mix of pods what each part of a node's room is worth, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.worth.packing import packed_values, prices_of_sizes
from gpu_device_plugin.core.worth.shapes import needs_gpus, wishes_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from gpu_device_plugin.core.worth.mix import PodKind
    from gpu_device_plugin.core.worth.shapes import GpuKind, Shape

WANTED = 0.5
"""How much of the difference counts between GPUs that many pods may have and those that few may have."""
HOSTS = 0.15
"""The worth of an unused GPU to pods of several GPUs, as a part of a GPU, where all demand is theirs."""
CPU_HOSTS = 0.1
"""The worth of CPU to pods without GPUs, as a part of that of the GPUs that it could serve, where all CPU is theirs."""
STRANDED = 0.05
"""The part of a GPU's worth that is lost without CPU or memory for the pods on it."""
SCARCITY = (0.55, 1.0, 1.45)
"""Multiples of the mean CPU and memory per share beside which GPUs count as stranded: pods differ from the mean."""
IDLE_CPU = 0.04
"""What all CPU of the largest node costs while it is idle, as a part of a GPU: full nodes are filled first."""
IDLE_GPUS = 0.01
"""The same of all its GPUs."""
MOST_LEVELS = 48
"""The most amounts of CPU that the tables tell apart."""
MOST_CELLS = 128
"""The most amounts of free shares of one GPU that the tables tell apart."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What is learned. Worth is in shares: an unused GPU that is as wanted as the mean is worth its shares, twice.

    CPU is looked up by its level: the number of entries of `levels` that it reaches. Free shares are looked up by
    cells, see `cells`.
    """

    unit: float
    """Shares of the mean GPU; of the mean MIG instance where there are no GPUs."""
    levels: tuple[int, ...]
    """Amounts of CPU that pods ask for, in thousandths, ascending."""
    prices: Mapping[tuple[int, bool], Mapping[int, float]]
    """By shares of a GPU and whether it is an instance, by cells that a pod takes of it: the price as a part of it."""
    packed: Mapping[GpuKind, tuple[tuple[float, ...], ...]]
    """By kind of GPU, by level, by free cells: the worth of the pods that could be packed there."""
    wanted: Mapping[Shape, float]
    """By shape: the worth of one share to have; 1 is the mean."""
    together: Mapping[Shape, tuple[tuple[float, ...], ...]]
    """By shape, by level, by unused GPUs: the worth of having so many of them together. Instances do not count."""
    cpu_worth: tuple[float, ...]
    """By level: the worth of a thousandth of a CPU to pods without GPUs."""
    cpu_per_share: float
    """Thousandths of a CPU that pods ask for beside each share; 0: unknown."""
    memory_per_share: float
    """MiB that pods ask for beside each share."""
    idle_cpu: float
    """The cost of each thousandth of a CPU that a node has left when a pod is placed there."""
    idle_share: float
    """The same of each share."""


def cells(size: int) -> int:
    """Return into how many cells the tables divide a GPU of `size` shares: as many as it has shares, if these are few.

    The knapsacks of a GPU take time with the square of its cells, and shares may be as small as 1 MiB.
    """
    return min(size, MOST_CELLS)


def cell(free: int, size: int) -> int:
    """Return in which cell so many free shares of a GPU of `size` shares end."""
    return free * cells(size) // size


def learn(mix: Mapping[PodKind, float], nodes: Mapping[Shape, int]) -> Tables:
    """Return the tables for a mix of pods on these nodes; see `learning`."""
    steps = learning(mix, nodes)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        tables: Tables = end.value
        return tables


def learning(mix: Mapping[PodKind, float], nodes: Mapping[Shape, int]) -> Generator[None, None, Tables]:
    """Learn in steps of a few milliseconds at most, and return the tables.

    Args:
        mix: how often each kind of pod comes; only ratios matter.
        nodes: how many nodes there are of each shape.
    """
    unit = mean_gpu(nodes)
    demand = {kind: part * kind.gpus * (kind.shares or unit) for kind, part in mix.items()}
    total = sum(demand.values()) or 1.0
    with_gpus = [kind for kind in mix if kind.gpus]
    cpu_per_share = sum(mix[kind] * kind.cpu_milli for kind in with_gpus) / total
    all_cpu = sum(part * kind.cpu_milli for kind, part in mix.items()) or 1.0
    levels = _levels(kind.cpu_milli for kind in mix)
    of_several = {kind: demand[kind] / total for kind in with_gpus if kind.gpus > 1}
    cpu_only = {kind: part * kind.cpu_milli / all_cpu for kind, part in mix.items() if not kind.gpus}
    at = (0, *levels)
    per_cpu = CPU_HOSTS / cpu_per_share if cpu_per_share else 0.0
    prices, packed = yield from _packed(mix, nodes, at)
    wanted = yield from _wanted(demand, nodes)
    together = {}
    for shape in nodes:
        together[shape] = _together(of_several, shape, at, unit)
        yield
    return Tables(
        unit,
        levels,
        prices,
        packed,
        wanted,
        together,
        tuple(per_cpu * sum(part for kind, part in cpu_only.items() if kind.cpu_milli <= cpu) for cpu in at),
        cpu_per_share,
        sum(mix[kind] * kind.memory_mib for kind in with_gpus) / total,
        IDLE_CPU * unit / max((shape.cpu_milli for shape in nodes if shape.cpu_milli), default=1),
        IDLE_GPUS * unit / max((sum(shape.sizes) for shape in nodes if shape.sizes), default=1),
    )


def mean_gpu(nodes: Mapping[Shape, int]) -> float:
    """Return the shares of the mean GPU, of the mean MIG instance where there are no GPUs; 1 without either."""
    gpus = sum(shape.whole * number for shape, number in nodes.items())
    if gpus:
        return sum(shape.whole_shares * number for shape, number in nodes.items()) / gpus
    instances = sum(len(shape.sizes) * number for shape, number in nodes.items())
    return sum(sum(shape.sizes) * number for shape, number in nodes.items()) / instances if instances else 1.0


def _levels(amounts: Iterable[int]) -> tuple[int, ...]:
    found = sorted({amount for amount in amounts if amount})
    if len(found) <= MOST_LEVELS:
        return tuple(found)
    return tuple(found[round(n * (len(found) - 1) / (MOST_LEVELS - 1))] for n in range(MOST_LEVELS))


def _packed(
    mix: Mapping[PodKind, float], nodes: Mapping[Shape, int], levels: Sequence[int]
) -> Generator[
    None, None, tuple[dict[tuple[int, bool], dict[int, float]], dict[GpuKind, tuple[tuple[float, ...], ...]]]
]:
    """Return `Tables.prices` and `Tables.packed`."""
    gpus = sorted({gpu for shape in nodes for gpu in shape.gpus})
    singles = [(kind, part * kind.gpus) for kind, part in mix.items() if kind.gpus == 1 or (kind.gpus and kind.shares)]
    prices: dict[tuple[int, bool], dict[int, float]] = {}
    often: dict[tuple[int, bool], dict[int, float]] = {}
    known: dict[tuple[int, tuple[tuple[int, float], ...]], tuple[float, ...]] = {}
    found = {}
    for gpu in gpus:
        size, model, instance = gpu
        own = size, instance
        served = [(kind, part) for kind, part in singles if not (instance and needs_gpus(kind))]
        if own not in prices:
            often[own] = {}
            for kind, part in served:
                taken = _taken(kind, size)
                often[own][taken] = often[own].get(taken, 0.0) + part
            prices[own] = yield from prices_of_sizes(often[own], cells(size))
        allowed = [(kind, part) for kind, part in served if wishes_of(kind).allow_model(model)]
        tables = []
        for cpu in levels:
            fits = dict.fromkeys(prices[own], 0.0)
            for kind, part in allowed:
                taken = _taken(kind, size)
                if kind.cpu_milli <= cpu and taken in fits:
                    fits[taken] += part
            values = tuple((at, size * prices[own][at] * part / often[own][at]) for at, part in fits.items() if part)
            if (size, values) not in known:
                known[size, values] = tuple(packed_values(dict(values), cells(size)))
                yield
            tables.append(known[size, values])
        found[gpu] = tuple(tables)
    return prices, found


def _taken(kind: PodKind, size: int) -> int:
    """Return how many cells a pod takes of a GPU of `size` shares."""
    return -(-kind.shares * cells(size) // size) if kind.shares else cells(size)


def _wanted(demand: Mapping[PodKind, float], nodes: Mapping[Shape, int]) -> Generator[None, None, dict[Shape, float]]:
    found = dict.fromkeys(nodes, 0.0)
    capacity = {shape: sum(shape.sizes) * number for shape, number in nodes.items()}
    part_of_gpus = {shape: shape.whole_shares / (sum(shape.sizes) or 1) for shape in nodes}
    for kind, amount in demand.items():
        hosts = [shape for shape in nodes if shape.hosts(kind)] if amount else []
        parts = {shape: part_of_gpus[shape] if needs_gpus(kind) else 1.0 for shape in hosts}
        room = sum(capacity[shape] * part for shape, part in parts.items())
        for shape, part in parts.items() if room else ():
            found[shape] += amount / room * part
        yield
    mean = sum(found[shape] * capacity[shape] for shape in nodes) / (sum(capacity.values()) or 1)
    return {shape: 1 + WANTED * (one / mean - 1) if mean else 1.0 for shape, one in found.items()}


def _together(
    parts: Mapping[PodKind, float], shape: Shape, levels: Iterable[int], unit: float
) -> tuple[tuple[float, ...], ...]:
    """Return `Tables.together` of a shape, given the part of the demand that is that of each kind of several GPUs."""
    hosted = [(kind.cpu_milli, kind.gpus, part) for kind, part in parts.items() if shape.hosts(kind)]
    found = []
    for cpu in levels:
        # By number of GPUs: the demand of the pods that fit beside so many unused ones.
        fitting = [0.0] * (shape.whole + 1)
        for asked, gpus, part in hosted:
            if asked <= cpu:
                fitting[gpus] += part
        sums = [sum(fitting[: unused + 1]) for unused in range(len(fitting))]
        found.append(tuple(HOSTS * unit * unused * part for unused, part in enumerate(sums)))
    return tuple(found)
