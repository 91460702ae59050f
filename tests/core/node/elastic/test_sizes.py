"""How much of its GPU a container is guaranteed and may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.core.contract.keys import MEMORY_GUARANTEE, MEMORY_LIMIT
from gpu_device_plugin.core.node.elastic.sizes import Size, is_elastic, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.parametrize(
    ("annotations", "guaranteed", "size"),
    [
        ({}, 4, Size(4, 4)),
        ({MEMORY_LIMIT: "12"}, 4, Size(4, 12)),
        ({MEMORY_LIMIT: '{"main": 12}'}, 4, Size(4, 12)),
        ({MEMORY_LIMIT: '{"side": 12}'}, 4, Size(4, 4)),
        ({MEMORY_LIMIT: "40"}, 4, Size(4, 16)),
        ({MEMORY_LIMIT: "twelve"}, 4, Size(4, 4)),
        ({MEMORY_LIMIT: "2"}, 4, Size(4, 2)),
        ({MEMORY_GUARANTEE: "6"}, 4, Size(4, 4)),
        ({MEMORY_GUARANTEE: "6"}, 6, Size(6, 6)),
        ({MEMORY_GUARANTEE: "3"}, 4, Size(4, 3)),
        ({MEMORY_GUARANTEE: "3", MEMORY_LIMIT: "8"}, 4, Size(4, 8)),
    ],
)
def test_the_size_follows_from_the_wishes(annotations: Mapping[str, str], guaranteed: int, size: Size) -> None:
    found = size_of("main", annotations, guaranteed, 16, may_borrow=True)
    assert found == size
    assert found.borrows is (size.limit > size.guaranteed)


def test_where_nobody_may_borrow_the_limit_is_the_guarantee() -> None:
    assert size_of("main", {MEMORY_LIMIT: "12"}, 4, 16, may_borrow=False) == Size(4, 4)
    assert size_of("main", {MEMORY_LIMIT: "2"}, 4, 16, may_borrow=False) == Size(4, 2)


def test_only_a_wish_makes_a_pod_elastic() -> None:
    assert not is_elastic({})
    assert is_elastic({MEMORY_LIMIT: "12"})
    assert is_elastic({MEMORY_GUARANTEE: "12"})
