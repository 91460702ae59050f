"""Divide the time of all GPUs between their holders and what nobody had, so that the parts are the whole exactly.

A sample stands for the time until the next one. Amounts are whole numbers: bytes of GPU memory, seconds, thousandths of
a watt; what does not divide evenly goes by largest remainder. Only their quotients are fractions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, TypeVar

K = TypeVar("K")

MEMORY, ALLOCATED, SHARES = "gpushare_gpu_memory_bytes", "gpushare_gpu_memory_allocated_bytes", "gpushare_gpu_shares"
CARD_MEMORY, INFO = "gpushare_card_memory_bytes", "gpushare_gpu_info"
GIVEN, USED = "gpushare_container_gpu_memory_allocated_bytes", "gpushare_container_gpu_memory_used_bytes"
BORROWED, BUSY = "gpushare_container_gpu_memory_borrowed_bytes", "gpushare_container_gpu_utilization_ratio"
NODE_MEMORY, STRANDED = "gpushare_extender_node_memory_bytes", "gpushare_extender_node_memory_stranded_bytes"
POWER = "gpushare_gpu_power_watts"
POD_OWNER, REPLICASET_OWNER = "kube_pod_owner", "kube_replicaset_owner"
_PLACE = ("namespace", "pod", "container", "gpu")
LABELS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((MEMORY, ALLOCATED, SHARES), ("node", "gpu")),
    INFO: ("gpu", "model", "parent", "share_bytes"),
    **dict.fromkeys((CARD_MEMORY, POWER), ("gpu",)),
    **dict.fromkeys((GIVEN, USED, BORROWED, BUSY), _PLACE),
    **dict.fromkeys((NODE_MEMORY, STRANDED), ("node",)),
    POD_OWNER: ("namespace", "pod", "owner_kind", "owner_name"),
    REPLICASET_OWNER: ("namespace", "replicaset", "owner_kind", "owner_name"),
}
"""The series that are read, each with the labels that count. Of several with the same ones the largest value counts:
an agent or extender that is replaced is read twice for a moment."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one metric with one set of labels."""

    name: str
    labels: Mapping[str, str]
    values: Mapping[int, float]
    """By time, in seconds since the epoch; only the times of the `Period` count."""


@dataclass(frozen=True, slots=True)
class Period:
    """The time that is divided, in seconds since the epoch: `end` is not part of it."""

    start: int
    end: int
    step_s: int

    @property
    def times(self) -> range:
        """When there are samples."""
        return range(self.start, self.end, self.step_s)

    def weight_s(self, at: int) -> int:
        """Return the seconds that a sample stands for; the last one may stand for less than a step."""
        return min(self.step_s, self.end - at)


class Part(StrEnum):
    """What became of GPU time. All parts together are the whole."""

    USED = "used"
    """Given to a container, and its memory in use by it."""
    IDLE = "idle"
    """Given, and not in use."""
    UNMEASURED = "unmeasured"
    """Given; whether it was in use is not known."""
    FREE = "free"
    STRANDED = "stranded"
    """Given to nobody, and of no use to the pods that usually come; or no share or MIG instance covers it."""
    UNOBSERVED = "unobserved"
    """Nobody recorded it."""


class Holder(NamedTuple):
    """A pod; one without names is nobody, or a pod that the agent does not know."""

    namespace: str = ""
    owner_kind: str = ""
    owner: str = ""
    pod: str = ""


NOBODY = Holder()


class Key(NamedTuple):
    """What is told apart: a holder, the model of its GPUs."""

    holder: Holder
    model: str


@dataclass(frozen=True, slots=True)
class Account:
    """The divided time of all GPUs, in GPU-seconds: a part of a GPU counts as its part of the card's memory."""

    parts: Mapping[tuple[Key, Part], Fraction]
    borrowed: Mapping[Key, Fraction]
    """Used beyond what was given, of other parts of the same GPUs; no part of the whole."""
    energy_mj: Mapping[Key, int]
    """Millijoules; empty where no power is known."""
    cards: int
    """GPUs; MIG instances count as the GPU that they are parts of."""
    stranded_known: bool
    """Whether any sample told the stranded memory; without one it counts as free."""

    @property
    def whole(self) -> Fraction:
        """GPU-seconds of all of them."""
        return sum(self.parts.values(), Fraction())


