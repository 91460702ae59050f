"""Take one thing of each namespace in turn, so that none has all of what there is too little of."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

T = TypeVar("T")


def in_turns(things: Iterable[T], namespace: Callable[[T], str]) -> Sequence[T]:
    """Return things by turns of their namespaces; those of one namespace stay in their order."""
    by_namespace: dict[str, list[T]] = {}
    for thing in things:
        by_namespace.setdefault(namespace(thing), []).append(thing)
    missing = object()
    turns = chain.from_iterable(zip_longest(*by_namespace.values(), fillvalue=missing))
    return [thing for thing in turns if thing is not missing]  # type: ignore[misc]
