"""Learn from the mix of pods what each part of a node's room is worth, as tables."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp

from gpu_device_plugin.features.learning.rules.workload_mix import GpuKind, NodeType, PodKind, needs_gpus

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
MOST_TABLES = 2048
"""The most tables of what could be packed into a GPU, one for each kind of GPU and each of these amounts of CPU."""
MOST_ROUNDS = 6400
"""The most rounds by which prices are found, for all sizes of GPUs together."""
MOST_CELLS = 128
"""The most amounts of free shares of one GPU that the tables tell apart."""
ROUNDS = 400
_FIRST = 4
"""One of so many rounds, the first ones, only finds the way; the prices are the mean of the others."""
_STEEP = 2.0
"""How fast the price of a size falls with what has been packed of it."""
_MODELS = 64
"""So many models are compared with wishes, which may name 128, in one step."""
_SHAPES = 256
"""So many shapes are looked at in one step."""


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
    wanted: Mapping[NodeType, float]
    """By shape: the worth of one share to have; 1 is the mean."""
    together: Mapping[NodeType, tuple[tuple[float, ...], ...]]
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


def learning(mix: Mapping[PodKind, float], nodes: Mapping[NodeType, int]) -> Generator[None, None, Tables]:
    """Learn in steps of a millisecond or two, and return the tables.

    In the mix, how often each kind of pod comes, only ratios matter; `nodes` are counted by their shape.
    """
    unit = mean_gpu(nodes)
    # Not as keys: with all their wishes kinds take microseconds to look up.
    comes = list(mix.items())
    with_gpus = [(kind, part) for kind, part in comes if kind.gpus]
    total = sum(part * kind.gpus * (kind.shares or unit) for kind, part in with_gpus) or 1.0
    cpu_per_share = sum(part * kind.cpu_milli for kind, part in with_gpus) / total
    all_cpu = sum(part * kind.cpu_milli for kind, part in comes) or 1.0
    cpu_only = [(kind.cpu_milli, part * kind.cpu_milli / all_cpu) for kind, part in comes if not kind.gpus]
    per_cpu = CPU_HOSTS / cpu_per_share if cpu_per_share else 0.0
    yield
    gpus_of: dict[NodeType, Mapping[GpuKind, int]] = {}
    for node_type in nodes:
        gpus_of[node_type] = Counter(node_type.gpus)
        yield
    gpus = sorted({gpu for there in gpus_of.values() for gpu in there})
    yield from _matched([kind for kind, _ in comes], {gpu.model for gpu in gpus})
    levels = _levels(comes, MOST_TABLES // max(1, len(gpus)))
    at = (0, *levels)
    prices, packed = yield from _packed(with_gpus, gpus, at)
    wanted, of_several = yield from _wanted(with_gpus, unit, nodes, gpus_of)
    together = {}
    for node_type in nodes:
        together[node_type] = _together(of_several.pop(node_type), node_type, at, unit / total)
        yield
    return Tables(
        unit,
        levels,
        prices,
        packed,
        wanted,
        together,
        tuple(per_cpu * sum(part for asked, part in cpu_only if asked <= cpu) for cpu in at),
        cpu_per_share,
        sum(part * kind.memory_mib for kind, part in with_gpus) / total,
        IDLE_CPU * unit / max((node_type.cpu_milli for node_type in nodes if node_type.cpu_milli), default=1),
        IDLE_GPUS * unit / max((sum(node_type.sizes) for node_type in nodes if node_type.sizes), default=1),
    )


def mean_gpu(nodes: Mapping[NodeType, int]) -> float:
    """Return the shares of the mean GPU, of the mean MIG instance where there are no GPUs; 1 without either."""
    gpus = sum(node_type.whole * number for node_type, number in nodes.items())
    if gpus:
        return sum(node_type.whole_shares * number for node_type, number in nodes.items()) / gpus
    instances = sum(len(node_type.sizes) * number for node_type, number in nodes.items())
    return sum(sum(node_type.sizes) * number for node_type, number in nodes.items()) / instances if instances else 1.0


@dataclass(frozen=True, slots=True)
class Dominance:
    """Measures what pods take of a cluster's nodes with GPUs by the resource of which it is the largest part."""

    unit: float
    """Shares of the mean GPU."""
    shares: float
    """Of all nodes."""
    per_cpu: float
    """The shares for a thousandth of a CPU, and a MiB of memory: as many of each as there are of the other."""
    per_mib: float

    @classmethod
    def of(cls, nodes: Mapping[NodeType, int]) -> Dominance:
        """Return the measure for these nodes."""
        having = {node_type: number for node_type, number in nodes.items() if node_type.sizes}
        shares = float(sum(number * sum(each.sizes) for each, number in having.items()))
        cpu = sum(number * each.cpu_milli for each, number in having.items())
        memory = sum(number * each.memory_mib for each, number in having.items())
        return cls(mean_gpu(nodes), shares, shares / max(1.0, cpu), shares / max(1.0, memory))

    def size(self, shares: float, gpus: int, cpu_milli: int, memory_mib: int) -> float:
        """Return the size of a pod with so many shares, and GPUs taken whole, in shares."""
        return max(shares + gpus * self.unit, cpu_milli * self.per_cpu, memory_mib * self.per_mib)

    def kind(self, kind: PodKind) -> float:
        """Return the size of a pod of a kind, in shares."""
        whole = 0 if kind.shares else kind.gpus
        return self.size(kind.shares * kind.gpus, whole, kind.cpu_milli, kind.memory_mib)


