"""Choose the device IDs that the kubelet should allocate, in answer to GetPreferredAllocation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpu_device_plugin.model.placing import Demand, Placement, Rank, Room, place
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import SharedGpu
from gpu_device_plugin.node.rules.matching import Call, Matched, names_only
from gpu_device_plugin.node.rules.node import Node

UNMATCHED = Matched(None, {})


class PreferredAllocationRequest:
    """One question of the kubelet, by GPU: which `amount` of the `available` IDs, with all of `must` among them?

    IDs that are not ours are ignored, and so are those of running containers that the kubelet has forgotten, and those
    that stand for guarantees beyond requests: the kubelet may not have received the list in which they are fenced. So
    are the shares of a GPU of which no part is given, but for a container that gets all of a MIG instance: it has it to
    itself, and needs no means of limiting.
    """

    def __init__(self, node: Node, kind: Kind, available: Iterable[str], must: Iterable[str], amount: int) -> None:
        self.kind = kind
        self.amount = amount
        forgotten = node.ledger.forgotten
        if forgotten:
            available = [name for name in available if name not in forgotten]
        free = _by_position(node, kind, available)
        if kind is Kind.MEMORY and node.ledger.reservations:
            fenced = {at: node.reserved_share_numbers(node.shares.gpus[at]) for at in free}
            free = {at: [number for number in numbers if number not in fenced[at]] for at, numbers in free.items()}
        if kind is Kind.MEMORY and node.blocks:
            free = {at: numbers for at, numbers in free.items() if _gives(node, node.shares.gpus[at], amount)}
        self._free = free
        self._must = _by_position(node, kind, must)

    @property
    def call(self) -> Call:
        """The call, as `matching` takes it."""
        free = {position: len(numbers) for position, numbers in self._free.items()}
        return Call(self.kind, self.amount, free, frozenset(self._must))

    def answer(self, node: Node, rank: Rank, matched: Matched = UNMATCHED) -> tuple[str, ...]:
        """Return the IDs to allocate; fewer than requested if no good answer exists.

        The kubelet completes a short answer at random, and Allocate refuses the result with a sentence. An error here
        would reject the pod too, with a less helpful message.
        """
        return self._ids(node, self._wanted(node, rank, matched))

    def _wanted(self, node: Node, rank: Rank, matched: Matched) -> Mapping[int, int]:
        """Return how many IDs to take from which GPU; if no good answer exists, only those that must be used."""
        request = matched.match.request if matched.match is not None else None
        promise, allowed, split = (
            (None, None, 1) if request is None else (request.promise, request.allowed, request.split)
        )
        # GPUs that the pod's owner excludes come last. A promise can name one after a swap.
        for among in dict.fromkeys((allowed, None)):
            if promise is not None and names_only(promise, among) and self._has(promise.shares):
                return dict(promise.shares)
            # Shares promised to others come last. Before them come IDs that are free for the kubelet and still held in
            # our ledger: their container may be force-deleted and still running, and a kubelet that cleans up its
            # records while an Allocate is in flight can lose an ID that it has just allocated.
            for ours, others in ((True, matched), (False, matched), (False, None)):
                rooms = self._rooms(node, others, only_free_in_ledger=ours)
                usable = rooms if among is None else [room for room in rooms if room.position in among]
                found = place(
                    Demand(self.kind, self.amount, split), usable, rank, node.links.connection, tuple(self._must)
                )
                if isinstance(found, Placement) and self._covers(found.shares):
                    return dict(found.shares)
        return {position: len(numbers) for position, numbers in self._must.items()}

    def _rooms(self, node: Node, others: Matched | None, *, only_free_in_ledger: bool) -> tuple[Room, ...]:
        """Return the state of the GPUs without the promises to other containers in `others`."""
        reserved, whole = ({}, frozenset[int]()) if others is None else (others.reserved, others.whole)
        rooms: list[Room] = []
        gpus, ledger = node.shares.gpus, node.ledger
        for position, numbers in self._free.items():
            shared = gpus[position]
            if self.kind is Kind.MEMORY:
                free = len(numbers)
                if only_free_in_ledger and (held := ledger.use(shared.gpu.uuid).shares):
                    free -= len(held.intersection(numbers))
                rooms.append(node.room(shared, 0 if position in whole else free - reserved.get(position, 0)))
            elif position not in whole and position not in reserved:
                room = node.room(shared)
                # A whole GPU of an init container of the same pod is in use, and must be reused.
                in_use = room.whole and only_free_in_ledger and position not in self._must
                rooms.append(room if in_use is room.whole else replace(room, whole=in_use))
        return tuple(rooms)

    def _has(self, shares: Sequence[tuple[int, int]]) -> bool:
        return self._covers(shares) and all(
            len(self._free.get(position, ())) >= (count if self.kind is Kind.MEMORY else 1)
            for position, count in shares
        )

    def _covers(self, shares: Sequence[tuple[int, int]]) -> bool:
        """Return whether these shares have room for all IDs that must be used."""
        there = dict(shares)
        return all(len(numbers) <= there.get(position, 0) for position, numbers in self._must.items())

    def _ids(self, node: Node, wanted: Mapping[int, int]) -> tuple[str, ...]:
        """Return the IDs: on each GPU those that must be used, then those free in our ledger, by their numbers."""
        chosen: list[str] = []
        for position, count in sorted(wanted.items()):
            shared = node.shares.gpus[position]
            if self.kind is not Kind.MEMORY:
                chosen.append(shared.gpu.uuid)
                continue
            must, held = frozenset(self._must.get(position, ())), node.use(shared).shares
            ordered = sorted(self._free.get(position, ()), key=lambda n: (n not in must, n in held, n))
            chosen.extend(shared.shares[number] for number in ordered[:count])
        return tuple(chosen)


def _by_position(node: Node, kind: Kind, device_ids: Iterable[str]) -> Mapping[int, list[int]]:
    numbers: dict[int, list[int]] = defaultdict(list)
    place_of, whole = node.shares.place_of, kind is not Kind.MEMORY
    for name in device_ids:
        found = place_of(name)
        if found is not None and (found[1] < 0) is whole:
            numbers[found[0]].append(found[1])
    return numbers


def _gives(node: Node, shared: SharedGpu, amount: int) -> bool:
    alone = shared.gpu.instance is not None and len(shared.shares) == amount
    return alone or not node.block(shared.gpu.uuid).parts
