"""Memory limits: the means, what they add to grants, whether the driver holds them, and limits that change later."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gpu_device_plugin.features.elastic.settings import ElasticSettings
from gpu_device_plugin.features.limits.extra_grant_file import read_extra_grant
from gpu_device_plugin.features.limits.limit_link import LimitLink
from gpu_device_plugin.features.limits.rules.enforcement import REFUSE, OtherMeans, derive_means
from gpu_device_plugin.features.limits.rules.limit_grants import LimitPlan, added_for_limits, refuse_unlimited
from gpu_device_plugin.features.limits.settings import LimitSettings
from gpu_device_plugin.features.limits.verification import Verification
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Any

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.model.limits import LimitMeans
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.rules.admission import Refusal


class Means(OtherMeans, Protocol):
    """A means of limiting that is a feature of its own, with what it does on a node."""

    @property
    def follows(self) -> Iterable[Observable[Any]]:
        """The values on whose changes it may be there, or be there no more."""

    def read_state(self) -> None:
        """Find out now whether it is there."""

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution] | None:
        """Take part in an answer, as `NodeFeature.granting` does; it may choose what keeps the container."""


class Limits(NodeFeature):
    """Chooses what keeps containers within their parts, adds it to their grants, and verifies it."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`.

        Raises:
            SettingsError: the file of the setting `extra_grant` cannot be used.
        """
        settings, use = node.settings.value.of(LimitSettings), node.features.of(Use)
        self._node = node
        self._others: list[Means] = []
        self._extra = read_extra_grant(settings.extra_grant)
        self._plan = LimitPlan()
        self.verification = Verification(
            use.holders,
            node.hardware.limits,
            node.cgroups,
            node.state,
            node.api,
            allowed_now=use.allowed_now,
            measured=use.measured_by_driver,
            states=node.limit_states,
            interval_s=settings.usage_interval_s,
        )
        self.link: LimitLink | None = None  # without elastic memory no limit changes
        if isinstance(settings, ElasticSettings) and settings.memory_dir is not None:
            soft = lambda: self._settings.soft_limit == "share"  # noqa: E731 - the setting may change
            self.link = LimitLink(settings.memory_dir, use.holders, use.allowed_now, soft=soft)

    @property
    def _settings(self) -> LimitSettings:
        return self._node.settings.value.of(LimitSettings)

    def add(self, means: Means) -> None:
        """Let a feature's own means be one to choose from; it then takes part in grants before they are limited."""
        self._others.append(means)

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> LimitMeans:  # noqa: D102
        settings = self._settings
        for other in self._others:
            other.read_state()
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

    def means_follow(self) -> Iterable[Observable[Any]]:  # noqa: D102
        return [value for other in self._others for value in other.follows]

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:
        """Limit a container, or refuse it if its memory cannot be limited although the administrator requires it.

        Of the means of others each may first choose itself, and its refusal counts before ours.
        """
        parts = [part for other in self._others if (part := other.granting(request)) is not None]
        return self._after(parts, request) if parts else nullcontext(partial(self._limit, request))

    @asynccontextmanager
    async def _after(
        self, parts: Iterable[AbstractAsyncContextManager[Contribution]], request: GrantRequest
    ) -> AsyncIterator[Contribution]:
        async with AsyncExitStack() as stack:
            request.contributions.append(self._begin)
            for part in parts:
                request.contributions.append(await stack.enter_async_context(part))
            yield partial(self._limit, request)

    def _limit(self, request: GrantRequest, draft: GrantDraft) -> GrantDraft | Refusal:
        node, plan = self._node.state.node, self._plan
        if draft.enforcements:
            plan = replace(plan, enforcements=draft.enforcements)
        if not request.running:
            refusal = refuse_unlimited(node, draft.placement.demand.kind, draft.device_ids, plan, draft.owner)
            if refusal is not None:
                return refusal
        added = added_for_limits(draft.placement, node.shares, plan, draft.owner)
        return replace(draft, enforcements=plan.enforcements, added=added)

    def _begin(self, draft: GrantDraft) -> GrantDraft:
        return replace(draft, enforcements=self._plan.enforcements)

    def tasks(self) -> Tasks:  # noqa: D102
        node, verification = self._node, self.verification
        tasks = [
            verification.run(),
            node.entries.follow(verification.changed),
            node.hardware.view.follow(verification.verify_all),
            node.settings.follow(self._interval),
            node.api.pod_changes.follow(verification.changed),
        ]
        if self.link is not None:
            changed = self.link.changed
            tasks += [self.link.run(), node.entries.follow(changed), node.settings.follow(changed)]
        return tasks

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, limit_states=self.verification.counts)

    def _interval(self, _settings: object) -> None:
        self.verification.interval_s = self._settings.usage_interval_s
