"""The nodes that readers have on their screens, whose figures are read first."""

from __future__ import annotations

import secrets
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

MOST_NODES = 1000
"""The most nodes of one reader, and of all together."""


class Views:
    """What the reader of each open stream looks at, as far as the page says it."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._order: tuple[str, ...] | None = ()

    def __repr__(self) -> str:
        return f"<Views of {len(self._nodes)} of {len(self._users)} streams>"

    def open(self, user: str) -> str:
        """Return a name for a new stream of a user. No two replicas give the same."""
        stream = secrets.token_hex(8)
        self._users[stream] = user
        return stream

    def close(self, stream: str) -> None:
        """Forget a stream."""
        del self._users[stream]
        if self._nodes.pop(stream, None) is not None:
            self._order = None

    def show(self, stream: str, user: str, nodes: Collection[str]) -> bool:
        """Learn which nodes a reader looks at, those first that matter most to it; the rest of many is left out.

        Returns:
            Whether there is such a stream of this user.
        """
        if self._users.get(stream) != user:
            return False
        self._nodes[stream] = tuple(nodes)[:MOST_NODES]
        self._order = None
        return True

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that anybody looks at, each once, the first of every reader before the second of any."""
        if self._order is None:
            in_turn = chain.from_iterable(zip_longest(*self._nodes.values(), fillvalue=""))
            self._order = tuple(filter(None, dict.fromkeys(in_turn)))[:MOST_NODES]
        return self._order