def apportion(total: int, weights: Mapping[K, int | Fraction]) -> dict[K, int]:
    """Return `total` divided by weights, in whole numbers that add up to it; the largest remainders are rounded up.

    Of equal remainders the one that comes first in `weights` is. Without weight above 0 nothing is divided.
    """
    whole = sum(weights.values())
    if not whole:
        return {}
    found = {key: total * weight // whole for key, weight in weights.items()}
    if missing := total - sum(found.values()):
        for key in sorted(weights, key=lambda key: -(total * weights[key] % whole))[:missing]:
            found[key] += 1
    return found


class _Table:
    """The samples of one metric by its labels."""

    def __init__(self, series: Iterable[Series], name: str) -> None:
        self.rows: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
        for each in series:
            if each.name == name:
                row = self.rows[tuple(each.labels.get(label, "") for label in LABELS[name])]
                for at, value in each.values.items():
                    row[at] = max(value, row.get(at, value))

    def at(self, key: tuple[str, ...], at: int) -> int | None:
        value = self.rows.get(key, {}).get(at)
        return None if value is None else round(value)


@dataclass(eq=False)
class _Card:
    """A GPU with what is shared of it: itself, or its MIG instances."""

    model: str
    memory: int = 0
    members: list[tuple[str, str]] = field(default_factory=list)
    """Node and UUID."""


def account(series: Sequence[Series], period: Period) -> Account:
    """Divide the time of all GPUs that the series know in a period.

    A GPU without samples is not observed, unless the extender lists nodes at that time and its own is not among them:
    then it was not there, and is no part of the whole.
    """
    return _Accounting(series, period).result()


class _Accounting:
    def __init__(self, series: Sequence[Series], period: Period) -> None:
        self._period = period
        self._tables = {name: _Table(series, name) for name in LABELS}
        self._names = _owners(self._tables[POD_OWNER], self._tables[REPLICASET_OWNER])
        self._containers: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for place in sorted({*self._tables[GIVEN].rows, *self._tables[BORROWED].rows}):
            self._containers[place[3]].append(place)
        self._cards = self._found_cards()
        self._lists = self._tables[NODE_MEMORY].rows
        self._listed_at = {at for row in self._lists.values() for at in row}
        self._least_watts = {card: min(row.values()) for (card,), row in self._tables[POWER].rows.items() if row}
        # By card and place, which is empty for nobody: bytes times seconds, and millijoules.
        self._sums: dict[tuple[str, tuple[str, ...], Part], int] = defaultdict(int)
        self._borrowed: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
        self._energy: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)

    def result(self) -> Account:
        for at in self._period.times:
            self._divide(at)
        parts: dict[tuple[Key, Part], Fraction] = defaultdict(Fraction)
        borrowed: dict[Key, Fraction] = defaultdict(Fraction)
        energy_mj: dict[Key, int] = defaultdict(int)
        for (card, place, part), amount in self._sums.items():
            parts[self._key(card, place), part] += Fraction(amount, self._cards[card].memory)
        for (card, place), amount in self._borrowed.items():
            borrowed[self._key(card, place)] += Fraction(amount, self._cards[card].memory)
        for (card, place), amount in self._energy.items():
            energy_mj[self._key(card, place)] += amount
        known = bool(self._tables[STRANDED].rows)
        return Account(dict(parts), dict(borrowed), dict(energy_mj), len(self._cards), known)

    def _found_cards(self) -> dict[str, _Card]:
        infos = {gpu: info for gpu, *info in sorted(self._tables[INFO].rows)}
        self._share_bytes = {gpu: int(size) if size.isdecimal() else 0 for gpu, (_, _, size) in infos.items()}
        cards: dict[str, _Card] = {}
        for node, gpu in sorted(self._tables[MEMORY].rows):
            model, parent, _ = infos.get(gpu, ("", "", ""))
            cards.setdefault(parent or gpu, _Card(model.partition(" MIG ")[0])).members.append((node, gpu))
        for uuid, card in cards.items():
            card.memory = self._memory_of(uuid, card)
        return {uuid: card for uuid, card in cards.items() if card.memory}

    def _memory_of(self, uuid: str, card: _Card) -> int:
        """Return the memory of a card; where nothing tells it, what its instances have together."""
        named = [round(value) for value in self._tables[CARD_MEMORY].rows.get((uuid,), {}).values()]
        alone = [each for each in card.members if each[1] == uuid]
        times, table = self._period.times, self._tables[MEMORY]
        named += [table.at(each, at) or 0 for each in alone for at in times]
        return max(named, default=0) or max(sum(table.at(each, at) or 0 for each in card.members) for at in times)

    # --- One moment -----------------------------------------------------------------------------------------------

    def _divide(self, at: int) -> None:
        seconds = self._period.weight_s(at)
        free: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for uuid, card in self._cards.items():
            there = [(key, memory) for key in card.members if (memory := self._tables[MEMORY].at(key, at)) is not None]
            if not there:
                nodes = {node for node, _ in card.members}
                absent = at in self._listed_at and not any(
                    not node or at in self._lists.get((node,), {}) for node in nodes
                )
                self._add(uuid, (), Part.UNOBSERVED, 0 if absent else card.memory * seconds)
                continue
            given: dict[tuple[str, ...], int] = {}
            usable: dict[tuple[str, str], int] = {}
            for key, memory in there:
                parts, usable[key] = self._given(key, memory, at)
                given |= parts
            # Two nodes may tell of a GPU that moved, and an instance that somebody still has is told with those that
            # were made in its place. They are no more than the card.
            if sum(given.values()) > card.memory:
                given = apportion(card.memory, given)
            left = card.memory - sum(given.values())
            if sum(usable.values()) > left:
                usable = apportion(left, usable)
            for (node, _), room in usable.items():
                free[node][uuid] += room
                left -= room
            self._add(uuid, (), Part.STRANDED, left * seconds)
            self._hold(uuid, given, at, seconds)
            self._share_energy(uuid, given, at, seconds)
        for node, rooms in free.items():
            useless = self._tables[STRANDED].at((node,), at) or 0
            stranded = apportion(min(useless, sum(rooms.values())), rooms)
            for uuid, room in rooms.items():
                self._add(uuid, (), Part.STRANDED, stranded.get(uuid, 0) * seconds)
                self._add(uuid, (), Part.FREE, (room - stranded.get(uuid, 0)) * seconds)

    def _given(self, key: tuple[str, str], memory: int, at: int) -> tuple[dict[tuple[str, ...], int], int]:
        """Return what containers had of a GPU or MIG instance, in bytes, and what could have been given."""
        gpu = key[1]
        parts = {place: amount for place in self._containers[gpu] if (amount := self._tables[GIVEN].at(place, at) or 0)}
        taken = self._tables[ALLOCATED].at(key, at)
        most = min(memory, sum(parts.values()) if taken is None else taken)
        if sum(parts.values()) > most:  # containers after an ordinary init container have its shares at the same time
            parts = apportion(most, parts)
        elif sum(parts.values()) < most:  # the agent knows no container for it
            parts[("", "", "", gpu)] = most - sum(parts.values())
        cut = (self._tables[SHARES].at(key, at) or 0) * self._share_bytes.get(gpu, 0)
        return parts, max(0, min(memory, cut or memory) - most)

    def _hold(self, card: str, given: Mapping[tuple[str, ...], int], at: int, seconds: int) -> None:
        for place, amount in given.items():
            used, borrowed = self._tables[USED].at(place, at), self._tables[BORROWED].at(place, at)
            if used is None:
                self._add(card, place, Part.UNMEASURED, amount * seconds)
            else:
                self._add(card, place, Part.USED, min(used, amount) * seconds)
                self._add(card, place, Part.IDLE, max(0, amount - used) * seconds)
            if borrowed:
                self._borrowed[card, place] += borrowed * seconds

    def _share_energy(self, card: str, given: Mapping[tuple[str, ...], int], at: int, seconds: int) -> None:
        """Divide the energy of a card: the power of its idlest moment by memory, the rest by use of multiprocessors."""
        watts = self._tables[POWER].rows.get((card,), {}).get(at)
        if watts is None:
            return
        memory = {**given, (): self._cards[card].memory - sum(given.values())}
        busy = {place: round(1e6 * self._tables[BUSY].rows.get(place, {}).get(at, 0.0)) for place in given}
        idle_mj = round(self._least_watts[card] * 1000) * seconds
        rest_mj = round(watts * 1000) * seconds - idle_mj
        for amount_mj, weights in ((idle_mj, memory), (rest_mj, busy if any(busy.values()) else memory)):
            for place, amount in apportion(amount_mj, weights).items():
                self._energy[card, place] += amount

    def _key(self, card: str, place: tuple[str, ...]) -> Key:
        names = place[:2] or ("", "")
        holder = Holder(names[0], *self._names.get((names[0], names[1]), ("", "")), names[1])
        return Key(holder, self._cards[card].model)

    def _add(self, card: str, place: tuple[str, ...], part: Part, amount: int) -> None:
        if amount:
            self._sums[card, place, part] += amount


def _owners(pods: _Table, replicasets: _Table) -> Mapping[tuple[str, str], tuple[str, str]]:
    """Return kind and name of the owner of each pod, by namespace and name; of a ReplicaSet that of its owner."""
    above = {(namespace, name): (kind, owner) for namespace, name, kind, owner in replicasets.rows if _is(kind)}
    return {
        (namespace, pod): above.get((namespace, owner), (kind, owner)) if kind == "ReplicaSet" else (kind, owner)
        for namespace, pod, kind, owner in pods.rows
        if _is(kind)
    }


def _is(kind: str) -> bool:
    return kind not in {"", "<none>"}  # kube-state-metrics' word for no owner
