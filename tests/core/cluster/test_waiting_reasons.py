"""Why a pod waits, in one word, and since when."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gpu_device_plugin.core.cluster.fitting import Unfit
from gpu_device_plugin.core.cluster.waiting_reasons import Reason, after_preemption, by_verdicts, oldest_s

FULL = Unfit("full", unresolvable=False)
TOO_SMALL = Unfit("too small", unresolvable=True)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        ((TOO_SMALL, FULL, None), Reason.FITS),
        ((TOO_SMALL, FULL, TOO_SMALL), Reason.NO_ROOM),
        ((TOO_SMALL, TOO_SMALL), Reason.NEVER_FITS),
        ((), Reason.NEVER_FITS),
    ],
)
def test_the_best_verdict_says_why(verdicts: tuple[Unfit | None, ...], reason: Reason) -> None:
    assert by_verdicts(verdicts) is reason


@pytest.mark.parametrize(
    ("before", "helps", "after"),
    [
        (None, False, Reason.NO_ROOM),
        (Reason.FITS, False, Reason.NO_ROOM),
        (Reason.NO_ROOM, True, Reason.NO_ROOM),
        (Reason.NEVER_FITS, False, Reason.NEVER_FITS),
        (Reason.NEVER_FITS, True, Reason.NO_ROOM),
    ],
)
def test_whoever_may_preempt_has_no_room(before: Reason | None, after: Reason, *, helps: bool) -> None:
    assert after_preemption(before, helps=helps) is after


@pytest.mark.parametrize(
    ("created", "age_s"),
    [
        (("2026-11-20T11:59:00Z", "2026-11-20T11:00:00Z", ""), 3600.0),
        ((), 0.0),
        (("",), 0.0),
        (("yesterdayZ",), 0.0),
        (("2026-11-20T12:00:05Z",), 0.0),
    ],
    ids=["the oldest counts", "no pod", "unknown", "no time", "the API server's clock is ahead"],
)
def test_the_age_is_that_of_the_oldest_and_never_negative(created: tuple[str, ...], age_s: float) -> None:
    assert oldest_s(created, NOON) == age_s
