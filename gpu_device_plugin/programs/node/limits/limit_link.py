"""Meet the node's limit helper in its two files: say which limits running containers are to have, and why not yet."""

from __future__ import annotations

import logging
import time
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from gpu_device_plugin import files
from gpu_device_plugin.aio.waiting import in_thread
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.core.contract.limitfiles import (
    LARGEST,
    STATE_FILE,
    WANTED_FILE,
    LimitFileError,
    read_state,
    read_wanted,
    write_wanted,
)
from gpu_device_plugin.core.node.limits import limit_setting as setting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import NoReturn

    from gpu_device_plugin.aio.observable import Observable
    from gpu_device_plugin.core.contract.limitfiles import LimitKey, LimitsState, MemoryLimit
    from gpu_device_plugin.core.node.holdings import Holding
    from gpu_device_plugin.core.node.use.process_use import Place

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class LimitLink:
    """Keeps `WANTED_FILE` in step with the limits now, and follows `STATE_FILE`.

    Does nothing on a node where no limit changes. A file that cannot be written or read changes nothing but `reasons`.
    """

    _directory: Path
    """The setting `memory_dir`."""
    _holdings: Callable[[], Iterable[Holding]]
    """Returns what the containers of this node hold now."""
    _limits_now: Observable[Mapping[Place, int]]
    """MiB for the containers whose limit may be another than when they started."""
    _: KW_ONLY
    soft: Callable[[], bool] = lambda: False
    """Returns whether what a container is guaranteed is its soft limit; after a change of it call `changed`."""
    poll_s: float = 2.0
    """Seconds between two looks at the helper's file, and at the running containers."""
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    """Returns the seconds since the machine started."""

    def __post_init__(self) -> None:
        self.reasons: Mapping[Place, str] = {}
        """Why a limit that the helper was told is not set. It may be right all the same, if it is that of the start."""
        self._wanted: Mapping[LimitKey, MemoryLimit] | None = None
        """What is in the file; None: not known, or not written."""
        self._before: Mapping[LimitKey, MemoryLimit] = {}
        self._unwritten = ""
        self._worker = Worker(self._look)
        self.changed = self._worker.wake
        """Tells the helper soon: containers have started or ended, or their limits are others."""

    async def run(self) -> NoReturn:
        """Follow the limits and the helper until cancelled; leaves the file as it is, for containers run on."""
        self._take_up()
        await self._worker.run(self._limits_now)

    async def _look(self) -> float | None:
        await self._tell()
        # Nobody's limit is changed on most nodes, where nothing is looked at either.
        return self.poll_s if self._before else None

    def _take_up(self) -> None:
        """Begin with what our predecessor wanted, of which containers may run on."""
        try:
            content, _ = files.read_below(self._directory, WANTED_FILE, LARGEST)
            self._wanted = self._before = read_wanted(content.decode(errors="replace"))
        except FileNotFoundError:
            self._wanted = {}
        except (OSError, LimitFileError) as error:
            _log.warning("what the limit helper was told is not known, and is written anew", extra={"why": str(error)})

    async def _tell(self) -> None:
        found = setting.wanted_limits(self._holdings(), self._limits_now.value, self._before, soft=self.soft())
        wanted = dict(found.values())
        self._before = wanted
        self.reasons = {place: why for place, why in self.reasons.items() if place in found}
        if wanted != self._wanted or (wanted and not (self._directory / WANTED_FILE).exists()):
            await in_thread(self._write, wanted)
        state: LimitsState | str = self._unwritten
        if found and not state:
            state = await in_thread(self._state)
        known, self.reasons = self.reasons, setting.reasons(found, state, self.clock())
        for place, why in self.reasons.items():
            if why not in {known.get(place), setting.NOT_YET}:
                extra = {**dict(zip(("pod_uid", "container", "gpu"), place, strict=True)), "why": why}
                level = logging.INFO if why == setting.NOT_THERE else logging.WARNING  # the helper is optional
                _log.log(level, "the limit of a running container is not changed", extra=extra)

    def _write(self, wanted: Mapping[LimitKey, MemoryLimit]) -> None:
        try:
            files.replace_below(self._directory, WANTED_FILE, write_wanted(wanted).encode(), lasting=False)
        except OSError as error:
            why = f"the agent cannot write {self._directory / WANTED_FILE} ({error.strerror})"
            if why != self._unwritten:
                _log.error("the limit helper cannot be told which limits are wanted", extra={"why": why})
            self._wanted, self._unwritten = None, why
        else:
            self._wanted, self._unwritten = wanted, ""

    def _state(self) -> LimitsState | str:
        try:
            content, _ = files.read_below(self._directory, STATE_FILE, LARGEST)
            return read_state(content.decode(errors="replace"))
        except FileNotFoundError:
            return setting.NOT_THERE
        except OSError as error:
            return f"{self._directory / STATE_FILE} cannot be read: {error.strerror}"
        except LimitFileError as error:
            return str(error)
