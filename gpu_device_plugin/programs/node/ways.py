"""Serve in the way that is wanted, and change over once nobody holds GPUs in the other way."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.node.serving import Serving, Wanted, Way, serving, wanted_way
from gpu_device_plugin.programs.node.coexistence import serve_while_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.kubelet.registration_loop import RegistrationLoop
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.coexistence import Coexistence
    from gpu_device_plugin.programs.node.dra import DraDriver
    from gpu_device_plugin.programs.node.handover import Handover
    from gpu_device_plugin.programs.node.reconciler import Reconciler
    from gpu_device_plugin.programs.node.reports import Reports

_log = logging.getLogger(__name__)

_LABEL_S = 2.0
"""How long the first registration waits for the node's label, in seconds. Pods fail until we register."""
_PART_S = 5.0
"""How long a kubelet has for the last registration, in seconds."""


class Ways:
    """Runs either the device plugin or the DRA driver."""

    def __init__(
        self,
        state: NodeState,
        registration: RegistrationLoop,
        reconciler: Reconciler,
        coexistence: Coexistence,
        reports: Reports,
        *,
        handover: Handover,
        there: asyncio.Event,
        wanted: Callable[[], tuple[str, Mapping[str, str] | None]],
    ) -> None:
        """Serve the node in `state`.

        Args:
            state: the node, with our ledger.
            registration: serves as a device plugin.
            reconciler: keeps the ledger in step with the kubelet's records meanwhile.
            coexistence: looks for others who hand out GPUs of the node.
            reports: where to report.
            handover: remembers the way for the next agent.
            there: set once there is a GPU; without one nothing is registered as a device plugin.
            wanted: returns the setting `serve`, and the labels of our node; None: it was not read yet.
        """
        self._state = state
        self._registration = registration
        self._reconciler = reconciler
        self._coexistence = coexistence
        self._reports = reports
        self._handover = handover
        self._there = there
        self._wanted = wanted
        self.dra: DraDriver | None = None
        """To be set before `run`; None: the agent runs without the Kubernetes API."""
        self.serving: Latest[Serving] = Latest(Serving(Way.DEVICE_PLUGIN))
        """The way in force. Not set before the first decision."""
        self.parting = False
        """The plugin registers for the last time, and has the kubelet call nothing before containers start."""
        self._changed = asyncio.Event()
        self._registered = asyncio.Event()
        self._reported: tuple[Serving, str] = (Serving(Way.DEVICE_PLUGIN), "")

    def __repr__(self) -> str:
        return f"<Ways: {self.serving.value!r}>"

    @property
    def served_claims(self) -> bool:
        """Whether the previous agent of this node served claims."""
        return self._handover.way is Way.DRA

    def look(self, _new: object = None) -> None:
        """Decide again soon: a setting, a label or a holder may have changed."""
        self._changed.set()

    def registered(self) -> None:
        """Learn that the kubelet has registered a resource of the plugin."""
        self._registered.set()

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        before = await self._begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._state.nodes.follow(self.look), name="follow those who hold GPUs")
            task: asyncio.Task[NoReturn] | None = None
            while True:
                self._changed.clear()
                now = self._decide(before)
                if now.way is not before:
                    if task is not None:
                        task.cancel()
                        await asyncio.wait({task})
                        task = None
                    if before is Way.DEVICE_PLUGIN and not await self._parted():
                        continue
                before = now.way
                self._apply(now)
                if task is None:
                    self._handover.keep_way(now.way)
                    task = tasks.create_task(self._serve(now.way), name=f"serve by {now.way}")
                await self._changed.wait()

    async def _begin(self) -> Way | None:
        """Find out who holds GPUs, and return the way in which the previous agent served; None if unknown."""
        if self.dra is None:
            return None
        known, before = await self.dra.cluster.looked(_LABEL_S), self._handover.way
        if not known and before is not None:
            _log.warning("our node could not be read yet: it is served as by the previous agent, by %s", before)
        await self.dra.take_over(served=before is Way.DRA)
        await self._reconciler.prepare()
        return before

    async def _parted(self) -> bool:
        """Part from the kubelet as a device plugin; return whether nobody holds devices of it.

        Kubelets up to 1.36.3 call PreStartContainer of the plugin that registered last for each container that asks for
        its resource, also where DRA serves that. The container would not start for as long as the kubelet remembers the
        plugin, so the last registration is one without that call, and with nothing to allocate.
        """
        self._state.close(closing=True)
        self.parting = True
        before = dict(self._registration.registrations)
        last = asyncio.create_task(self._registration.run(), name="the last registration")
        try:
            await within(_PART_S, self._registered_since(before))
        finally:
            last.cancel()
            await asyncio.wait({last})
            self.parting = False
        if not last.cancelled() and (error := last.exception()) is not None:
            raise error
        # Without a registered plugin nothing can be allocated, so these records are complete.
        await self._reconciler.prepare()
        return self.dra is not None and not self._holders_of_plugin(self.dra)

    async def _registered_since(self, before: Mapping[str, int]) -> None:
        registrations = self._registration.registrations
        while any(registrations[name] == count for name, count in before.items()):
            self._registered.clear()
            await self._registered.wait()

    def _decide(self, before: Way | None) -> Serving:
        if self.dra is None:
            return Serving(Way.DEVICE_PLUGIN)
        wanted = self._asked(before)
        holders = {Way.DEVICE_PLUGIN: self._holders_of_plugin(self.dra), Way.DRA: self.dra.holders}
        found = serving(wanted.way, before, holders)
        if (found, wanted.ignored) != self._reported:
            self._reports.serving_changed(found, wanted.ignored)
            self._reported = found, wanted.ignored
        return found

    def _asked(self, before: Way | None) -> Wanted:
        setting, labels = self._wanted()
        if labels is None:  # our node was not read yet
            return Wanted(before) if before is not None else wanted_way(setting, {})
        return wanted_way(setting, labels)

    def _holders_of_plugin(self, dra: DraDriver) -> frozenset[str]:
        """Return the names of the pods that hold devices of the plugin."""
        held = self._state.node.ledger.holds.keys() - dra.device_ids
        if not held:
            return frozenset()
        pods = dra.cluster.followed.pods
        names = {
            f"pod {pods[entry.pod_uid].namespace}/{pods[entry.pod_uid].name}"
            if entry.pod_uid in pods
            else f"the pod with UID {entry.pod_uid}"
            for entry in self._reconciler.checkpoint_entries.value
            if entry.device_ids & held
        }
        return frozenset(names) or frozenset({"a pod that has just come or gone"})

    def _apply(self, now: Serving) -> None:
        self._state.close(closing=now.closing and now.way is Way.DEVICE_PLUGIN)
        if now != self.serving.value or not self.serving.version:
            self.serving.set(now)
        if self.dra is not None and now.way is Way.DRA:
            self.dra.serve(closing=now.closing)

    async def _serve(self, way: Way) -> NoReturn:
        if self.dra is not None and way is Way.DRA:
            await self.dra.run()
        await self._there.wait()
        await serve_while_alone(self._registration, self._reconciler, self._coexistence, self._reports)
        raise AssertionError  # pragma: no cover (it never returns)
