"""Times are written as Kubernetes writes them and read with any zone; durations are read with a unit."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpu_device_plugin.model.times import epoch_s, micro_time, rfc3339, seconds


def test_a_time_is_written_in_utc_and_whole_seconds() -> None:
    assert rfc3339(1_795_341_600.9) == "2026-11-22T10:00:00Z"
    assert rfc3339(0) == "1970-01-01T00:00:00Z"


def test_events_and_leases_have_microseconds() -> None:
    moment = datetime(2026, 11, 22, 12, 0, 0, 250, timezone(timedelta(hours=2)))
    assert micro_time(moment) == "2026-11-22T10:00:00.000250Z"
    assert micro_time(datetime(1970, 1, 1, tzinfo=UTC)) == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T10:00:00Z", 1_795_341_600.0),
        ("2026-11-22T10:00:00.250000Z", 1_795_341_600.25),
        ("2026-11-22T12:00:00+02:00", 1_795_341_600.0),
        ("2026-11-22T10:00:00", 1_795_341_600.0),
        ("yesterday", None),
        ("", None),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140.0),
    ],
)
def test_a_time_is_read_with_its_zone(text: str, expected: float | None) -> None:
    assert epoch_s(text) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("200ms", 0.2),
        ("5s", 5.0),
        ("1.5m", 90.0),
        ("0h", 0.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
        ("5", None),
        ("s", None),
        ("-1s", None),
        ("5 s", None),
        ("\u0663s", None),
        ("1e3s", None),
        ("9" * 400 + "s", None),
    ],
)
def test_durations_are_read_in_seconds(text: str, found: float | None) -> None:
    assert seconds(text) == found
