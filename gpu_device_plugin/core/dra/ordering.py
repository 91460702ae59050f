"""Order the devices of a node, so that a scheduler that takes the first device that fits follows the node's policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.resources import Kind

if TYPE_CHECKING:
    from gpu_device_plugin.core.model.shares import SharedGpu
    from gpu_device_plugin.core.node.node import Node

REORDER_S = 10.0
"""Least seconds between two changes of the order: each is a write to the API server, for every scheduler to read."""


@dataclass(frozen=True, slots=True)
class Order:
    """The order in force."""

    uuids: tuple[str, ...] = ()
    since: float = float("-inf")
    """When it was last changed for the sake of the policy, in monotonic seconds."""
    due: float | None = None
    """When it has to be looked at again, in monotonic seconds; None: when the node changes."""


def wanted_order(node: Node, policy: str) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs and MIG instances in the order that the policy wants.

    With `spread` the emptiest comes first, with the other policies the fullest that still has room. Of equal instances
    those of the emptiest or the fullest GPU come first, and of instances that are only given whole the smallest ones:
    a claim that does not say which one takes no more than it needs. GPUs that can give nothing come last.
    """
    sign = -1 if policy == "spread" else 1
    free = {shared.position: _free(node, shared) for shared in node.shares.gpus}
    of_card: Counter[str] = Counter()
    for shared in node.shares.gpus:
        of_card[shared.gpu.card] += free[shared.position]

    def rank(shared: SharedGpu) -> tuple[bool, int, int, int]:
        own = free[shared.position]
        size = own if _whole_only(shared) else sign * own
        return own == 0, size, sign * of_card[shared.gpu.card], shared.position

    return tuple(shared.gpu.uuid for shared in sorted(node.shares.gpus, key=rank))


def _free(node: Node, shared: SharedGpu) -> int:
    """Return the free shares of a GPU; of an instance that is only given whole its MiB, if it is free."""
    room = node.room(shared)
    if _whole_only(shared):
        return shared.gpu.total_mib if room.unused else 0
    return room.free if room.gives_shares else 0


def _whole_only(shared: SharedGpu) -> bool:
    return bool(shared.offered) and all(kind is Kind.INSTANCE for kind, _ in shared.offered)


def reordered(order: Order, node: Node, policy: str, now: float) -> Order:
    """Return the order to publish now.

    Args:
        order: the one in force.
        node: the present state of the node.
        policy: the node's policy for choosing a GPU, a name in `POLICIES`.
        now: monotonic seconds.
    """
    wanted = wanted_order(node, policy)
    if set(wanted) != set(order.uuids):
        return Order(wanted, now)
    if wanted == order.uuids:
        return Order(order.uuids, order.since)
    if now - order.since >= REORDER_S:
        return Order(wanted, now)
    return Order(order.uuids, order.since, order.since + REORDER_S)
