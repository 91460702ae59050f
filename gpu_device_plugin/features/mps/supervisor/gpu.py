"""Bring one GPU to its wanted MPS state, step by step, and keep it there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NoReturn

from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_daemon import Act, Daemon, Seen, Server, decide, did, failed
from gpu_device_plugin.features.mps.supervisor.nvidia import MpsError, Nvidia
from gpu_device_plugin.features.mps.supervisor.places import GpuDirectory

_log = logging.getLogger(__name__)

_MOST_SERVERS = 8
"""Servers that are asked for their clients; there is one for each user, and one for all with -multiuser-server."""
_LARGEST_LOG = 8 << 20
"""Bytes of a log of MPS, which is in the node's memory and never shortened by MPS."""


@dataclass(frozen=True, slots=True)
class MpsTimings:
    """The intervals at which a GPU is looked at, in seconds."""

    look_s: float = 0.5
    """Whether the daemon's process is there, which costs nearly nothing."""
    ask_s: float = 5.0
    """Commands to a daemon that is ready: each is a process of its own."""
    ask_soon_s: float = 1.0
    """Commands to one that is not."""
    mode_s: float = 30.0
    """The compute mode, which somebody else may set: nvidia-smi takes a second where the driver has to load first."""
    mode_soon_s: float = 5.0
    """The same after a failure."""


TIMINGS = MpsTimings()


