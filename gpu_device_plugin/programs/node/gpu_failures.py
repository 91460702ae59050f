"""Evict the pods on GPUs that have failed for longer than the grace, where the settings want that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.node.gpu_failure import Failures, on_failed
from gpu_device_plugin.core.node.health import with_cards
from gpu_device_plugin.core.telling.reported import duration
from gpu_device_plugin.hardware.beliefs import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.hardware.beliefs import HardwareView
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.evictor import Evictor
    from gpu_device_plugin.settings.node import NodeSettings


class GpuFailures:
    """Follows the health of the GPUs, and has the evictor take the pods off those that failed."""

    def __init__(
        self,
        view: Latest[HardwareView],
        state: NodeState,
        settings: Callable[[], NodeSettings],
        holdings: Callable[[], Iterable[Holding]],
        evictor: Evictor,
        *,
        again_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow `view`; while a GPU fails, look every `again_s` seconds which of its `holdings` goes next."""
        self._view = view
        self._state = state
        self._settings = settings
        self._holdings = holdings
        self._evictor = evictor
        self.again_s = again_s
        self._clock = clock
        self._failures = Failures()

    def __repr__(self) -> str:
        return f"<GpuFailures: {len(self._failures.gpus)} GPUs fail>"

    async def run(self) -> NoReturn:
        """Look at every new view. Ends only by cancellation."""
        while True:
            version, view = self._view.version, self._view.value
            watched = view.state is State.WATCHING
            beliefs = with_cards(view.beliefs, view.inventory.gpus)
            self._failures = self._failures.after(beliefs, watched=watched, now=self._clock())
            if self._settings().on_gpu_failure == "evict":
                self._evict()
            await within(self.again_s if self._failures.gpus else None, self._view.after(version))

    def _evict(self) -> None:
        now = self._clock()
        lasting = self._failures.lasting(self._settings().gpu_failure_grace_s, now)
        if not lasting:
            return
        candidates = on_failed(lasting, self._holdings())
        victims = self._evictor.next_victims(candidates)
        for pod, uuids in victims.values():
            why = "; ".join(
                f"{self._gpu(uuid)} has failed, for {duration(now - lasting[uuid].since)}: {lasting[uuid].why}"
                for uuid in sorted(uuids)
            )
            self._evictor.order(pod, uuids, "GPUFailureEvicted", why, m.GPU_FAILURE_EVICTIONS)

    def _gpu(self, uuid: str) -> str:
        shared = self._state.node.shares.by_uuid(uuid)
        return f"GPU {uuid}" if shared is None else shared.name
