"""The one thing that changes: the state of a node, with one writer and many readers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.latest import Latest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.ledger import Evidence, Ledger, Reading
    from gpu_device_plugin.core.node.node import Node


class NodeState:
    """A node's state. Every method takes effect before it returns; none awaits."""

    def __init__(self, node: Node) -> None:
        self._node = Latest(node)

    def __repr__(self) -> str:
        node = self.node
        return f"<NodeState #{self._node.version}: {len(node.shares.gpus)} GPUs, {len(node.ledger.holds)} IDs held>"

    @property
    def node(self) -> Node:
        """The node now."""
        return self._node.value

    def nodes(self) -> AsyncIterator[Node]:
        """Follow the node: what it is now, then after every change."""
        return self._node.values()

    def claim(self, device_ids: Iterable[str], now: float) -> None:
        """Hold these IDs, which we are about to grant at `now` (monotonic seconds)."""
        self._keep(self.node.ledger.granted(device_ids, now))

    def see(self, device_ids: Iterable[str], *, certain: bool | None = None) -> None:
        """Hold these IDs because the kubelet's records show them, see `Ledger.seen`."""
        self._keep(self.node.ledger.seen(device_ids, certain=certain))

    def set_foreign(self, foreign: Mapping[str, str]) -> None:
        """Take note of GPUs that are held through resources that are not ours, see `Ledger.foreign`."""
        self._keep(self.node.ledger.with_foreign(foreign))

    def reconcile(self, evidence: Evidence, readings: Mapping[str, Reading], now: float, process_wait_s: float) -> None:
        """Release what is proven free, see `Ledger.reconciled`."""
        self._keep(self.node.ledger.reconciled(evidence, readings, now, process_wait_s))

    def release(self, readings: Mapping[str, Reading], now: float, process_wait_s: float) -> None:
        """Release what only waits for the processes of its GPU, see `Ledger.released`."""
        self._keep(self.node.ledger.released(readings, now, process_wait_s))

    def equip(self, shares: Shares, unhealthy: Mapping[str, str], closeness: Mapping[tuple[int, int], int]) -> None:
        """Take over what the hardware shows now."""
        new = replace(self.node, shares=shares, unhealthy=unhealthy, closeness=closeness)
        if new != self.node:
            self._node.set(new)

    def _keep(self, ledger: Ledger) -> None:
        if ledger is not self.node.ledger:
            self._node.set(self.node.with_ledger(ledger))
