"""Act on containers that use more GPU memory than they may."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from gpu_device_plugin import metrics as m
from gpu_device_plugin.features.eviction.evictor import Evictor
from gpu_device_plugin.features.over_use import OverUseSettings
from gpu_device_plugin.features.over_use.rules import (
    Excess,
    OverUseRules,
    Response,
    Watch,
    annotation,
    event_note,
    outlook,
    use_of,
)
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.features.use.rules.process_use import UseReading
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.contract.keys import OVER_USE
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import rfc3339
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)

CONTAINERS_OVER = Gauge("gpushare_containers_over", "Containers that use more GPU memory than they were granted.")


class OverUse(NodeFeature):
    """Acts on the readings of use, and publishes the containers that exceed.

    Each container is told once when it exceeds, and again when something else will happen to its pod. A new agent
    begins anew with the grace, so that it tells nothing twice within it.
    """

    def __init__(self, node: NodeContext) -> None:
        """Prepare to follow the use of `node`."""
        self._state, self._settings, self._api = node.state, node.settings, node.api
        self._use, self._evictor = node.features.of(Use), node.features.get(Evictor)
        self._watch = Watch()
        self._first: float | None = None
        self._outlooks: dict[Place, str] = {}
        """What was last told about each container."""
        self.excesses: Mapping[Place, Excess] = {}
        """The containers that exceed."""

    def tasks(self) -> Tasks:  # noqa: D102
        return [self._use.reading.follow(self.act_on)]

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: ARG002, D102
        return [(CONTAINERS_OVER, [((), len(self.excesses))])]

    def act_on(self, reading: UseReading) -> None:
        """Act on a reading, if it is newer than the last one."""
        if reading.at <= self._watch.at:
            return  # what it shows is known already
        settings = self._settings.value.of(OverUseSettings)
        response = Response(settings.over_use)
        if response is not Response.REPORT and self._evictor is not None and not self._evictor.alone():
            response = Response.SUSPENDED
        rules = OverUseRules(settings.over_use_slack_mib, settings.over_use_grace_s, response)
        pods = {pod.kubelet_uid: pod for pod in self._api.pods.values()}
        self._first = reading.at if self._first is None else self._first
        self._watch = self._watch.after(reading, rules)
        excesses = self._watch.excesses(rules, pods)
        told_anew = self._publish(excesses, rules, reading.at)
        over = [place for place in self.excesses if place not in excesses]
        for place in over:
            self._outlooks.pop(place, None)
            _log.info("no longer more GPU memory than allowed", extra=self._facts(self.excesses[place]))
        self.excesses = excesses
        self._use.over.change({place: excess.since for place, excess in excesses.items()})
        self._annotate(excesses, rules, {place[0] for place in (*told_anew, *over)}, pods)
        self._remove_stale(reading, rules, pods)
        self._evict(excesses, reading, rules)

    def _publish(self, excesses: Mapping[Place, Excess], rules: OverUseRules, now: float) -> tuple[Place, ...]:
        """Log and post what is new; return the places of which that was so."""
        new = []
        for place, excess in excesses.items():
            expected = outlook(excess, rules.response)
            ending = place in self._outlooks and excess.pod is not None and excess.pod.deleting
            if ending or self._outlooks.get(place) == expected:
                continue
            self._outlooks[place] = expected
            new.append(place)
            note = event_note(excess, self._state.node.shares.called(place[2]), now, rules.response)
            _log.warning("%s", note, extra=self._facts(excess))
            if excess.pod is not None:
                reason = "GPUMemoryExceeded" if excess.granted_mib else "GPUTrespass"
                self._api.event(reason, note, "Observe", pod=excess.pod)
        return tuple(new)

    def _annotate(
        self, excesses: Mapping[Place, Excess], rules: OverUseRules, changed: set[str], pods: Mapping[str, Pod]
    ) -> None:
        """Write the sentence on the pods about which something is new, or remove it."""
        for uid in changed & pods.keys():
            booted_s = time.time() - time.monotonic()
            told = [
                (excess, self._state.node.shares.called(place[2]), rfc3339(booted_s + excess.since))
                for place, excess in excesses.items()
                if place[0] == uid
            ]
            self._api.annotate(pods[uid], {OVER_USE: annotation(told, rules.response) if told else None})

    def _remove_stale(self, reading: UseReading, rules: OverUseRules, pods: Mapping[str, Pod]) -> None:
        """Remove the sentences that an earlier agent wrote, once a reading or a whole grace does not confirm them."""
        waited = self._first is not None and reading.at - self._first >= rules.grace_s
        if reading.blind and not waited:
            return
        suspects = {place[0] for place in self._watch.evidence}
        for uid, pod in pods.items():
            if OVER_USE in pod.annotations and uid not in suspects and not pod.ended:
                self._api.annotate(pod, {OVER_USE: None})

    def _evict(self, excesses: Mapping[Place, Excess], reading: UseReading, rules: OverUseRules) -> None:
        if self._evictor is None or not excesses:
            return
        capacity_mib = self._state.node.shares.capacity_mib
        candidates = self._watch.candidates(excesses.values(), reading, rules, capacity_mib)
        victims = self._evictor.next_victims(candidates)
        for pod, uuids in victims.values():
            ours = [excess for excess in excesses.values() if excess.pod == pod and excess.place[2] in uuids]
            why = "; ".join(use_of(excess, self._state.node.shares.called(excess.place[2])) for excess in ours[:4])
            self._evictor.order(pod, uuids, "GPUMemoryEvicted", why, m.OVER_USE_EVICTIONS)

    def _facts(self, excess: Excess) -> dict[str, object]:
        name = str(excess.pod or excess.place[0])
        return {"pod": name, "used_mib": excess.used_mib, "granted_mib": excess.granted_mib}
