"""One object for many equal ones: the thousands of pods and nodes of a cluster differ in few values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class Shared(Generic[K, V]):
    """The values made so far, by key. Forgets all when it is full: the memory for what strangers write is bounded."""

    def __init__(self, most: int = 1000) -> None:
        """Keep so many."""
        self._most = most
        self._known: dict[K, V] = {}

    def one(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of this key, made now if it is the first or was forgotten."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = found
        return found

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._known)
