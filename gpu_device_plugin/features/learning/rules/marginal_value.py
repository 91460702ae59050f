"""Appraise the room that a node has left, and choose the GPUs on which a pod costs least of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from gpu_device_plugin.features.learning.rules.price_learning import SCARCITY, STRANDED, Tables, cell, cells
from gpu_device_plugin.features.learning.rules.workload_mix import GpuKind, NodeType, PodKind, rounded
from gpu_device_plugin.model.placing import TOGETHER, Demand, Rank, Ranks, Room
from gpu_device_plugin.model.resources import Amounts, Kind
from gpu_device_plugin.scheduler.rules.candidate import Candidate

CLOSED = -1
"""The free shares of a GPU that gives none, whatever ends on it: it is out of service."""
NEVER = -inf
"""The gain of a node on which a pod does not fit, or of whose shape the tables know nothing."""


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """The room that a node has left."""

    frees: tuple[int, ...]
    """Free shares of each GPU; `CLOSED` where it gives none."""
    cpu_milli: int
    memory_mib: int

    @property
    def shares(self) -> int:
        """Free shares of all GPUs."""
        return sum([free for free in self.frees if free > 0])

    def after(self, kind: PodKind, gpus: Iterable[int]) -> FreeCapacity:
        """Return the room that is left once a pod has these GPUs."""
        frees = list(self.frees)
        for at in gpus:
            frees[at] -= kind.shares or frees[at]
        return FreeCapacity(tuple(frees), self.cpu_milli - kind.cpu_milli, self.memory_mib - kind.memory_mib)


class Group(NamedTuple):
    """GPUs of one node that are of one kind and have as many free shares."""

    gpu: GpuKind
    free: int
    cell: int
    """That of `free`, see `cells`."""
    cells: int
    unused: bool
    """They may be taken whole."""
    number: int
    packed: tuple[tuple[float, ...], ...]
    """`Tables.packed` of their kind."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Appraisal:
    """The room of a node, in the numbers that show what a pod costs of it."""

    left: FreeCapacity
    groups: tuple[Group, ...]
    """The GPUs that have free shares."""
    group_at: tuple[int, ...]
    """By GPU: its place in `groups`; -1: it has no free share."""
    unused_at: tuple[int, ...]
    """The unused GPUs."""
    cards: tuple[int | None, ...]
    """Those of its shape."""
    shares: int
    unused: int
    """How many they are."""
    wanted: float
    """`Tables.wanted` and `Tables.together` of its shape."""
    together: tuple[tuple[float, ...], ...]
    level: int
    """That of the CPU left, in `Tables.levels`."""
    packed: float
    """What could be packed into the GPUs as they are, at this level."""
    placement_value: float
    """In shares."""

    @property
    def stranded(self) -> float:
        """The free shares that are of no use to the pods that usually come, with the CPU that is left.

        The best set of pods for the free shares of a GPU is worth less than these shares. Unused GPUs that pods of
        several GPUs could have are of use.
        """
        return sum(self.stranded_of(group) * group.number for group in self.groups)

    def stranded_of(self, group: Group) -> float:
        """Return `stranded` of one GPU of a group."""
        hosts = self.together[self.level][self.unused] > 0
        return 0.0 if hosts and group.unused else max(0.0, group.free - group.packed[self.level][group.cell])


