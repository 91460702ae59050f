"""A scripted MPS supervisor: it reads what is wanted and writes what it runs, and does to GPUs what a test says."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus

_EVERY_S = 0.01
_LONG_S = 3600.0


@dataclass
class Supervisor:
    """Daemons without processes, which start and stop at once unless they are held."""

    directory: Path
    held: bool = False
    """Daemons stay in the state of their start, or of their end, and keep the limit that they have."""
    broken: dict[str, MpsGpu] = field(default_factory=dict)
    """GPUs whose daemon is in this state while it is wanted."""
    on_gpu: Callable[[str, MpsStatus], None] = lambda _uuid, _status: None
    """Called when the daemon of a GPU gets into another state."""
    history: list[tuple[str, MpsStatus]] = field(default_factory=list)
    """Every state of every GPU, in the order of time."""
    _gpus: dict[str, MpsGpu] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> Mapping[str, int]:
        """What the agent has told it to run."""
        try:
            return MPS_FILES.read_wanted((self.directory / WANTED_FILE).read_text())
        except (FileNotFoundError, IsADirectoryError):
            return {}

    def status(self, uuid: str) -> MpsStatus:
        """Return the state of the daemon of one GPU."""
        return self._gpus[uuid].status if uuid in self._gpus else MpsStatus.STOPPED

    def start(self) -> None:
        """Start the program, which knows of no daemon."""
        self._gpus.clear()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it as SIGTERM does: daemons end, and it says so."""
        await self._end()
        for uuid in self._gpus:
            self._put(uuid, MpsGpu(MpsStatus.STOPPED))
        self._write()

    async def vanish(self) -> None:
        """Kill it, and let an hour pass: what it wrote last stays."""
        await self._end()
        self._write(ago_s=_LONG_S)

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            wanted = self.wanted
            for uuid in sorted({*wanted, *self._gpus}):
                self._put(uuid, self._next(uuid, wanted=uuid in wanted))
            self._write()
            await asyncio.sleep(_EVERY_S)

    def _next(self, uuid: str, *, wanted: bool) -> MpsGpu:
        status = self.status(uuid)
        running = status not in {MpsStatus.STOPPED, MpsStatus.STARTING, MpsStatus.STOPPING}
        if wanted:
            if status in {MpsStatus.STOPPED, MpsStatus.STOPPING} or (self.held and not running):
                return MpsGpu(MpsStatus.STARTING)
            if uuid in self.broken:
                return self.broken[uuid]
            limit = self._gpus[uuid].limit_mib if self.held else self.wanted[uuid]
            return MpsGpu(MpsStatus.READY, "", str(self.directory / uuid[:8]), 1, (4711,), limit)
        if status is MpsStatus.STOPPED or (status is MpsStatus.STOPPING and not self.held):
            return MpsGpu(MpsStatus.STOPPED)
        return MpsGpu(MpsStatus.STOPPING)

    def _put(self, uuid: str, gpu: MpsGpu) -> None:
        if self.status(uuid) is not gpu.status:
            self.history.append((uuid, gpu.status))
            self.on_gpu(uuid, gpu.status)
        self._gpus[uuid] = gpu

    def _write(self, ago_s: float = 0.0) -> None:
        new = self.directory / f".{STATE_FILE}"
        beat_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ago_s
        new.write_text(MPS_FILES.write_state(dict(self._gpus), beat_s))
        new.replace(self.directory / STATE_FILE)
