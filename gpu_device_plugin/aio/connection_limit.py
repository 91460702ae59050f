"""Choose the connection to close when a port has too many, so that no client pushes out the connections of others.

An address with many connections loses one of its own. Only when many addresses connect at once does one lose a
connection to another, and silent connections go first.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

_IPV4_MAPPED = bytes(10) + b"\xff\xff"
"""The prefix of IPv4 addresses on a dual-stack socket."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many connections are kept open."""

    total: int
    """From all addresses together."""
    each: int
    """From one address. A network with more loses one before other networks do."""
    few: int
    """An address with more loses one before all other addresses do."""


class ConnectionStage(IntEnum):
    """The progress of a connection; the higher, the sooner it is closed."""

    ANSWERING = 0
    """A whole request has arrived, and its answer is being produced."""
    NEW = 1
    """Just accepted: it replaces any connection whose request is not being answered."""
    BEGUN = 2
    """It has sent data: the beginning of a request or of a TLS handshake, or a request that was answered."""
    SILENT = 3
    """It has sent no data."""


@dataclass(eq=False, slots=True)
class Connection:
    """One counted connection."""

    address: str
    network: bytes
    number: int
    stage: ConnectionStage = ConnectionStage.NEW


class ConnectionLimit:
    """The connections that count against limits."""

    def __init__(self, limits: Limits | None) -> None:
        """Enforce `limits`; None: every connection is kept, and none is counted."""
        self._limits = limits
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._by_network: Counter[bytes] = Counter()
        self._number = 0

    def __len__(self) -> int:
        return self._by_network.total()

    def enter(self, address: str) -> tuple[Connection, Connection | None]:
        """Count a new connection; return it and the surplus connection to close, which may be the new one, or None.

        The surplus connection no longer counts. `address` is the peer's IP address, as the system writes it.
        """
        self._number += 1
        new = Connection(address, network_of(address), self._number)
        surplus = None
        if self._limits is not None:
            self._by_address.setdefault(address, {})[new] = None
            self._by_network[new.network] += 1
            surplus = self._surplus(new, self._limits)
        if surplus is not None:
            self.leave(surplus)
        new.stage = ConnectionStage.SILENT
        return new, surplus

    def leave(self, connection: Connection) -> None:
        """Stop counting a connection, if it is counted."""
        own = self._by_address.get(connection.address, {})
        if connection not in own:
            return
        del own[connection]
        if not own:
            del self._by_address[connection.address]
        self._by_network[connection.network] -= 1
        if not self._by_network[connection.network]:
            del self._by_network[connection.network]

    def _surplus(self, new: Connection, limits: Limits) -> Connection | None:
        own = self._by_address[new.address]
        if len(own) > limits.each:
            return max(own, key=lambda each: (each.stage, -each.number))
        if len(self) <= limits.total:
            return None
        return max(
            (each for group in self._by_address.values() for each in group),
            key=lambda each: (
                max(len(self._by_address[each.address]) - limits.few, 0),
                max(self._by_network[each.network] - limits.each, 0),
                each.stage,
                -each.number,
            ),
        )


def network_of(address: str) -> bytes:
    """Return the network of an address: the prefix that a node's pods share by default (IPv4 /24, IPv6 /64)."""
    text = address.partition("%")[0]
    if ":" not in text:
        return socket.inet_pton(socket.AF_INET, text)[:3]
    packed = socket.inet_pton(socket.AF_INET6, text)
    return packed[12:15] if packed.startswith(_IPV4_MAPPED) else packed[:8]
