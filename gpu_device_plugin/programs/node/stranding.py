"""Tell of containers that hold MIG instances which exist no more, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.stranded import stranded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.core.node.stranded import Stranded
    from gpu_device_plugin.node_state import NodeState


class Stranding:
    """Compares what containers hold with the instances that exist."""

    def __init__(
        self, state: NodeState, holdings: Callable[[], Iterable[Holding]], on_stranded: Callable[[Stranded], None]
    ) -> None:
        """Look at the `holdings` on the node in `state`; `on_stranded` is called for each that is new."""
        self._state = state
        self._holdings = holdings
        self._on_stranded = on_stranded
        self._told: frozenset[tuple[str, str, str]] = frozenset()

    def __repr__(self) -> str:
        return f"<Stranding: {len(self._told)} containers>"

    def look(self) -> None:
        """Look at the present state. A pod that the API shows only later is told of again, with its name."""
        found = {
            (each.pod_uid if each.pod is None else each.pod.name, each.container, each.uuid): each
            for each in stranded(self._holdings(), self._state.node.shares)
        }
        for key, each in found.items():
            if key not in self._told:
                self._on_stranded(each)
        self._told = frozenset(found)
