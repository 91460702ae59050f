"""Read what the API server answers, within bounds for our memory, and translate the errors of its connection."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Self, TypeVar

import aiohttp
import msgspec
from aiohttp.client_exceptions import UnixClientConnectorError

from gpu_device_plugin.kubernetes.client.config import ClusterConfigError
from gpu_device_plugin.kubernetes.client.errors import Call, UnavailableError, error_from
from gpu_device_plugin.kubernetes.objects.decoding import UnreadableObjectError

T = TypeVar("T")

_LONGEST_EVENT = 16 << 20
"""Bytes. etcd stores no object above 1.5 MiB; a longer line of a watch is not an event."""


class ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    """The version and the continue token of a list."""

    resource_version: str = ""
    continue_: str = ""


class Page(msgspec.Struct):
    """One page of a list; its items are decoded one by one, so that one invalid object does not hide the others."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    """``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK`` or ``ERROR``."""
    object: msgspec.Raw


class _Outcome(msgspec.Struct):
    status: str = ""


@contextmanager
def translated(call: Call) -> Iterator[None]:
    """Translate errors of the connection, and the answer of a proxy, into an UnavailableError with its cause."""
    try:
        yield
    except TimeoutError as error:
        sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
        raise UnavailableError(call, "no answer in time", sent=sent) from error
    except aiohttp.ClientConnectorError as error:
        where = error.path if isinstance(error, UnixClientConnectorError) else f"{error.host}:{error.port}"
        why = f"cannot connect to {where}: {_no_connection(error.os_error)}"
        raise UnavailableError(call, why, sent=False) from error
    except (aiohttp.ClientError, OSError, ClusterConfigError) as error:
        sent = not isinstance(error, ClusterConfigError)
        raise UnavailableError(call, str(error) or type(error).__name__, sent=sent) from error
    except UnreadableObjectError as error:
        raise UnavailableError(call, str(error)) from error


def _no_connection(error: OSError) -> str:
    # asyncio replaces the system's message by one with the address; errors of name resolution and of TLS do not carry
    # a system error number.
    if error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


class ApiAnswer(bytes):
    """The body of the answer to a call; that of a proxy may be anything."""

    call: Call

    @classmethod
    def to(cls, call: Call, body: bytes) -> Self:
        """Return the answer to a call."""
        answer = cls(body)
        answer.call = call
        return answer

    def read(self, reader: Callable[[bytes], T]) -> T:
        """Return the object in it. Raises UnavailableError for an UnreadableObjectError of `reader`."""
        with translated(self.call):
            return reader(self)

    def decoded(self, form: type[T], what: str) -> T:
        """Return it as `form`. Raises UnavailableError if it is not `what`."""
        return decoded(self.call, self, form, what)

    def check_success(self) -> None:
        """Raise UnavailableError unless an API server has done what the call asked for."""
        if self.decoded(_Outcome, "one of an API server").status != "Success":
            raise UnavailableError(self.call, "the answer is not one of an API server")


def decoded(call: Call, body: bytes, form: type[T], what: str) -> T:
    """Return the body of an answer as `form`. Raises UnavailableError if it is not `what`."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnavailableError(call, f"the answer is not {what}") from None


async def read(call: Call, response: aiohttp.ClientResponse, most: int | None) -> bytes | None:
    """Return the body of an answer; None, with the rest of it unread, if it has more than `most` bytes."""
    parts: list[bytes] = []
    size = 0
    with translated(call):
        while part := await response.content.readany():
            parts.append(part)
            size += len(part)
            if most is not None and size > most:
                return None
    return b"".join(parts)


async def events(call: Call, response: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
    """Yield the events of a watch until the server ends it.

    ApiError: it ended the watch by an error, the connection broke, or a line is no event.
    """
    decoder = msgspec.json.Decoder(WatchEvent)
    rest = b""
    while True:
        with translated(call):
            # Not readline: it refuses lines above 128 KiB, and a pod may be ten times larger.
            chunk = await response.content.readany()
        if not chunk:
            if rest.strip():
                raise UnavailableError(call, "the connection ended inside an event")
            return
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_EVENT:
            raise UnavailableError(call, f"an event is longer than {_LONGEST_EVENT >> 20} MiB")
        for line in lines:
            try:
                event = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise UnavailableError(call, "a line is not an event of a watch") from None
            if event.type == "ERROR":
                raise error_from(call, event.object)
            yield event
