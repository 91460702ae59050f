"""Serve in the mode that is wanted, and change over once nobody holds GPUs in the other mode."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, within
from gpu_device_plugin.node.rules.serving_mode import Serving, ServingMode, serving

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_device_plugin.features.claims.dra_driver import DraDriver
    from gpu_device_plugin.features.conflicts.node import ConflictingPlugins
    from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
    from gpu_device_plugin.kubelet.statefile import StateFile
    from gpu_device_plugin.node.node_api import NodeApi
    from gpu_device_plugin.node.node_events import Reports
    from gpu_device_plugin.node.node_state import NodeState
    from gpu_device_plugin.node.reconciler import Reconciler
    from gpu_device_plugin.node.rules.node_config import NodeConfig

_log = logging.getLogger(__name__)

_LABEL_S = 2.0
"""How long the first registration waits for the node's label, in seconds. Pods fail until we register."""
_PART_S = 5.0
"""How long a kubelet has for the last registration, in seconds."""
_GPUS_S = 10.0
"""How long the kubelet of a node with claims waits for our GPUs, in seconds."""


@dataclass(eq=False, repr=False)
class ServingModeSwitch:
    """Runs either the device plugin or the DRA driver."""

    _config: Observable[NodeConfig]
    _state: NodeState
    _api: NodeApi
    _reports: Reports
    _: KW_ONLY
    registration: RegistrationLoop
    reconciler: Reconciler
    conflicting_plugins: ConflictingPlugins
    last_mode: StateFile
    """The serving mode of the last agent, and then ours."""

    def __post_init__(self) -> None:
        self.serving = Observable(Serving(ServingMode.DEVICE_PLUGIN))
        """The mode in force. Not set before the first decision."""
        self.dra: DraDriver | None = None
        """To be set before `run`; None: the agent runs without the Kubernetes API."""
        self.deregistering = False
        """The plugin registers for the last time, and has the kubelet call nothing before containers start."""
        self._changed = asyncio.Event()
        self.registered = asyncio.Event()
        """To be set when the kubelet has registered a resource of the plugin."""
        self._reported = self.serving.value

    def look(self, _new: object = None) -> None:
        """Decide again soon: a setting, a label or a holder may have changed."""
        self._changed.set()

    async def alive(self) -> tuple[str, ...]:
        """Return the faults that only a restart can resolve, as sentences."""
        if self.dra is not None and self.serving.value.mode is ServingMode.DRA:
            return () if await self.dra.loop.answer_ourselves() else ("the DRA driver's socket does not answer",)
        serves = self._config.value.shares.any_listed and not self.conflicting_plugins.others.value
        works = not serves or await self.registration.answer_ourselves()
        return () if works else ("the agent's sockets do not answer",)

    async def ready(self) -> tuple[str, ...]:
        """Return the conditions that this node lacks to serve pods, as sentences."""
        config, serving = self._config.value, self.serving.value
        if not config.shares.any_listed:
            return (config.why_none,)
        unseen = () if config.facts.watched else (config.why_none,)
        certain = self._state.node.ledger.certain
        unread = () if certain else ("the kubelet's checkpoint cannot be read; see the log",)
        claims = None if self.dra is None or serving.mode is ServingMode.DEVICE_PLUGIN else self.dra
        unmet = self.registration.unmet() if claims is None else claims.unmet()
        unrecovered = "" if self.dra is None else self.dra.unrecovered
        waits = tuple(filter(None, (unrecovered, serving.waits)))
        return (*unseen, *self.conflicting_plugins.unmet(), *unread, *waits, *unmet)

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        if not await within(_GPUS_S if self.last_mode.read() == ServingMode.DRA else None, self._any_gpu()):
            _log.warning("claims are served before a GPU is found: pods that end have to give theirs back")
        before = await self._begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._config.follow(self.look), name="follow the mode that is wanted")
            tasks.create_task(self._state.nodes.follow(self.look), name="follow those who hold GPUs")
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
                    self.last_mode.write(now.mode)
                    task = tasks.create_task(self._serve(now.mode), name=f"serve by {now.mode}")
                await self._changed.wait()

    async def _any_gpu(self) -> None:
        """Wait until there is a GPU; without one nothing is registered as a device plugin."""
        await self._config.meets(lambda config: config.shares.any_listed)

    async def _begin(self) -> ServingMode | None:
        """Find out who holds GPUs, and return the mode of the previous agent; None if unknown."""
        if self.dra is None:
            return None
        last = self.last_mode.read()
        before = ServingMode(last) if last in list(ServingMode) else None
        known = await within(_LABEL_S, self._config.meets(lambda config: config.labelled))
        if not known and before is not None:
            _log.warning("our node could not be read yet: it is served as by the previous agent, by %s", before)
        await self.dra.take_over(served=before is ServingMode.DRA)
        await self.reconciler.prepare()
        return before

    async def _parted(self) -> bool:
        """Part from the kubelet as a device plugin; return whether nobody holds devices of it.

        Kubelets up to 1.36.3 call PreStartContainer of the plugin that registered last for each container that asks for
        its resource, also where DRA serves that. The container would not start for as long as the kubelet remembers the
        plugin, so the last registration is one without that call, and with nothing to allocate.
        """
        self._state.close(closing=True)
        self.deregistering = True
        before = dict(self.registration.registrations)
        last = asyncio.create_task(self.registration.run(), name="the last registration")
        try:
            await within(_PART_S, self._registered_since(before))
        finally:
            last.cancel()
            await asyncio.wait({last})
            self.deregistering = False
        if not last.cancelled() and (error := last.exception()) is not None:
            raise error
        # Without a registered plugin nothing can be allocated, so these records are complete.
        await self.reconciler.prepare()
        return self.dra is not None and not self._holders_of_plugin(self.dra)

    async def _registered_since(self, before: Mapping[str, int]) -> None:
        registrations = self.registration.registrations
        while any(registrations[name] == count for name, count in before.items()):
            self.registered.clear()
            await self.registered.wait()

    def _decide(self, before: ServingMode | None) -> Serving:
        if self.dra is None:
            return Serving(ServingMode.DEVICE_PLUGIN)
        config = self._config.value
        wanted = config.wanted_mode if config.labelled or before is None else before
        holders = {ServingMode.DEVICE_PLUGIN: self._holders_of_plugin(self.dra), ServingMode.DRA: self.dra.holders}
        decision = serving(wanted, before, holders)
        if decision != self._reported:
            self._reports.serving_changed(decision)
            self._reported = decision
        return decision

    def _holders_of_plugin(self, dra: DraDriver) -> frozenset[str]:
        held = self._state.node.ledger.holds.keys() - dra.device_ids
        if not held:
            return frozenset()
        pods = {pod.kubelet_uid: pod for pod in self._api.pods.values()}
        names = {
            f"pod {pods[entry.pod_uid].namespace}/{pods[entry.pod_uid].name}"
            if entry.pod_uid in pods
            else f"the pod with UID {entry.pod_uid}"
            for entry in self.reconciler.checkpoint_entries.value
            if entry.device_ids & held
        }
        return frozenset(names) or frozenset({"a pod that has just come or gone"})

    def _apply(self, now: Serving) -> None:
        self._state.close(closing=bool(now.waits) and now.mode is ServingMode.DEVICE_PLUGIN)
        if now != self.serving.value or not self.serving.version:
            self.serving.set(now)
        if self.dra is not None and now.mode is ServingMode.DRA:
            self.dra.serve(closing=bool(now.waits))

    async def _serve(self, mode: ServingMode) -> NoReturn:
        if self.dra is not None and mode is ServingMode.DRA:
            await self.dra.run()
        await self._any_gpu()
        await self._serve_while_alone()

    async def _read_on(self) -> NoReturn:
        while True:
            await self.reconciler.prepare()
            await asyncio.sleep(self.reconciler.interval_s)

    async def _serve_while_alone(self) -> NoReturn:
        """Keep resources registered and the ledger reconciled while there is no other plugin; report others.

        Beside another plugin the kubelet's records are read on: ours end, and its pods get GPUs of ours.
        """
        self.conflicting_plugins.look()  # before the first registration, whichever task runs first
        task: asyncio.Task[NoReturn] | None = None
        refused = False
        version = -1
        async with asyncio.TaskGroup() as tasks:
            while True:
                version, others = await self.conflicting_plugins.others.after(version)
                self.conflicting_plugins.report()
                if task is None or bool(others) != refused:
                    if task is not None:
                        task.cancel()
                        await asyncio.wait({task})
                    if refused and not others:
                        _log.info("GPUs are shared again: no other plugin hands them out")
                    doing = self._read_on() if others else together(self.registration.run(), self.reconciler.run())
                    task = tasks.create_task(doing, name="read on" if others else "offer and reconcile")
                refused = bool(others)
