"""gRPC channels to unix sockets, and short texts for the errors of calls over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc import aio

if TYPE_CHECKING:
    from pathlib import Path

_OPTIONS = (
    # Channels to one path share a transport, so a channel to a recreated socket could inherit the dead transport.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", -1),  # PodResources lists 60,000 devices in 3.8 MB, and the default is 4 MiB
)
_ERRNO = " error: "


def channel(socket: Path) -> aio.Channel:
    """Return a new, unshared channel to `socket`, for an ``async with``."""
    return aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def in_short(error: aio.AioRpcError) -> str:
    """Return the server's message, or the operating system's if the connection failed.

    Then grpcio writes ``failed to connect to all addresses; last error: ...: connect failed: addr: unix:/path error:
    Connection refused``; the caller knows the path, and only the end is informative.
    """
    details = error.details() or ""
    if details.startswith("failed to connect") and _ERRNO in details:
        return details.rpartition(_ERRNO)[2]
    return details or str(error.code().name)
