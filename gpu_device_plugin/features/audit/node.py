"""Write an audit record for every change of what containers hold, and for the time without an agent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.audit.contract import LOGGER, AuditKind, AuditRecord
from gpu_device_plugin.features.audit.rules import Grants, changes, decision, grants, offered
from gpu_device_plugin.features.eviction.rules import EVICTED
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.kubelet.statefile import StateFile
from gpu_device_plugin.model.times import epoch_s, rfc3339
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_api import Happening

_audit = logging.getLogger(LOGGER)

ALIVE_S = 900.0
"""Seconds without a record after which one says that there was nothing to record."""


class Audit(NodeFeature):
    """Writes the records of one node. The time of its last life sign stays on the node for the next agent."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`. Nothing is recorded before it is known what each container holds."""
        self._node, self._api, self._use = node, node.api, node.features.of(Use)
        self.clock: Callable[[], float] = time.time
        """Returns seconds since the epoch."""
        self.life_sign_s = 30.0
        """Seconds between two life signs."""
        self.names_within_s = 10.0
        """Seconds after the start in which records wait for the names of pods."""
        self._name = node.settings.value.node_name
        self._life_sign = StateFile(node.settings.value.device_plugin_dir, "audited", lasting=False)
        self._began_s = 0.0
        self._grants: Grants = {}
        self._offered: dict[str, AuditRecord] = {}
        self._evicted: dict[str, str] = {}
        """The pods whose eviction is not recorded yet, by the UIDs that the kubelet knows, with the Event's reason."""
        self._found = False
        self._wrote_s = 0.0
        self._api.happenings.listeners.append(self._happened)

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.run()]

    def _happened(self, happening: Happening) -> None:
        if happening.reason in EVICTED and happening.pod is not None:
            self._evicted[happening.pod.kubelet_uid] = happening.reason

    async def run(self) -> NoReturn:
        """Record until cancelled."""
        self._began_s = self.clock()
        entries = self._node.entries
        await entries.after(0)
        sources: tuple[Observable[Any], ...] = (entries, self._node.state.nodes, self._api.pod_changes)
        try:
            await Worker(self._look, settle_s=0.2).run(*sources)
        finally:
            if self._found:
                self._life_sign.write(rfc3339(self.clock()))

    def _look(self) -> float:
        """Record what has changed, once it has a name; return in how many seconds to look again."""
        named = self._node.cluster is None or self._api.living() is not None
        if named or self.clock() - self._began_s >= self.names_within_s:
            self._write_changes()
            self._life_sign.write(rfc3339(self.clock()))
        return self.life_sign_s if self._found else 1.0

    def _write_changes(self) -> None:
        now, shares, before = rfc3339(self.clock()), self._use.shares(), self._grants
        if not self._found:
            last = self._life_sign.read() or ""
            known = epoch_s(last) is not None
            AuditRecord(AuditKind.STARTED, self._name, began=last if known else "", ended=now).write(_audit.info)
        inventory = self._node.config.value.facts.inventory
        gpus = {record.gpu: record for record in offered(self._name, shares, inventory, now)}
        self._grants = grants(self._name, self._use.holders(), shares, before, now)
        new = changes(before, self._grants, self._evicted, now, first=not self._found)
        gone = [
            replace(self._offered[uuid], kind=AuditKind.WITHDRAWN, ended=now) for uuid in self._offered.keys() - gpus
        ]
        records = [*gone, *[gpus[uuid] for uuid in gpus if uuid not in self._offered], *new]
        if not records and self.clock() - self._wrote_s >= ALIVE_S:
            records = [AuditRecord(AuditKind.ALIVE, self._name, began=now)]
        for record in records:
            record.write(_audit.info)
            self._wrote_s = self.clock()
            if sentence := decision(record):
                self._api.happenings.tell(Happening("", sentence))
        self._offered = {uuid: self._offered.get(uuid, record) for uuid, record in gpus.items()}
        self._evicted, self._found = {}, True
