"""The port through which a reflector delivers its objects; its users implement it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Versioned(Protocol):
    """A kept object, with its identity and version."""

    @property
    def uid(self) -> str:
        """Identifies the object for ever."""
        ...

    @property
    def resource_version(self) -> str:
        """A number, higher after each change."""
        ...


T = TypeVar("T", bound=Versioned)


@dataclass(eq=False, repr=False)
class Store(Generic[T]):
    """Holds the objects, by three functions. All are called from one task at a time, return at once and never fail.

    A store that depends on the order of events is a class of its own, with `compare`, `replay` and `level`, too.
    """

    replace: Callable[[Sequence[T]], None]
    """Hold exactly these objects; the watch continues from here. Missing objects were deleted without an event."""
    put: Callable[[T], None]
    """Hold this state of an object: its first or a newer one, possibly equal to the previous one."""
    remove: Callable[[T], None]
    """Remove a deleted object, given in its last state. The store may not hold it."""

    def compare(self, objects: Sequence[T]) -> None:
        """Hold exactly these, like `replace`. The watch continues from an older version and may replay the changes."""
        self.replace(objects)

    def replay(self, object: T, *, deleted: bool) -> None:  # noqa: A002, ARG002 - the API's word
        """Learn of a watch event from before the last list. Its state is no newer than the list's."""
        return

    def level(self) -> None:
        """Learn that the watch has reported all events up to the last list."""
        return


def replacing(
    held: Callable[[], Iterable[T]], put: Callable[[T], None], remove: Callable[[T], None]
) -> Callable[[Sequence[T]], None]:
    """Return what replaces all objects of a kind, one by one."""

    def replace_all(objects: Sequence[T]) -> None:
        there = {each.uid for each in objects}
        for gone in [each for each in held() if each.uid not in there]:
            remove(gone)
        for each in objects:
            put(each)

    return replace_all
