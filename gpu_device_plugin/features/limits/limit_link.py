"""Exchange files with the limit helper: the limits that running containers should have, and why some are not set."""

from __future__ import annotations

import logging
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.limits.contract import LIMIT_FILES
from gpu_device_plugin.features.limits.rules import limit_setting as setting
from gpu_device_plugin.file_link import FileLink, HelperWords
from gpu_device_plugin.kubelet.procfs import boot_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import NoReturn

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.features.limits.contract import LimitsState
    from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
    from gpu_device_plugin.model.allocations import Place

_log = logging.getLogger(__name__)

_WORDS = HelperWords("the limit helper", setting.NOT_THERE, setting.NOT_THERE, setting.SILENT, setting.BEAT_S)


@dataclass(eq=False, repr=False)
class LimitLink:
    """Tells the limit helper the limits now, and follows what comes of them.

    Does nothing on a node where no limit changes. A file that cannot be written or read changes nothing but `reasons`.
    """

    _directory: Path
    """The setting `memory_dir`."""
    _holders: Callable[[], Iterable[ContainerGpus]]
    """Returns what the containers of this node hold now."""
    _allowed_now: Observable[Mapping[Place, int]]
    """MiB for the containers whose limit may be another than when they started."""
    _: KW_ONLY
    soft: Callable[[], bool] = lambda: False
    """Returns whether what a container is guaranteed is its soft limit; after a change of it call `changed`."""
    poll_s: float = 2.0
    """Seconds between two looks at the helper's file, and at the running containers."""
    clock: Callable[[], float] = boot_time
    """Returns the seconds since the machine started."""

    def __post_init__(self) -> None:
        self.reasons: Mapping[Place, str] = {}
        """Why a limit that the helper was told is not set. It may be right all the same, if it is that of the start."""
        self._files = FileLink(self._directory, LIMIT_FILES, _WORDS, self.clock)
        self._worker = Worker(self._step)
        self.changed = self._worker.wake
        """Tells the helper soon: containers have started or ended, or their limits are others."""

    async def run(self) -> NoReturn:
        """Follow the limits and the helper until cancelled; leaves the file as it is, for containers run on."""
        self._files.take_up()
        await self._worker.run(self._allowed_now)

    async def _step(self) -> float | None:
        await self._exchange()
        # Nobody's limit is changed on most nodes, where nothing is looked at either.
        return self.poll_s if self._files.wanted or self._files.unwritten else None

    async def _exchange(self) -> None:
        found = setting.wanted_limits(self._holders(), self._allowed_now.value, self._files.wanted, soft=self.soft())
        self.reasons = {place: why for place, why in self.reasons.items() if place in found}
        await in_thread(self._files.want, dict(found.values()))
        state: LimitsState | str = self._files.unwritten
        if found and not state:
            state = await in_thread(self._files.read_state)
        known, self.reasons = self.reasons, setting.reasons(found, state)
        for place, why in self.reasons.items():
            if why not in {known.get(place), setting.NOT_YET}:
                extra = {**dict(zip(("pod_uid", "container", "gpu"), place, strict=True)), "why": why}
                level = logging.INFO if why == setting.NOT_THERE else logging.WARNING  # the helper is optional
                _log.log(level, "the limit of a running container is not changed", extra=extra)
