"""Decide which device IDs of a resource are advertised as healthy at this moment.

While demands of one size are refused again and again, fewer free shares are offered. A scheduler that knows only the
sum of free memory sends a pod to a node on which no single GPU has room for it. The pod is refused, its controller
makes another, and so on: users of other plugins counted 5,000 failed pods in an hour. The remedy is to show the
scheduler less: as long as no GPU has room for the refused size, one share less than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Listing, SharedGpu
from gpu_device_plugin.node.rules.admission import RefusalCode
from gpu_device_plugin.node.rules.ledger import Use
from gpu_device_plugin.node.rules.node import Node

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
    other. So do the ways of giving MIG instances, of which one is chosen at a time, and a cordon fences them in both.
    IDs in use never change for these reasons: a kubelet that admits a pod again rejects it if one of its IDs is
    unhealthy. A GPU out of service is different: all of its IDs change, at once. As many free shares as containers of a
    GPU are guaranteed beyond their requests are fenced too.

    No more than `most_free` free shares are offered, see `RecentRefusals`; None for no bound.
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
    use, foreign, block = ledger.use(uuid), uuid in ledger.held_by_other_resource, node.block(uuid)
    doubtful = foreign or block.new_pods or node.closing or not ledger.certain or listing not in shared.offered
    fenced = _NONE
    if doubtful or (use.whole if memory else use.shares):
        # An instance that was made again as another profile may be in use by the ID that it has in both resources.
        other = foreign and listing[0] is Kind.INSTANCE
        fenced = frozenset({0}) if other else _free(shared, use, memory=memory)
    elif memory and use.reserved:
        fenced = node.reserved_share_numbers(shared)
    return Offer(shared, fenced, bool(block.everyone))


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


# --- Refusals ---------------------------------------------------------------------------------------------------------

WINDOW_S = 60.0
"""Refusals of one size within this time count together."""
HOLD_S = 300.0
"""The bound is lifted after this time without a refusal, so that it never outlives its reason for good."""

ADVICE: Mapping[RefusalCode, str] = {
    RefusalCode.NO_ROOM: "the scheduler sees only the sum of free memory, and no single GPU has room for them; "
    "install a scheduler extender, or ask for less than the emptiest GPU has free",
    RefusalCode.TOO_LARGE: "no GPU of this node is as large; ask for less, or choose nodes by the label "
    "gpu-device-plugin/memory-mib",
}
"""Advice to a pod's owner on a run of refusals; refusals for other reasons make no run."""


@dataclass(frozen=True, slots=True)
class RecentRefusals:
    """The recent refusals, and whether they have become a run."""

    limit: int = 10
    """The number of one size within `WINDOW_S` that makes a run; 0 turns the bound off."""
    times: tuple[tuple[float, int], ...] = ()
    """(monotonic seconds, shares asked)."""
    run: int | None = None
    """The size, in shares, that is being refused again and again."""
    last: float = 0.0

    def refused(self, shares: int, now: float) -> RecentRefusals:
        """Return the state after a demand for `shares` found no GPU with room."""
        times = (*((at, size) for at, size in self.times if now - at < WINDOW_S), (now, shares))
        same = sum(size == shares for _, size in times)
        run = self.run if now - self.last < HOLD_S else None
        # A smaller size than the present run's is the stronger bound.
        begins = 0 < self.limit <= same and (run is None or shares < run)
        return replace(self, times=times, run=shares if begins else run, last=now)

    def most_free(self, emptiest: int, now: float) -> int | None:
        """Return how many free shares may be shown, None for all; `emptiest` is the most free shares of one GPU."""
        if self.run is None or emptiest >= self.run or now - self.last >= HOLD_S:
            return None
        return self.run - 1

    def settled(self, emptiest: int, now: float) -> RecentRefusals:
        """Return the state without a run whose reason is gone."""
        if self.run is not None and self.most_free(emptiest, now) is None:
            return RecentRefusals(self.limit)
        return self
