"""The metrics show who holds and who uses the GPUs of a node, each figure that is known, and nobody twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpu_device_plugin.core.model.gpus import Gpu, Inventory
from gpu_device_plugin.core.model.limits import GpuRung, Held, LimitState, Rung
from gpu_device_plugin.core.model.mig import MigMode
from gpu_device_plugin.core.model.pods import Pod
from gpu_device_plugin.core.model.shares import Shares, share_id
from gpu_device_plugin.core.node.holdings import Holding
from gpu_device_plugin.core.node.node import Node
from gpu_device_plugin.core.node.use import ContainerUse, UseReading
from gpu_device_plugin.core.node.use_series import (
    MOST_OTHERS,
    STALE_S,
    ContainerSeries,
    GpuSeries,
    containers,
    fresh,
    gpus,
    names,
)
from tests.mig_gpus import MIDDLE, SMALL, in_mig_mode
from tests.nodes import node, uuid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_device_plugin.core.node.over_use import Place

GIB = 1 << 30
WEB = Pod("uid-web", "shop", "web-0")
HELD = Holding("uid-web", "main", {uuid(1): 4096}, {uuid(1): 4096}, rung=Rung.DRIVER, pod=WEB)
PLACE = ("uid-web", "main", uuid(1))
USE = ContainerUse("uid-web", "main", uuid(1), 4096, 6144, 35, 2, HELD, WEB)
STRANGER = ContainerUse("uid-x", "job", uuid(0), 0, 512, 5, 1, None, Pod("uid-x", "lab", "stranger"))


def shown(
    holdings: Sequence[Holding] = (HELD,),
    uses: Sequence[ContainerUse] = (),
    limits: Mapping[Place, LimitState] | None = None,
    **more: Any,
) -> list[ContainerSeries]:
    reading = UseReading(containers=tuple(uses))
    named = names({}, holdings, reading)
    return list(containers(holdings, reading, limits or {}, named, **{"fresh": True, **more}))


def test_everything_that_is_known_of_a_container_is_shown() -> None:
    """6 GiB of 4 are used, 35 % of the time; the driver has a limit of 5 GiB, which differs."""
    limit = LimitState(Rung.DRIVER, Held.DIFFERS, 5120, "because")
    assert shown((HELD,), (USE,), {PLACE: limit}) == [
        ContainerSeries("shop", "web-0", "main", uuid(1), 4 * GIB, 6 * GIB, 5 * GIB, "driver", "differs", 0.35)
    ]


@pytest.mark.parametrize(
    ("holding", "limit", "expected"),
    [
        (HELD, LimitState(Rung.DRIVER, Held.MISSING), (4 * GIB, "driver", "missing")),
        (HELD, LimitState(Rung.MPS), (4 * GIB, "mps", "unverified")),
        (HELD, None, (4 * GIB, "driver", "unverified")),
        (replace(HELD, rung=Rung.ADVISORY), None, (4 * GIB, "advisory", "unverified")),
        (replace(HELD, rung=None), None, (None, "", "")),
        (replace(HELD, rung=Rung.DRIVER, whole=True), None, (None, "", "")),
    ],
    ids=["missing", "mps", "not read yet", "advisory", "an older agent's", "whole"],
)
def test_a_limit_that_was_not_read_back_is_the_one_that_was_asked_for(
    holding: Holding, limit: LimitState | None, expected: tuple[int | None, str, str]
) -> None:
    (found,) = shown((holding,), (), {} if limit is None else {PLACE: limit})
    assert (found.limit_bytes, found.rung, found.state) == expected


def test_what_is_not_known_is_not_zero() -> None:
    unknown = replace(USE, used_mib=None, sm_percent=None)
    for uses, known in (((), True), ((unknown,), True), ((USE,), False)):
        (found,) = shown((HELD,), uses, fresh=known)
        assert (found.allocated_bytes, found.used_bytes, found.utilization) == (4 * GIB, None, None)
    assert shown((HELD,), (replace(USE, used_mib=0, sm_percent=0),))[0].used_bytes == 0


def test_a_container_that_uses_what_it_was_not_given_was_allocated_nothing() -> None:
    """Of a process whose container is not known, the pod's containers have the allocation already."""
    unnamed = ContainerUse("uid-web", "", uuid(1), 4096, 100)
    assert shown((HELD,), (USE, STRANGER, unnamed))[1:] == [
        ContainerSeries("lab", "stranger", "job", uuid(0), 0, 512 << 20, utilization=0.05),
        ContainerSeries("shop", "web-0", "", uuid(1), None, 100 << 20),
    ]


def test_whoever_has_ended_since_the_reading_is_not_shown() -> None:
    assert shown((), (USE,)) == []
    assert shown((), (STRANGER,), there={"uid-web"}) == []
    assert [each.pod for each in shown((), (STRANGER,), there={"uid-x"})] == ["stranger"]
    unknown = replace(STRANGER, pod=None)
    assert [(each.namespace, each.pod) for each in shown((), (unknown,), there=())] == [("", "uid-x")]


def test_what_strangers_start_is_bounded_and_the_largest_stay() -> None:
    crowd = [replace(STRANGER, container=f"c{number}", used_mib=number) for number in range(MOST_OTHERS + 10)]
    crowd.append(replace(STRANGER, container="unknown", used_mib=None))
    found = shown((HELD,), crowd)
    assert len(found) == 1 + MOST_OTHERS
    assert min(each.used_bytes or 0 for each in found[1:]) == 10 << 20


