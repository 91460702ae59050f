"""Steps instead of a clock."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.cluster.effort import Effort, TooLongError


def test_an_effort_ends_with_its_last_step_and_begins_anew_with_all() -> None:
    effort = Effort(10)
    effort.spend(9)
    effort.check()
    assert repr(effort) == "<Effort: 1 of 10 steps left>"
    effort.spend(1)
    assert effort.spent == 10
    with pytest.raises(TooLongError):
        effort.check()
    effort.renew()
    assert effort.spent == 0
