"""Whose devices a container is about to start with, while the kubelet's records change."""

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.allocation_handler import Starts
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.admission import DELETING
from gpu_device_plugin.node.rules.ledger import Ledger
from tests.nodes import ids, node

IDS = ids(0, range(3))
FORMER, NEW = Pod("former", "default", "former", deleting=True), Pod("new", "default", "new")


def own(pod: Pod) -> Allocation:
    return Allocation(pod.uid, "main", Kind.MEMORY, frozenset(IDS))


@dataclass
class Api:
    """The pods of the node, as our watch shows them."""

    pods: dict[str, Pod] = field(default_factory=lambda: {pod.uid: pod for pod in (FORMER, NEW)})
    current: bool = True


async def listed() -> frozenset[str]:
    return frozenset(IDS)


async def test_a_container_with_the_devices_of_one_that_ended_is_not_taken_for_that_one() -> None:
    """The kubelet may start it before we have read the checkpoint that names it; the last one names the former."""
    state, api = NodeState(node(14)), Api()
    entries: Observable[tuple[Allocation, ...]] = Observable((own(FORMER),))
    there = SimpleNamespace(state=state, entries=entries, api=api, records=SimpleNamespace(listed=listed))
    starts = Starts(cast("NodeContext", there))
    state.update(Ledger.granted, IDS, time.monotonic())
    assert await starts.lost_by_now(await starts.began(IDS)) == ""
    beginning = asyncio.create_task(starts.began(IDS))
    await asyncio.sleep(0)
    state.update(Ledger.seen, IDS)
    entries.set((own(NEW),))
    start = await beginning
    assert (start.named, start.living) == (True, frozenset({"new"}))
    del api.pods["former"]
    assert await starts.lost_by_now(start) == ""
    api.pods["new"] = Pod("new", "default", "new", deleting=True)
    assert await starts.lost_by_now(start) == DELETING
