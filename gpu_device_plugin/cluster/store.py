"""The port through which a reflector delivers its objects; its users implement it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


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
T_contra = TypeVar("T_contra", bound=Versioned, contravariant=True)


class Store(Protocol[T_contra]):
    """Holds the objects. Every method is called from one task at a time, returns at once and never fails.

    A store that depends on the order of events overrides `compare`, `replay` and `level`.
    """

    def replace(self, objects: Sequence[T_contra]) -> None:
        """Hold exactly these objects; the watch continues from here. Missing objects were deleted without an event."""

    def compare(self, objects: Sequence[T_contra]) -> None:
        """Hold exactly these, like `replace`. The watch continues from an older version and may replay the changes."""
        self.replace(objects)

    def replay(self, object: T_contra, *, deleted: bool) -> None:  # noqa: A002, ARG002 - the API's word
        """Learn of a watch event from before the last list. Its state is no newer than the list's."""
        return

    def level(self) -> None:
        """Learn that the watch has reported all events up to the last list."""
        return

    def put(self, object: T_contra) -> None:  # noqa: A002
        """Hold this state of an object: its first or a newer one, possibly equal to the previous one."""

    def remove(self, object: T_contra) -> None:  # noqa: A002
        """Remove a deleted object, given in its last state. The store may not hold it."""


@dataclass(frozen=True, slots=True)
class Applied(Store[T_contra]):
    """A store of one kind of objects by three methods of what holds several kinds."""

    cluster_replace: Callable[[Sequence[T_contra]], None]
    cluster_put: Callable[[T_contra], None]
    cluster_remove: Callable[[T_contra], None]

    def replace(self, objects: Sequence[T_contra]) -> None:
        """Hold exactly these objects."""
        self.cluster_replace(objects)

    def put(self, object: T_contra) -> None:  # noqa: A002 - the API's term
        """Hold this state of an object."""
        self.cluster_put(object)

    def remove(self, object: T_contra) -> None:  # noqa: A002 - the API's term
        """Remove a deleted object."""
        self.cluster_remove(object)


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
