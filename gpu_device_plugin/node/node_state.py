"""The mutable state of the node agent: the node at this moment, with one writer and many readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Concatenate, ParamSpec

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.model.gpus import Links
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.rules.ledger import Ledger
from gpu_device_plugin.node.rules.node import Block, Node

P = ParamSpec("P")


class NodeState:
    """A node's state. Every method takes effect before it returns; none awaits."""

    def __init__(self, node: Node) -> None:
        self.nodes = Observable(node)
        """Every new state of the node, for the readers that follow it."""

    def __repr__(self) -> str:
        node = self.node
        return f"<NodeState #{self.nodes.version}: {len(node.shares.gpus)} GPUs, {len(node.ledger.id_states)} IDs held>"

    @property
    def node(self) -> Node:
        """The present state of the node."""
        return self.nodes.value

    def update(self, change: Callable[Concatenate[Ledger, P], Ledger], *args: P.args, **kwargs: P.kwargs) -> None:
        """Replace the ledger by the result of `change`, a method of `Ledger`, on the present one."""
        node = self.node.with_ledger(change(self.node.ledger, *args, **kwargs))
        if node is not self.node:
            self.nodes.set(node)

    def refresh_inventory(self, shares: Shares, blocks: Mapping[str, Block], links: Links) -> None:
        """Replace the shares, the GPUs that are closed, and the links by the present ones."""
        self.nodes.change(replace(self.node, shares=shares, blocks=blocks, links=links))

    def close(self, *, closing: bool) -> None:
        """Give nothing to new pods, or give again."""
        if closing is not self.node.closing:
            self.nodes.set(replace(self.node, closing=closing))
