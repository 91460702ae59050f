"""The share size stays as it was for as long as a container holds shares of it."""

from __future__ import annotations

import pytest

from gpu_device_plugin.core.node.share_size import share_size


@pytest.mark.parametrize(
    ("before", "holders", "ended", "expected"),
    [
        (None, {"a"}, [], 1024),
        (2048, set(), [], 1024),
        (2048, {"a"}, [], 2048),
        (2048, {"a"}, ["a", "b"], 1024),
        (2048, {"a", "c"}, ["a", "b"], 2048),
        (2048, None, [], 2048),
        (None, None, [], 1024),
    ],
)
def test_it_waits_while_a_pod_holds_shares_or_may(
    before: int | None, holders: set[str] | None, ended: list[str], expected: int
) -> None:
    assert share_size(1024, before, holders, ended) == expected
