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
    from collections.abc import Iterable, Mapping

    from gpu_device_plugin.cluster.client import Client
    from gpu_device_plugin.cluster.node import NodeSelf

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Between two looks whether the kubelet offers anything of ours."""


class Cleanup:
    """Cleans up after the last agent of a node.

    To a process that is told to stop, a rollout looks the same: there the label stays, and all of it. A node that never
    had the label is shared by some other rule, which we do not know.
    """

    def __init__(self, client: Client, ourselves: NodeSelf, resources: Iterable[str] = ()) -> None:
        """Prepare to speak of the node `ourselves` through `client`, which is opened for that, and closed again.

        As long as the node shows one of `resources`, schedulers would take it for one of another device plugin, were it
        not for what is written there: the kubelet has to forget them first.
        """
        self._client = client
        self._self = ourselves
        self._resources = tuple(resources)
        self._switched_on = False

    def saw(self, labels: Mapping[str, str]) -> None:
        """Take note of the labels that our node has."""
        self._switched_on = self._switched_on or switched_on(labels)

    async def run(self, within_s: float = 3.0, forgotten_within_s: float = 12.0) -> None:
        """Clean up if the node had the label and has it no more. After the agent has ended.

        Args:
            within_s: how long to wait for each answer of the API server.
            forgotten_within_s: how long to wait for the kubelet, which writes its node every 10 seconds by default.
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
                    offered = any(node.allocatable.get(name) for name in self._resources)
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
