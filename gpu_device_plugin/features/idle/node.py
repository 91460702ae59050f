"""Report pods that leave their GPUs idle."""

from __future__ import annotations

import logging
import time

from gpu_device_plugin.features.idle import IdleSettings
from gpu_device_plugin.features.idle.rules import Idleness
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.process_use import UseReading
from gpu_device_plugin.features.use.rules.use_report import longest_pause_s
from gpu_device_plugin.model.contract.keys import IDLE_SINCE
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.report.rules.printing import duration

_log = logging.getLogger(__name__)


class Idle(NodeFeature):
    """Acts on the readings of use, and publishes since when which pods are idle: the scheduler extender acts on that.

    A new agent begins anew and removes what its predecessor wrote: while no agent ran, nobody saw whether a pod used
    its GPUs.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare to follow the use of `node`."""
        self._settings, self._api, self._use = node.settings, node.api, node.features.of(Use)
        self._evidence = Idleness()

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._use.reading.follow(self.act_on)]

    def act_on(self, reading: UseReading) -> None:
        """Act on a reading, if it is newer than the last one."""
        if reading.at <= self._evidence.at:
            return
        settings = self._settings.value.of(IdleSettings)
        pods = {pod.kubelet_uid: pod for pod in self._api.pods.values()}
        self._evidence = self._evidence.after(
            reading,
            pods.values(),
            below_percent=settings.idle_below,
            pause_s=longest_pause_s(settings.usage_interval_s),
        )
        found = self._evidence.idle(settings.idle_after_s) if settings.idle_after_s else {}
        booted_s, before = time.time() - time.monotonic(), self._use.idle.value
        # The clock may be set meanwhile: what was told stays.
        now = {uid: before.get(uid) or rfc3339(booted_s + since) for uid, since in found.items()}
        for uid in now.keys() - before.keys():
            self._report(pods[uid], reading.at - found[uid])
        for uid in before.keys() - now.keys():
            _log.info("no longer idle", extra={"pod": str(pods.get(uid, uid))})
        self._use.idle.change(now)
        for uid, pod in pods.items():
            if pod.annotations.get(IDLE_SINCE) != now.get(uid) and not pod.ended:
                self._api.annotate(pod, {IDLE_SINCE: now.get(uid)})

    def _report(self, pod: Pod, idle_s: float) -> None:
        note = (
            f"has left its GPUs idle for {duration(idle_s)}: its use of the multiprocessors is at most "
            f"{self._settings.value.of(IdleSettings).idle_below} %, and its memory does not grow"
        )
        _log.info("%s", note, extra={"pod": str(pod)})
        self._api.event("GPUIdle", note, "Observe", warning=False, pod=pod)
