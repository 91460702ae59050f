"""Know at every moment which GPUs there are and whether they may be used, whatever the driver does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.node.health import (
    Belief,
    Cause,
    Cleared,
    Gone,
    Observation,
    Probe,
    Rules,
    Unwatched,
    Xid,
    XidMeaning,
    change,
    judge,
    step,
)
from gpu_device_plugin.core.node.positions import in_order
from gpu_device_plugin.core.telling.printing import counted
from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.messages import Answer, Events, Listing, MalformedError, Message, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class State(StrEnum):
    """How far we can see the hardware."""

    STARTING = "starting"
    WATCHING = "watching"
    """The driver answers. There may be no GPUs all the same."""
    PAUSED = "paused"
    NO_LIBRARY = driver.NO_LIBRARY
    UNUSABLE_LIBRARY = driver.UNUSABLE_LIBRARY
    NO_DRIVER = driver.NO_DRIVER
    VERSION_MISMATCH = driver.VERSION_MISMATCH
    NO_PERMISSION = driver.NO_PERMISSION
    CONTEXT_LOST = driver.CONTEXT_LOST
    HUNG = driver.HUNG
    CRASHED = driver.CRASHED
    OTHER = driver.OTHER


@dataclass(frozen=True, slots=True)
class Timings:
    """How often, and how long. Seconds."""

    probe_every_s: float = 10.0
    answer_within_s: float = 5.0
    start_within_s: float = 30.0
    """Without persistence mode a driver takes a second or two for each GPU when it is opened."""
    rescan_every_s: float = 300.0
    """How often the hardware is listed anew while everything works. That opens the driver once more, which costs it a
    second of processor time on a node with eight GPUs; a GPU that fails is noticed by its reading."""
    rescan_missing_every_s: float = 30.0
    """The same while a GPU is unhealthy, missing or cannot be listed, and while there are none: a driver finds a GPU
    again only when it is opened anew."""
    retry_from_s: float = 1.0
    """Wait before the second attempt in a row to open a driver that fails; the first is made at once. It doubles."""
    retry_to_s: float = 30.0
    blind_after_s: float = 60.0
    """So long GPUs are offered although nobody could read them."""
    end_within_s: float = 1.0
    """How long a process of ours may take to end, first by itself, then when it is killed."""


@dataclass(frozen=True, slots=True)
class HardwareView:
    """What is known of the hardware at one moment."""

    state: State = State.STARTING
    sentence: str = "the GPUs have not been listed yet"
    """What `state` means just now, for people."""
    inventory: Inventory = field(default_factory=Inventory)
    """Every GPU seen since the program started, or remembered from before, in an order that never changes but by
    `Hardware.remember`; new ones come last."""
    beliefs: Mapping[str, Belief] = field(default_factory=dict)
    """By UUID, for every GPU of the inventory."""
    child_restarts: int = 0
    """How often the process that speaks to the driver was replaced because it had failed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What uses the GPUs, by one reading of all of them."""

    began: float = 0.0
    """When the driver was asked, in monotonic seconds; what began before is in it."""
    processes: Mapping[str, int | None] = field(default_factory=dict)
    """Compute processes on each GPU, None where the driver does not tell. It does not tell those of other PID
    namespaces to a container that does not share the host's."""
    used_mib: Mapping[str, int | None] = field(default_factory=dict)
    """Memory in use on each GPU, by whomever."""


@dataclass(frozen=True, slots=True)
class HealthChange:
    """A GPU became healthy or unhealthy."""

    uuid: str
    healthy: bool
    reason: str
    """For people; begins with what the GPU is now."""
    cause: Cause
    """The kind of problem that came last, or of the first of those that ended."""


@dataclass(frozen=True, slots=True)
class XidSeen:
    """The driver reported an XID, which may or may not have changed the GPU's health."""

    uuid: str
    code: int
    xid: XidMeaning
    times: int
    """How often this code was seen on this GPU since the program started; 1 is the first time. One that falls into the
    moment in which a new process takes over from the last is told by both."""


_MOST_ABANDONED = 2
"""Processes that hang in the driver so that not even SIGKILL ends them, before no more are started."""
_DEADLINES_TO_MISS = 2
"""So many in a row, and no GPU is offered any more."""
_RESTARTS_THAT_MAY_FAIL = 2
"""So many attempts after the first, and only a new container can help."""
_COMMAND = (sys.executable, "-m", "gpu_device_plugin.hardware.child")
_WHO = "the process that speaks to the driver"
_VERSION = re.compile(r"(?:^|Kernel Module\s+(?:for \S+\s+)?)(?P<version>[0-9]+(?:\.[0-9]+)+)", re.ASCII)


