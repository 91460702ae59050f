"""One pod and its Events for a person who opened it, read from objects of the API; its environment is not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_device_plugin.cluster.api import UnreadableObjectError
from gpu_device_plugin.view.objects import Shape, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    import msgspec

_MOST_EVENTS = 50
_LONGEST = 1024


class _Series(Shape):
    count: int | None = None
    last_observed_time: str | None = None


class _Event(Shape):
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: _Series | None = None


def event_documents(raw_events: Iterable[msgspec.Raw]) -> list[dict[str, Any]]:
    """Return the latest Events of a pod for the page, the newest first; those that cannot be read are left out.

    Args:
        raw_events: Events of API group ``""`` as JSON.
    """
    found: list[dict[str, Any]] = []
    for raw in raw_events:
        try:
            event = decoded(raw, _Event)
        except UnreadableObjectError:
            continue  # Events are optional
        series = event.series or _Series()
        fields: dict[str, Any] = {
            "type": event.type,
            "reason": event.reason,
            "message": " ".join((event.message or "").split())[:_LONGEST],
            "count": event.count or series.count or 1,
            "last": event.last_timestamp or series.last_observed_time or event.event_time or event.first_timestamp,
        }
        found.append({key: value for key, value in fields.items() if value})
    return sorted(found, key=lambda each: str(each.get("last", "")), reverse=True)[:_MOST_EVENTS]
