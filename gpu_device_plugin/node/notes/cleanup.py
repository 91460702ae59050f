"""Remove from a node what the agent has written on it, once the node shares no GPUs any more."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.cluster.client.errors import ApiError
from gpu_device_plugin.cluster.writers.own_node import NodeConditionWriter, NodeMetadata
from gpu_device_plugin.model.contract.keys import SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.contract.nodelabels import our_annotations, our_labels, switched_on

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gpu_device_plugin.cluster.client.api_client import Client
    from gpu_device_plugin.cluster.writers.own_node import OwnNode

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between two checks whether a node that is cleaned up still shows our resources."""


@dataclass(eq=False)
class Cleanup:
    """Cleans up after the last agent of a node.

    A rollout stops an agent in the same way, but leaves the label: then nothing is removed. Nor is anything from a node
    that never had the label: another rule, which we do not know, selects it.
    """

    _client: Client
    """It is opened for that, and closed again."""
    _self: OwnNode
    _resources: Container[str] = ()
    """The kubelet has to drop these first: without our annotations, schedulers take a node that shows one of them for a
    node of another device plugin."""

    def __post_init__(self) -> None:
        self._switched_on = False

    def saw(self, labels: Mapping[str, str]) -> None:
        """Record the labels of our node."""
        self._switched_on = self._switched_on or switched_on(labels)

    async def run(self, within_s: float = 3.0, forgotten_within_s: float = 12.0) -> None:
        """Clean up if the node had the label and has lost it. To be called after the agent has ended.

        Each call to the API server may take `within_s`, and the kubelet `forgotten_within_s` to drop our resources: it
        updates the status of its node every 10 seconds by default.
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
                    if await self._self.put(NodeMetadata(*ours), node):
                        sentence = "the node lost the label %s=%s: our labels and annotations are removed"
                        _log.info(sentence, SWITCH_LABEL, SWITCHED_ON)
                if node.gpu_condition:
                    async with asyncio.timeout(within_s):
                        await NodeConditionWriter(self._client, self._self.name).put(None)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.warning("the node could not be cleaned up; our labels and annotations may still be on it: %s", why)
