"""Read the bodies of requests within one bound for all of them: the largest one that still arrives makes room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

_MIB = 1024 * 1024


class BodyError(Exception):
    """A body that was not read; the message is a sentence for its sender."""

    def __init__(self, status: int, why: str) -> None:
        """Answer with this HTTP status."""
        super().__init__(why)
        self.status = status


@dataclass(slots=True, eq=False)
class _Body:
    """The part of a body that has arrived."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    deadline: asyncio.Timeout | None = None
    """Ends the reading; None: it is not being read."""
    displaced: bool = False


class Bodies:
    """The bodies that arrive, and those whose requests are being answered."""

    def __init__(self, largest: int, most: int, within_s: float) -> None:
        """Read bodies of at most `largest` bytes each and of `most` together, each within `within_s` seconds."""
        self._largest = largest
        self._most = most
        self._within_s = within_s
        self._held: set[_Body] = set()

    @property
    def size(self) -> int:
        """The bytes of all of them."""
        return sum(body.size for body in self._held)

    @contextmanager
    def reading(self) -> Iterator[_Body]:
        """Hold one body for as long as the block runs; `read` reads it."""
        body = _Body()
        self._held.add(body)
        try:
            yield body
        finally:
            self._held.remove(body)

    async def read(self, body: _Body, request: BaseRequest) -> bytes:
        """Return the body of a request.

        BodyError: it is too large, incomplete or late, or was the largest of too many.
        """
        from aiohttp.web_protocol import RequestPayloadError  # noqa: PLC0415 - see aio.http

        if not request.can_read_body:
            return b""
        readable = f"{self._largest // _MIB} MiB" if self._largest >= _MIB else f"{self._largest // 1024} KiB"
        too_large = BodyError(413, f"a body of more than {readable} is not read")
        if (request.content_length or 0) > self._largest:
            raise too_large
        content = request.content
        try:
            if content.is_eof() and content.total_bytes <= min(self._largest, self._most - self.size):
                body.size = content.total_bytes  # it came with the head, as most do: there is nothing to wait for
                return content.read_nowait()
            async with asyncio.timeout(self._within_s) as body.deadline:
                while (part := await content.readany()) and not body.displaced:
                    body.parts.append(part)
                    body.size += len(part)
                    if body.size > self._largest:
                        raise too_large
                    self._make_room()
        except (ConnectionError, RequestPayloadError):  # truncated, or wrongly chunked
            raise BodyError(400, "the body is incomplete") from None
        except TimeoutError:
            if not body.displaced:
                raise BodyError(408, f"the body did not arrive within {self._within_s:g} s") from None
        finally:
            body.deadline = None
        if body.displaced:
            raise BodyError(503, "too many large bodies arrive at once; resend this one")
        whole = body.parts[0] if len(body.parts) == 1 else b"".join(body.parts)
        body.parts.clear()
        return whole

    def _make_room(self) -> None:
        """Give up bodies that arrive, the largest first, while all together are too large."""
        while self.size > self._most and (arriving := [body for body in self._held if body.deadline is not None]):
            largest = max(arriving, key=lambda body: body.size)
            largest.parts.clear()
            largest.size, largest.displaced = 0, True
            if largest.deadline is not None:
                largest.deadline.reschedule(0)
                largest.deadline = None
