"""Serve pods by ResourceClaims or by the device plugin, and switch once no GPU is held in the other mode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.features.claims.claim_store import ClaimStoreError
from gpu_device_plugin.features.claims.dra_driver import DraDriver
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.extension import NodeFeature, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode
from gpu_device_plugin.report.rules.printing import first

_log = logging.getLogger(__name__)

_LABEL_S = 2.0
"""How long the first registration waits for the node's label, in seconds. Pods fail until we register."""
_PART_S = 5.0
"""How long a kubelet has for the last registration, in seconds."""
_GPUS_S = 10.0
"""How long the kubelet of a node with claims waits for our GPUs, in seconds."""


class Claims(NodeFeature):
    """Runs either the device plugin or the DRA driver, and knows in both modes who holds GPUs by claims."""

    def __init__(self, node: NodeContext) -> None:
        """Prepare for `node`, which has the API."""
        self._config, self._state, self._api = node.config, node.state, node.api
        self._entries, self._recorded = node.entries, node.checkpoint_entries
        self._plugin = node.plugin
        self.dra = DraDriver(node, self.decide_again)
        self.serving = Observable(Serving(ServingMode.DEVICE_PLUGIN))
        """The mode in force. Not set before the first decision."""
        self._changed = asyncio.Event()
        self._reported = self.serving.value

    def decide_again(self, _new: object = None) -> None:
        """Decide again soon: a setting, a label or a holder may have changed."""
        self._changed.set()

    # --- The feature ----------------------------------------------------------------------------------------------

    def recover(self) -> Collection[str]:
        """Return the UIDs of the claims that an earlier agent prepared with shares; damaged files count."""
        try:
            prepared, damaged = self.dra.store.load()
        except ClaimStoreError:
            return frozenset()  # `take_over` reports it
        return damaged | {uid for uid, claim in prepared.items() if claim.kind is Kind.MEMORY and claim.device_ids}

    def entries(self) -> list[Observable[tuple[Allocation, ...]]]:  # noqa: D102
        return [self.dra.entries]

    def server(self) -> Claims:  # noqa: D102
        return self

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.dra.follow(), self.dra.run_api()]

    # --- Serving --------------------------------------------------------------------------------------------------

    async def alive(self) -> tuple[str, ...]:
        """Return the faults that only a restart can resolve, as sentences."""
        if self.serving.value.mode is ServingMode.DEVICE_PLUGIN:
            return await self._plugin.alive()
        return () if await self.dra.loop.answer_ourselves() else ("the DRA driver's socket does not answer",)

    async def ready(self) -> tuple[str, ...]:
        """Return the conditions that this node lacks to serve pods, as sentences."""
        serving = self.serving.value
        unmet = (self._plugin.registration if serving.mode is ServingMode.DEVICE_PLUGIN else self.dra).unmet()
        return self._plugin.lacking(*filter(None, (self.dra.unrecovered, serving.waits)), *unmet)

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        claims = self._plugin.last_mode.read() == ServingMode.DRA
        if not await wait_within(_GPUS_S if claims else None, self._plugin.any_gpu()):
            _log.warning("claims are served before a GPU is found, so that pods that end can release theirs")
        before = await self._begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._config.follow(self.decide_again), name="follow the mode that is wanted")
            tasks.create_task(self._state.nodes.follow(self.decide_again), name="follow those who hold GPUs")
            tasks.create_task(self._entries.follow(self.decide_again), name="follow what they hold")
            task: asyncio.Task[NoReturn] | None = None
            while True:
                self._changed.clear()
                now = self._decide(before)
                if now.mode is not before:
                    if task is not None:
                        task.cancel()
                        await asyncio.wait({task})
                        task = None
                    if before is ServingMode.DEVICE_PLUGIN and not await self._parted():
                        continue
                before = now.mode
                self._apply(now)
                if task is None:
                    self._plugin.last_mode.write(now.mode)
                    serving = self.dra.run() if now.mode is ServingMode.DRA else self._plugin.serve()
                    task = tasks.create_task(serving, name=f"serve by {now.mode}")
                await self._changed.wait()

    async def _begin(self) -> ServingMode | None:
        """Find out who holds GPUs, and return the mode of the previous agent; None if unknown."""
        last = self._plugin.last_mode.read()
        before = ServingMode(last) if last in list(ServingMode) else None
        known = await wait_within(_LABEL_S, self._config.wait_until(lambda config: config.labelled))
        if not known and before is not None:
            _log.warning("this node could not be read yet, and is served as by the previous agent, through %s", before)
        await self.dra.take_over(served=before is ServingMode.DRA)
        await self._plugin.reconciler.prepare()
        return before

    async def _parted(self) -> bool:
        """Part from the kubelet as a device plugin; return whether nobody holds devices of it.

        Kubelets up to 1.36.3 call PreStartContainer of the plugin that registered last for each container that asks for
        its resource, also where DRA serves that. The container would not start for as long as the kubelet remembers the
        plugin, so the last registration is one without that call, and with nothing to allocate.
        """
        self._state.close(closing=True)
        plugin = self._plugin
        plugin.deregistering = True
        now, before = plugin.registration.registrations, dict(plugin.registration.registrations)
        last = asyncio.create_task(plugin.registration.run(), name="the last registration")
        try:
            again = plugin.registered.wait_until(lambda _: all(now[name] != count for name, count in before.items()))
            await wait_within(_PART_S, again)
        finally:
            last.cancel()
            await asyncio.wait({last})
            plugin.deregistering = False
        if not last.cancelled() and (error := last.exception()) is not None:
            raise error
        # Without a registered plugin nothing can be allocated, so these records are complete.
        await plugin.reconciler.prepare()
        return not self._holders_of_plugin()

    def _decide(self, before: ServingMode | None) -> Serving:
        config = self._config.value
        wanted = config.wanted_mode if config.labelled or before is None else before
        holders = {ServingMode.DEVICE_PLUGIN: self._holders_of_plugin(), ServingMode.DRA: self.dra.holders}
        decision = choose_mode(wanted, before, holders)
        if decision != self._reported:
            if decision.waits:
                self._api.announce(_log, "ServingWaits", decision.waits, "Serve")
            else:
                sentence = f"this node serves GPUs through {decision.mode}"
                self._api.announce(_log, "Serving", sentence, "Serve", logging.INFO)
            self._reported = decision
        return decision

    def _holders_of_plugin(self) -> frozenset[str]:
        held = self._state.node.ledger.id_states.keys() - self.dra.device_ids
        if not held:
            return frozenset()
        pods = {pod.kubelet_uid: pod for pod in self._api.pods.values()}
        names = {
            f"pod {pods[entry.pod_uid]}" if entry.pod_uid in pods else f"the pod with UID {entry.pod_uid}"
            for entry in self._recorded.value
            if entry.device_ids & held
        }
        return frozenset(names) or frozenset({"a pod that has just started or ended"})

    def _apply(self, now: Serving) -> None:
        self._state.close(closing=bool(now.waits) and now.mode is ServingMode.DEVICE_PLUGIN)
        if now != self.serving.value or not self.serving.version:
            self.serving.set(now)
        if now.mode is ServingMode.DRA:
            self.dra.serve(closing=bool(now.waits))


def choose_mode(
    wanted: ServingMode, before: ServingMode | None, holders: Mapping[ServingMode, Collection[str]]
) -> Serving:
    """Return the mode in force: the wanted one as soon as nobody holds GPUs in the other.

    `before` is the mode in force until now, None: the agent has just started; `holders` are the pods or claims that
    hold GPUs in each mode, by name.
    """
    (other,) = (mode for mode in ServingMode if mode is not wanted)
    if before is None:
        before = other if holders[other] and not holders[wanted] else wanted
    if before is wanted or not holders[before]:
        return Serving(wanted)
    names = sorted(holders[before])
    hold = "hold" if len(names) > 1 else "holds"
    return Serving(
        before,
        f"this node will serve through {wanted} instead of {before} later: {first(names, 3)} still {hold} its GPUs, "
        f"and new pods get none until {'they have' if len(names) > 1 else 'it has'} ended",
    )
