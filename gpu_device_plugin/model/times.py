"""Times in RFC 3339, as Kubernetes writes them, and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def seconds(text: str) -> float | None:
    """Return a duration such as ``200ms``, ``5s`` or ``7d`` in seconds. None: the text is none."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)(ms|[smhdw])", text, re.ASCII)
    return None if match is None else float(match[1]) * _SECONDS[match[2]]


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
