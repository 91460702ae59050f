"""Refuse containers whose memory cannot be limited although the administrator requires it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node.kubelet.admission import refuse_unlimited
from gpu_device_plugin.programs.node.extension import NodeFeature

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpu_device_plugin.core.node.kubelet.admission import Refused
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.extension import Contribution, GrantDraft, GrantRequest


class RequiredLimits(NodeFeature):
    """Comes after the features that choose what keeps a container within its part."""

    def __init__(self, state: NodeState) -> None:
        """Name GPUs by their positions in `state`."""
        self._state = state

    @asynccontextmanager
    async def granting(self, request: GrantRequest) -> AsyncIterator[Contribution]:  # noqa: D102
        def contribution(draft: GrantDraft) -> GrantDraft | Refused:
            kind, ids, delivery = draft.placement.demand.kind, draft.device_ids, draft.delivery
            refused = None if request.running else refuse_unlimited(self._state.node, kind, ids, delivery, draft.owner)
            return refused or draft

        yield contribution
