"""The state of a node, with one writer and many readers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpu_device_plugin.model.gpus import NO_LINKS, Closeness, Links
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.ledger import IdState, Ledger, ReleaseEvidence
from gpu_device_plugin.node.rules.node import Block, Node
from tests.nodes import ids, node

A0, A1 = ids(0, [0, 1])
NOTHING = ReleaseEvidence(frozenset(), 1000.0, frozenset())


async def nothing_new(nodes: AsyncIterator[Node]) -> bool:
    """Whether a reader who has read everything would wait now."""
    reading = asyncio.ensure_future(anext(nodes))
    for _ in range(3):
        await asyncio.sleep(0)
    waits = not reading.done()
    reading.cancel()
    return waits


def test_a_node_state_shows_its_state() -> None:
    state = NodeState(node(4, 4))
    state.update(Ledger.granted, [A0, A1], 5.0)
    assert repr(state) == "<NodeState #1: 2 GPUs, 2 IDs held>"


def test_a_claim_takes_effect_before_it_returns() -> None:
    state = NodeState(node(4))
    state.update(Ledger.granted, [A0], 5.0)
    assert state.node.ledger.id_states == {A0: IdState(granted_at=5.0)}


def test_hardware_changes_leave_the_ledger_alone() -> None:
    state, other = NodeState(node(4, used={0: [0]})), node(4, 8)
    state.refresh_inventory(other.shares, {"GPU-1": Block("too hot")}, Links(((0, 1, Closeness.UNKNOWN, 7),)))
    assert state.node == node(4, 8, used={0: [0]}, unhealthy={1: "too hot"}, closeness={(0, 1): 7})


async def test_readers_see_what_is_there_and_every_change() -> None:
    state = NodeState(node(4))
    nodes = state.nodes.values()
    assert await anext(nodes) == node(4)
    state.update(Ledger.seen, [A0])
    assert await anext(nodes) == node(4, used={0: [0]})


@pytest.mark.parametrize("act", ["see", "see certain", "reconcile", "equip"])
async def test_readers_are_not_woken_for_nothing(act: str) -> None:
    there = node(4, used={0: [0]}, unhealthy={0: "too hot"})
    state = NodeState(there)
    nodes = state.nodes.values()
    await anext(nodes)
    match act:
        case "see":
            state.update(Ledger.seen, [A0])
        case "see certain":
            state.update(Ledger.seen, [A0], certain=True)
        case "reconcile":
            state.update(Ledger.reconciled, ReleaseEvidence(frozenset({A0}), 1000.0, frozenset()), {}, 1000.0, 60.0)
        case _:
            state.refresh_inventory(node(4).shares, {"GPU-0": Block("too hot")}, NO_LINKS)
    assert await nothing_new(nodes)
    state.update(Ledger.granted, [A1], 5.0)
    assert state.node != there
