"""A node at one moment: its shares, who holds them, and which GPUs are out of service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.gpus import NO_LINKS
from gpu_device_plugin.core.model.placing import Room
from gpu_device_plugin.core.node.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.core.model.gpus import Links
    from gpu_device_plugin.core.model.shares import SharedGpu, Shares
    from gpu_device_plugin.core.node.ledger import Use


@dataclass(frozen=True, slots=True)
class Node:
    """Everything that the answers to the kubelet follow from."""

    shares: Shares
    ledger: Ledger = field(default_factory=Ledger)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    """For each GPU (by UUID) that is out of service the reason, as a sentence; the others are healthy."""
    links: Links = NO_LINKS

    def with_ledger(self, ledger: Ledger) -> Node:
        """Return this node with another ledger."""
        return self if ledger is self.ledger else replace(self, ledger=ledger)

    def use(self, shared: SharedGpu) -> Use:
        """Return what is taken of one GPU."""
        return self.ledger.use(shared.gpu.uuid)

    def room(self, shared: SharedGpu, free: int | None = None) -> Room:
        """Return one GPU as a demand meets it; `free` replaces our own count of free shares."""
        use = self.use(shared)
        return Room(
            position=shared.position,
            total=len(shared.shares),
            # IDs of a former, smaller share size may be more than there are shares now.
            free=max(0, len(shared.shares) - len(use.shares)) if free is None else free,
            healthy=shared.gpu.uuid not in self.unhealthy,
            shared=bool(use.shares),
            whole=use.whole or shared.gpu.uuid in self.ledger.foreign,
        )

    def rooms(self) -> tuple[Room, ...]:
        """Return every GPU as a demand meets it, by our own ledger."""
        return tuple(self.room(shared) for shared in self.shares.gpus)
