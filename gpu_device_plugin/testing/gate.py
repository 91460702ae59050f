"""A door in front of an RPC: open, held shut, or refusing."""

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
    """Every call passes through it. Starts open; one loop's, like the doubles that own it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._refusal: RefusedError | None = None
        self._refusals_left: float = 0
        self._reached = asyncio.Event()
        self.waiting = 0
        """Calls that stand before the closed door."""

    def __repr__(self) -> str:
        state = "open" if self._open.is_set() else f"held, {self.waiting} waiting"
        return f"<Gate {state}{', refusing' if self._refusals_left else ''}>"

    def hold(self) -> None:
        """Let calls hang from now on, until `release` or until the caller gives up."""
        self._open.clear()
        self._reached.clear()

    async def reached(self) -> None:
        """Wait until a call stands before the door that was closed by `hold`."""
        await self._reached.wait()

    def release(self) -> None:
        """Let everyone through, those who wait first; forget refusals."""
        self._refusals_left = 0
        self._open.set()

    def refuse(
        self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, times: float = float("inf")
    ) -> None:
        """Answer the next `times` calls with this status."""
        self._refusal, self._refusals_left = RefusedError(code, details), times

    async def passed(self) -> None:
        """Wait until the call may go on. RefusedError: it may not."""
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