@dataclass(eq=False)
class GpuKeeper:
    """Owns the daemon and the compute mode of one GPU; nothing is looked at before `run`."""

    _place: GpuDirectory
    """The GPU's directory."""
    _driver: Nvidia
    _on_change: Callable[[], None]
    """Called when `told` is another."""
    _: KW_ONLY
    before: str
    """The compute mode to set back, from an earlier supervisor; empty: none."""
    timings: MpsTimings = TIMINGS
    clock: Callable[[], float] = time.monotonic
    """Seconds, which never go back."""
    told: MpsGpu = field(default=MpsGpu(MpsStatus.STOPPED), init=False)
    """What the agent is told."""
    done: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set while there is nothing to keep: no daemon is wanted, and the GPU was seen to be as it was before."""

    def __post_init__(self) -> None:
        self._daemon = Daemon(before=self.before)
        self._on_disk = self.before
        self._wanted_mib: int | None = None
        self._worker = Worker(self._step)
        self._mode: str | None = None
        self._mode_until_s = 0.0
        self._silence = ""
        self._servers: tuple[Server, ...] = ()
        self._ask_at_s = 0.0

    def want(self, limit_mib: int | None) -> None:
        """Change what is wanted: a daemon with this limit, or none."""
        if limit_mib != self._wanted_mib:
            self._wanted_mib = limit_mib
            self.done.clear()
            self._worker.wake()

    async def run(self) -> NoReturn:
        """Keep the GPU until cancelled. While there is nothing to keep it is not looked at."""
        await self._worker.run()

    def _pause_s(self) -> float:
        if self._daemon.running or self._daemon.status is not MpsStatus.FAILED:
            return self.timings.look_s
        # Without a daemon every look goes through all processes of the node.
        until_retry_s = self._daemon.retry_s - self.clock()
        return min(until_retry_s, self.timings.mode_soon_s) if until_retry_s > 0 else self.timings.mode_soon_s

    async def _step(self) -> float | None:
        """Look and act once; return the seconds until the next look, None if there is nothing to keep."""
        seen = await self._observe()
        self._daemon, act = decide(self._daemon, seen, self.clock())
        self._publish()
        if act is None:
            if self._wanted_mib is not None or self._daemon != Daemon():
                return self._pause_s()
            self._mode_until_s = 0.0  # until somebody wants it again the mode may be changed
            self.done.set()
            return None
        try:
            self._write_down()
            await self._do(act)
        except (MpsError, OSError) as error:
            why = str(error)
            self._daemon = failed(self._daemon, act, why, self.clock())
            # Of a tenant comes nothing here: these are texts of the driver and of the system.
            _log.warning("a step failed", extra={"gpu": self._place.uuid, "step": str(act), "why": why})
        else:
            self._daemon = did(self._daemon, act, seen, self.clock())
            _log.info("a step is done", extra={"gpu": self._place.uuid, "step": str(act)})
            self._write_down()
        finally:
            self._mode_until_s = self._ask_at_s = 0.0  # both may have changed
        self._publish()
        return 0.0

    def _publish(self) -> None:
        before, self.told = self.told, self._daemon.as_state(str(self._place.pipe))
        if self.told == before:
            return
        if (self.told.status, self.told.why) != (before.status, before.why):
            level = logging.WARNING if self.told.why else logging.INFO
            found = {"gpu": self._place.uuid, "status": str(self.told.status)}
            _log.log(level, "the state of a GPU", extra=found | ({"why": self.told.why} if self.told.why else {}))
        self._on_change()

    def _write_down(self) -> None:
        if self._daemon.before != self._on_disk:
            self._place.remember(self._daemon.before)
            self._on_disk = self._daemon.before

    # --- Looking ------------------------------------------------------------------------------------------------------

    async def _observe(self) -> Seen:
        alive = self._driver.alive(self._place)
        await self._look_at_mode()
        # A daemon that quits takes commands no more.
        if alive and self.clock() >= self._ask_at_s and self._daemon.quit_s is None:
            await self._ask()
            alive = self._driver.alive(self._place)  # one that has ended has not fallen silent
        if not alive:
            self._silence, self._servers, self._ask_at_s = "", (), 0.0
        return Seen(self._wanted_mib, self._mode, alive, self._silence, self._servers)

    async def _look_at_mode(self) -> None:
        if self.clock() < self._mode_until_s:
            return
        try:
            self._mode = await self._driver.compute_mode(self._place.uuid)
            pause_s = self.timings.mode_s if self._mode else self.timings.mode_soon_s
        except MpsError as error:
            self._mode, pause_s = None, self.timings.mode_soon_s
            _log.warning("the compute mode is unknown", extra={"gpu": self._place.uuid, "why": str(error)})
        self._mode_until_s = self.clock() + pause_s

    async def _ask(self) -> None:
        try:
            # NVIDIA's device plugin takes the answer to this command for the proof of a daemon that works.
            answer = await self._driver.command(self._place, "get_default_active_thread_percentage")
            float(answer)
            pids = await self._server_pids()
            self._servers = tuple([await self._server(pid) for pid in pids])
            self._silence = ""
        except ValueError:
            self._silence = f"the daemon answers what is not understood: {answer[:100]}"
        except MpsError as error:
            self._silence = str(error)
        self._shorten_logs()
        healthy = not self._silence and self.told.status is MpsStatus.READY
        self._ask_at_s = self.clock() + (self.timings.ask_s if healthy else self.timings.ask_soon_s)

    async def _server_pids(self) -> tuple[int, ...]:
        return _pids(await self._driver.command(self._place, "get_server_list"))[:_MOST_SERVERS]

    async def _server(self, pid: int) -> Server:
        try:
            status = await self._driver.command(self._place, f"get_server_status {pid}")
            clients = _pids(await self._driver.command(self._place, f"get_client_list {pid}"))
        except MpsError:
            # It may have ended between two commands; a daemon that hangs is noticed by the next first command.
            return Server(pid)
        return Server(pid, len(clients), fault="FAULT" in status)

    def _shorten_logs(self) -> None:
        for name in ("control.log", "server.log"):
            path = self._place.log / name
            with contextlib.suppress(OSError):
                if path.stat().st_size > _LARGEST_LOG:
                    os.truncate(path, 0)

    # --- Acting -------------------------------------------------------------------------------------------------------

    async def _do(self, act: Act) -> None:
        match act:
            case Act.SET_EXCLUSIVE:
                await self._driver.set_compute_mode(self._place.uuid, "EXCLUSIVE_PROCESS")
            case Act.SET_BACK:
                await self._driver.set_compute_mode(self._place.uuid, self._daemon.before)
            case Act.START:
                await self._driver.start(self._place)
            case Act.SET_LIMIT:
                await self._limit(self._wanted_mib or 0)
            case Act.QUIT:
                await self._driver.command(self._place, "quit")
            case Act.KILL:
                self._driver.kill(self._place)

    async def _limit(self, mib: int) -> None:
        uuid = self._place.uuid
        # First for servers that start from now on: whichever is listed after that may have started before it.
        await self._driver.command(self._place, f"set_default_device_pinned_mem_limit {uuid} {mib}M")
        for pid in await self._server_pids():
            await self._driver.command(self._place, f"set_device_pinned_mem_limit {pid} {uuid} {mib}M")


def _pids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdecimal() and len(word) < 10)
