"""A gate in front of an RPC: open, closed, or refusing calls."""

from __future__ import annotations

import asyncio

import grpc


class RefusedError(Exception):
    """The caller of an RPC gets this status instead of an answer."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Gate:
    """Every call passes through it. Starts open; belongs to one event loop, like the doubles that own it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._refusal: RefusedError | None = None
        self._refusals_left: float = 0
        self._reached = asyncio.Event()
        self.waiting = 0
        """The number of calls that wait at the closed gate."""

    def __repr__(self) -> str:
        state = "open" if self._open.is_set() else f"held, {self.waiting} waiting"
        return f"<Gate {state}{', refusing' if self._refusals_left else ''}>"

    def hold(self) -> None:
        """Let calls hang from now on, until `release` or until their callers give up."""
        self._open.clear()
        self._reached.clear()

    async def reached(self) -> None:
        """Wait until a call has reached the gate that `hold` closed."""
        await self._reached.wait()

    def release(self) -> None:
        """Open the gate, also for the waiting calls; forget refusals."""
        self._refusals_left = 0
        self._open.set()

    def refuse(
        self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, times: float = float("inf")
    ) -> None:
        """Answer the next `times` calls with this status."""
        self._refusal, self._refusals_left = RefusedError(code, details), times

    async def passed(self) -> None:
        """Wait until the gate is open. RefusedError: the call is refused."""
        if not self._open.is_set():
            self.waiting += 1
            self._reached.set()
            try:
                await self._open.wait()
            finally:
                self.waiting -= 1
        if self._refusal is not None and self._refusals_left:
            self._refusals_left -= 1
            raise self._refusal
