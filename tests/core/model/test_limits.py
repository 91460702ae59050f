"""The order of the means of limiting memory."""

from __future__ import annotations

import itertools

from gpu_device_plugin.core.model.limits import Rung


def test_the_driver_is_stronger_than_mps_and_that_than_a_library_and_that_than_words() -> None:
    ladder = (Rung.DRIVER, Rung.MPS, Rung.CUSTOM, Rung.ADVISORY)
    assert set(ladder) == set(Rung)
    assert all(one.strength > other.strength for one, other in itertools.pairwise(ladder))
