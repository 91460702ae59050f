"""Amounts of CPU and memory."""

import pytest

from gpu_device_plugin.model.resources import Amounts


@pytest.mark.parametrize(
    ("wanted", "enough"),
    [(Amounts(2000, 4096), True), (Amounts(), True), (Amounts(2001, 1), False), (Amounts(1, 4097), False)],
)
def test_a_node_covers_a_request_if_it_has_both(wanted: Amounts, *, enough: bool) -> None:
    assert Amounts(2000, 4096).cover(wanted) is enough
