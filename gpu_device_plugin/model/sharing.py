"""Share one object among equal values: the thousands of pods and nodes of a cluster differ in few of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

_MOST_BYTES = 4 << 20
_OBJECT = 56
"""Bytes of a text, a number or a tuple besides what it consists of, in CPython."""


def weight(value: object) -> int:
    """Return about how many bytes of memory a value of texts, numbers and tuples takes.

    One character outside ASCII makes each of a text take up to 4 bytes.
    """
    if isinstance(value, str):
        return _OBJECT + (len(value) if value.isascii() else 4 * len(value))
    return _OBJECT + (sum(8 + weight(each) for each in value) if isinstance(value, tuple) else 0)


class Shared(Generic[K, V]):
    """The values made so far, by key. Forgets all when it is full: the memory for what strangers write is bounded."""

    def __init__(self, most: int = 1000, most_bytes: int = _MOST_BYTES) -> None:
        """Keep so many, with keys of so many bytes (`weight`); values are assumed to be no larger than their keys."""
        self._most = most
        self._most_bytes = most_bytes
        self._known: dict[K, V] = {}
        self._bytes = 0

    def one(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of this key, made now if it is the first or was forgotten."""
        found = self._known.get(key)
        if found is None:
            found = make()
            self._bytes += weight(key)
            if len(self._known) >= self._most or self._bytes > self._most_bytes:
                self._known.clear()
                self._bytes = weight(key)
            self._known[key] = found
        return found

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._known)
