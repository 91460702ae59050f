"""Find the nodes, of thousands, on which a pod fits, column by column: the results of `core.cluster.fitting.unfit`.

Most rows are decided by one or two numbers, and many rows share the same reason.
"""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING

from gpu_device_plugin.core.cluster.effort import TooLongError
from gpu_device_plugin.core.cluster.fitting import Unfit, allowed, unfit, unfit_by_kind
from gpu_device_plugin.core.cluster.packing import Packer, Packing, frees_of
from gpu_device_plugin.core.model.placing import fits_kind
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.fleet_index.table import apart, column, picked

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gpu_device_plugin.core.cluster.asking import Ask
    from gpu_device_plugin.core.cluster.effort import Effort
    from gpu_device_plugin.core.cluster.packing import Pack
    from gpu_device_plugin.core.contract.wishes import Wishes
    from gpu_device_plugin.core.model.placing import Demand, Room
    from gpu_device_plugin.fleet_index.table import Find, NodeTable

_MOST_ANSWERS = 50_000
"""The most reasons of one kind that are cached; the cache is cleared when it is full."""
_MOST_PACKINGS = 10_000
"""The most packings that are cached for one pod."""
_STEPS_AT_LEAST = 1
"""The cost of a search that ends before its first step, in steps of `Effort`."""

_SOME_WAY, _NO_WAY = Packing((), 0), Packing(None, 0)

UNKNOWN = Unfit("this node is not known to the GPU scheduler yet", unresolvable=False)
UNTRIED = Unfit("the search for GPUs for all containers of the pod together is not finished yet", unresolvable=False)


def verdicts(ask: Ask, table: NodeTable, effort: Effort) -> Find[Unfit | None]:
    """Return a function that says why one pod does not fit on rows: None where it does, `UNTRIED` out of steps."""
    demands = tuple(part.demand for part in ask.parts)
    if not demands:
        return lambda rows, _left_over: [None] * len(rows)
    packing = _packing(demands, effort)
    every = _OfSeveral(ask, demands, table, packing) if len(demands) > 1 else _of_one(ask, demands[0], table)
    some = _ByWishes(ask, every, table, packing, effort) if ask.wishes.choosy else every
    by_kind: dict[int, Unfit | None] = {}

    def find(rows: Sequence[int], left_over: list[int]) -> list[Unfit | None]:
        found = some(rows, left_over)
        for kind in range(len(by_kind), len(table.kinds)):
            by_kind[kind] = unfit_by_kind(ask, table.kinds.examples[kind])
        if not any(by_kind.values()):
            return found
        return [by_kind[kind] or why for kind, why in zip(picked(table.kind, rows), found, strict=True)]

    if any(demand.kind is Kind.MEMORY for demand in demands):
        return find
    # Where kube-scheduler allocates whole GPUs, the verdict depends on nothing but the pod's wishes.
    return apart(table, find, lambda row: unfit(ask, table.nodes[row]))


def _of_one(ask: Ask, demand: Demand, table: NodeTable) -> Find[Unfit | None]:
    whole = demand.kind is Kind.COUNT
    each, last = demand.amount // demand.gpus, demand.gpus - 1
    known: dict[int, Unfit] = {}

    def look(row: int, kind: int) -> Unfit | None:
        why = unfit(ask, table.nodes[row])
        return None if why is None else known.setdefault(kind, why)

    def find(rows: Sequence[int], _left_over: list[int]) -> list[Unfit | None]:
        has = picked(table.unused, rows) if whole else column(table.frees if last else table.frees_of_any, last, rows)
        return [
            None if number >= each else known.get(kind) or look(row, kind)
            for row, kind, number in zip(rows, picked(table.kind, rows), has, strict=True)
        ]

    return find


