"""Tell what happens on a node to everybody who listens: to people by Events, and to the records of incidents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.model.pods import Pod


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened on the node, or that its agent did."""

    reason: str
    """Of the Event, in CamelCase; `deploy/policies.yaml` lists those about pods. Empty: no Event is posted."""
    note: str
    """What happened, in a sentence."""
    action: str = ""
    """What the agent did, in the field `action` of the Event."""
    pod: Pod | None = None
    """The pod of our node that it is about; None: the node itself."""
    warning: bool = True
    summary: str = ""
    """The sentence by which a record of this incident is listed; empty: it is no incident."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs concerned by the incident."""


class Happenings:
    """Calls its listeners at once and on the event loop, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._recorders: list[Callable[[Happening], str]] = []
        self._listeners: list[Callable[[Happening], None]] = []

    def tell(self, happening: Happening) -> None:
        """Tell all listeners."""
        for record in self._recorders:
            happening = replace(happening, note=happening.note + record(happening))
        for listen in self._listeners:
            listen(happening)

    def record_by(self, recorder: Callable[[Happening], str]) -> None:
        """Have a recorder called before all listeners; it returns the end of the sentence, such as a record's name."""
        self._recorders.append(recorder)

    def subscribe(self, listener: Callable[[Happening], None]) -> None:
        """Have a listener called with each happening."""
        self._listeners.append(listener)
