"""Memory limits: the means, what they add to grants, whether the driver holds them, and limits that change later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.limits import LimitSettings
from gpu_device_plugin.features.limits.contract import LIMIT_FILES, LimitKey, LimitOutcome
from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.rules import running_limits as rules
from gpu_device_plugin.features.limits.rules.enforcement import REFUSE, OtherMeans, derive_means
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, added_for_limits, refuse_unlimited
from gpu_device_plugin.features.limits.verification import Verification
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.file_link import FileLink
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.model.limits import LimitMeans
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import Refusal
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)

LIMIT_STATES = Gauge("gpushare_limit_states", "Memory limits of running containers by what was read back.", ("state",))


@dataclass(eq=False, repr=False)
class LimitLink:
    """Tells the limit helper the limits now, and follows what comes of them.

    Does nothing on a node where no limit changes. A file that cannot be written or read changes nothing but `reasons`.
    """

    _directory: Path
    """The setting `memory_dir`."""
    _node: NodeContext
    _use: Use
    _: KW_ONLY
    poll_s: float = 2.0
    """Seconds between two looks at the helper's file, and at the running containers."""
    clock: Callable[[], float] = boot_time
    """Returns the seconds since the machine started."""

    def __post_init__(self) -> None:
        self.reasons: Mapping[Place, str] = {}
        """Why a limit that the helper was told is not set. It may be right all the same, if it is that of the start."""
        words = "the limit helper", rules.NOT_THERE, rules.NOT_THERE, rules.SILENT
        self._files = FileLink(self._directory, LIMIT_FILES, self.clock, *words, rules.BEAT_S)
        self._worker = Worker(self._step)

    async def run(self) -> NoReturn:
        """Follow the limits and the helper until cancelled; leaves the file as it is, for containers run on."""
        self._files.take_up()
        await self._worker.run(self._use.allowed_now, self._node.entries, self._node.settings)

    def soft(self) -> bool:
        """Return whether what a container is guaranteed is its soft limit."""
        return self._node.settings.value.of(LimitSettings).soft_limit == "share"

    async def _step(self) -> float | None:
        holders, allowed = self._use.holders(), self._use.allowed_now.value
        found = rules.wanted_limits(holders, allowed, self._files.wanted, soft=self.soft())
        self.reasons = {place: why for place, why in self.reasons.items() if place in found}
        await in_thread(self._files.want, dict(found.values()))
        state: Mapping[LimitKey, LimitOutcome] | str = self._files.unwritten
        if found and not state:
            state = await in_thread(self._files.read_state)
        known, self.reasons = self.reasons, rules.reasons(found, state)
        for place, why in self.reasons.items():
            if why not in {known.get(place), rules.NOT_YET}:
                extra = {**dict(zip(("pod_uid", "container", "gpu"), place, strict=True)), "why": why}
                level = logging.INFO if why == rules.NOT_THERE else logging.WARNING  # the helper is optional
                _log.log(level, "the limit of a running container is not changed", extra=extra)
        # Nobody's limit is changed on most nodes, where nothing is looked at either.
        return self.poll_s if self._files.wanted or self._files.unwritten else None


class Limits(NodeFeature):
    """Chooses what keeps containers within their parts, adds it to their grants, and verifies it."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`.

        Raises:
            SettingsError: the file of the setting `extra_grant` cannot be used.
        """
        settings, use = node.settings.value.of(LimitSettings), node.features.of(Use)
        self._node = node
        self._others = [feature for feature in node.features if isinstance(feature, OtherMeans)]
        self._extra = read_extra_grant(settings.extra_grant)
        self._plan = LimitPlan()
        self.verification = Verification(node, use)
        self.link: LimitLink | None = None  # without elastic memory no limit changes
        if isinstance(settings, ElasticSettings) and settings.memory_dir is not None:
            self.link = LimitLink(settings.memory_dir, node, use)

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans:  # noqa: D102
        settings = self._node.settings.value.of(LimitSettings)
        self._plan, chosen = derive_means(
            shares,
            cgroup,
            labels,
            self._others,
            limits=settings.limits,
            refuse=settings.limits_fallback == REFUSE,
            soft_is_share=settings.soft_limit == "share",
            extra=self._extra,
        )
        return chosen

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:
        """Limit a container, or refuse it if its memory cannot be limited although the administrator requires it."""
        return nullcontext(partial(self._limit, request))

    def _limit(self, request: GrantRequest, draft: GrantDraft) -> GrantDraft | Refusal:
        node, plan = self._node.state.node, self._plan
        if draft.enforcements:  # a means of another feature has chosen itself
            plan = replace(plan, enforcements={**plan.enforcements, **draft.enforcements})
        if not request.running:
            refusal = refuse_unlimited(node, draft.placement.demand.kind, draft.device_ids, plan, draft.owner)
            if refusal is not None:
                return refusal
        added = added_for_limits(draft.placement, node.shares, plan, draft.owner)
        return replace(draft, enforcements=plan.enforcements, added=added)

    def tasks(self) -> Tasks:  # noqa: D102
        node, verification = self._node, self.verification
        tasks = [
            verification.run(),
            node.entries.follow(verification.changed),
            node.hardware.view.follow(verification.verify_all),
            node.api.pod_changes.follow(verification.changed),
        ]
        if self.link is not None:
            tasks.append(self.link.run())
        return tasks

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: ARG002, D102
        return [(LIMIT_STATES, [((held,), count) for held, count in self.verification.counts.items()])]
