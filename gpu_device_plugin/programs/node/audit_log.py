"""Write an audit record for every change of what containers hold, and for the time in which nobody recorded."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import within
from gpu_device_plugin.core.contract.audit import LOGGER, SENTENCES, AuditKind, AuditRecord
from gpu_device_plugin.core.model.times import epoch_s, rfc3339
from gpu_device_plugin.core.node.grant_changes import changes, grants, offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.model.gpus import Inventory
    from gpu_device_plugin.core.model.holds import DeviceHold
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.grant_changes import Grants
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.kubelet.statefile import StateFile

_log = logging.getLogger(LOGGER)


def write(record: AuditRecord) -> None:
    """Write a record as a line of the log."""
    _log.info("%s", SENTENCES[record.kind], extra=dict(record.attributes()))


@dataclass(eq=False, repr=False)
class AuditLog:
    """Writes the records of one node. The time of its last life sign stays on the node for the next agent."""

    _node: str
    _entries: Observable[tuple[DeviceHold, ...]]
    """What each container holds, as last read; nothing is recorded before the first reading."""
    _holdings: Callable[[], Iterable[Holding]]
    _shares: Callable[[], Shares]
    _inventory: Callable[[], Inventory]
    _life_sign: StateFile
    _: KW_ONLY
    evicted: Callable[[], Mapping[str, str]] = dict
    """Returns the pods whose eviction was accepted, by UID, each with the reason of its Event."""
    pods_known: Callable[[], bool] = lambda: True
    """Returns whether the names of the node's pods have been read; False: soon."""
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch."""

    def __post_init__(self) -> None:
        self.life_sign_s = 30.0
        """Seconds between two life signs."""
        self.names_within_s = 10.0
        """Seconds after the start in which records wait for the names of pods."""
        self._woken = asyncio.Event()
        self._grants: Grants = {}
        self._offered: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset()
        self._found = False

    def wake(self, _: object = None) -> None:
        """Look soon at what has changed."""
        self._woken.set()

    async def run(self) -> NoReturn:
        """Record until cancelled."""
        began_s, last = self.clock(), self._life_sign.read() or ""
        known = epoch_s(last) is not None
        write(AuditRecord(AuditKind.STARTED, self._node, began=last if known else "", ended=rfc3339(began_s)))
        await self._entries.after(0)
        try:
            while True:
                self._woken.clear()
                if self.pods_known() or self.clock() - began_s >= self.names_within_s:
                    self._look()
                    self._life_sign.write(rfc3339(self.clock()))
                await within(self.life_sign_s if self._found else 1.0, self._woken.wait())
        finally:
            if self._found:
                self._life_sign.write(rfc3339(self.clock()))

    def _look(self) -> None:
        now, shares, before = rfc3339(self.clock()), self._shares(), self._grants
        gpus = {record.gpu: record for record in offered(self._node, shares, self._inventory(), now)}
        self._grants = grants(self._node, self._holdings(), shares, before, now)
        evicted = self.evicted()
        new = changes(before, self._grants, evicted, self._told, now, first=not self._found)
        for record in (*[gpus[uuid] for uuid in gpus if uuid not in self._offered], *new):
            write(record)
        self._offered |= gpus.keys()
        self._told, self._found = frozenset(evicted), True