class _OfSeveral:
    """The verdicts on a pod of several parts."""

    def __init__(self, ask: Ask, demands: tuple[Demand, ...], table: NodeTable, packing: Pack) -> None:
        self._ask = ask
        self._table = table
        self._packing = packing
        memory = [demand for demand in demands if demand.kind is Kind.MEMORY]
        counts = [demand.amount for demand in demands if demand.kind is Kind.COUNT]
        self._whole = sum(counts)
        # The shares of each GPU for memory, the most first.
        self._pieces = sorted((d.amount // d.gpus for d in memory for _ in range(d.gpus)), reverse=True)
        self._several = any(demand.gpus > 1 for demand in memory)
        # The needs of its largest demands alone: unused GPUs, and by n the shares of the GPU with the n-th most free.
        self._largest_count = max(counts, default=0)
        largest: dict[int, int] = {}
        for demand in memory:
            largest[demand.gpus - 1] = max(demand.amount // demand.gpus, largest.get(demand.gpus - 1, 0))
        self._largest = tuple(largest.values())
        self._lasts = tuple(largest)
        self._on_one = not counts and self._lasts == (0,)
        self._alone: dict[tuple[int, ...], Unfit] = {}
        self._together: dict[int, Unfit] = {}

    def __call__(self, rows: Sequence[int], left_over: list[int]) -> list[Unfit | None]:
        table = self._table
        has = [column(table.frees if last else table.frees_of_any, last, rows) for last in self._lasts]
        keys = zip(picked(table.kind, rows), picked(table.unused, rows), *has, strict=True)
        found: list[Unfit | None] = [None] * len(rows)
        for at, (certain, key) in enumerate(zip(self._certain(rows), keys, strict=True)):
            if not certain:
                try:
                    found[at] = self._alone.get(key) or self._look(rows[at], key)
                except TooLongError:
                    found[at] = UNTRIED
                    left_over.append(rows[at])
        return found

    def _certain(self, rows: Sequence[int]) -> Sequence[bool]:
        """Return for each row whether it certainly fits: one GPU has room for all pieces, or each has a GPU of its own.

        Placing every piece on the fullest GPU with room then leaves enough for the others, so `Packer` finds a packing
        at once. Whole GPUs are the unused ones with the fewest shares; leaving out the emptiest is on the safe side. So
        is to leave out the instances for a pod that takes memory of several GPUs.
        """
        table = self._table
        frees = table.frees if self._several else table.frees_of_any
        if self._whole + len(self._pieces) > len(frees) and not self._on_one:
            return [False] * len(rows)  # no node has as many GPUs
        certain = [unused >= self._whole for unused in picked(table.unused, rows)]
        for at, piece in enumerate(self._pieces, self._whole):
            certain = [ok and free >= piece for ok, free in zip(certain, column(frees, at, rows), strict=True)]
        if self._on_one:
            at_once = sum(self._pieces)
            certain = [ok or free >= at_once for ok, free in zip(certain, column(frees, 0, rows), strict=True)]
        return certain

    def _look(self, row: int, key: tuple[int, ...]) -> Unfit | None:
        node = self._table.nodes[row]
        kind, unused, *frees = key
        if unused < self._largest_count or any(map(lt, frees, self._largest)):
            why = unfit(self._ask, node, self._packing)
            if why is not None:
                if len(self._alone) >= _MOST_ANSWERS:
                    self._alone.clear()
                self._alone[key] = why
            return why
        # With two pieces, `_certain` is exact; without enough unused GPUs there is no packing.
        no_way = (self._on_one and len(self._pieces) == 2) or unused < self._whole
        if not no_way and self._packing(*frees_of(node.rooms)).taken is not None:
            return None
        why = self._together.get(kind) or unfit(self._ask, node, self._packing)
        return None if why is None else self._together.setdefault(kind, why)


def _packing(demands: tuple[Demand, ...], effort: Effort) -> Pack:
    """Return a `fitting.Packer` for the demands of one pod that searches equivalent GPUs only once."""
    packer = Packer(demands)
    least = min((each for _, each in packer.pieces), default=0)
    most = sum(gpus * each for gpus, each in packer.pieces)
    known: dict[tuple[int, ...], Packing] = {}

    several = any(gpus > 1 for gpus, _ in packer.pieces)

    def packing(frees: tuple[int, ...], idle: tuple[int, ...], instances: tuple[int, ...]) -> Packing:
        left = packer.left(frees, idle)
        if left is None:
            return _NO_WAY
        # Fewer free shares than the smallest part count as none, more than the sum of all parts as that sum.
        key = tuple([min(free, most) for free in left if free >= least])
        if instances:
            # Memory of one GPU may be that of an instance; where that is all that is asked, they are as GPUs.
            beside = tuple(sorted([min(free, most) for free in instances if free >= least]))
            key = (*key, *(-free for free in beside)) if several else tuple(sorted((*key, *beside)))
        found = known.get(key)
        if found is None:
            effort.check()
            if len(known) >= _MOST_PACKINGS:
                known.clear()
            tried = packer.packing(left, instances)
            effort.spend(tried.steps + _STEPS_AT_LEAST)
            # Only whether there is a packing matters here.
            found = known[key] = _NO_WAY if tried.taken is None else _SOME_WAY
        return found

    return packing


# --- What annotations allow ------------------------------------------------------------------------------------------


def allowing(wishes: Wishes, table: NodeTable) -> Callable[[int, int], bool | None]:
    """Return a function: whether a pod's annotations allow all GPUs of a row (True), none (False) or some (None).

    Its arguments are the row and the row's value in the column `model`.
    """
    named = {*wishes.use_uuids, *wishes.avoid_uuids}
    known: dict[int, bool | None] = {}

    def allow(row: int, model: int) -> bool | None:
        if model not in known:
            known[model] = _agreed(set(map(wishes.allow_model, table.models.examples[model])))
        if not named or known[model] is False:
            return known[model]
        there = table.nodes[row].gpus
        if named.isdisjoint([gpu.uuid for gpu in there.gpus]) and named.isdisjoint(there.parents):
            return False if wishes.use_uuids else known[model]
        return _agreed({wishes.allow_model(gpu.model) and wishes.allow_uuid(gpu.uuid, gpu.card) for gpu in there.gpus})

    return allow


def _agreed(answers: set[bool]) -> bool | None:
    return None if len(answers) > 1 else False not in answers


class _ByWishes:
    """The verdicts on a pod whose annotations exclude GPUs."""

    def __init__(self, ask: Ask, every: Find[Unfit | None], table: NodeTable, packing: Pack, effort: Effort) -> None:
        self._ask = ask
        self._every = every
        self._table = table
        self._packing = packing
        self._effort = effort
        self._allowed = allowing(ask.wishes, table)
        self._none: dict[int, Unfit | None] = {}
        self._known: dict[Hashable, Unfit] = {}

    def __call__(self, rows: Sequence[int], left_over: list[int]) -> list[Unfit | None]:
        table = self._table
        found: dict[int, Unfit | None] = {}
        suited: list[int] = []
        for row, model, kind in zip(rows, picked(table.model, rows), picked(table.kind, rows), strict=True):
            answer = self._allowed(row, model)
            if answer:
                suited.append(row)
            elif answer is False:
                if kind not in self._none:
                    self._none[kind] = unfit(self._ask, table.nodes[row])
                found[row] = self._none[kind]
            elif len(self._ask.parts) == 1:
                found[row] = self._of_one(self._ask.parts[0].demand, row, kind)
            else:
                found[row] = self._of_several(row, left_over)
        found.update(zip(suited, self._every(suited, left_over), strict=True))
        return [found[row] for row in rows]

    def _of_one(self, demand: Demand, row: int, kind: int) -> Unfit | None:
        """Return the verdict on one demand; the reason depends on the node's kind and the sizes of the allowed GPUs."""
        node = self._table.nodes[row]
        rooms = allowed(self._ask, node)
        if _has_room(demand, rooms):
            return None
        ready = [room for room in rooms if room.healthy and fits_kind(demand, room)]
        sizes = tuple([(room.total, room.healthy, room.card is None) for room in rooms])
        key = kind, sizes, all(room.whole for room in ready)
        why = self._known.get(key) or unfit(self._ask, node)
        if len(self._known) >= _MOST_ANSWERS:
            self._known.clear()
        return None if why is None else self._known.setdefault(key, why)

    def _of_several(self, row: int, left_over: list[int]) -> Unfit | None:
        try:
            self._effort.check()
            self._effort.spend(_STEPS_AT_LEAST)
            return unfit(self._ask, self._table.nodes[row], self._packing)
        except TooLongError:
            left_over.append(row)
            return UNTRIED


def _has_room(demand: Demand, rooms: Sequence[Room]) -> bool:
    """Return whether enough of the GPUs have room; nothing else of their node matters here."""
    if demand.kind is Kind.COUNT:
        return sum(room.unused and room.card is None for room in rooms) >= demand.amount
    each = demand.amount // demand.gpus
    return sum(room.free >= each and room.gives_shares and fits_kind(demand, room) for room in rooms) >= demand.gpus
