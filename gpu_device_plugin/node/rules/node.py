"""A node at one moment: its shares, the ledger, and the GPUs that are closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_device_plugin.model.allocations import Slot
from gpu_device_plugin.model.gpus import NO_LINKS, Links
from gpu_device_plugin.model.placing import Room
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind, Resource
from gpu_device_plugin.model.shares import OF_GPU, SHARES, SharedGpu, Shares
from gpu_device_plugin.node.rules.ledger import Ledger, Use

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Block:
    """Why one GPU is closed, as a clause for each of those whom it may be closed to; empty: it is open to them.

    What holds for some of its shares, or follows from those who hold them, is the ledger's.
    """

    everyone: str = ""
    """It is out of service, with all that runs there."""
    new_pods: str = ""
    """What runs there stays as it is."""
    parts: str = ""
    """It is given whole only."""


OPEN = Block()


@dataclass(frozen=True, slots=True)
class Node:
    """The state on which all answers to the kubelet are based."""

    shares: Shares
    ledger: Ledger = field(default_factory=Ledger)
    blocks: Mapping[str, Block] = field(default_factory=dict)
    """The GPUs (by UUID) that are closed to somebody; the others are healthy, and open to all."""
    links: Links = NO_LINKS
    closing: bool = False
    """It gives nothing to new pods: it waits for the end of those that hold GPUs."""

    def with_ledger(self, ledger: Ledger) -> Node:
        """Return this node with another ledger."""
        return self if ledger is self.ledger else replace(self, ledger=ledger)

    def block(self, uuid: str) -> Block:
        """Return whom one GPU is closed to."""
        return self.blocks.get(uuid, OPEN)

    def use(self, shared: SharedGpu) -> Use:
        """Return the use of one GPU."""
        return self.ledger.use(shared.gpu.uuid)

    def reserved_share_numbers(self, shared: SharedGpu) -> frozenset[int]:
        """Return the free shares of a GPU that stand for what containers hold beyond their requests.

        Any would do, as those have no numbers; they are the ones with the highest.
        """
        use = self.use(shared)
        if not use.reserved:
            return _NONE
        free = [number for number in range(len(shared.shares)) if number not in use.shares]
        return frozenset(free[-use.reserved :])

    def room(self, shared: SharedGpu, free: int | None = None) -> Room:
        """Return the state of one GPU for a demand; `free` replaces our own count of free shares."""
        uuid, total = shared.gpu.uuid, len(shared.shares)
        use, block = self.ledger.use(uuid), self.blocks.get(uuid, OPEN)
        # In the order of the fields: names take a tenth of a preferred allocation among 56 MIG instances.
        return Room(
            shared.position,
            total,
            # With a former, smaller share size, more IDs may be in use than there are shares now.
            max(0, total - use.taken) if free is None else free,
            not block.everyone and not block.new_pods and bool(shared.offered),
            bool(use.shares),
            use.whole or uuid in self.ledger.held_by_other_resource,
            shared.card,
        )

    @property
    def emptiest(self) -> int:
        """The free shares of the GPU that has the most of them to give; 0 if none has any."""
        rooms = (self.room(shared) for shared in self.shares.gpus if SHARES in shared.offered)
        return max((room.free for room in rooms if room.gives_shares), default=0)

    def rooms(self) -> tuple[Room, ...]:
        """Return the state of every GPU that is shared, or given whole, for a demand, by our own ledger."""
        return tuple(self.room(shared) for shared in self.shares.gpus if shared.listed & OF_GPU)


def assigned_shares(
    pod: Pod, records: Mapping[Slot, frozenset[str]], node: Node, resources: Sequence[Resource]
) -> Mapping[tuple[str, Kind], Mapping[int, int]]:
    """Return the shares by GPU position of each container and kind of a pod; empty unless all of them are known.

    `records` are the device IDs in the kubelet's checkpoint.
    """
    found = {}
    for container in pod.containers:
        for resource in resources:
            if container.limits.get(resource.name, 0) > 0:
                ids = records.get((pod.kubelet_uid, container.name, resource.kind), frozenset())
                places = node.shares.spread(ids)
                if not ids or sum(places.values()) < len(ids):
                    return {}
                whole = resource.kind is Kind.COUNT
                found[container.name, resource.kind] = {
                    position: len(node.shares.gpus[position].shares) if whole else count
                    for position, count in places.items()
                }
    return found
