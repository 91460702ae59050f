"""The one thing that changes: the state of a node, with one writer and many readers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from gpu_device_plugin.aio.latest import Latest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.core.model.gpus import Links
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.ledger import Ledger
    from gpu_device_plugin.core.node.node import Node

P = ParamSpec("P")


class NodeState:
    """A node's state. Every method takes effect before it returns; none awaits."""

    def __init__(self, node: Node) -> None:
        self.nodes = Latest(node)
        """The node, to be followed."""

    def __repr__(self) -> str:
        node = self.node
        return f"<NodeState #{self.nodes.version}: {len(node.shares.gpus)} GPUs, {len(node.ledger.holds)} IDs held>"

    @property
    def node(self) -> Node:
        """The node now."""
        return self.nodes.value

    def update(self, change: Callable[Concatenate[Ledger, P], Ledger], *args: P.args, **kwargs: P.kwargs) -> None:
        """Take over the ledger that `change`, a method of `Ledger`, makes of the present one."""
        node = self.node.with_ledger(change(self.node.ledger, *args, **kwargs))
        if node is not self.node:
            self.nodes.set(node)

    def equip(self, shares: Shares, unhealthy: Mapping[str, str], links: Links) -> None:
        """Take over what the hardware shows now."""
        new = replace(self.node, shares=shares, unhealthy=unhealthy, links=links)
        if new != self.node:
            self.nodes.set(new)
