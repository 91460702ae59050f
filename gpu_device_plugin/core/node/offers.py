"""Decide which device IDs of a resource are advertised as healthy at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_device_plugin.core.model.shares import Listing, SharedGpu
    from gpu_device_plugin.core.node.ledger import Use
    from gpu_device_plugin.core.node.node import Node


_NONE: frozenset[int] = frozenset()


class Offer(NamedTuple):
    """One GPU as one resource advertises it.

    A tuple, as one is made of every GPU after every grant and compared with the one before.
    """

    shared: SharedGpu
    fenced: frozenset[int] = frozenset()
    """Numbers of the free shares that are not offered; for a whole GPU 0 if it is not offered."""
    unhealthy: bool = False
    """The GPU is out of service: none of its IDs is healthy."""

    def devices(self, listing: Listing) -> Iterator[tuple[str, bool]]:
        """Yield every device ID with whether it is healthy."""
        for number, name in enumerate(self.shared.ids(listing)):
            yield name, not (self.unhealthy or number in self.fenced)


def offers(node: Node, listing: Listing, most_free: int | None = None) -> tuple[Offer, ...]:
    """Return the offer of every GPU that is, or was, among the devices of one resource.

    gpu-mem and gpu-count describe the same hardware, so the use of a GPU through one of them fences its free IDs of the
    other; and so do the ways of giving MIG instances, of which one is chosen at a time. IDs in use never change for
    this reason: a kubelet that admits a pod again rejects it if one of its IDs is unhealthy. A GPU out of service is
    different: all of its IDs change, at once.

    No more than `most_free` free shares are offered, see `refusals`; None for no bound.
    """
    plain = tuple(_offer(node, listing, shared) for shared in node.shares.gpus if listing in shared.listed)
    if most_free is None or listing[0] is not Kind.MEMORY:
        return plain
    bounded: dict[int, Offer] = {}
    # The emptiest GPUs keep their offers: they serve the largest of the demands that still fit.
    for offer in sorted(plain, key=lambda o: (-len(_open(node, o)), o.shared.position)):
        free = _open(node, offer)
        bounded[offer.shared.position] = offer._replace(fenced=offer.fenced.union(free[most_free:]))
        most_free -= min(most_free, len(free))
    return tuple(bounded[offer.shared.position] for offer in plain)


def _offer(node: Node, listing: Listing, shared: SharedGpu) -> Offer:
    uuid, ledger, memory = shared.gpu.uuid, node.ledger, listing[0] is Kind.MEMORY
    use, foreign = ledger.use(uuid), uuid in ledger.foreign
    doubtful = foreign or node.closing or not ledger.certain or listing not in shared.offered
    fenced = _NONE
    if doubtful or (use.whole if memory else use.shares):
        # An instance that was made again as another profile may be in use by the ID that it has in both resources.
        other = foreign and listing[0] is Kind.INSTANCE
        fenced = frozenset({0}) if other else _free(shared, use, memory=memory)
    return Offer(shared, fenced, uuid in node.unhealthy)


def _free(shared: SharedGpu, use: Use, *, memory: bool) -> frozenset[int]:
    """Return the numbers of the free shares, or 0 for a whole GPU that is free."""
    if memory:
        return frozenset(range(len(shared.shares))) - use.shares
    return _NONE if use.whole else frozenset({0})


def _open(node: Node, offer: Offer) -> list[int]:
    """Return the free shares of a GPU that are offered."""
    if offer.unhealthy:
        return []
    return sorted(set(range(len(offer.shared.shares))) - node.use(offer.shared).shares - offer.fenced)
