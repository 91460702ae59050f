"""Remove the agents' labels, annotations and condition from our node once it has lost the label of sharing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.errors import ApiError
from gpu_device_plugin.cluster.node import NodeCondition, NodeNotes
from gpu_device_plugin.core.contract.cleanup import our_annotations, our_labels, switched_on
from gpu_device_plugin.core.contract.keys import SWITCH_LABEL, SWITCHED_ON

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.cluster.node import NodeSelf

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between two checks whether the node still shows our resources."""


class Cleanup:
    """Cleans up after the last agent of a node.

    A rollout stops an agent in the same way, but leaves the label: then nothing is removed. Nor is anything from a node
    that never had the label: another rule, which we do not know, selects it.
    """

    def __init__(self, client: Client, ourselves: NodeSelf, resources: Container[str] = ()) -> None:
        """Prepare to clean the node `ourselves` through `client`, which is opened for that, and closed again.

        Without our annotations, schedulers take a node that shows one of `resources` for a node of another device
        plugin. So the kubelet has to drop these resources first.
        """
        self._client = client
        self._self = ourselves
        self._resources = resources
        self._switched_on = False

    def saw(self, labels: Mapping[str, str]) -> None:
        """Record the labels of our node."""
        self._switched_on = self._switched_on or switched_on(labels)

    async def run(self, within_s: float = 3.0, forgotten_within_s: float = 12.0) -> None:
        """Clean up if the node had the label and has lost it. To be called after the agent has ended.

        Args:
            within_s: timeout of each call to the API server.
            forgotten_within_s: how long to wait until the kubelet drops our resources; it updates the status of its
                node every 10 seconds by default.
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
                    offered = any(amount and name in self._resources for name, amount in node.allocatable.items())
                    if not offered or time.monotonic() >= forgotten_by:
                        break
                    await asyncio.sleep(min(_LOOK_S, forgotten_within_s))
                ours = dict.fromkeys(our_labels(node.labels)), dict.fromkeys(our_annotations(node.annotations))
                async with asyncio.timeout(within_s):
                    if await self._self.put(NodeNotes(*ours), node):
                        sentence = "the node lost the label %s=%s: our labels and annotations are removed"
                        _log.info(sentence, SWITCH_LABEL, SWITCHED_ON)
                if node.gpu_condition:
                    async with asyncio.timeout(within_s):
                        await NodeCondition(self._client, self._self.name).put(None)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.warning("the node could not be cleaned up; our labels and annotations may still be on it: %s", why)