class Appraiser:
    """Appraises by tables that were learned."""

    def __init__(self, tables: Tables) -> None:
        """Appraise by `tables`."""
        self.tables = tables
        self._gpus: dict[NodeType, tuple[GpuKind, ...]] = {}
        per_cpu, per_memory = tables.cpu_per_share, tables.memory_per_share
        # How many shares a thousandth of a CPU, or a MiB, serves if pods take more or less than the mean; fewest first.
        self._served_by_cpu = [1 / (each * per_cpu) for each in reversed(SCARCITY)] if per_cpu else []
        self._served_by_memory = [1 / (each * per_memory) for each in reversed(SCARCITY)] if per_memory else []

    def appraise(self, node_type: NodeType, left: FreeCapacity) -> Appraisal | None:
        """Return a node's room appraised; None where the tables do not know its shape."""
        tables = self.tables
        if node_type not in tables.wanted:
            return None
        gpus = self._gpus.get(node_type)
        if gpus is None:
            gpus = self._gpus[node_type] = node_type.gpus
        kinds = list(zip(gpus, left.frees, strict=True))
        places: dict[tuple[GpuKind, int], int] = {}
        group_at = tuple([places.setdefault(kind, len(places)) if kind[1] > 0 else -1 for kind in kinds])
        groups = tuple(
            [
                Group(
                    gpu,
                    free,
                    cell(free, gpu.size),
                    cells(gpu.size),
                    free == gpu.size and not gpu.instance,
                    group_at.count(at),
                    tables.packed[gpu],
                )
                for (gpu, free), at in places.items()
            ]
        )
        unused_at = tuple([at for at, group in enumerate(group_at) if group >= 0 and groups[group].unused])
        shares, unused = left.shares, len(unused_at)
        wanted, together, level = tables.wanted[node_type], tables.together[node_type], self._level(left.cpu_milli)
        packed = _packed(groups, level)
        placement_value = packed + wanted * shares + together[level][unused]
        placement_value += self._amounts(level, left.cpu_milli, left.memory_mib, shares)
        return Appraisal(
            left,
            groups,
            group_at,
            unused_at,
            node_type.cards,
            shares,
            unused,
            wanted,
            together,
            level,
            packed,
            placement_value,
        )

    def gain(self, kind: PodKind, room: Appraisal | None) -> float:
        """Return what a node gains by a pod, in shares: usually a loss; `NEVER` where the pod does not fit."""
        if room is None:
            return NEVER
        cpu, memory = room.left.cpu_milli - kind.cpu_milli, room.left.memory_mib - kind.memory_mib
        if cpu < 0 or memory < 0:
            return NEVER
        tables = self.tables
        level = bisect_right(tables.levels, cpu)
        together, shares, unused, lacking = room.together[level], room.shares, room.unused, kind.gpus
        changes = 0.0
        if lacking == 1 and kind.shares:
            changes, takes_unused = _best_change(kind, room, level)
            if changes == NEVER:
                return NEVER
            shares -= kind.shares
            unused -= takes_unused
        elif lacking:
            for group, there, change in self._taken(kind, room, level):
                number = min(there, lacking)
                lacking -= number
                changes += change * number
                shares -= (kind.shares or group.free) * number
                unused -= number * group.unused
            if lacking:
                return NEVER
        value = room.packed if level == room.level else _packed(room.groups, level)
        value += changes + room.wanted * shares + together[unused] + self._amounts(level, cpu, memory, shares)
        return value - room.placement_value - tables.idle_cpu * cpu - tables.idle_share * shares

    def gpus(self, kind: PodKind, room: Appraisal) -> list[int]:
        """Return the GPUs of a node on which a pod costs least; it fits there."""
        if not kind.shares:
            return _whole(kind, room)
        options = self._options(kind, room, self._level(room.left.cpu_milli - kind.cpu_milli))
        preferred = {at: gain for gain, _, at in options}
        # Of equals instances come first, those of the fullest GPU before others, as `model.placing.preference` says.
        frees: Counter[int | None] = Counter()
        for card, free, group in zip(room.cards, room.left.frees, room.group_at, strict=True):
            if card is not None and group >= 0 and kind.selector.allow_model(room.groups[group].gpu.model):
                frees[card] += free
        places = enumerate(zip(room.group_at, room.cards, strict=True))
        fitting = [(-preferred[at], card is None, frees[card], gpu) for gpu, (at, card) in places if at in preferred]
        return [gpu for *_, gpu in sorted(fitting)[: kind.gpus]]

    def change(self, node_type: NodeType, frees: Sequence[int], cpu_milli: int, at: int, shares: int) -> float:
        """Return what one GPU gains if a pod takes shares of it and leaves the node this CPU: usually a loss."""
        gpu, free, level = node_type.gpus[at], frees[at], self._level(cpu_milli)
        packed = self.tables.packed[gpu][level]
        now, then = (packed[cell(each, gpu.size)] if each > 0 else 0.0 for each in (free, free - shares))
        if free != gpu.size or gpu.instance:
            return then - now
        return then - now + _opened(self.tables.together[node_type][level], len(unused(node_type, frees)))

    def _level(self, cpu_milli: int) -> int:
        return bisect_right(self.tables.levels, cpu_milli)

    def _taken(self, kind: PodKind, room: Appraisal, level: int) -> Iterable[tuple[Group, int, float]]:
        """Return of which GPUs a pod takes some, the best first: how many there are, and what each of them gains."""
        if not kind.shares:
            whole = [room.groups[room.group_at[at]] for at in _whole(kind, room)]
            return [(group, 1, -group.packed[level][group.cell]) for group in whole]
        options = self._options(kind, room, level)
        options.sort(reverse=True)
        return [(room.groups[at], room.groups[at].number, change) for _, change, at in options]

    def _options(self, kind: PodKind, room: Appraisal, level: int) -> list[tuple[float, float, int]]:
        """Return what a node gains if a pod takes shares of one GPU, what the GPU alone does, and the GPU's group."""
        opened = _opened(room.together[level], room.unused)
        shares, choosy, only_gpus = kind.shares, kind.selector.choosy, kind.gpus > 1
        options = []
        for at, (gpu, free, now, cells_of, unused, _, packed) in enumerate(room.groups):
            if free < shares or (only_gpus and gpu.instance) or (choosy and not kind.selector.allow_model(gpu.model)):
                continue
            values = packed[level]
            change = values[(free - shares) * cells_of // gpu.size] - values[now]
            options.append((change + opened if unused else change, change, at))
        return options

    def _amounts(self, level: int, cpu: int, memory: int, shares: int) -> float:
        """Return the worth of CPU and memory beside so many free shares: less than 0 where too little is left."""
        stranded = 0.0
        for each in self._served_by_cpu:
            if shares <= cpu * each:
                break  # the next ones serve more
            stranded += shares - cpu * each
        for each in self._served_by_memory:
            if shares <= memory * each:
                break
            stranded += shares - memory * each
        return self.tables.cpu_worth[level] * cpu - STRANDED / len(SCARCITY) * stranded


def _packed(groups: Iterable[Group], level: int) -> float:
    """Return the worth of what could be packed into GPUs as they are."""
    return sum([group.packed[level][group.cell] * group.number for group in groups])


def _best_change(kind: PodKind, room: Appraisal, level: int) -> tuple[float, bool]:
    """Return what the GPU gains that a pod takes shares of, and whether it is unused; `NEVER`: none has room.

    The first of `Appraiser._options` without the list: nothing is computed as often.
    """
    asked, allow = kind.shares, kind.selector.allow_model if kind.selector.choosy else None
    opened = _opened(room.together[level], room.unused)
    best, chosen, takes_unused = NEVER, NEVER, False
    for gpu, free, now, cells_of, unused, _, packed in room.groups:
        if free < asked or (allow is not None and not allow(gpu.model)):
            continue
        values = packed[level]
        change = values[(free - asked) * cells_of // gpu.size] - values[now]
        gain = change + opened if unused else change
        if gain > best:
            best, chosen, takes_unused = gain, change, unused
    return chosen, takes_unused


def _whole(kind: PodKind, room: Appraisal) -> list[int]:
    """Return the GPUs that a pod would get whole, by position; fewer than it asks for where no more are unused."""
    if kind.selector.choosy:
        allow = kind.selector.allow_model
        return [at for at in room.unused_at if allow(room.groups[room.group_at[at]].gpu.model)][: kind.gpus]
    return list(room.unused_at[: kind.gpus])


def _opened(together: Sequence[float], unused: int) -> float:
    """Return what a node gains if one GPU less is unused."""
    return together[unused - 1] - together[unused] if unused else 0.0


def unused(node_type: NodeType, frees: Sequence[int]) -> list[int]:
    """Return the GPUs that no pod uses; MIG instances cannot be taken as GPUs."""
    gpus = zip(frees, node_type.sizes, node_type.cards, strict=True)
    return [at for at, (free, size, card) in enumerate(gpus) if free == size and card is None]


UNKNOWN = Amounts(1 << 18, 1 << 22)
"""The CPU and memory of a node that does not name them: 262 CPUs and 4 TiB, so that only its GPUs decide."""


def shape_of(node: Candidate) -> NodeType:
    """Return the shape of a node; one that serves claims has no GPUs for limits of pods."""
    allocatable = node.allocatable or UNKNOWN
    gpus, cards = () if node.gpus.claims else node.gpus.gpus, node.gpus.cards
    first: dict[int, int] = {}
    return NodeType(
        tuple([gpu.shares for gpu in gpus]),
        tuple([gpu.model for gpu in gpus]),
        rounded(allocatable.cpu_milli),
        rounded(allocatable.memory_mib),
        tuple(
            [
                first.setdefault(cards[gpu.position], at) if gpu.position in cards else None
                for at, gpu in enumerate(gpus if cards else ())
            ]
        ),
    )


def free_capacity(node: Candidate) -> FreeCapacity:
    """Return the room of a node. A GPU in whole use has no free share, and one out of service is closed."""
    left = node.left or UNKNOWN
    rooms = () if node.gpus.claims else node.rooms
    return FreeCapacity(tuple([_free(room) for room in rooms]), left.cpu_milli, left.memory_mib)


def _free(room: Room) -> int:
    if not room.healthy:
        return CLOSED
    return 0 if room.whole else room.free


def ranks_on(appraiser: Appraiser, node: Candidate, amounts: Amounts) -> Ranks | None:
    """Return what the policy `fit` prefers on a node for a pod that requests these amounts; None: nothing is learned.

    A GPU ranks by the worth that the node loses with it, so that the least loss comes first.
    """
    node_type, left = shape_of(node), free_capacity(node)
    if node_type not in appraiser.tables.wanted:
        return None
    cpu = left.cpu_milli - amounts.cpu_milli
    places = {room.position: at for at, room in enumerate(node.rooms)}

    def of(demand: Demand) -> Rank:
        def rank(room: Room) -> float:
            if room.position == TOGETHER:
                return room.free  # of equal instances that on the fullest GPU, as `Appraiser.gpus` says
            at = places[room.position]
            # Parts of the pod that are placed already have left the other rooms as they are: nearly so.
            frees = (*left.frees[:at], _free(room), *left.frees[at + 1 :])
            shares = room.total if demand.kind is Kind.COUNT else demand.amount // demand.gpus
            return -appraiser.change(node_type, frees, cpu, at, shares)

        return rank

    return of
