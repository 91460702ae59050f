"""What the kubelet is shown: one list for every change of it, and none for anything else."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.core.model.resources import Kind
from gpu_device_plugin.core.node.kubelet.admission import Refused, Why
from gpu_device_plugin.core.node.ledger import Evidence, Ledger
from gpu_device_plugin.core.node.node_config import NodeConfig
from gpu_device_plugin.metrics import Metrics
from gpu_device_plugin.node_state import NodeState
from gpu_device_plugin.programs.node.kubelet.advertiser import Advertiser
from gpu_device_plugin.programs.node.node_api import NodeApi
from gpu_device_plugin.programs.node.node_events import Reports
from tests.nodes import ids, node, uuid
from tests.programs.node.recorded_api import RecordedApi
from tests.resources import COUNT, MEM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def advertising(state: NodeState, refusal_limit: int = 10, api: NodeApi | None = None) -> Advertiser:
    config = NodeConfig(shares=state.node.shares, resources=(MEM, COUNT))
    reports = Reports(state, Metrics(), api or NodeApi())
    return Advertiser(state, Observable(config), reports, refusal_limit)


RESOURCES = {resource.kind: resource for resource in (MEM, COUNT)}


def shown(advertiser: Advertiser, kind: Kind) -> int:
    """Count the IDs that are called healthy."""
    return sum(device.health == "Healthy" for device in advertiser.list_of(RESOURCES[kind]).value.devices)


def versions(advertiser: Advertiser) -> list[int]:
    return [advertiser.list_of(resource).version for resource in (MEM, COUNT)]


@asynccontextmanager
async def following(advertiser: Advertiser) -> AsyncIterator[None]:
    task = asyncio.create_task(advertiser.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_before_anything_is_known_nothing_is_listed() -> None:
    advertiser = advertising(NodeState(node(8, 8)))
    assert [len(advertiser.list_of(resource).value.devices) for resource in (MEM, COUNT)] == [0, 0]
    assert advertiser.offers == {}


async def test_a_change_of_the_node_is_one_list_of_what_it_changes() -> None:
    """Taken whole, GPU 0 leaves the 8 shares of GPU 1; its own count ID is in use and stays as it is."""
    state = NodeState(node(8, 8))
    advertiser = advertising(state)
    async with following(advertiser):
        await settled()
        assert versions(advertiser) == [1, 1]
        state.update(Ledger.granted, [uuid(0)], now=0)
        await settled()
        assert versions(advertiser) == [2, 1]
        assert (shown(advertiser, Kind.MEMORY), shown(advertiser, Kind.COUNT)) == (8, 2)
        state.update(Ledger.granted, ids(1, range(3)), now=0)
        await settled()
        assert versions(advertiser) == [2, 2]
        assert (shown(advertiser, Kind.MEMORY), shown(advertiser, Kind.COUNT)) == (8, 1)
        state.update(Ledger.granted, ids(1, range(3, 5)), now=0)
        await settled()
        assert versions(advertiser) == [2, 2], "a further share of a GPU in use changes no ID"


async def test_several_changes_at_once_are_one_list() -> None:
    state = NodeState(node(8, 8))
    advertiser = advertising(state)
    async with following(advertiser):
        await settled()
        state.update(Ledger.granted, [uuid(0)], now=0)
        state.update(Ledger.granted, [uuid(1)], now=0)
        await settled()
        assert versions(advertiser) == [2, 1]
        assert shown(advertiser, Kind.MEMORY) == 0


async def test_what_is_free_again_is_shown_again() -> None:
    state = NodeState(node(8, 8, whole=[0]))
    advertiser = advertising(state)
    advertiser.refresh()
    assert shown(advertiser, Kind.MEMORY) == 8
    state.update(Ledger.reconciled, Evidence(frozenset(), 100, frozenset()), {}, 100, 0)
    advertiser.refresh()
    assert shown(advertiser, Kind.MEMORY) == 16


def test_an_uncertain_ledger_offers_only_what_is_in_use() -> None:
    advertiser = advertising(NodeState(node(8, 8, used={0: range(3)}, certain=False)))
    advertiser.refresh()
    assert (shown(advertiser, Kind.MEMORY), shown(advertiser, Kind.COUNT)) == (3, 0)


def test_sending_again_sends_the_same_list_of_one_resource() -> None:
    advertiser = advertising(NodeState(node(8, 8)))
    advertiser.refresh()
    before = advertiser.list_of(MEM).value
    advertiser.resend()
    assert advertiser.list_of(MEM).value is before
    assert versions(advertiser) == [2, 1]


def refuse(advertiser: Advertiser, shares: int, times: int = 1) -> None:
    for _ in range(times):
        advertiser.refused(Kind.MEMORY, shares, Refused(Why.NO_ROOM, "no room"))


def test_a17_the_refusal_that_makes_a_run_is_told_once_and_less_is_shown() -> None:
    """4 and 4 are free, 5 is asked again and again: 4 in all remain to be seen, so that nobody who needs 5 comes."""
    api = RecordedApi()
    advertiser = advertising(NodeState(node(8, 8, used={0: range(4), 1: range(4)})), 3, api)
    refuse(advertiser, 5, times=2)
    assert api.events == []
    refuse(advertiser, 5, times=2)
    advertiser.refused(Kind.COUNT, 1, Refused(Why.NO_ROOM, "no room"))
    assert [reason for reason, *_ in api.events] == ["GPUMemoryFragmented"]
    assert shown(advertiser, Kind.MEMORY) == 8 + 4
    assert shown(advertiser, Kind.COUNT) == 0


def test_a17_room_for_what_was_refused_ends_the_run() -> None:
    state = NodeState(node(8, 8, used={0: range(4), 1: range(4)}))
    advertiser = advertising(state, 1)
    refuse(advertiser, 5)
    state.update(Ledger.reconciled, Evidence(frozenset(ids(0, range(4))), 100, frozenset()), {}, 100, 0)
    advertiser.refresh()
    assert shown(advertiser, Kind.MEMORY) == 16
    assert advertiser.refusals.run is None


def test_a17_the_limit_can_be_changed_while_running() -> None:
    advertiser = advertising(NodeState(node(8, used={0: range(4)})))
    advertiser.limit(0)
    refuse(advertiser, 5, times=20)
    assert advertiser.refusals.run is None, "0 turns it off"
    advertiser.limit(2)
    refuse(advertiser, 5, times=2)
    assert advertiser.refusals.run == 5
