"""Learn from the pods that come what the room of nodes is worth, while the scheduler's calls go on."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NoReturn

from gpu_device_plugin.aio.waiting import last_of
from gpu_device_plugin.features.learning.node_scores import NodeScores
from gpu_device_plugin.features.learning.rules.fair_learning import LearningResult, due, studying
from gpu_device_plugin.features.learning.rules.price_learning import Dominance
from gpu_device_plugin.features.learning.rules.workload_mix import WorkloadMix, kinds_of
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.times import epoch_s
from gpu_device_plugin.scheduler.controller_context import ControllerContext
from gpu_device_plugin.scheduler.extension import SchedulerFeature, Tasks
from gpu_device_plugin.scheduler.node_evaluator import Ranker
from gpu_device_plugin.scheduler.rules.pod_demand import GpuRequest, ask
from gpu_device_plugin.scheduler.rules.pods_without_gpus import OtherPod
from gpu_device_plugin.scheduler.rules.scheduler_gauges import ExtenderMetrics

_log = logging.getLogger(__name__)

_PAUSES = 20
"""It is not learned again before so many times as long have passed: many pods at once cost the scheduler little."""
_ENTRIES = 1000
"""After so many pods others run."""


@dataclass(eq=False)
class Learner(SchedulerFeature):
    """Keeps the mix of pods, and the tables learned from it. Nothing is persisted: a restart learns anew."""

    _context: ControllerContext
    _: KW_ONLY
    look_s: float = 1.0
    """How often to look whether there is more to learn."""
    hold_s: float = 60.0
    """How often to look which namespace uses how much."""
    in_force: bool = field(default=False, init=False)
    """Whether the policy `fit` goes by what was learned; it is `binpack` otherwise."""
    distrusted: tuple[str, ...] = field(default=(), init=False)
    """Namespaces that count little; see `LearningResult.distrusted`."""

    def __post_init__(self) -> None:
        self.nodes = NodeScores(self._context.evaluator)
        """Scores nodes by the tables."""
        self._mix = WorkloadMix()
        self._held_at = -math.inf
        self._learned_from = 0
        self._learned_at = 0.0
        self._took_s = 0.0
        self._told: tuple[bool, tuple[str, ...]] = True, ()

    def __repr__(self) -> str:
        return f"<Learner: {self._mix.arrivals} pods of {len(self._mix)} kinds, learned from {self._learned_from}>"

    def bound(self, pod: Pod | OtherPod) -> None:
        """Count a pod that was bound, once: with GPUs, or to a node with GPUs. One without a time is as the latest."""
        created_s = epoch_s(pod.created) or 0.0
        if isinstance(pod, OtherPod):
            self._mix.add(kinds_of(GpuRequest(), pod.amounts), created_s)
            return
        asked = ask(pod, self._context.resources)
        if isinstance(asked, GpuRequest) and asked.parts:
            self._mix.add(kinds_of(asked, pod.amounts), created_s, pod.namespace)

    def ranker(self) -> Ranker:  # noqa: D102
        return self.nodes

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.run()]

    def measured(self, metrics: ExtenderMetrics) -> ExtenderMetrics:  # noqa: D102
        return replace(
            metrics,
            learned=self.in_force,
            distrusted=len(self.distrusted),
            stranded=self.nodes.stranded(),
        )

    async def run(self) -> NoReturn:
        """Learn whenever it is due. Ends only by cancellation."""
        while True:
            await asyncio.sleep(self.look_s)
            now = self._context.clock()
            if now - self._held_at >= self.hold_s:
                await self._look_at_holdings()
            age_s = now - self._learned_at
            if age_s >= _PAUSES * self._took_s and due(
                self._mix.arrivals, self._learned_from, age_s, outdated=self.nodes.outdated
            ):
                await self.learn()

    async def _look_at_holdings(self) -> None:
        self._held_at = self._context.clock()
        measure = Dominance.of(self.nodes.node_types())
        held = {"": sum(measure.size(0, 0, each.cpu_milli, each.memory_mib) for each in self._context.fleet.others)}
        for number, entry in enumerate(list(self._context.fleet.entries.values())):
            usage, amounts = entry.usage, entry.amounts
            size = measure.size(usage.all_shares, usage.all_gpus, amounts.cpu_milli, amounts.memory_mib)
            held[entry.namespace] = held.get(entry.namespace, 0.0) + size
            if number % _ENTRIES == _ENTRIES - 1:
                await asyncio.sleep(0)
        self._mix.hold(held, self._held_at)

    async def learn(self) -> None:
        """Learn now; the scheduler's calls are answered meanwhile."""
        began = self._context.clock()
        arrivals, node_types = self._mix.arrivals, self.nodes.node_types()
        study = await last_of(studying(self._mix, node_types))
        await last_of(self.nodes.learned(study.usable))
        self.in_force = study.usable is not None
        self.distrusted = study.distrusted
        said = _log.debug if self._learned_from else _log.info
        said("learned the prices of room", extra={"pods": arrivals, "kinds": len(self._mix), "shapes": len(node_types)})
        self._log_lesson(study)
        self._learned_from, self._learned_at = arrivals, self._context.clock()
        self._took_s = self._learned_at - began

    def _log_lesson(self, study: LearningResult) -> None:
        """Log what an administrator should know, when it changes."""
        told, self._told = self._told, (self.in_force, study.distrusted)
        if study.distrusted and study.distrusted != told[1]:
            _log.warning(
                "pods of some namespaces count little in what the policy fit learns: learning from them would cost "
                "the others GPUs",
                extra={"namespaces": ", ".join(study.distrusted)},
            )
        if self.in_force != told[0]:
            figures = {"fit": round(study.trial.fit, 3), "binpack": round(study.trial.binpack, 3)}
            if study.few_run:
                _log.warning(
                    "the policy fit acts as binpack until it learns again: too few of the pods that came run to tell "
                    "whose pods count",
                    extra={"running": round(study.running or 0.0, 4)},
                )
            elif self.in_force:
                _log.info("the policy fit uses the prices that it learned again", extra=figures)
            else:
                _log.warning(
                    "the policy fit acts as binpack until it learns again: binpack allocated more GPUs to the pods "
                    "that come",
                    extra=figures,
                )
