"""Memory limits: required ones, the extra grant, whether the driver holds them, and limits that change later."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin.features.limits.limit_link import LimitLink
from gpu_device_plugin.features.limits.verification import Verification
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature
from gpu_device_plugin.node.rules.admission import refuse_unlimited

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gpu_device_plugin.core.report.gauges import NodeMetrics
    from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.rules.admission import Refused
    from gpu_device_plugin.settings.node import NodeSettings


class Limits(NodeFeature):
    """Comes after the features that choose what keeps a container within its part."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        settings, use = node.settings.value, node.of(Use)
        self._node = node
        self.verification = Verification(
            use.watch.holdings,
            node.hardware.limits,
            node.cgroups,
            node.state,
            node.api,
            allowed_now=use.allowed_now,
            measured=use.watch.measured,
            states=node.limit_states,
            interval_s=settings.usage_interval_s,
        )
        self.link: LimitLink | None = None
        if settings.memory_dir is not None:
            soft = lambda: node.settings.value.soft_limit == "share"  # noqa: E731 - the setting may change
            self.link = LimitLink(settings.memory_dir, use.watch.holdings, use.allowed_now, soft=soft)

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:
        """Refuse containers whose memory cannot be limited although the administrator requires it."""

        def contribution(draft: GrantDraft) -> GrantDraft | Refused:
            kind, ids, state = draft.placement.demand.kind, draft.device_ids, self._node.state
            refused = None if request.running else refuse_unlimited(state.node, kind, ids, draft.delivery, draft.owner)
            return refused or draft

        return nullcontext(contribution)

    def tasks(self) -> Tasks:  # noqa: D102
        node, verification = self._node, self.verification
        tasks = [
            verification.run(),
            node.entries.follow(verification.changed),
            node.hardware.view.follow(verification.again),
            node.settings.follow(self._interval),
        ]
        if node.cluster is not None:
            tasks.append(node.cluster.followed.changes.follow(verification.changed))
        if self.link is not None:
            changed = self.link.changed
            tasks += [self.link.run(), node.entries.follow(changed), node.settings.follow(changed)]
        return tasks

    def measured(self, metrics: NodeMetrics) -> NodeMetrics:  # noqa: D102
        return replace(metrics, limit_states=self.verification.counts)

    def _interval(self, settings: NodeSettings) -> None:
        self.verification.interval_s = settings.usage_interval_s
