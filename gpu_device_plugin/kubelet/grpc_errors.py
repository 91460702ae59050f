"""What became of a gRPC call over a socket, in a few words for a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpc import aio

_ERRNO = " error: "


def in_short(error: aio.AioRpcError) -> str:
    """Return the other side's words; where nobody was there, those of the operating system.

    grpcio then writes ``failed to connect to all addresses; last error: ...: connect failed: addr: unix:/path error:
    Connection refused``, of which the path is known and the end alone tells something.
    """
    details = error.details() or ""
    if details.startswith("failed to connect") and _ERRNO in details:
        return details.rpartition(_ERRNO)[2]
    return details or str(error.code().name)
