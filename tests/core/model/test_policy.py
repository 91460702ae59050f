"""Which policy a node has."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.model.policy import policy_in_force


@pytest.mark.parametrize(("label", "expected"), [("spread", "spread"), ("", "binpack"), ("best", "binpack")])
def test_a_label_that_names_a_policy_takes_precedence_over_the_setting(label: str, expected: str) -> None:
    assert policy_in_force(label, "binpack") == expected
