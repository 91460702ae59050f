"""Supervise the driver process: read the GPUs through it, and replace it after failures and for new listings."""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.driver_process import DriverProcess
from gpu_device_plugin.hardware.gpu_health_tracker import GpuHealthTracker, HealthChange, State
from gpu_device_plugin.hardware.messages import Answer, CgroupLimit, Listing, Message
from gpu_device_plugin.model.telemetry import GpuReading, GpuTelemetry
from gpu_device_plugin.node.rules.gpu_health import HealthRules, Probe, Xid
from gpu_device_plugin.report.rules.printing import counted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MonitorTimings:
    """Intervals and timeouts, in seconds."""

    probe_every_s: float = 10.0
    answer_within_s: float = 5.0
    start_within_s: float = 30.0
    """Without persistence mode, opening the driver takes a second or two for each GPU."""
    rescan_every_s: float = 300.0
    """How often the hardware is listed again while everything works. A listing reopens the driver, which costs a second
    of CPU time on a node with eight GPUs; readings notice a failed GPU without it."""
    rescan_missing_every_s: float = 30.0
    """The same while a GPU is unhealthy, missing or cannot be listed, and while there are none: a driver finds a lost
    GPU only when it is reopened."""
    retry_from_s: float = 1.0
    """Delay before the second retry in a row of a failing driver, or listing of GPUs that are found changed; the first
    is immediate. It doubles each time."""
    retry_to_s: float = 30.0
    blind_after_s: float = 60.0
    """How long GPUs are still offered while none can be read."""
    end_within_s: float = 1.0
    """How long a killed driver process may take to end."""


_MOST_ABANDONED = 2
"""How many processes may hang in the driver, where not even SIGKILL ends them, before no more are started."""
_DEADLINES_TO_MISS = 2
"""After this many missed deadlines in a row, no GPU is offered."""
_RESTARTS_THAT_MAY_FAIL = 2
"""After this many failed attempts beyond the first, only a new container can help."""
VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/proc/driver/nvidia/version"))
_COMMAND = (sys.executable, "-m", "gpu_device_plugin.hardware.child")
_VERSION = re.compile(r"(?:^|Kernel Module\s+(?:for \S+\s+)?)(?P<version>[0-9]+(?:\.[0-9]+)+)", re.ASCII)


class HardwareContextLost(Exception):  # noqa: N818 - it names an event that only a new container undoes
    """This process and all its children have lost access to the GPUs, which may be healthy."""


class Relisting:
    """The listings of the GPUs that readings have asked for.

    MIG instances that come and go all the time, or that a listing finds and a reading does not, must not have one
    process after the other list the GPUs.
    """

    def __init__(self) -> None:
        self._times = 0
        """How often in a row the inventory was found outdated, and listed again."""
        self._seen_s = -math.inf
        self._due_s: float | None = None

    def due_s(self, now_s: float, from_s: float, to_s: float) -> float:
        """Return when the GPUs are to be listed again, after a reading at `now_s` that found the inventory outdated.

        The first listing in a row does not wait, the second waits `from_s`, and each further one twice as long, up to
        `to_s`; after as long without a reading like that, the next listing is a first one.
        """
        if self._due_s is None:
            if now_s - self._seen_s > to_s:
                self._times = 0
            self._due_s = now_s + (min(from_s * 2 ** (self._times - 1), to_s) if self._times else 0)
            self._times += 1
        self._seen_s = now_s
        return self._due_s

    def listed(self) -> None:
        """Record that a listing begins."""
        self._due_s = None


