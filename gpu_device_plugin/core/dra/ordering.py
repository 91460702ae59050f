"""Order the devices of a node, so that a scheduler that takes the first device that fits follows the node's policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """Return the UUIDs of a node's GPUs in the order that the policy wants.

    With `spread` the emptiest comes first, with the other policies the fullest that still has room. GPUs that can give
    nothing come last.
    """

    def rank(shared: SharedGpu) -> tuple[bool, int, int]:
        room = node.room(shared)
        free = room.free if room.gives_shares else 0
        return free == 0, -free if policy == "spread" else free, shared.position

    return tuple(shared.gpu.uuid for shared in sorted(node.shares.gpus, key=rank))


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
