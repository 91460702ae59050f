"""What becomes of the objects that a reflector follows: the port that its users implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class Versioned(Protocol):
    """What is kept of an object names it and its version."""

    @property
    def uid(self) -> str:
        """Names it for ever."""
        ...

    @property
    def resource_version(self) -> str:
        """A number, higher after each change."""
        ...


T_contra = TypeVar("T_contra", bound=Versioned, contravariant=True)


class Store(Protocol[T_contra]):
    """Where the objects go. Every method is called from one task at a time, returns at once and never fails.

    Where it matters in which order things happened, a store has its own `compare`, `replay` and `level`.
    """

    def replace(self, objects: Sequence[T_contra]) -> None:
        """Hold exactly these: the watch goes on from here. What is missing is gone, and nobody saw how."""

    def compare(self, objects: Sequence[T_contra]) -> None:
        """Hold exactly these, as by `replace`. The watch goes on from before, and may yet tell how it came to that."""
        self.replace(objects)

    def replay(self, object: T_contra, *, deleted: bool) -> None:  # noqa: A002, ARG002 - the API's word
        """Learn what the watch tells of the past of a list. The state is no newer than that of the list."""
        return

    def level(self) -> None:
        """Learn that the watch has told all that led to the last list."""
        return

    def put(self, object: T_contra) -> None:  # noqa: A002
        """Hold this state of an object, the first one or a newer one; equal to the one before or not."""

    def remove(self, object: T_contra) -> None:  # noqa: A002
        """Let go of an object that was deleted; this is its last state. It may not be held."""
