"""The annotation with a node's use tells what the agent knows, and is written no more often than it has to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_device_plugin.core.contract.nodereport import STALE_S, NodeUse, UsedGpu, UsedPart
from gpu_device_plugin.core.model.limits import Held, LimitState, Rung
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.node.holdings import Holding
from gpu_device_plugin.core.node.over_use import Excess
from gpu_device_plugin.core.node.use import ContainerUse, UseReading
from gpu_device_plugin.core.node.use_notes import AGAIN_S, SELDOM_S, SOON_S, due_in_s, node_use
from tests.nodes import node, uuid

SHARES = node(16, 16).shares
EPOCH = 1_795_169_580.25
"""20 November 2026, 10:13:00 UTC."""


def test_everything_that_is_known_of_a_container_is_told() -> None:
    web = ContainerUse("uid-a", "main", uuid(1), 4096, 6120, 35, 2, pod=Pod("uid-a", "shop", "web-0"))
    place = ("uid-a", "main", uuid(1))
    reading = UseReading(100.0, (web,), {uuid(0): None, uuid(1): 6500}, {uuid(1): 380})
    found = node_use(
        reading,
        {place: LimitState(Rung.MPS, Held.DIFFERS, 8192, "because")},
        {place: Excess(place, 6120, 4096, since=40.0)},
        SHARES,
        epoch=EPOCH,
    )
    assert found == NodeUse(
        "2026-11-20T10:14:40Z",
        {0: UsedGpu(), 1: UsedGpu(6500, 380)},
        (
            UsedPart(
                "shop",
                "web-0",
                "main",
                1,
                4096,
                6120,
                35,
                Rung.MPS,
                Held.DIFFERS,
                8192,
                "because",
                "2026-11-20T10:13:40Z",
            ),
        ),
    )


def test_a_pod_that_the_api_does_not_show_is_called_by_its_uid() -> None:
    reading = UseReading(0.0, (ContainerUse("uid-a", "", uuid(0), 0, 700),), blind="why")
    found = node_use(reading, {}, {}, SHARES, epoch=EPOCH)
    assert (found.parts, found.blind) == ((UsedPart("", "uid-a", "", 0, 0, 700),), "why")


@pytest.mark.parametrize(
    ("holding", "expected"),
    [
        (Holding("uid-a", "main", {uuid(0): 4096}, rung=Rung.ADVISORY), Rung.ADVISORY),
        (Holding("uid-a", "main", {uuid(0): 4096}, rung=Rung.DRIVER), Rung.DRIVER),
        (Holding("uid-a", "main", {uuid(0): 4096}), None),
        (Holding("uid-a", "main", {uuid(0): 16_384}, whole=True, rung=Rung.ADVISORY), None),
        (None, None),
    ],
    ids=["advisory", "the driver's, not read yet", "of an older agent", "whole GPUs", "not given this GPU"],
)
def test_the_means_is_told_where_nothing_is_known_of_the_limit(holding: Holding | None, expected: Rung | None) -> None:
    use = ContainerUse("uid-a", "main", uuid(0), 4096, 700, holding=holding)
    (part,) = node_use(UseReading(0.0, (use,)), {}, {}, SHARES, epoch=EPOCH).parts
    assert (part.rung, part.held) == (expected, None)


def test_gpus_without_a_position_are_left_out() -> None:
    reading = UseReading(0.0, (ContainerUse("uid-a", "main", "GPU-mig", 0, 700),), {"GPU-mig": 700}, {"GPU-mig": 0})
    found = node_use(reading, {}, {}, SHARES, epoch=EPOCH)
    assert (found.parts, found.gpus) == ((), {})


MAIN = UsedPart("shop", "web-0", "main", 0, 4096, 10_000, 35, Rung.MPS, Held.HELD)
USE = NodeUse("2026-11-22T09:33:00Z", {0: UsedGpu(12_000, 2_000)}, (MAIN,))


def with_part(**changed: Any) -> NodeUse:
    return replace(USE, parts=(replace(MAIN, **changed),))


def test_the_first_is_written_at_once() -> None:
    assert due_in_s(None, USE, 0.0) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        USE,
        replace(USE, at="2026-11-22T10:33:00Z"),
        with_part(sm_percent=99),
        with_part(sm_percent=None),
        with_part(used_mib=10_500),  # 5 % of 10,000
        with_part(used_mib=9_500),
        replace(USE, gpus={0: UsedGpu(12_600, 2_256)}),
    ],
)
def test_what_says_the_same_is_written_for_its_time_alone(now: NodeUse) -> None:
    assert due_in_s(USE, now, SELDOM_S + 1) == AGAIN_S - SELDOM_S - 1
    assert due_in_s(USE, now, AGAIN_S) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        with_part(used_mib=10_501),
        with_part(used_mib=9_499),
        with_part(used_mib=None),
        with_part(why="another reason"),
        replace(USE, gpus={0: UsedGpu(12_601, 2_000)}),
        replace(USE, gpus={0: UsedGpu(12_000, 2_257)}),
        replace(USE, gpus={0: UsedGpu(None, 2_000)}),
    ],
)
def test_figures_wait_for_their_minute(now: NodeUse) -> None:
    assert due_in_s(USE, now, 20.0) == SELDOM_S - 20.0
    assert due_in_s(USE, now, SELDOM_S + 1) == 0.0


@pytest.mark.parametrize(
    "now",
    [
        with_part(held=Held.MISSING),
        with_part(found_mib=8192),
        with_part(rung=Rung.ADVISORY),
        with_part(over_since="2026-11-22T09:33:00Z"),
        with_part(granted_mib=2048),
        with_part(container="side"),
        replace(USE, parts=()),
        replace(USE, parts=(MAIN, replace(MAIN, pod="web-1"))),
        replace(USE, gpus={}),
        replace(USE, blind="why"),
    ],
)
def test_what_holds_and_who_is_there_is_told_soon(now: NodeUse) -> None:
    assert due_in_s(USE, now, SOON_S) == 0.0
    assert due_in_s(USE, now, 1.0) == SOON_S - 1.0


def test_since_when_somebody_uses_too_much_changes_nothing() -> None:
    """The clock of the machine may be set meanwhile."""
    earlier, later = (with_part(over_since=f"2026-11-22T09:33:{second}Z") for second in ("00", "01"))
    assert due_in_s(earlier, later, SELDOM_S) == AGAIN_S - SELDOM_S


def test_figures_are_renewed_before_readers_take_them_for_old() -> None:
    assert 2 * AGAIN_S < STALE_S
