"""Know which devices containers were given, and whether as clients of MPS, before the checkpoint shows it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.limits import Enforcement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.node.ledger import Ledger

_MOST_GRANTED = 4_000
"""Containers to remember until the checkpoint shows them. A node has at most so many devices."""


class GivenDevices:
    """What containers of the node were given."""

    def __init__(self, recorded: Observable[tuple[DeviceHold, ...]]) -> None:
        """Read `recorded`, what containers hold by the kubelet's checkpoint and by claims, when it is asked for."""
        self._recorded = recorded
        self._granted: list[DeviceHold] = []

    def __repr__(self) -> str:
        return f"<GivenDevices: {len(self._recorded.value)} recorded, {len(self._granted)} granted since>"

    @property
    def clients(self) -> bool:
        """Whether some were given as to a client of MPS."""
        return any(hold.enforcement is Enforcement.MPS for hold in self.all())

    def all(self) -> Iterable[DeviceHold]:
        """Return what containers were given, the latest last."""
        return *self._recorded.value, *self._granted

    def granted(self, hold: DeviceHold) -> None:
        """Take note of the devices that a container was just given."""
        earlier = (other for other in self._granted if not other.device_ids <= hold.device_ids)
        self._granted = [*earlier, hold][-_MOST_GRANTED:]

    def forget(self, ledger: Ledger) -> None:
        """Forget what the checkpoint shows by now, and the devices that no container holds any more."""
        if self._granted:
            held = {name for name, hold in ledger.holds.items() if hold.freed_at is None}
            recorded = {(hold.device_ids, hold.enforcement is Enforcement.MPS) for hold in self._recorded.value}
            self._granted = [
                hold
                for hold in self._granted
                if not hold.device_ids.isdisjoint(held)
                and (hold.device_ids, hold.enforcement is Enforcement.MPS) not in recorded
            ]