def test_no_series_is_there_twice() -> None:
    """The successor of a pod has its name before the old one's devices are free; another plugin gave a GPU again."""
    old = replace(HELD, pod_uid="uid-old", pod=Pod("uid-old", "shop", "web-0"), granted={uuid(1): 1024})
    again = replace(HELD, granted={uuid(1): 8192})
    less = replace(HELD, granted={uuid(1): 2048})
    assert [each.allocated_bytes for each in shown((HELD, old, again, less))] == [8 * GIB]


def test_a_pod_that_the_api_has_deleted_keeps_its_name_while_it_holds_a_gpu() -> None:
    gone = replace(HELD, pod=None)
    nobody = UseReading()
    first = names({}, (HELD,), nobody)
    assert first == {"uid-web": ("shop", "web-0")}
    assert names(first, (gone,), nobody) == first
    assert names({}, (gone,), nobody) == names(first, (), nobody) == {}
    assert names({}, (HELD, replace(gone, container="side")), nobody) == first
    assert names({}, (), UseReading(containers=(STRANGER, USE))) == {"uid-x": ("lab", "stranger")}
    (found,) = containers((gone,), nobody, {}, {}, fresh=True)
    assert (found.namespace, found.pod) == ("", "uid-web")


@pytest.mark.parametrize(
    ("age_s", "interval_s", "is_fresh"), [(STALE_S, 1.0, True), (61.0, 15.0, False), (61.0, 30.0, True)]
)
def test_figures_are_of_the_present_for_some_intervals(age_s: float, interval_s: float, *, is_fresh: bool) -> None:
    assert fresh(UseReading(at=100.0), 100.0 + age_s, interval_s) is is_fresh


def test_a_gpu_is_shown_in_bytes() -> None:
    """GPU 0 gives 3 shares, GPU 1 is given whole, GPU 2 whole by another plugin; 3 is free and unread."""
    there = node(16, 16, 16, 16)
    ledger = there.ledger.seen([share_id(uuid(0), n) for n in range(3)]).seen([uuid(1)])
    there = there.with_ledger(ledger.with_foreign({uuid(2): "nvidia.com/gpu"}))
    reading = UseReading(used_mib={uuid(0): 2048, uuid(1): None}, unattributed_mib={uuid(0): 256})
    rungs = {0: GpuRung(Rung.MPS, "why")}
    found = list(gpus(there, reading, rungs, "615.71.09", fresh=True))
    gpu = there.shares.gpus[0].gpu
    total, share = gpu.total_mib << 20, str(there.shares.share_mib << 20)
    assert found[0] == GpuSeries(
        gpu.uuid, "0", gpu.product, "615.71.09", "mps", share, total, 3 * int(share), 2 * GIB, 256 << 20
    )
    assert [each.allocated_bytes for each in found[1:]] == [total, total, 0]
    assert [(each.used_bytes, each.unattributed_bytes) for each in found[1:]] == [(None, None)] * 3
    assert [each.rung for each in found[1:]] == [""] * 3
    stale = next(gpus(there, reading, rungs, None, fresh=False))
    assert (stale.used_bytes, stale.unattributed_bytes, stale.driver) == (None, None, "")


def test_a_gpu_has_no_more_allocated_than_memory() -> None:
    """The IDs of a former, smaller share size may still be in use."""
    there = node(4)
    there = there.with_ledger(there.ledger.seen([share_id(uuid(0), n) for n in range(4000)]))
    (found,) = gpus(there, UseReading(), {}, None, fresh=True)
    assert found.allocated_bytes == found.memory_bytes


def parted(mode: MigMode, gpus: tuple[Gpu, ...], known: Node | None = None) -> Node:
    shares = (Shares(1024) if known is None else known.shares).with_inventory(Inventory(gpus), mig=mode)
    return replace(known or Node(shares), shares=shares)


def listed(there: Node) -> list[tuple[str, int]]:
    """Return the UUID of each GPU that is shown, with the GiB that are allocated of it."""
    return [(each.gpu, each.allocated_bytes // GIB) for each in gpus(there, UseReading(), {}, None, fresh=True)]


def test_instances_are_shown_with_their_gpu_which_is_not_shown_itself() -> None:
    card = in_mig_mode(0, SMALL, SMALL)
    there = parted(MigMode.SHARE, card)
    there = there.with_ledger(there.ledger.seen([share_id("MIG-m1", 0), share_id("MIG-m1", 1)]))
    assert listed(there) == [("MIG-m0", 0), ("MIG-m1", 2)]
    first = next(gpus(there, UseReading(), {}, None, fresh=True))
    assert (first.parent, first.profile, first.gi, first.model) == ("GPU-m", "1g.10gb", "7", card[1].product)
    assert first.memory_bytes == 9728 << 20


def test_an_instance_that_is_held_whole_is_allocated() -> None:
    there = parted(MigMode.WHOLE, in_mig_mode(0, SMALL, SMALL))
    assert listed(there.with_ledger(there.ledger.seen(["MIG-m0"]))) == [("MIG-m0", 9), ("MIG-m1", 0)]


def test_of_instances_that_exist_no_more_or_are_given_to_nobody_those_in_use_are_shown() -> None:
    """MIG-m0 is destroyed while a container has it; MIG-m1 while nobody does; then the mode is switched off."""
    there = parted(MigMode.WHOLE, in_mig_mode(0, SMALL, SMALL, MIDDLE))
    there = there.with_ledger(there.ledger.seen(["MIG-m0"]))
    card = in_mig_mode(0, SMALL, SMALL, MIDDLE)
    left = parted(MigMode.WHOLE, (card[0], card[3]), there)
    assert [uuid for uuid, _ in listed(left)] == ["MIG-m0", "MIG-m2"]
    assert [uuid for uuid, _ in listed(parted(MigMode.OFF, card, there))] == ["MIG-m0"]