class HardwareContextLost(Exception):  # noqa: N818 - it names what happened, and only a new container undoes it
    """This process, and every one that it could start, has lost its access to GPUs that may be perfectly well."""


def _ignore(_: object) -> None:
    return


class Hardware:
    """Watches the GPUs of a source through a process of its own.

    ``rules`` and ``timings`` may be replaced at any time and count from the next observation or wait on.
    """

    def __init__(
        self,
        source: str,
        *,
        timings: Timings | None = None,
        rules: Rules | None = None,
        on_change: Callable[[HealthChange], None] = _ignore,
        on_xid: Callable[[XidSeen], None] = _ignore,
        library_dir: Path | None = None,
        command: Sequence[str] = _COMMAND,
        sys_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
    ) -> None:
        """Make it; `run` does the work.

        Args:
            source: ``nvml``, or what `hardware/fake.py` reads.
            timings: how often, and how long.
            rules: what counts as healthy.
            on_change: called for every change of a GPU's health, before the new view is set.
            on_xid: called for every XID.
            library_dir: where libnvidia-ml.so.1 is, if the system's loader does not find it.
            command: what starts the process that speaks to the driver, and takes source and times as arguments.
            sys_root: where the kernel tells the version of its driver, first choice.
            proc_root: the same, second choice.

        Raises:
            gpu_device_plugin.hardware.fake.DescriptionError: `source` describes hardware that makes no sense.
        """
        if source != "nvml":
            from gpu_device_plugin.hardware.fake import read  # noqa: PLC0415 - not needed on real hardware

            read(source)
        self.timings = timings or Timings()
        self.rules = rules or Rules()
        self.view = Latest(HardwareView())
        self.load = Latest(Load())
        """Set with every reading of all GPUs."""
        self._next = self.view.value
        self._source = source
        self._on_change = on_change
        self._on_xid = on_xid
        self._environment = None if library_dir is None else _finding_libraries_in(library_dir)
        self._version_files = (sys_root / "module/nvidia/version", proc_root / "driver/nvidia/version")
        self._command = command
        # A fake's time begins now, and goes on from one process to the next.
        self._origin_s = time.monotonic()
        self._started = False

        self._child: _Child | None = None
        self._abandoned: list[_Child] = []
        self._failures = 0
        self._missed_deadlines = 0
        self._lost_context = 0
        self._worked = False
        self._left_out = False
        self._kernel_version: str | None = None
        self._last_failure = "it was never reached"
        self._blindness: asyncio.TimerHandle | None = None
        self._xids: dict[tuple[str, int], int] = {}

        self._wake = asyncio.Event()
        self._paused = asyncio.Event()
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        view = self.view.value
        healthy = sum(belief.healthy for belief in view.beliefs.values())
        return f"<Hardware {self._source}: {view.state}, {healthy} of {len(view.beliefs)} GPUs healthy>"

    async def run(self) -> NoReturn:
        """Watch the hardware. Ends by cancellation; owns its child processes.

        Raises:
            HardwareContextLost: only a new container can help; the GPUs may be perfectly well.
        """
        wait_s = 0.0
        try:
            while True:
                try:
                    await self._watch(wait_s)
                    if self._paused.is_set():
                        await self._stay_away()
                    await self._look_afresh()
                    wait_s = self._until_next_look()
                except HardwareError as error:
                    wait_s = self._failed(error)
        finally:
            self._disarm()
            if self._child is not None:
                await self._end(self._child)
            self._child = None

    async def pause(self) -> None:
        """Let go of the GPUs, so that they can be reset; they are unhealthy until `resume`. Returns when that is done.

        Only while `run` runs.
        """
        if not self._paused.is_set():
            self._paused.set()
            self._released.clear()
            self._wake.set()
        await self._released.wait()

    def resume(self) -> None:
        """Watch again after `pause`. The GPUs count as looked after: good readings now end a fatal XID from before."""
        self._paused.clear()
        self._released.set()
        self._wake.set()

    def remember(self, before: Sequence[Gpu]) -> None:
        """Put the GPUs in the order of `before`, what this node had when the program ran last; see `in_order`.

        Those of them that are not found are listed too, and believed lost. Only once GPUs are found, and before anybody
        relies on their order.
        """
        view = self._next
        gpus = in_order(before, view.inventory.gpus)
        beliefs = {gpu.uuid: view.beliefs.get(gpu.uuid, Belief()) for gpu in gpus}
        self._next = replace(view, inventory=replace(view.inventory, gpus=gpus), beliefs=beliefs)
        for uuid in beliefs.keys() - view.beliefs.keys():
            self._observe(Gone(uuid))
        self._publish()

    async def read_again(self) -> None:
        """Have all GPUs read once more; returns when that is done, or nobody can do it now."""
        asked, version = time.monotonic(), self.load.version
        self._wake.set()
        try:
            async with asyncio.timeout(self.timings.answer_within_s):
                while self._child is not None and self.load.value.began < asked:
                    version, _ = await self.load.after(version)
        except TimeoutError:
            pass

    async def _watch(self, for_s: float) -> None:
        """Read the GPUs at intervals until it is time to look afresh, or somebody pauses us.

        Raises:
            HardwareError: the driver failed, and `_child` is gone.
        """
        clock = asyncio.get_running_loop().time
        until_s = clock() + for_s
        while not self._paused.is_set() and (left_s := until_s - clock()) > 0:
            child = self._child
            await self._sleep(left_s if child is None else min(left_s, self.timings.probe_every_s))
            if child is not None and not self._paused.is_set() and await self._read(child):
                return

    async def _read(self, child: _Child) -> bool:
        """Take one reading of all GPUs; True if they must be listed afresh at once.

        Raises:
            HardwareError: the driver failed, and `_child` is gone.
        """
        began = time.monotonic()
        try:
            self._expect_same_driver()
            answer = await child.ask(self.timings.answer_within_s)
        except HardwareError:
            self._child = None
            self._next = replace(self._next, child_restarts=self._next.child_restarts + 1)
            await self._end(child)
            raise
        self._failures = 0
        return self._take(answer.probes, began)

    async def _look_afresh(self) -> None:
        """List the hardware with a new process, which then takes the old one's place.

        The old one watches until then, so that no event is missed and an idle driver is not closed down in between.

        Raises:
            HardwareError: the new process failed; the old one, if there is one, stays.
        """
        self._abandoned = [child for child in self._abandoned if not child.exited]
        if len(self._abandoned) >= _MOST_ABANDONED:
            raise HardwareError(
                driver.HUNG, f"{len(self._abandoned)} processes hang in the driver and cannot be killed"
            )
        began = time.monotonic()
        child, answer, inventory = await self._start()
        old, self._child = self._child, child
        self._missed_deadlines = self._lost_context = 0
        self._worked = True
        self._kernel_version = self._read_kernel_version()
        self._adopt(inventory)
        self._next = replace(self._next, state=State.WATCHING, sentence=_summary(inventory))
        self._take(answer.probes, began)
        child.deliver(self._take_events)
        if old is not None:
            await self._end(old)

    async def _start(self) -> tuple[_Child, Answer, Listing]:
        child = _Child(self._wake.set)
        started_before, self._started = self._started, True
        since_s = time.monotonic() - self._origin_s if started_before else -1.0
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: child,
                *self._command,
                self._source,
                str(self._origin_s),
                str(since_s),
                stderr=None,  # a crash may leave its trace there
                env=self._environment,
                start_new_session=True,  # Ctrl-C in a terminal is meant for the agent, which then ends the child
            )
            answer = await child.answer(self.timings.start_within_s)
            return child, answer, _listing(answer)
        except OSError as error:
            raise HardwareError(driver.OTHER, f"starting {self._command[0]} failed: {error}") from error
        except BaseException:
            await self._end(child)
            raise

    async def _end(self, child: _Child) -> None:
        child.kill()  # it has nothing to lose, and the kernel closes its device nodes
        if not await child.exits(self.timings.end_within_s):
            self._abandoned.append(child)

    def _failed(self, error: HardwareError) -> float:
        """Draw the consequences of a driver that fails as a whole, for which no GPU is to blame.

        Returns:
            When to try again, in seconds from now.

        Raises:
            HardwareContextLost: trying again is of no use.
        """
        self._last_failure = error.what
        if self._child is None:
            self._next = replace(self._next, state=State(error.kind), sentence=str(error))
            self._missed_deadlines = self._missed_deadlines + 1 if error.kind == driver.HUNG else 0
            if self._missed_deadlines >= _DEADLINES_TO_MISS:
                self._unwatched(error.what)
        else:
            self._next = replace(self._next, sentence=f"looking for other GPUs failed: {error}")
        self._publish()
        # A container keeps the libraries and the device access that it was started with, whatever happens outside.
        stale = error.kind == driver.CONTEXT_LOST or (error.kind == driver.VERSION_MISMATCH and self._worked)
        self._lost_context = self._lost_context + 1 if stale else 0
        if self._lost_context > _RESTARTS_THAT_MAY_FAIL:
            raise HardwareContextLost(str(error)) from error
        self._failures += 1
        if self._failures == 1:
            return 0.0
        return float(min(self.timings.retry_from_s * 2 ** (self._failures - 2), self.timings.retry_to_s))

    def _until_next_look(self) -> float:
        beliefs = self._next.beliefs.values()
        complete = beliefs and not self._left_out and all(belief.healthy for belief in beliefs)
        return self.timings.rescan_every_s if complete else self.timings.rescan_missing_every_s

    async def _stay_away(self) -> None:
        """End the child and wait to be resumed."""
        child, self._child = self._child, None
        if child is not None:
            await self._end(child)
        self._disarm()
        self._next = replace(self._next, state=State.PAUSED, sentence="paused: no process of ours uses the GPUs")
        self._unwatched("the agent is paused and has let go of the GPU")
        self._released.set()
        while self._paused.is_set():
            await self._sleep(None)
        for gpu in self._next.inventory.gpus:
            self._observe(Cleared(gpu.uuid))

    async def _sleep(self, for_s: float | None) -> None:
        """Sleep until the time is over or `_wake` is set."""
        try:
            async with asyncio.timeout(for_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # What is seen becomes the next view; `_publish` shows it, if it is another than the last.

    def _adopt(self, listing: Listing) -> None:
        """Take over a new inventory. GPUs that are not in it stay listed, and are believed lost."""
        known, listed = self._next.inventory, {gpu.uuid: gpu for gpu in listing.gpus}
        inventory = Inventory(
            tuple(({gpu.uuid: gpu for gpu in known.gpus} | listed).values()),
            tuple(
                (
                    {(link.a, link.b): link for link in known.links}
                    | {(link.a, link.b): link for link in listing.links}
                ).values()
            ),
            listing.driver_version,
            listing.cgroup,
        )
        beliefs = {gpu.uuid: self._next.beliefs.get(gpu.uuid, Belief()) for gpu in inventory.gpus}
        self._next = replace(self._next, inventory=inventory, beliefs=beliefs)
        self._left_out = bool(listing.left_out)
        for uuid in beliefs.keys() - listed.keys():
            self._observe(Gone(uuid))

    def _take(self, probes: Sequence[Probe], began: float) -> bool:
        """Take in readings of all GPUs; True if one of them shows that the inventory is outdated."""
        for probe in probes:
            self._observe(probe)
        self._arm()
        self._publish()
        # Not from readings that come with an event: those are taken by another thread, at a time that is not known.
        self.load.set(
            Load(
                began,
                {probe.uuid: probe.processes for probe in probes},
                {probe.uuid: probe.used_mib for probe in probes},
            )
        )
        mig = {gpu.uuid: gpu.mig for gpu in self._next.inventory.gpus}
        return any(probe.mig not in {mig.get(probe.uuid), None} for probe in probes)

    def _take_events(self, records: Iterable[Xid | Probe]) -> None:
        for record in records:
            if isinstance(record, Xid):
                self._take_xid(record)
            else:
                self._observe(record)
        self._publish()

    def _take_xid(self, xid: Xid) -> None:
        key = xid.uuid, xid.code
        self._xids[key] = self._xids.get(key, 0) + 1
        self._on_xid(XidSeen(xid.uuid, xid.code, judge(xid.code, self.rules), self._xids[key]))
        self._observe(xid)

    def _observe(self, observation: Observation) -> None:
        uuid = observation.uuid
        before = self._next.beliefs.get(uuid)
        if before is None:
            return
        after = step(before, observation, self.rules)
        self._next = replace(self._next, beliefs={**self._next.beliefs, uuid: after})
        if reason := change(before, after):
            cause = before.problems[0].cause if after.healthy else after.problems[-1].cause
            self._on_change(HealthChange(uuid, after.healthy, reason, cause))

    def _unwatched(self, why: str) -> None:
        for gpu in self._next.inventory.gpus:
            self._observe(Unwatched(gpu.uuid, why))
        self._publish()

    def _publish(self) -> None:
        if self._next != self.view.value:
            self.view.set(self._next)

    def _arm(self) -> None:
        """Begin anew to wait for the moment from which on nobody can say how the GPUs are."""
        self._disarm()
        self._blindness = asyncio.get_running_loop().call_later(self.timings.blind_after_s, self._go_blind)

    def _disarm(self) -> None:
        if self._blindness is not None:
            self._blindness.cancel()

    def _go_blind(self) -> None:
        after_s = self.timings.blind_after_s
        self._unwatched(f"nobody could read it for {after_s:g} s, because of the driver: {self._last_failure}")

    def _expect_same_driver(self) -> None:
        """Notice a driver that was changed under its library, which NVML itself may never say.

        Raises:
            HardwareError: it was changed since the hardware was listed.
        """
        was, now = self._kernel_version, self._read_kernel_version()
        if was != now:
            self._unwatched(f"the kernel's driver was changed from {was} to {now}, and is opened anew")
            raise HardwareError(driver.VERSION_MISMATCH, f"the kernel's driver is {now}, and was {was}")

    def _read_kernel_version(self) -> str | None:
        """Return the version of the kernel's part of the driver; None if there is none, or not in this container."""
        for path in self._version_files:
            try:
                text = path.read_text()
            except OSError:
                continue
            if match := _VERSION.search(text):
                return match["version"]
        return None


class _Child(asyncio.SubprocessProtocol):
    """This side of `hardware/child.py`. Everything it reads is dealt with at once, in the loop's own callback."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._transport: asyncio.SubprocessTransport | None = None
        self._stream = Stream()
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._failure: HardwareError | None = None
        self._events: list[Xid | Probe] = []
        self._on_events: Callable[[Iterable[Xid | Probe]], None] = self._events.extend
        self._exit = asyncio.Event()

    @property
    def exited(self) -> bool:
        return self._exit.is_set()

    async def ask(self, within_s: float) -> Answer:
        """Ask for a reading.

        Raises:
            HardwareError: the driver or the process failed, or it takes longer than `within_s`.
        """
        if self._failure is not None:
            raise self._failure
        self._answer = asyncio.get_running_loop().create_future()
        self._input.write(b"\n")
        return await self.answer(within_s)

    async def answer(self, within_s: float) -> Answer:
        """Wait for the answer to `ask`, or for the one that is given unasked at the start; raises the same."""
        try:
            async with asyncio.timeout(within_s):
                return await self._answer
        except TimeoutError:
            raise HardwareError(driver.HUNG, f"the driver did not answer within {within_s:g} s") from None

    def deliver(self, on_events: Callable[[Iterable[Xid | Probe]], None]) -> None:
        """Hand over the events that came so far, and from now on each as it comes."""
        on_events(self._events)
        self._on_events = on_events

    def kill(self) -> None:
        self._on_failure = lambda: None
        self._answer.cancel()  # nobody waits for it any more
        if self._transport is None:
            self._exit.set()
            return
        for pipe in (0, 1):
            cast("asyncio.BaseTransport", self._transport.get_pipe_transport(pipe)).close()
        signal_child(self._transport.get_pid(), self._transport.get_returncode(), signal.SIGKILL)

    async def exits(self, within_s: float) -> bool:
        """Wait for the end of the process; say whether it came in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._exit.wait()
        except TimeoutError:
            return False
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - only standard output is a pipe to us
        if self._failure is not None:
            return  # it is as good as ended, and may write on
        try:
            for message in self._stream.messages(data):
                self._heard(message)
        except MalformedError as error:
            self._fail(HardwareError(driver.OTHER, f"{_WHO} wrote what is no answer ({error})"))

    def process_exited(self) -> None:
        self._exit.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - nothing to add to how the process ended
        # Only now everything that it wrote has been read.
        if self._transport is not None:
            self._transport.close()
        self._fail(HardwareError(driver.CRASHED, f"{_WHO} {self._how_it_ended()}"))

    def _heard(self, message: Message) -> None:
        match message:
            case Answer() as answer:
                if not self._answer.done():  # nobody waits any more after a deadline
                    self._answer.set_result(answer)
            case Events(records):
                self._on_events(records)
            case HardwareError() as failure:
                self._fail(failure)

    def _fail(self, failure: HardwareError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if not self._answer.done():
            self._answer.set_exception(failure)
        self._on_failure()

    def _how_it_ended(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None or code >= 0:
            return f"ended by itself (exit code {code})"
        return f"was ended by {signal.Signals(-code).name}"


def _listing(first: Answer) -> Listing:
    if first.inventory is None:
        raise HardwareError(driver.OTHER, f"{_WHO} wrote what is no answer (the first one names no GPUs)")
    return first.inventory


def _summary(listing: Listing) -> str:
    count = len(listing.gpus)
    what = counted(count, "GPU") if count else "the driver works and lists no GPU"
    return "; ".join((f"{what}, driver {listing.driver_version or 'of unknown version'}", *listing.troubles))


def _finding_libraries_in(directory: Path) -> dict[str, str]:
    before = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": f"{directory}:{before}" if before else str(directory)}
