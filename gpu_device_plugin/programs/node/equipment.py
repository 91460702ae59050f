"""Take over the driver's GPUs and their health into the node's state."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.shares import TooManySharesError
from gpu_device_plugin.core.node.equipping import out_of_service, remarks
from gpu_device_plugin.hardware.beliefs import State
from gpu_device_plugin.settings.knobs import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from gpu_device_plugin.core.model.gpus import Gpu, Inventory
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.hardware.beliefs import HardwareView
    from gpu_device_plugin.hardware.monitor import Hardware
    from gpu_device_plugin.node_state import NodeState

_log = logging.getLogger(__name__)

_REMEMBER_S = 2.0
"""How long new GPUs wait for the positions that they had before, in seconds. Pods fail until we register."""


class ListFullError(Exception):
    """The device list is full of MIG instances that are not offered any more; a new process lists them no longer."""


class Equipment:
    """Keeps the GPUs in the node's state in step with the hardware."""

    def __init__(
        self,
        hardware: Hardware,
        state: NodeState,
        metrics: m.Metrics,
        gpus_before: Callable[[float], Awaitable[tuple[Gpu, ...]]] | None,
        *,
        excluded: tuple[str, ...],
        mig: MigMode,
        on_equipped: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to follow `hardware` into `state`, without the GPUs `excluded` (UUIDs or indexes).

        `mig` is how pods get MIG instances until `give_instances` says otherwise; `on_equipped` is called when GPUs
        were taken over, before a list of them is made.
        `gpus_before` returns, within the given seconds, the GPUs that the node had before, by position; None: unknown.
        """
        self._hardware = hardware
        self._state = state
        self._metrics = metrics
        self._excluded = excluded
        self._mig = mig
        self._on_equipped = on_equipped
        self._gpus_before = gpus_before
        self._paused = Latest(value=False)
        self.there = asyncio.Event()
        """Set as soon as there was a GPU to share, and never cleared."""
        self.views: Latest[HardwareView] = Latest(hardware.view.value)
        """The view that was taken over last."""
        self.remarks: tuple[str, ...] = ()
        """Remarks about this node for people, as sentences."""

    @property
    def why_none(self) -> str:
        """Why no GPU is shared, if none is."""
        view = self._hardware.view.value
        return (view.state is State.WATCHING and self._state.node.shares.why_none) or view.sentence

    async def run(self) -> NoReturn:
        """Follow the hardware until cancelled.

        Raises:
            UsageError: the share size cuts the first GPUs into more shares than a kubelet can handle.
            ListFullError: only a restart of the process can help.
        """
        logged: tuple[object, ...] = ()
        restarts, gpus_before = 0, self._gpus_before
        async for view in self._hardware.view.values():
            if view.state is not State.STARTING and (view.state, view.sentence) != logged:
                logged = (view.state, view.sentence)
                usual = view.state in {State.WATCHING, State.PAUSED}
                _log.log(logging.INFO if usual else logging.WARNING, "%s", view.sentence)
            if view.child_restarts > restarts:
                self._metrics.count(m.CHILD_RESTARTS, str(view.state), times=view.child_restarts - restarts)
            restarts = view.child_restarts
            if view.inventory.gpus and gpus_before is not None:
                self._hardware.restore_order(await gpus_before(_REMEMBER_S))
                gpus_before = None
            self._equip(self._hardware.view.value)
        raise AssertionError  # pragma: no cover (a Latest never ends)

    def give_instances(self, mig: MigMode) -> None:
        """Set how pods get MIG instances."""
        if mig is not self._mig:
            self._mig = mig
            _log.info("the way of giving MIG instances to pods changed", extra={"mig": mig.value})
            self._equip(self.views.value)

    def toggle_pause(self) -> None:
        """Release the GPUs so that they can be reset, or take them up again."""
        self._paused.set(not self._paused.value)

    async def pause_and_resume(self) -> NoReturn:
        """Follow `toggle_pause`. Ends only by cancellation."""
        async for paused in self._paused.values():
            if paused:
                await self._hardware.pause()
                _log.warning("paused: GPUs can be reset now; send SIGUSR1 again to resume")
            elif self._hardware.view.value.state is State.PAUSED:
                self._hardware.resume()
        raise AssertionError  # pragma: no cover (a Latest never ends)

    def _cut(self, before: Shares, inventory: Inventory) -> Shares:
        """Return the shares of the present GPUs; of those alone that are known, if all are too many."""
        try:
            return before.with_inventory(inventory, self._excluded, mig=self._mig)
        except TooManySharesError as error:
            if not before.gpus:
                raise UsageError(str(error)) from error
            if error.restart_helps:
                raise ListFullError(str(error)) from error
            _log.error("new GPUs are not shared", extra={"why": str(error), "once_per_s": 600})
        known = {shared.gpu.uuid for shared in before.gpus}
        there = replace(inventory, gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid in known))
        no_limit = sys.maxsize  # the known ones are in the list already
        return before.with_inventory(there, self._excluded, no_limit, mig=before.mig)

    def _equip(self, view: HardwareView) -> None:
        before = self._state.node.shares
        shares = self._cut(before, view.inventory)
        for gpu, reason in shares.left_out:
            if (gpu, reason) not in before.left_out:
                _log.warning("GPU %s is not shared: %s", gpu.label, reason, extra={"uuid": gpu.uuid})
        for shared in shares.gpus[len(before.gpus) :]:
            extra = {"uuid": shared.gpu.uuid, "model": shared.gpu.product, "shares": len(shared.shares)}
            if shared.offered:
                whole = shared.gpu.instance is not None and shares.mig is MigMode.WHOLE
                _log.info("%s is %s", shared.name, "given whole" if whole else "shared", extra=extra)
        found = remarks(shares, view.inventory, self._excluded)
        for remark in found:
            if remark not in self.remarks:
                _log.warning("%s", remark)
        self.remarks = found
        reasons = {uuid: belief.reasons for uuid, belief in view.beliefs.items()}
        unhealthy = out_of_service(reasons, shares)
        self._state.equip(shares, unhealthy, shares.links(view.inventory.links))
        self._on_equipped()  # before anybody else sees the new GPUs
        if shares.any_listed:
            self.there.set()
        self.views.set(view)
