"""What is the same for all kinds of objects that the API server double stores, and its answer to invalid ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.testing.cluster.selectors import field_selector, label_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpu_device_plugin.testing.builders import Json


class StatusError(Exception):
    """A request that the API server answers with an error."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}


def invalid(served: Served, name: str, where: str, why: str, message: str) -> StatusError:
    """Return the refusal of an object with an invalid field."""
    cause = {"reason": why, "message": message, "field": where}
    details = {"name": name, "kind": served.kind, "causes": [cause]}
    return StatusError(422, "Invalid", f'{served.kind} "{name}" is invalid: {where}: {message}', details)


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A kind of object in the store."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    subresources: frozenset[str] = frozenset()
    fields: Mapping[str, Callable[[Mapping[str, Any]], str]] = field(default_factory=dict)
    """Field selectors besides those on metadata."""
    on_create: Callable[[Json], object] = lambda _new: None
    """Sets the defaults of a new object, or refuses it."""
    on_change: Callable[[Json, Json], object] = lambda _before, _after: None
    """Refuses a forbidden change."""

    @property
    def api_version(self) -> str:
        """The apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full(self) -> str:
        """Its name in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def key(self, namespace: str, name: str) -> tuple[str, str]:
        """Return the namespace and name under which an object is stored."""
        return (namespace if self.namespaced else "", name)

    def selector(self, fields: str, labels: str) -> Callable[[Mapping[str, Any]], bool]:
        """Return a test whether both selectors match an object; raise StatusError if one is invalid."""
        known: dict[str, Callable[[Mapping[str, Any]], str]] = {
            "metadata.name": lambda found: found["metadata"]["name"],
            **({"metadata.namespace": lambda found: found["metadata"]["namespace"]} if self.namespaced else {}),
            **self.fields,
        }
        try:
            by_fields, by_labels = field_selector(fields, known), label_selector(labels)
        except ValueError as error:
            raise StatusError(400, "BadRequest", str(error)) from error
        return lambda found: by_fields(found) and by_labels(found)
