"""Write an audit record for every change of what containers hold, and for the time without an agent."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.audit.contract import LOGGER, AuditKind, AuditRecord, changes, decision, grants, offered
from gpu_device_plugin.features.eviction.node import Evictions
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.kubelet.statefile import StateFile
from gpu_device_plugin.model.times import epoch_s, rfc3339
from gpu_device_plugin.node.extension import NodeFeature
from gpu_device_plugin.node.node_api import Happening

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.features.audit.contract import Grants
    from gpu_device_plugin.features.eviction.evictor import Evictor
    from gpu_device_plugin.features.use.node import UseWatch
    from gpu_device_plugin.node.extension import Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.node_config import NodeConfig
    from gpu_device_plugin.settings.node import NodeSettings

_records = logging.getLogger(LOGGER)

ALIVE_S = 900.0
"""Seconds without a record after which one says that there was nothing to record."""


@dataclass(eq=False, repr=False)
class AuditLog:
    """Writes the records of one node. The time of its last life sign stays on the node for the next agent."""

    _settings: NodeSettings
    _config: Observable[NodeConfig]
    _state: NodeState
    _use: UseWatch
    """Knows what each container holds; nothing is recorded before it does."""
    _api: NodeApi
    """Knows the names of pods, if there is an API."""
    _evictor: Evictor | None = None
    _note: Callable[[str], None] = lambda _: None
    """Takes grants and their ends as sentences."""
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch."""

    def __post_init__(self) -> None:
        self.life_sign_s = 30.0
        """Seconds between two life signs."""
        self.names_within_s = 10.0
        """Seconds after the start in which records wait for the names of pods."""
        self._node = self._settings.node_name
        self._life_sign = StateFile(self._settings.device_plugin_dir, "audited", lasting=False)
        self._began_s = 0.0
        self._grants: Grants = {}
        self._offered: dict[str, AuditRecord] = {}
        self._told: frozenset[str] = frozenset()
        self._found = False
        self._wrote_s = 0.0

    async def run(self) -> NoReturn:
        """Record until cancelled."""
        self._began_s = self.clock()
        await self._use.entries.after(0)
        sources: tuple[Observable[Any], ...] = (self._use.entries, self._state.nodes, self._api.pod_changes)
        try:
            await Worker(self._record, settle_s=0.2).run(*sources)
        finally:
            if self._found:
                self._life_sign.write(rfc3339(self.clock()))

    def _record(self) -> float:
        """Record what has changed, once it has a name; return in how many seconds to look again."""
        named = not self._api.has_access or self._api.living() is not None
        if named or self.clock() - self._began_s >= self.names_within_s:
            self._write_changes()
            self._life_sign.write(rfc3339(self.clock()))
        return self.life_sign_s if self._found else 1.0

    def _write_changes(self) -> None:
        now, shares, before = rfc3339(self.clock()), self._state.node.shares, self._grants
        if not self._found:
            last = self._life_sign.read() or ""
            known = epoch_s(last) is not None
            AuditRecord(AuditKind.STARTED, self._node, began=last if known else "", ended=now).write(_records)
        gpus = {record.gpu: record for record in offered(self._node, shares, self._config.value.facts.inventory, now)}
        self._grants = grants(self._node, self._use.holders(), shares, before, now)
        evicted = {} if self._evictor is None else self._evictor.evicted
        new = changes(before, self._grants, evicted, self._told, now, first=not self._found)
        gone = [
            replace(self._offered[uuid], kind=AuditKind.WITHDRAWN, ended=now) for uuid in self._offered.keys() - gpus
        ]
        records = [*gone, *[gpus[uuid] for uuid in gpus if uuid not in self._offered], *new]
        if not records and self.clock() - self._wrote_s >= ALIVE_S:
            records = [AuditRecord(AuditKind.ALIVE, self._node, began=now)]
        for record in records:
            record.write(_records)
            self._wrote_s = self.clock()
            if sentence := decision(record):
                self._note(sentence)
        self._offered = {uuid: self._offered.get(uuid, record) for uuid, record in gpus.items()}
        self._told, self._found = frozenset(evicted), True


class Audit(NodeFeature):
    """Follows what containers hold."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        evictions = node.features.get(Evictions)
        self.log = AuditLog(
            node.settings.value,
            node.config,
            node.state,
            node.features.of(Use).watch,
            node.api,
            None if evictions is None else evictions.evictor,
            lambda text: node.api.happenings.tell(Happening("", text)),
        )

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.log.run()]
