"""Our ledger and the kubelet's records: what is taken over when, and what happens when they cannot be read."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.files import Stamp
from gpu_device_plugin.kubelet.checkpoint import Checkpoint, CheckpointUnreadableError
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.extension import Features
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.reconciler import Reconciler
from gpu_device_plugin.node.rules.ledger import Ledger, Reading, ReleaseEvidence
from gpu_device_plugin.settings.node import NodeSettings
from tests.names import MEM, OURS
from tests.nodes import ids, node, uuid
from tests.patience import eventually

DAMAGED = CheckpointUnreadableError("it is damaged")


def held(*device_ids: str) -> Allocation:
    return Allocation("p", "c", Kind.MEMORY, frozenset(device_ids), through=MEM)


class Scripted(KubeletRecords):
    """KubeletRecords in which a test writes."""

    def __init__(self) -> None:
        super().__init__(Path("/none"), Path("/none"), OURS)
        self.checkpoint: Checkpoint | CheckpointUnreadableError = Checkpoint()
        self.list: frozenset[str] | None = frozenset()
        self.stamped: Stamp | None = None
        self.rounds = 0
        self.reads = 0
        self.looks: list[Checkpoint] = []
        self.looks_wanted = 1
        """How many looks it takes until the kubelet has listed everybody."""

    def write(self, *device_ids: str) -> None:
        self.checkpoint = Checkpoint((held(*device_ids),), frozenset({MEM}))

    def recorded(self) -> Checkpoint:
        self.reads += 1
        if isinstance(self.checkpoint, CheckpointUnreadableError):
            raise self.checkpoint
        return self.checkpoint

    def stamp(self) -> Stamp | None:
        return self.stamped

    async def listed(self) -> frozenset[str] | None:
        return self.list

    async def compare_with_list(self, recorded: Checkpoint) -> bool:
        self.looks.append(recorded)
        return len(self.looks) >= self.looks_wanted

    async def evidence(
        self,
        held: Callable[[], Collection[str]],
        resend: Callable[[], None],
        patience_s: float = 3.0,  # noqa: ARG002 (nothing here has to be waited for)
    ) -> tuple[ReleaseEvidence, Checkpoint | None] | None:
        self.rounds += 1
        if self.list is None:
            return None
        if set(held()) <= self.list:
            return ReleaseEvidence(self.list, time.monotonic(), self.list), None
        resend()
        written = self.recorded()
        recorded = frozenset().union(*written.by_pod().values())
        return ReleaseEvidence(self.list, time.monotonic(), recorded), written


@dataclass
class Desk(m.Metrics):
    """A reconciler and everything it speaks to."""

    state: NodeState
    records: Scripted = field(default_factory=Scripted)
    resent: int = 0
    processes: dict[str, int] = field(default_factory=dict)
    """What runs on each GPU; the driver tells it when it is asked."""
    readings: Observable[dict[str, Reading]] = field(default_factory=lambda: Observable({}))
    drift: int = 0
    interval_s: float = 0.01
    process_wait_s: float = 0

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            self.state,
            self.records,
            self,
            Features(),
            cast("Any", self),
            Observable(NodeSettings(reconcile_interval_s=self.interval_s, process_wait_s=self.process_wait_s)),
            self._resend,
        )

    async def read_again(self) -> None:
        """Ask the driver."""
        self.readings.set({uuid: Reading(count, time.monotonic()) for uuid, count in self.processes.items()})

    def count(self, what: m.Count, *labels: str, times: int = 1) -> None:
        assert (what, labels) == (m.LEDGER_DRIFT, ("unknown_to_us",))
        self.drift += times

    def _resend(self) -> None:
        self.resent += 1

    @property
    def held(self) -> set[str]:
        return set(self.state.node.ledger.id_states)

    @property
    def certain(self) -> bool:
        return self.state.node.ledger.certain

    async def rounds(self, count: int) -> None:
        """Wait until so many more rounds have begun, and the last but one is over."""
        until = self.records.rounds + count + 1
        await eventually(lambda: self.records.rounds >= until)


@asynccontextmanager
async def running(desk: Desk) -> AsyncIterator[Desk]:
    task = asyncio.create_task(desk.reconciler.run())
    try:
        yield desk
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- Before registering -----------------------------------------------------------------------------------------------


async def test_what_either_book_shows_is_taken_over_before_registering() -> None:
    desk = Desk(NodeState(node(8, 8)))
    desk.records.write(*ids(0, [0]))
    desk.records.list = frozenset(ids(1, [5]))
    await desk.reconciler.prepare()
    assert desk.held == {*ids(0, [0]), *ids(1, [5])}
    assert desk.reconciler.checkpoint_entries.value == (held(*ids(0, [0])),)
    assert desk.reconciler.checkpoint_entries.version == 1
    assert desk.certain


async def test_a_checkpoint_never_read_leaves_us_uncertain_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(NodeState(node(8)))
    desk.records.checkpoint = DAMAGED
    await desk.reconciler.prepare()
    assert not desk.certain
    async with running(desk):
        await desk.rounds(2)
        assert not desk.certain
        assert caplog.messages == ["the kubelet's checkpoint cannot be read"], "once, however often it is tried"
        desk.records.write(*ids(0, [3]))
        desk.records.list = frozenset(ids(0, [3]))
        await eventually(lambda: desk.certain)
        assert desk.held == set(ids(0, [3]))


async def test_a_checkpoint_never_read_is_looked_at_soon_after_registering() -> None:
    """The kubelet writes it anew with the first list. No round comes to help."""
    desk = Desk(NodeState(node(8)), interval_s=3600)
    desk.records.checkpoint = DAMAGED
    async with running(desk):
        desk.reconciler.registered()
        await eventually(lambda: desk.records.reads >= 2)
        assert not desk.certain
        desk.records.write(*ids(0, [1]))
        await eventually(lambda: desk.certain)
        assert desk.held == set(ids(0, [1]))


# --- Rounds -----------------------------------------------------------------------------------------------------------


async def test_devices_that_the_kubelet_gave_out_without_us_are_held_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(NodeState(node(8)))
    desk.records.list = frozenset(ids(0, [1, 2]))
    async with running(desk):
        await eventually(lambda: desk.held == set(ids(0, [1, 2])))
        await desk.rounds(2)
    assert desk.drift == 2
    assert caplog.messages == ["the kubelet allocated devices unknown to this agent"]


async def test_processes_on_a_gpu_keep_what_would_be_free_for_a_while() -> None:
    desk = Desk(NodeState(node(8, whole=[0])), processes={uuid(0): 1}, process_wait_s=3600)
    await desk.read_again()
    async with running(desk):
        await desk.rounds(3)
        assert desk.held == {uuid(0)}
        desk.processes = {uuid(0): 0}
        await eventually(lambda: not desk.held)


async def test_an_old_reading_lets_nothing_go_and_a_new_one_is_asked_for() -> None:
    """The container was deleted by force: its process began after the last reading, and still runs."""
    desk = Desk(NodeState(node(8, whole=[0])), processes={uuid(0): 0}, process_wait_s=3600)
    await desk.read_again()
    desk.processes = {uuid(0): 1}
    async with running(desk):
        await desk.rounds(2)
        assert desk.held == {uuid(0)}


async def test_rounds_that_cost_the_kubelet_a_file_for_nothing_become_rarer() -> None:
    """The IDs of an init container are never listed: every round has the checkpoint written to show the same again."""
    desk = Desk(NodeState(node(8, used={0: [1]})), interval_s=0.02)
    desk.records.write(*ids(0, [1]))
    began = time.monotonic()
    async with running(desk):
        await eventually(lambda: desk.records.rounds == 4)
        # 1 + 1 + 2 + 3 times the interval (the first such round tells nothing yet), where even distances need 4.
        assert time.monotonic() - began >= 7 * 0.02
        assert desk.resent == 4
        desk.records.list = frozenset(ids(0, [1]))
        await desk.rounds(1)
        resent = desk.resent
        await desk.rounds(2)
        assert desk.resent == resent, "what is listed needs no file"


async def test_a_checkpoint_from_before_a_grant_says_nothing_about_what_was_granted() -> None:
    """It shows whoever had the IDs before."""
    desk = Desk(NodeState(node(8)), interval_s=3600)
    desk.records.write(*ids(0, [1, 2]))
    desk.records.checkpoint = replace(desk.records.recorded(), stamp=(1, 1, 1))
    desk.records.stamped = (1, 1, 1)
    desk.state.update(Ledger.granted, ids(0, [1]), time.monotonic())
    desk.reconciler.granted()
    await desk.reconciler.prepare()
    states = desk.state.node.ledger.id_states
    assert {name: state.granted_at is None for name, state in states.items()} == {"GPU-0::1": False, "GPU-0::2": True}
    desk.records.checkpoint = replace(desk.records.recorded(), stamp=(2, 2, 2))
    await desk.reconciler.prepare()
    assert all(state.granted_at is None for state in desk.state.node.ledger.id_states.values())


# --- After grants -----------------------------------------------------------------------------------------------------


async def test_grants_in_a_row_are_one_reading() -> None:
    """The other desk, which is granted something after its first reading, shows when a second one would have come."""
    desk, other = Desk(NodeState(node(8)), interval_s=3600), Desk(NodeState(node(8)), interval_s=3600)
    async with running(desk), running(other):
        await asyncio.sleep(0)
        for _ in range(5):
            desk.reconciler.granted()
        await eventually(lambda: desk.records.reads == 1)
        other.reconciler.granted()
        await eventually(lambda: other.records.reads == 1)
        other.reconciler.granted()
        await eventually(lambda: other.records.reads == 2)
        assert desk.records.reads == 1


async def test_once_registered_the_kubelet_is_asked_until_it_has_listed_every_pod_of_its_checkpoint() -> None:
    """It may have been started just now. Nobody asks once it has."""
    desk = Desk(NodeState(node(8)))
    desk.records.write(*ids(0, [1]))
    desk.records.looks_wanted = 3
    async with running(desk):
        desk.reconciler.registered()
        await eventually(lambda: len(desk.records.looks) == 3)
        assert desk.records.looks == [desk.records.checkpoint] * 3
        await desk.rounds(50)
        assert len(desk.records.looks) == 3


async def test_a_checkpoint_that_cannot_be_read_is_no_reason_to_ask_for_pods() -> None:
    desk = Desk(NodeState(node(8)), interval_s=3600)
    desk.records.checkpoint = DAMAGED
    async with running(desk):
        desk.reconciler.granted()
        await eventually(lambda: desk.records.reads >= 2)
        assert not desk.records.looks
