"""Times in RFC 3339, as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(epoch_s: float) -> str:
    """Format seconds since the epoch in UTC, rounded down to whole seconds: ``2026-11-22T09:56:00Z``."""
    return datetime.fromtimestamp(int(epoch_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_s(text: str) -> float | None:
    """Return a time as seconds since the epoch; one without a zone is UTC. None: the text is no time."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def micro_time(moment: datetime) -> str:
    """Format a time as the API's ``MicroTime``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
