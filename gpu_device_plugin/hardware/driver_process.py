"""The agent's side of one driver process: send requests, receive answers and events, kill the process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from gpu_device_plugin.aio.children import signal_child
from gpu_device_plugin.aio.waiting import wait_within
from gpu_device_plugin.hardware import driver
from gpu_device_plugin.hardware.driver import HardwareError
from gpu_device_plugin.hardware.messages import Answer, Listing, MalformedError, Message, MessageStream
from gpu_device_plugin.node.rules.gpu_health import Probe, Xid

A = TypeVar("A")
_NAME = "the process that calls the driver"


class DriverProcess(asyncio.SubprocessProtocol):
    """The protocol peer of `hardware/child.py`. Input is handled at once, in the event loop's callback."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._transport: asyncio.SubprocessTransport | None = None
        self._stream = MessageStream()
        self._first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        """The answer that comes by itself."""
        self._answers = deque((self._first,))
        """One for each answer that has not come yet, in the order of the requests."""
        self._failure: HardwareError | None = None
        self._events: list[Xid | Probe] = []
        self._on_events: Callable[[Iterable[Xid | Probe]], None] = self._events.extend
        self._exit = asyncio.Event()

    @property
    def pid(self) -> int:
        """The ID of the process; 0 if it was never started."""
        return 0 if self._transport is None else self._transport.get_pid()

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        return self._exit.is_set()

    async def ask(self, request: object, part: Callable[[Message], A | None], within_s: float) -> A:
        """Send a request of `hardware/child.py`, None for a reading, and return the part of its answer.

        Raises:
            HardwareError: the driver or the process failed, or did not answer within `within_s`.
        """
        if self._failure is not None:
            raise self._failure
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._input.write(("" if request is None else json.dumps(request)).encode() + b"\n")
        return _asked_for(part(await self._answered(answer, within_s)))

    async def first_answer(self, within_s: float) -> tuple[Answer, Listing]:
        """Wait for the unrequested answer at the start and return it with its inventory; raises the same as `ask`."""
        answer = _asked_for((await self._answered(self._first, within_s)).answer)
        if answer.inventory is None:
            raise HardwareError(driver.OTHER, f"{_NAME} wrote an invalid answer (the first one has no inventory)")
        return answer, answer.inventory

    async def _answered(self, answer: asyncio.Future[Message], within_s: float) -> Message:
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise HardwareError(driver.HUNG, f"the driver did not answer within {within_s:g} s") from None

    def deliver(self, on_events: Callable[[Iterable[Xid | Probe]], None]) -> None:
        """Deliver the events received so far to `on_events`, and every later one as it arrives."""
        on_events(self._events)
        self._on_events = on_events

    def kill(self) -> None:
        """Kill the process, if it was started, and close its pipes."""
        self._on_failure = lambda: None
        self._end_answers(HardwareError(driver.OTHER, f"{_NAME} was ended"))
        if self._transport is None:
            self._exit.set()
            return
        for pipe in (0, 1):
            cast("asyncio.BaseTransport", self._transport.get_pipe_transport(pipe)).close()
        signal_child(self.pid, self._transport.get_returncode(), signal.SIGKILL)

    async def exits(self, within_s: float) -> bool:
        """Wait for the end of the process; return whether it ended in time."""
        return await wait_within(within_s, self._exit.wait())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # only standard output is a pipe to us
        if self._failure is not None:
            return  # the process is about to be ended, and may still write
        try:
            for message in self._stream.messages(data):
                self._handle(message)
        except MalformedError as error:
            self._fail(HardwareError(driver.OTHER, f"{_NAME} wrote an invalid answer ({error})"))

    def process_exited(self) -> None:
        self._exit.set()

    def connection_lost(self, exc: Exception | None) -> None:
        # Only now has all its output been read.
        if self._transport is not None:
            self._transport.close()
        code = None if self._transport is None else self._transport.get_returncode()
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended by itself (exit code {code})"
        self._fail(HardwareError(driver.CRASHED, f"{_NAME} {how}"))

    def _handle(self, message: Message) -> None:
        if message.error is not None:
            self._fail(HardwareError(message.error.kind, message.error.what, message.error.advice))
        elif message.events is not None:
            self._on_events(message.events)
        elif self._answers:
            self._answers.popleft().set_result(message)

    def _fail(self, failure: HardwareError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._end_answers(failure)
        self._on_failure()

    def _end_answers(self, failure: HardwareError) -> None:
        for answer in self._answers:
            answer.set_exception(failure)
            answer.exception()  # after a timeout no caller waits for it, and it must not be called unretrieved
        self._answers.clear()


def _asked_for(part: A | None) -> A:
    """Return the part of a message that its request asked for."""
    if part is None:
        raise HardwareError(driver.OTHER, f"{_NAME} answered another request than was made")
    return part
