"""What is guaranteed on a GPU and not taken yet has to be free there, and only what nobody is guaranteed is lent."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpu_device_plugin.features.elastic.rules.reclaiming import allowed_now, shortage_mib, uses_now
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.contract.keys import MEMORY_GUARANTEE, MEMORY_HELD, MEMORY_LIMIT, MEMORY_PROMISED
from gpu_device_plugin.model.pods import Pod

GPU, OTHER = "GPU-0", "GPU-1"


def holding(uid: str, mib: int, limit: int | None = None, name: str = "main", **annotations: str) -> ContainerGpus:
    """Return a container with a guarantee on the first GPU."""
    marks = {
        {"most": MEMORY_LIMIT, "wish": MEMORY_GUARANTEE, "held": MEMORY_HELD, "promised": MEMORY_PROMISED}[key]: v
        for key, v in annotations.items()
    }
    pod = Pod(uid, "default", uid, annotations=marks)
    return ContainerGpus(uid, name, {GPU: mib}, {GPU: mib}, pod=pod, limits={} if limit is None else {GPU: limit})


def uses(*held: ContainerGpus, **used: int | None) -> tuple[AttributedUse, ...]:
    """Return who holds the first GPU, each pod with its use."""
    reading = UseReading(1.0, tuple(AttributedUse(uid, "main", GPU, 0, mib) for uid, mib in used.items()), {GPU: 0})
    return uses_now(reading, held)[GPU]


@pytest.mark.parametrize(
    ("used", "gpu_used", "capacity", "short"),
    [
        ({"a": 0, "b": 0}, 0, 8192, 0),
        ({"a": 6144, "b": 0}, 6144, 8192, 2048),
        ({"a": 6144, "b": 1024}, 7168, 8192, 2048),
        ({"a": 6144, "b": 4096}, 10240, 8192, 2048),  # more than there is: the driver counts otherwise than we do
        ({"a": 4096, "b": 4096}, 8192, 8192, 0),
        ({"a": None, "b": 0}, 6144, 8192, 2048),  # exactly its guarantee
        ({"a": None, "b": None}, 8192, 8192, 0),
        ({}, 8192, 8192, 8192),  # both start
        ({"a": 6144, "b": 0}, None, 8192, 0),
        ({"a": 6144, "b": 0}, 6144, None, 0),
    ],
)
def test_a_gpu_lacks_what_is_guaranteed_and_neither_taken_nor_free(
    used: Mapping[str, int | None], gpu_used: int | None, capacity: int | None, short: int
) -> None:
    found = uses(holding("a", 4096), holding("b", 4096), **used)
    assert shortage_mib(found, gpu_used, capacity) == short


def test_what_an_init_container_hands_on_is_guaranteed_once() -> None:
    init, main = holding("a", 4096, name="init"), holding("a", 4096)
    assert shortage_mib(uses(init, main), 0, 4096) == 0
    assert shortage_mib(uses(init, main), 0, 4000) == 96


def test_uses_are_of_those_that_hold_shares_now() -> None:
    read = UseReading(
        1.0,
        (AttributedUse("gone", "main", GPU, 4096, 4096), AttributedUse("a", "main", GPU, 1024, 3000)),
        {GPU: 7096, OTHER: 0},
    )
    grown, whole = holding("a", 2048, 3072), replace(holding("w", 8192), whole=True)
    new = AttributedUse("", "slot", OTHER, 1024, 0)
    found = uses_now(read, [grown, whole], [new])
    assert found == {
        GPU: (AttributedUse("a", "main", GPU, 2048, 3000, None, grown, grown.pod, 3072),),
        OTHER: (new,),
    }


def test_a_container_that_is_about_to_start_uses_nothing() -> None:
    held, starts = holding("a", 2048), AttributedUse("a", "main", GPU, 2048, 0)
    blind = UseReading(1.0, (AttributedUse("a", "main", GPU, 2048, None),), {GPU: 0})
    assert [use.used_mib for use in uses_now(blind, [held])[GPU]] == [None]
    assert [(use.used_mib, use.holding) for use in uses_now(blind, [held], [starts])[GPU]] == [(0, held)]


def now(*held: ContainerGpus, capacity: int | None = 16384, held_back: str = "") -> Mapping[str, int]:
    places = {(held_back, "main", GPU)} if held_back else set()
    found = allowed_now({GPU: uses(*held)}, {} if capacity is None else {GPU: capacity}, places)
    return {uid: mib for (uid, _, _), mib in found.items()}


def test_a_borrower_may_use_its_guarantee_and_what_nobody_is_guaranteed() -> None:
    borrower = holding("a", 4096, 12288, most="12")
    assert now(borrower) == {"a": 12288}
    assert now(borrower, holding("b", 8192)) == {"a": 8192}
    assert now(borrower, holding("b", 12288)) == {"a": 4096}
    assert now(borrower, holding("b", 14336)) == {"a": 4096}
    assert now(borrower, held_back="a") == {"a": 4096}
    assert now(borrower, capacity=None) == {"a": 4096}


def test_who_wants_less_than_it_holds_may_not_use_more() -> None:
    less = holding("a", 4096, 2048, wish="2")
    assert now(less) == {"a": 2048}
    assert now(less, held_back="a") == {"a": 2048}


@pytest.mark.parametrize(
    ("marks", "listed"),
    [({"wish": "6"}, True), ({"held": "{}"}, True), ({"most": "4"}, True), ({"promised": "{}"}, False), ({}, False)],
)
def test_limits_are_listed_of_those_that_may_have_changed(marks: Mapping[str, str], *, listed: bool) -> None:
    assert now(holding("a", 4096, **marks)) == ({"a": 4096} if listed else {})  # type: ignore[arg-type]


def test_without_the_api_a_limit_that_is_known_is_listed() -> None:
    assert now(replace(holding("a", 4096, 5120), pod=None), replace(holding("b", 4096), pod=None)) == {"a": 5120}
