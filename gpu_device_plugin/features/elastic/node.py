"""Elastic memory: guarantees beyond requests, and unused memory lent to containers that may borrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_device_plugin.features.elastic.borrowing import Borrowing
from gpu_device_plugin.features.elastic.guarantees import Guarantees, SavedGuarantees
from gpu_device_plugin.features.elastic.memory_files import MemoryFiles
from gpu_device_plugin.features.elastic.settings import ElasticSettings
from gpu_device_plugin.features.eviction.node import Evictions
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from gpu_device_plugin.node.extension import Contribution, GrantRequest, StartRequest, Tasks
    from gpu_device_plugin.node.feature_context import NodeContext
    from gpu_device_plugin.node.rules.admission import Refusal
    from gpu_device_plugin.node.rules.container_grants import GrantOwner, Mount


class Elastic(NodeFeature):
    """Takes part in grants (how much a container may use), in starts (until lent memory is back) and in the reports."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`."""
        settings, use = node.settings.value.of(ElasticSettings), node.features.of(Use)
        self._node, self._use = node, use
        use.watch.may_borrow = lambda: node.settings.value.of(ElasticSettings).borrowers != "off"
        self.guarantees = Guarantees(
            node.state,
            node.api,
            node.checkpoint_entries,
            SavedGuarantees(node.settings.value.device_plugin_dir),
            waiting=tuple if node.api.waiting is None else node.api.waiting.waiting,
            withheld=lambda: node.config.value.why_not_offered,
        )
        evictions = node.features.get(Evictions)
        self.borrowing = Borrowing(
            use.watch,
            node.entries,
            node.state,
            node.settings,
            node.api,
            node.metrics,
            MemoryFiles(settings.memory_dir),
            None if evictions is None else evictions.evictor,
            allowed_now=use.allowed_now,
        )
        use.reports.reclaiming = self.borrowing.reclaiming

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution]:  # noqa: D102
        return self.borrowing.granting(request)

    def mounts(self, owner: GrantOwner, device_ids: Sequence[str]) -> tuple[Mount, ...]:  # noqa: D102
        return self.borrowing.mounts(owner, device_ids)

    async def before_start(self, start: StartRequest) -> Refusal | None:  # noqa: D102
        return await self.borrowing.before_start(start)

    def ledger_complete(self) -> None:  # noqa: D102
        self.guarantees.load()

    def tasks(self) -> Tasks:  # noqa: D102
        node, borrowing = self._node, self.borrowing
        return [
            self._use.watch.reading.follow(borrowing.act_on),
            node.entries.follow(borrowing.holders_changed),
            node.settings.follow(borrowing.publish_allowed),
            self.guarantees.run(),
            node.api.pod_changes.follow(self.guarantees.wake),
            node.api.pod_changes.follow(borrowing.publish_allowed, settle_s=0.1),
        ]