def _matched(mix: Iterable[PodKind], models: Collection[str]) -> Generator[None, None, None]:
    """Compare the wishes with all models, once for each different wish: later it is known which ones they allow."""
    for preferences in {id(kind.selector): kind.selector for kind in mix if kind.selector.choosy}.values():
        for at, model in enumerate(models):
            preferences.allow_model(model)
            if at % _MODELS == _MODELS - 1:
                yield
        yield


def _levels(comes: Sequence[tuple[PodKind, float]], most: int) -> tuple[int, ...]:
    """Return the amounts of CPU that pods ask for; of too many those that part the pods evenly, with the largest.

    Pods without GPUs count as no more than those with GPUs, however many there are.
    """
    with_gpus = sum(part for kind, part in comes if kind.gpus)
    without = sum(part for kind, part in comes if not kind.gpus)
    scale = min(1.0, with_gpus / without) if with_gpus and without else 1.0
    often: dict[int, float] = {}
    for kind, part in comes:
        if kind.cpu_milli:
            often[kind.cpu_milli] = often.get(kind.cpu_milli, 0.0) + (part if kind.gpus else part * scale)
    amounts, most = sorted(often), max(1, min(most, MOST_LEVELS))
    if len(amounts) <= most:
        return tuple(amounts)
    sums = list(accumulate(often[amount] for amount in amounts))
    places = [int(most * reached / (sums[-1] or 1.0)) for reached in sums[:-1]]
    kept = [amount for amount, place, before in zip(amounts, places, (0, *places), strict=False) if place > before]
    return (*kept[: most - 1], amounts[-1])


def _packed(
    comes: Iterable[tuple[PodKind, float]], gpus: Sequence[GpuKind], levels: Sequence[int]
) -> Generator[
    None, None, tuple[dict[tuple[int, bool], dict[int, float]], dict[GpuKind, tuple[tuple[float, ...], ...]]]
]:
    """Return `Tables.prices` and `Tables.packed`."""
    singles = [(kind, part * kind.gpus) for kind, part in comes if kind.gpus == 1 or kind.shares]
    rounds = MOST_ROUNDS // max(1, len({(gpu.size, gpu.instance) for gpu in gpus}))
    prices: dict[tuple[int, bool], dict[int, float]] = {}
    often: dict[tuple[int, bool], dict[int, float]] = {}
    served: dict[tuple[int, bool], list[tuple[PodKind, int, int, float]]] = {}
    known: dict[tuple[int, bool, bytes], tuple[float, ...]] = {}
    found = {}
    for gpu in gpus:
        size, model, instance = gpu
        own = size, instance
        if own not in prices:
            served[own] = [
                (kind, _taken(kind, size), bisect_left(levels, kind.cpu_milli), part)
                for kind, part in singles
                if not (instance and needs_gpus(kind))
            ]
            yield
            often[own] = {}
            for _, taken, _, part in served[own]:
                often[own][taken] = often[own].get(taken, 0.0) + part
            yield
            prices[own] = yield from prices_of_sizes(often[own], cells(size), rounds)
        fits = dict.fromkeys(prices[own], 0.0)
        # By level, what comes with just so much CPU.
        more: list[list[tuple[PodKind, int, int, float]]] = [[] for _ in levels]
        for each in served[own]:
            kind, taken, level, _ = each
            if level < len(levels) and taken in fits and kind.selector.allow_model(model):
                more[level].append(each)
        yield
        tables = []
        for coming in more:
            for _, taken, _, part in coming:
                fits[taken] += part
            key = (*own, array("d", fits.values()).tobytes())
            if key not in known:
                values = {at: size * prices[own][at] * part / often[own][at] for at, part in fits.items() if part}
                known[key] = tuple(packed_values(values, cells(size)))
            tables.append(known[key])
            yield
        found[gpu] = tuple(tables)
    return prices, found


