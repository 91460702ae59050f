"""Report the events of a node in log, metrics and Kubernetes Events."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.hardware.gpu_health_tracker import HealthChange
from gpu_device_plugin.kubelet.rounds import RegistrationEvent
from gpu_device_plugin.node.node_api import NodeApi
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.gpu_health import Cause, Xid, judge
from gpu_device_plugin.settings.knobs import Reload

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_DRAIN_FIRST = frozenset({"share_size", "domain", "memory_resource", "count_resource"})
"""Settings that determine the device IDs and resource names under which the kubelet records running pods."""


@dataclass(eq=False, repr=False)
class Reports:
    """One method for each kind of event."""

    _state: NodeState
    _metrics: m.Metrics
    _api: NodeApi

    def health_changed(self, change: HealthChange) -> None:
        """A GPU has become healthy or unhealthy."""
        self._metrics.count(m.HEALTH_CHANGES, "healthy" if change.healthy else "unhealthy", change.cause)
        level, name = logging.INFO if change.healthy else logging.ERROR, self.name_of(change.uuid)
        _log.log(level, "%s is %s", name, change.reason, extra={"uuid": change.uuid})
        reason = "GPUHealthy" if change.healthy else "GPUUnhealthy"
        failed = not change.healthy and change.cause is not Cause.UNWATCHED  # that is no fault of the GPU
        summary = f"{name} is {change.reason}" if failed else ""
        note, gpus = f"{name} ({change.uuid}) is {change.reason}", (change.uuid,)
        self._api.event(reason, note, "Observe", warning=not change.healthy, summary=summary, gpus=gpus)

    def xid_seen(self, seen: Xid) -> None:
        """The driver has reported an XID."""
        self._metrics.count(m.XIDS, seen.uuid, str(seen.code))
        name, what = self.name_of(seen.uuid), f"XID {seen.code}: {judge(seen.code).meaning}"
        _log.warning("%s: %s", name, what, extra={"uuid": seen.uuid, "once_per_s": 60})
        note, gpus = f"{name} ({seen.uuid}) reported {what}", (seen.uuid,)
        self._api.event("GPUError", note, "Observe", summary=f"{name} reported {what}", gpus=gpus)

    def registration(self, event: RegistrationEvent, details: dict[str, object]) -> None:
        """A registration with the kubelet succeeded, failed, or has to be repeated for all resources."""
        registered = event is RegistrationEvent.REGISTERED
        if registered or event is RegistrationEvent.NOT_REGISTERED:
            self._metrics.count(m.REGISTRATIONS, str(details["resource"]), "registered" if registered else "failed")
        _log.log(logging.INFO if registered else logging.WARNING, "%s", event, extra=details)

    def settings_read(self, outcome: Reload[NodeSettings]) -> None:
        """Settings were read again, and those that need no restart were applied."""
        _log.info("%s", outcome.sentence, extra=outcome.changes)
        if outcome.waiting:
            _log.warning("these changes need a restart of the agent", extra={"settings": list(outcome.waiting)})
            drain = "drain the node, then " if _DRAIN_FIRST.intersection(outcome.waiting) else ""
            restart = (
                "kubectl -n gpushare delete pod -l app.kubernetes.io/component=node "
                f"--field-selector spec.nodeName={outcome.settings.node_name}"
            )
            note = f"The settings {', '.join(outcome.waiting)} wait for a restart of the agent: {drain}{restart}"
            self._api.event("SettingsWait", note, "Reload")

    def settings_refused(self, why: str) -> None:
        """Changed settings cannot be used; the current ones stay in force."""
        _log.error("the configuration stays as it was", extra={"why": why})
        self._api.event("SettingsRefused", f"The settings of the agent stay as they were: {why}", "Reload")

    def name_of(self, uuid: str) -> str:
        """Return what people call a GPU."""
        shares = self._state.node.shares
        shared = shares.by_uuid(uuid)
        if shared is not None:
            return shared.name
        instances = [str(each.position) for each in shares.gpus if each.gpu.card == uuid and not each.gone]
        return f"the GPU with the MIG instances GPU {', '.join(instances)}" if instances else "a GPU"
