"""Take from our node what agents wrote on it, once it has lost the label by which its GPUs were shared."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.errors import ApiError
from gpu_device_plugin.cluster.node import NodeNotes
from gpu_device_plugin.core.contract.cleanup import our_annotations, our_labels, switched_on
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL, SWITCHED_ON

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.cluster.node import NodeSelf

_log = logging.getLogger(__name__)

WITHIN_S = 3.0
"""How long an agent that is told to stop waits for each answer of the API server."""
FORGOTTEN_WITHIN_S = 12.0
"""How long it waits for the kubelet to offer nothing of ours, which writes its node every 10 seconds by default."""
_LOOK_S = 0.5
"""Between two looks whether it does."""


class Cleanup:
    """Cleans up after the last agent of a node.

    To a process that is told to stop, a rollout looks the same: there the label stays, and all of it. A node that never
    had the label is shared by some other rule, which we do not know.
    """

    def __init__(self, client: Client, ourselves: NodeSelf) -> None:
        """Prepare to speak of the node `ourselves` through `client`, which is opened for that, and closed again."""
        self._client = client
        self._self = ourselves
        self._switched_on = False

    def saw(self, labels: Mapping[str, str]) -> None:
        """Take note of the labels that our node has."""
        self._switched_on = self._switched_on or switched_on(labels)

    async def run(self, resources: Collection[str], within_s: float, forgotten_within_s: float) -> None:
        """Clean up if the node had the label and has it no more.

        Args:
            resources: what the kubelet has to have forgotten first. As long as its node shows them, schedulers would
                take it for one of another device plugin, were it not for what is written there.
            within_s: see `WITHIN_S`.
            forgotten_within_s: see `FORGOTTEN_WITHIN_S`.
        """
        if not self._switched_on:
            return
        try:
            async with self._client:
                forgotten_by = time.monotonic() + forgotten_within_s
                while True:
                    async with asyncio.timeout(within_s):
                        node = await self._self.read()
                    if switched_on(node.labels):
                        return
                    offered = any(node.allocatable.get(name) for name in resources)
                    if not offered or time.monotonic() >= forgotten_by:
                        break
                    await asyncio.sleep(min(_LOOK_S, forgotten_within_s))
                ours = dict.fromkeys(our_labels(node.labels)), dict.fromkeys(our_annotations(node.annotations))
                async with asyncio.timeout(within_s):
                    if await self._self.put(NodeNotes(*ours), node):
                        _log.info("the node is no longer labelled %s=%s: ours is removed", SWITCH_LABEL, SWITCHED_ON)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.warning(
                "whether the node is to share its GPUs any more is not known: what we wrote on it stays: %s", why
            )
