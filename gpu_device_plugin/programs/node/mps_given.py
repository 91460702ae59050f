"""Know which devices containers were given, and whether as clients of MPS, before the checkpoint shows it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.core.model.limits import Rung
from gpu_device_plugin.core.node.mps import Given

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.core.node.ledger import Ledger
    from gpu_device_plugin.kubelet.checkpoint import Entry

_MOST_GRANTED = 4_000
"""Containers to remember until the checkpoint shows them. A node has at most so many devices."""


class GivenDevices:
    """What containers of the node were given."""

    def __init__(self, entries: Latest[tuple[Entry, ...]]) -> None:
        """Read `entries`, those of the kubelet's checkpoint, whenever they are asked for."""
        self._entries = entries
        self._of: tuple[Entry, ...] = ()
        """The entries of which the next two were made."""
        self._recorded: tuple[Given, ...] = ()
        self._recorded_clients = False
        self._granted: list[Given] = []

    def __repr__(self) -> str:
        return f"<GivenDevices: {len(self._recorded)} recorded, {len(self._granted)} granted since>"

    @property
    def clients(self) -> bool:
        """Whether some were given as to a client of MPS. Costs nothing on a node where none was."""
        self._read()
        return self._recorded_clients or any(each.mps for each in self._granted)

    def all(self) -> Iterable[Given]:
        """Return what containers were given, the latest last."""
        self._read()
        return *self._recorded, *self._granted

    def granted(self, device_ids: frozenset[str], rung: str) -> None:
        """Take note of a container's devices; `rung`: by which means it is limited."""
        earlier = (each for each in self._granted if not each.device_ids <= device_ids)
        self._granted = [*earlier, Given(device_ids, rung == Rung.MPS)][-_MOST_GRANTED:]

    def forget(self, ledger: Ledger) -> None:
        """Forget what the checkpoint shows by now, and the devices that no container holds any more."""
        if self._granted:
            self._read()
            held = {name for name, hold in ledger.holds.items() if hold.freed_at is None}
            recorded = set(self._recorded)
            kept = (each for each in self._granted if not each.device_ids.isdisjoint(held))
            self._granted = [each for each in kept if each not in recorded]

    def _read(self) -> None:
        if self._of is not self._entries.value:
            self._of = self._entries.value
            self._recorded = tuple(Given(entry.device_ids, entry.rung == Rung.MPS) for entry in self._of)
            self._recorded_clients = any(each.mps for each in self._recorded)
