"""Ports of this machine for programs that are told where to listen."""

import secrets
import socket
from pathlib import Path

_FIRST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From which the kernel takes the ports of connections, and of who asks for any."""


def free_port() -> int:
    """Return a port on which nobody listens, and which nobody is given who asks for any."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return several such ports."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", _FIRST + secrets.randbelow(end - _FIRST) if end > 2 * _FIRST else 0))
            except OSError:
                continue
            port: int = probe.getsockname()[1]
        if port not in found:
            found.append(port)
    return found
