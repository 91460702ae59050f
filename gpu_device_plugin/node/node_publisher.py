"""What the agent writes on its node, and removes again: `NodePublisher.note` and `Cleanup.run`.

Labels, annotations and the condition: its GPUs, how they are given to pods, and whether an agent serves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.kubernetes.client.errors import ApiError
from gpu_device_plugin.kubernetes.writers.own_node import NodeMetadata
from gpu_device_plugin.model.contract.keys import AGENT_LABELS, NODE_GPUS, NODE_LIMITS, SWITCH_LABEL, SWITCHED_ON
from gpu_device_plugin.model.contract.nodegpus import node_gpus, write_node_gpus
from gpu_device_plugin.model.contract.nodelabels import (
    node_labels,
    our_annotations,
    our_labels,
    switched_on,
    write_node_limits,
)
from gpu_device_plugin.model.gpus import Inventory
from gpu_device_plugin.model.shares import TooManySharesError
from gpu_device_plugin.node.rules.container_grants import closed, gpu_nodes
from gpu_device_plugin.node.rules.positions import listed_before

if TYPE_CHECKING:
    from gpu_device_plugin.kubernetes.client.api_client import Client
    from gpu_device_plugin.kubernetes.writers.own_node import OwnNode
    from gpu_device_plugin.model.gpus import Gpu
    from gpu_device_plugin.model.nodes import NodeRecord
    from gpu_device_plugin.model.shares import Shares
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.rules.container_grants import Delivery
    from gpu_device_plugin.node.rules.gpu_health import NodeCondition
    from gpu_device_plugin.node.rules.node_config import NodeConfig
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
"""Seconds between two checks whether a node that is cleaned up still shows our resources."""


@dataclass(eq=False, repr=False)
class NodePublisher:
    """The labels, annotations and the condition of our node."""

    _own: OwnNode
    _settings: NodeSettings
    _config: Observable[NodeConfig]
    _state: NodeState
    _forbidden: Callable[[str], None]
    """See `OwnNode.keep_condition`."""
    _dev: Path
    """The directory of the device nodes."""

    def __post_init__(self) -> None:
        self.linger_s = 1.0
        """Seconds that an agent stays after it announced its shutdown: pods that are being bound still arrive."""
        self._ready = False
        """The kubelet listens to us, and the free shares are known."""
        self._ending = False
        """The agent is about to end. A pod that arrives while no agent runs fails."""
        self._read = asyncio.Event()
        self._condition: Observable[NodeCondition | None] = Observable(None)
        self._had_condition = False
        """Whether our node had the condition when it was last read."""
        self._outdated: Mapping[str, None] = {}
        """Labels that an earlier agent may have left. Those of removed GPU models would otherwise stay for ever."""
        self._before: tuple[Gpu, ...] = ()
        """The GPUs that our node's annotation listed when we first read it."""
        self._notes: Observable[NodeMetadata] = Observable(NodeMetadata())
        self._more: Mapping[str, str | None] = {}
        """The annotations of features. One that is not known yet stays as an earlier agent wrote it."""

    async def run(self) -> NoReturn:
        """Publish until cancelled."""
        condition = self._own.keep_condition(self._condition, self._forbidden)
        await together(self._publish(), self._config.follow(self._show), condition)

    def take(self, node: NodeRecord) -> None:
        """Take over a reading of our node, and put back what another client removed from it."""
        self._outdated = dict.fromkeys((*AGENT_LABELS, *our_labels(node.labels)))
        self._had_condition = bool(node.gpu_condition)
        if not self._read.is_set():
            self._before = listed_before(node.annotations.get(NODE_GPUS, ""))
            self._read.set()
        elif self._notes.value.missing(node):
            self._notes.set(self._notes.value)  # the node was recreated, or another client removed them
        self._show(self._config.value)  # the configuration may have nothing new to say of the node

    def annotate(self, annotations: Mapping[str, str | None]) -> None:
        """Publish annotations of a feature on our node from now on, beside all others; None removes one.

        Their keys are in `AGENT_ANNOTATIONS`, so that they are removed from a node that shares no GPUs any more.
        """
        self._more = {**self._more, **annotations}
        self.note()

    def announce_ready(self) -> None:
        """Publish that the node accepts pods: its kubelet listens to us, and we know which shares are free.

        Until then the node lists its GPUs, and that no agent serves them yet: a share that a scheduler promises before
        may be recorded for a container that ended while no agent ran.
        """
        if not self._ready:
            self._ready = True
            self.note()

    async def announce_shutdown(self, within_s: float = 1.0) -> None:
        """Publish on the node that its agent is about to end, so that no scheduler sends a pod. While `run` still runs.

        Returns after `linger_s` seconds, in which pods that are being bound arrive (without an agent they would fail),
        or after `within_s` seconds without an answer of the API server.
        """
        self._ending = True
        self.note()
        if NODE_GPUS not in self._notes.value.annotations:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._own.publish(self._notes.value)
            await asyncio.sleep(self.linger_s)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.info("the agent's shutdown could not be announced on its node: %s", why)

    async def gpus_before(self, within_s: float) -> tuple[Gpu, ...]:
        """Return the GPUs that our node listed before we started, by position; none if it cannot be read in time."""
        if not await wait_within(within_s, self._read.wait()):
            _log.warning("the positions of the GPUs may differ from before: our node could not be read yet")
        return self._before

    def note(self) -> None:
        """Publish on the node its GPUs and how they are given to pods, as they are now."""
        config = self._config.value
        if not (config.facts.started and config.labelled):
            return  # an annotation about GPUs that the driver does not show now must not be lost
        node = self._state.node
        shares, unhealthy = node.shares, {uuid: block.everyone for uuid, block in node.blocks.items() if block.everyone}
        if not shares.any_listed:
            with contextlib.suppress(TooManySharesError):
                shares = shares.with_inventory(
                    Inventory(self._before, order=self._before),
                    self._settings.exclude_gpus,
                    mig=config.shares.mig,
                )
            unhealthy = {shared.gpu.uuid: config.why_none for shared in shares.gpus}
        if config.why_not_offered:
            unhealthy = {shared.gpu.uuid: config.why_not_offered for shared in shares.gpus}
        offered = node.shares.any_listed and not config.why_not_offered
        away = self._ending or (offered and not self._ready)
        uses = {shared.gpu.uuid: node.use(shared) for shared in shares.gpus}
        gpus = node_gpus(
            shares,
            config.facts.inventory,
            unhealthy,
            config.policy,
            away=away,
            claims=config.claims,
            mig_domain=self._settings.domain_of_mig,
            held_shares={uuid for uuid, use in uses.items() if use.shares},
            held_whole={uuid for uuid, use in uses.items() if use.whole},
            cordoned={uuid for uuid, block in node.blocks.items() if block.new_pods},
            groups=self._groups(shares, config.delivery),
        )
        notes = NodeMetadata(
            labels={**self._outdated, **node_labels(shares, config.facts.inventory, config.policy, config.limits)},
            annotations={
                NODE_GPUS: write_node_gpus(gpus),
                NODE_LIMITS: write_node_limits(config.limits) if config.limits.gpus else None,
                **self._more,
            },
        )
        self._notes.change(notes)

    def _groups(self, shares: Shares, delivery: Delivery) -> Mapping[str, tuple[int, ...]]:
        """Return the groups of device nodes that are not open to every user, by GPU; see `ListedGpu.groups`."""
        found: dict[str, set[int]] = {}
        for gpu in (shared.gpu for shared in shares.gpus):
            for path in gpu_nodes([gpu], delivery):
                with contextlib.suppress(OSError):  # a container that is not privileged does not see it
                    status = (self._dev / path.removeprefix("/dev/")).stat()
                    if closed(status.st_mode):
                        found.setdefault(gpu.uuid, set()).add(status.st_gid)
        return {uuid: tuple(sorted(groups)) for uuid, groups in found.items()}

    async def _publish(self) -> NoReturn:
        await self._notes.after(0)  # nothing is published before the GPUs are known
        await self._own.keep(self._notes)

    def _show(self, config: NodeConfig) -> None:
        left = self._had_condition and not self._condition.version  # by an earlier agent
        if config.facts.started and (left or config.condition != self._condition.value):
            self._condition.set(config.condition)
        self.note()


@dataclass(eq=False, repr=False)
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
                        await self._self.put_condition(None)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            _log.warning("the node could not be cleaned up; our labels and annotations may still be on it: %s", why)