def _taken(kind: PodKind, size: int) -> int:
    """Return how many cells a pod takes of a GPU of `size` shares."""
    return -(-kind.shares * cells(size) // size) if kind.shares else cells(size)


def _wanted(
    comes: Iterable[tuple[PodKind, float]],
    unit: float,
    nodes: Mapping[NodeType, int],
    gpus_of: Mapping[NodeType, Mapping[GpuKind, int]],
) -> Generator[None, None, tuple[dict[NodeType, float], dict[NodeType, list[tuple[PodKind, float]]]]]:
    """Return `Tables.wanted`, and by shape the kinds of several GPUs that a node hosts, with the demand for them."""
    found = dict.fromkeys(nodes, 0.0)
    of_several: dict[NodeType, list[tuple[PodKind, float]]] = {node_type: [] for node_type in nodes}
    capacity = {node_type: sum(node_type.sizes) * number for node_type, number in nodes.items()}
    part_of_gpus = {node_type: node_type.whole_shares / (sum(node_type.sizes) or 1) for node_type in nodes}
    for kind, part in comes:
        amount = part * kind.gpus * (kind.shares or unit)
        several = kind, amount
        hosts = []
        for at, node_type in enumerate(nodes if amount else ()):
            if node_type.hosts_on(gpus_of[node_type], kind):
                hosts.append(node_type)
            if at % _SHAPES == _SHAPES - 1:
                yield
        parts = {node_type: part_of_gpus[node_type] if needs_gpus(kind) else 1.0 for node_type in hosts}
        room = sum(capacity[node_type] * usable for node_type, usable in parts.items())
        for node_type, usable in parts.items() if room else ():
            found[node_type] += amount / room * usable
            if kind.gpus > 1:
                of_several[node_type].append(several)
        yield
    mean = sum(found[node_type] * capacity[node_type] for node_type in nodes) / (sum(capacity.values()) or 1)
    return {node_type: 1 + WANTED * (one / mean - 1) if mean else 1.0 for node_type, one in found.items()}, of_several


def _together(
    hosted: Iterable[tuple[PodKind, float]], node_type: NodeType, levels: Sequence[int], unit: float
) -> tuple[tuple[float, ...], ...]:
    """Return `Tables.together` of a shape, given the demand for each kind of several GPUs that it hosts."""
    more: list[list[tuple[int, float]]] = [[] for _ in (*levels, None)]
    for kind, amount in hosted:
        more[bisect_left(levels, kind.cpu_milli)].append((kind.gpus, amount))
    # By number of GPUs: the demand of the pods that fit beside so many unused ones.
    fitting = [0.0] * (node_type.whole + 1)
    found = []
    for coming in more[: len(levels)]:
        for gpus, amount in coming:
            fitting[gpus] += amount
        found.append(tuple(HOSTS * unit * unused * part for unused, part in enumerate(accumulate(fitting))))
    return tuple(found)


# --- Prices of sizes --------------------------------------------------------------------------------------------------


def packed_values(prices: Mapping[int, float], capacity: int) -> list[float]:
    """Return for 0 to `capacity` shares what the most valuable set of pods is worth that fits; sizes may repeat."""
    return _best_packing(sorted(prices.items()), capacity)[0]


def _best_packing(items: Sequence[tuple[int, float]], capacity: int) -> tuple[list[float], list[int]]:
    """Return the values, and for each capacity the last size that is taken; 0: one share is left over."""
    values, last = [0.0] * (capacity + 1), [0] * (capacity + 1)
    for room in range(1, capacity + 1):
        best, taken = values[room - 1], 0
        for size, price in items:
            if size > room:
                break
            value = price + values[room - size]
            if value > best:
                best, taken = value, size
        values[room], last[room] = best, taken
    return values, last


def prices_of_sizes(
    demand: Mapping[int, float], capacity: int, rounds: int = ROUNDS
) -> Generator[None, None, dict[int, float]]:
    """Return the price of each size as a part of a GPU, so that no packing is worth more than 1; yield between steps.

    A pod of 13 of 16 shares leaves 3 that nothing may fit, so it must be worth nearly the whole GPU; a pod of 8 shares
    is worth half of it where another one of 8 comes often enough. The cutting-stock problem asks for the fewest GPUs
    that hold all pods (Gilmore and Gomory, 1961); its dual gives every size such a price.

    Multiplicative weights: in each round the sizes that were packed least are dearest, and the packing that is best
    then counts as made. The mean over the rounds is near the exact solution and better than it: that lies at a corner,
    where many sizes have no price at all, and what comes is never exactly the mix that was learned. (With openb's
    gpushare60 at a load of 0.94 a third less is rejected than with the best single round.)

    The demand is how often each size comes, 1 to `capacity` shares; only ratios matter.
    """
    rounds = max(2 * _FIRST, min(rounds, ROUNDS))
    demand = {size: often for size, often in sorted(demand.items()) if often > 0 and 0 < size <= capacity}
    if not demand:
        return {}
    total = sum(demand.values())
    packed = dict.fromkeys(demand, 0.0)
    mean = dict.fromkeys(demand, 0.0)
    for n in range(rounds):
        least = min(packed.values())
        tried = {size: exp(_STEEP * (least - packed[size])) / often for size, often in demand.items()}
        values, last = _best_packing(list(tried.items()), capacity)
        if n >= rounds // _FIRST:
            for size, price in tried.items():
                mean[size] += price / values[capacity]
        room = capacity
        while room > 0:
            size = last[room]
            if size:
                packed[size] += total / rounds / demand[size]
            room -= size or 1
        yield
    most = packed_values(mean, capacity)[capacity]
    return {size: price / most for size, price in mean.items()}
