"""Keep what the metrics say of this node's containers and GPUs in step with what is known of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpu_device_plugin.core.node import use_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.core.model.limits import GpuRung, LimitState
    from gpu_device_plugin.core.model.pods import Pod
    from gpu_device_plugin.core.node.over_use import Place
    from gpu_device_plugin.core.node.use_series import ContainerSeries, GpuSeries, Names
    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.use import UseWatch


class UseSeries:
    """Joins the newest reading of the use with what containers hold at the moment of a scrape.

    Nothing is kept between two scrapes but the names of the pods that the last one showed.
    """

    def __init__(
        self,
        watch: UseWatch,
        limits: Latest[Mapping[Place, LimitState]],
        state: NodeState,
        *,
        rungs: Callable[[], Mapping[int, GpuRung]],
        driver: Callable[[], str | None],
        pods: Callable[[], Iterable[Pod]] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read these when asked.

        Args:
            watch: who holds and who uses what.
            limits: the state of each container's limit.
            state: the node.
            rungs: returns the means of limiting new containers on each GPU, by position.
            driver: returns the driver's version; None: unknown.
            pods: returns the pods of this node in the API; None: there is no API.
            clock: returns monotonic seconds.
        """
        self._watch = watch
        self._limits = limits
        self._state = state
        self._rungs = rungs
        self._driver = driver
        self._pods = pods
        self._clock = clock
        self._names: Names = {}

    def __repr__(self) -> str:
        return f"<UseSeries: {len(self._names)} pods at the last scrape>"

    def containers(self) -> tuple[ContainerSeries, ...]:
        """Return the containers on GPUs."""
        holdings, reading = self._watch.holdings(), self._watch.reading.value
        self._names = use_series.names(self._names, holdings, reading)
        there = None if self._pods is None else {pod.kubelet_uid for pod in self._pods() if not pod.ended}
        limits, fresh = self._limits.value, self._fresh
        return tuple(use_series.containers(holdings, reading, limits, self._names, fresh=fresh, there=there))

    def gpus(self) -> tuple[GpuSeries, ...]:
        """Return the shared GPUs."""
        reading = self._watch.reading.value
        return tuple(use_series.gpus(self._state.node, reading, self._rungs(), self._driver(), fresh=self._fresh))

    @property
    def _fresh(self) -> bool:
        return use_series.fresh(self._watch.reading.value, self._clock(), self._watch.interval_s)