@dataclass(eq=False, repr=False)
class Hardware:
    """Watches the GPUs of a source through a driver process of its own.

    ``rules`` and ``timings`` may be replaced at any time and apply from the next observation or wait.

    Raises:
        gpu_device_plugin.hardware.fake.value_forms.DescriptionError: the source is an invalid description.
    """

    source: str
    """One of `driver.DRIVERS`, or a description as in `hardware/fake/description.py`."""
    _: KW_ONLY
    timings: MonitorTimings = field(default_factory=MonitorTimings)
    on_change: Callable[[HealthChange], None] = lambda _: None
    """Called for every change of a GPU's health, before the new view is published."""
    on_xid: Callable[[Xid], None] = lambda _: None
    library_dir: Path | None = None
    """The folder of libnvidia-ml.so.1, if the system's loader does not find it."""
    command: Sequence[str] = _COMMAND
    """Starts the driver process, with source and times as further arguments."""
    version_files: Sequence[Path] = VERSION_FILES
    """The kernel states its driver's version in the first of these that it has."""

    def __post_init__(self) -> None:
        if self.source not in driver.DRIVERS:
            from gpu_device_plugin.hardware.fake.description import read  # noqa: PLC0415 - not needed on real hardware

            read(self.source)
        self.rules = HealthRules()
        self._beliefs = GpuHealthTracker(lambda: self.rules, self.on_change, self.on_xid)
        self.view = self._beliefs.view
        self.readings = self._beliefs.readings
        self.restore_order = self._beliefs.restore_order
        self._environment = None if self.library_dir is None else _finding_libraries_in(self.library_dir)
        # A fake's timeline begins now, and continues from one process to the next.
        self._origin_s = time.monotonic()
        self._started = False

        self.child: DriverProcess | None = None
        """The process that speaks to the driver; None while there is none."""
        self.abandoned: list[DriverProcess] = []
        """Those that hang in the driver, so that not even SIGKILL has ended them."""
        self._failures = 0
        self._missed_deadlines = 0
        self._lost_context = 0
        self._worked = False
        self._kernel_version: str | None = None
        self._last_failure = "it never answered"
        self._outdated = False
        """An event said so since the GPUs were listed."""
        self._relisting = Relisting()
        self._blindness: asyncio.TimerHandle | None = None

        self._wake = asyncio.Event()
        self._paused = asyncio.Event()
        self._released = asyncio.Event()

    async def run(self) -> NoReturn:
        """Watch the hardware. Ends only by cancellation; owns its child processes.

        Raises:
            HardwareContextLost: only a new container can help; the GPUs may be healthy.
        """
        wait_s = 0.0
        try:
            while True:
                try:
                    await self._watch(wait_s)
                    if self._paused.is_set():
                        await self._stay_paused()
                    await self._list_again()
                    timings = self.timings
                    wait_s = timings.rescan_every_s if self._beliefs.complete else timings.rescan_missing_every_s
                except HardwareError as error:
                    wait_s = self._failed(error)
        finally:
            self._disarm()
            if self.child is not None:
                await self._end(self.child)
            self.child = None

    async def pause(self) -> None:
        """Release the GPUs, so that they can be reset, and return when that is done; they are unhealthy until `resume`.

        Only while `run` is running.
        """
        if not self._paused.is_set():
            self._paused.set()
            self._released.clear()
            self._wake.set()
        await self._released.wait()

    def resume(self) -> None:
        """Watch again after `pause`. The GPUs count as serviced: good readings now clear earlier fatal XIDs."""
        self._paused.clear()
        self._released.set()
        self._wake.set()

    async def read_again(self) -> None:
        """Have all GPUs read once more; returns after the reading, or when no reading is possible now."""
        asked = time.monotonic()
        self._wake.set()
        read = self.readings.wait_until(
            lambda new: self.child is None or all(one.began >= asked for one in new.values())
        )
        await wait_within(self.timings.answer_within_s, read)

    async def use(self, *, utilisation: bool = False) -> tuple[GpuReading, ...] | None:
        """Read the processes on every GPU; None while no process answers for the driver."""
        return await self._ask({"use": utilisation}, lambda message: message.use)

    async def condition(self, groups: Sequence[str]) -> tuple[GpuTelemetry, ...] | None:
        """Read the condition of every GPU, of these groups; None while no process answers for the driver."""
        return await self._ask({"condition": [*groups]}, lambda message: message.condition)

    async def limits(self, wanted: Sequence[tuple[str, str]]) -> tuple[CgroupLimit, ...] | None:
        """Read the memory limits of cgroups, each given as (UUID of the GPU, path of the cgroup's directory).

        None while no process answers for the driver. GPUs that it does not list are left out.
        """
        return await self._ask({"limits": wanted}, lambda message: message.limits)

    async def set_limits(self, wanted: Sequence[tuple[str, str, int | None, int]]) -> tuple[CgroupLimit, ...] | None:
        """Set the memory limits of cgroups; see `Driver.set_limits`. The same as of `limits` is returned."""
        return await self._ask({"set": wanted}, lambda message: message.limits)

    async def _ask(self, request: object, part: Callable[[Message], T | None]) -> T | None:
        """Return an answer of the driver process; None if it fails: the next reading finds the same failure."""
        try:
            return None if self.child is None else await self.child.ask(request, part, self.timings.answer_within_s)
        except HardwareError:
            return None

    async def _watch(self, for_s: float) -> None:
        """Read the GPUs at intervals until it is time for a new listing, or `pause` is called."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + for_s
        while not self._paused.is_set() and (left_s := until_s - clock()) > 0:
            child = self.child
            await self._sleep(left_s if child is None else min(left_s, self.timings.probe_every_s))
            if child is not None and not self._paused.is_set() and await self._read(child):
                timings = self.timings
                until_s = min(until_s, self._relisting.due_s(clock(), timings.retry_from_s, timings.retry_to_s))

    async def _read(self, child: DriverProcess) -> bool:
        """Take one reading of all GPUs; True if they must be listed again before it is time.

        If it fails, `child` is ended before the error is raised.
        """
        began = time.monotonic()
        try:
            self._expect_same_driver()
            answer = await child.ask(None, lambda message: message.answer, self.timings.answer_within_s)
        except HardwareError:
            self.child = None
            self._beliefs.count_restart()
            await self._end(child)
            raise
        self._failures = 0
        return self._take(answer, began) or self._outdated

    async def _list_again(self) -> None:
        """List the hardware with a new process, which then replaces the old one.

        The old process watches until then, so that no event is missed and an idle driver is not unloaded in between;
        and it stays if the new one fails.
        """
        self.abandoned = [child for child in self.abandoned if not child.exited]
        if len(self.abandoned) >= _MOST_ABANDONED:
            raise HardwareError(driver.HUNG, f"{len(self.abandoned)} processes hang in the driver and cannot be killed")
        self._relisting.listed()
        self._outdated = False
        began = time.monotonic()
        child, answer, listing = await self._start()
        old, self.child = self.child, child
        self._missed_deadlines = self._lost_context = 0
        self._worked = True
        self._kernel_version = self._read_kernel_version()
        self._beliefs.adopt(listing)
        self._beliefs.set_state(State.WATCHING, _summary(listing))
        self._take(answer, began)
        child.deliver(self._take_events)
        if old is not None:
            await self._end(old)

    async def _start(self) -> tuple[DriverProcess, Answer, Listing]:
        child = DriverProcess(self._wake.set)
        started_before, self._started = self._started, True
        since_s = time.monotonic() - self._origin_s if started_before else -1.0
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: child,
                *self.command,
                self.source,
                str(self._origin_s),
                str(since_s),
                stderr=None,  # inherited: a crash may write its trace there
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is meant for the agent, which then ends the child
            )
            return child, *await child.first_answer(self.timings.start_within_s)
        except OSError as error:
            raise HardwareError(driver.OTHER, f"starting {self.command[0]} failed: {error}") from error
        except BaseException:
            await self._end(child)
            raise

    async def _end(self, child: DriverProcess) -> None:
        child.kill()  # it has no state to lose, and the kernel closes its device nodes
        if not await child.exits(self.timings.end_within_s):
            self.abandoned.append(child)

    def _failed(self, error: HardwareError) -> float:
        """Handle a failure of the driver as a whole, no GPU's fault; return the seconds until the next attempt.

        Raises HardwareContextLost where another attempt is useless.
        """
        self._last_failure = error.what
        if self.child is None:
            self._beliefs.set_state(State(error.kind), str(error))
            self._missed_deadlines = self._missed_deadlines + 1 if error.kind == driver.HUNG else 0
            if self._missed_deadlines >= _DEADLINES_TO_MISS:
                self._beliefs.unwatched(error.what)
        else:
            self._beliefs.set_state(self.view.value.state, f"looking for other GPUs failed: {error}")
        self._beliefs.publish()
        # A container keeps the libraries and the device access that it was started with.
        stale = error.kind == driver.CONTEXT_LOST or (error.kind == driver.VERSION_MISMATCH and self._worked)
        self._lost_context = self._lost_context + 1 if stale else 0
        if self._lost_context > _RESTARTS_THAT_MAY_FAIL:
            raise HardwareContextLost(str(error)) from error
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return float(min(self.timings.retry_from_s * 2 ** (self._failures - 2), self.timings.retry_to_s))

    async def _stay_paused(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            await self._end(child)
        self._disarm()
        self._beliefs.set_state(State.PAUSED, "paused: the agent does not use the GPUs")
        self._beliefs.unwatched("the agent is paused and has released the GPU")
        self._released.set()
        while self._paused.is_set():
            await self._sleep(None)
        self._beliefs.cleared()

    async def _sleep(self, for_s: float | None) -> None:
        """Sleep for `for_s` seconds or until `_wake` is set."""
        await wait_within(for_s, self._wake.wait())
        self._wake.clear()

    def _take(self, answer: Answer, began: float) -> bool:
        """Record readings of all GPUs; True if one of them shows that the inventory is outdated.

        This restarts the timer that expires when the GPUs have not been read for `blind_after_s`.
        """
        self._disarm()
        self._blindness = asyncio.get_running_loop().call_later(self.timings.blind_after_s, self._go_blind)
        return self._beliefs.take_readings(answer.probes, began)

    def _take_events(self, records: Iterable[Xid | Probe]) -> None:
        if self._beliefs.take_events(records):
            self._outdated = True
            self._wake.set()

    def _disarm(self) -> None:
        if self._blindness is not None:
            self._blindness.cancel()

    def _go_blind(self) -> None:
        after_s = self.timings.blind_after_s
        self._beliefs.unwatched(f"it could not be read for {after_s:g} s, because of the driver: {self._last_failure}")

    def _expect_same_driver(self) -> None:
        """Raise HardwareError if the kernel's driver was replaced under the loaded library: NVML may never tell."""
        was, now = self._kernel_version, self._read_kernel_version()
        if was != now:
            self._beliefs.unwatched(f"the kernel's driver was changed from {was} to {now}, and is reopened")
            raise HardwareError(driver.VERSION_MISMATCH, f"the kernel's driver is {now}, and was {was}")

    def _read_kernel_version(self) -> str | None:
        """Return the version of the kernel module; None if it is not loaded, or not visible in this container."""
        for path in self.version_files:
            try:
                text = path.read_text()
            except OSError:
                continue
            if match := _VERSION.search(text):
                return match["version"]
        return None


def _summary(listing: Listing) -> str:
    instances = sum(gpu.instance is not None for gpu in listing.gpus)
    count = len(listing.gpus) - instances
    what = counted(count, "GPU") if count else "the driver works and lists no GPU"
    what += f" with {counted(instances, 'MIG instance')}" if instances else ""
    return "; ".join((f"{what}, driver {listing.driver_version or 'of unknown version'}", *listing.troubles))


def _finding_libraries_in(directory: Path) -> dict[str, str]:
    before = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": f"{directory}:{before}" if before else str(directory)}
