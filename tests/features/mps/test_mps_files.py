"""The two files by which an agent and a supervisor meet, whatever is in them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules.mps_admission import NOT_MOUNTED, NOT_THERE, SILENT
from gpu_device_plugin.model.allocations import Allocation, AllocationSource
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.placing import Demand, Placement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.extension import Features, GrantDraft, GrantRequest
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.container_grants import NOBODY, Delivery
from gpu_device_plugin.node.rules.ledger import Ledger
from tests.node.contexts import mps
from tests.node.recorded_api import RecordedApi
from tests.nodes import ids, node, uuid
from tests.patience import eventually

NOW_S = 1000.0
READY = MpsGpu(MpsStatus.READY, "", "/run/gpushare/mps/a")


def hold(
    *numbers: int, enforcement: Enforcement = Enforcement.MPS, source: AllocationSource = AllocationSource.CHECKPOINT
) -> Allocation:
    """Return shares of GPU 0 that a container holds."""
    return Allocation("uid", "main", Kind.MEMORY, frozenset(ids(0, numbers)), source, enforcement=enforcement)


class Desk:
    """A link, and everything around it."""

    def __init__(self, directory: Path, *used: int) -> None:
        self.directory = directory
        self.state = NodeState(node(8, 8, used={0: used}))
        self.entries = Observable[tuple[Allocation, ...]](())
        self.api = RecordedApi()
        known = {"state": self.state, "entries": self.entries, "api": self.api}
        self.mps = mps(directory, clock=lambda: NOW_S, reports=SimpleNamespace(name_of=str.lower), **known)

    @property
    def told(self) -> list[tuple[str, str]]:
        """The reasons and notes of the Events."""
        return [(reason, note) for reason, note, *_ in self.api.events]

    def put(self, state: Mapping[str, MpsGpu] | str, beat_s: float = NOW_S) -> None:
        new = self.directory / "new"
        new.write_text(state if isinstance(state, str) else MPS_FILES.write_state(state, beat_s))
        new.replace(self.directory / STATE_FILE)

    def record(self, *numbers: int, enforcement: Enforcement = Enforcement.MPS) -> None:
        """Let the kubelet's checkpoint show a container with these shares of GPU 0."""
        self.entries.set((*self.entries.value, hold(*numbers, enforcement=enforcement)))

    @property
    def wanted(self) -> Mapping[str, int]:
        return MPS_FILES.read_wanted((self.directory / WANTED_FILE).read_text())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.mps.run())
        try:
            await asyncio.sleep(0)
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_what_the_former_agent_wanted_stays_until_the_kubelets_records_are_read(tmp_path: Path) -> None:
    """Also while a part of them is: an empty ledger, and one without the container that only PodResources lists."""
    before = MPS_FILES.write_wanted({uuid(0): 3072})
    (tmp_path / WANTED_FILE).write_text(before)
    desk = Desk(tmp_path)
    desk.put({uuid(0): READY})
    async with desk.running():
        assert desk.mps.on
        desk.entries.set(())
        desk.state.update(Ledger.seen, (), certain=True)
        await eventually(lambda: desk.mps.gpus == {uuid(0): READY})
        assert (tmp_path / WANTED_FILE).read_text() == before
        desk.state.update(Ledger.seen, ids(0, range(2)))
        desk.record(0, 1)
        desk.mps.ledger_complete()
        assert desk.wanted == {uuid(0): 2048}


async def test_damaged_files_are_told_and_replaced_by_the_next_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / WANTED_FILE).write_text("{")
    desk = Desk(tmp_path, 0)
    desk.put("[]")
    desk.mps.ask_for([uuid(0)])
    async with desk.running():
        assert "what the MPS supervisor was told is unknown" in caplog.text
        assert str(desk.mps.daemons.value).startswith("state.json cannot be parsed: ")
        desk.put({uuid(0): READY})
        await eventually(lambda: desk.mps.daemons.value == {uuid(0): READY})


async def test_the_reason_why_there_is_no_supervisor_is_the_one_that_helps(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "mps")
    desk.mps.grace_s = 0.0
    desk.mps.ask_for([uuid(0)])
    async with desk.running():
        assert desk.mps.daemons.value == NOT_MOUNTED
        desk.directory.mkdir()
        await eventually(lambda: desk.mps.daemons.value == NOT_THERE)
        (desk.directory / STATE_FILE).mkdir()
        await eventually(lambda: "state.json cannot be read: " in str(desk.mps.daemons.value))
        (desk.directory / STATE_FILE).rmdir()
        desk.put({uuid(0): READY}, NOW_S - 60)
        await eventually(lambda: desk.mps.daemons.value == SILENT)
        assert desk.mps.gpus == {}
        await eventually(lambda: desk.told[-1:] == [("MPSNotReady", f"MPS does not serve this node: {SILENT}.")])
        desk.put({})
        await eventually(lambda: desk.told[-1] == ("MPSReady", "MPS serves this node again."))


async def test_nobody_is_told_of_the_end_of_a_trouble_that_no_longer_matters(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.mps.ask_for([uuid(0), uuid(1)])
    broken = {uuid(n): MpsGpu(MpsStatus.FAILED, "exit code 1") for n in (0, 1)}
    desk.put(broken)
    async with desk.running():
        await eventually(lambda: len(desk.told) == 2)
        desk.mps.ask_for([uuid(0)])
        desk.put({**broken, uuid(0): READY})
        await eventually(lambda: desk.told[2:] == [("MPSReady", "MPS serves gpu-0 (GPU-0) again.")])


async def test_clients_are_noticed_by_whichever_record_tells_of_them_last(tmp_path: Path) -> None:
    """Nobody asks for MPS any more, and no file tells of it. The checkpoint may be read before the ledger is."""
    desk = Desk(tmp_path)
    async with desk.running():
        desk.record(0, 1)
        await asyncio.sleep(0)
        assert not desk.mps.on
        desk.state.update(Ledger.seen, ids(0, range(2)), certain=True)
        await eventually(lambda: desk.mps.on)
        desk.mps.ledger_complete()
        assert desk.wanted == {uuid(0): 2048}


async def test_a_call_that_ends_late_does_not_take_away_the_daemon_for_a_later_call(tmp_path: Path) -> None:
    """The kubelet was restarted while it waited, and its new process calls before the end of the old call is seen."""
    desk = Desk(tmp_path)
    desk.put({})
    desk.state.update(Ledger.seen, (), certain=True)
    desk.mps.ask_for([uuid(0), uuid(1)])

    async def allocate(gpu: int, shares: int) -> None:
        placement = Placement(Demand(Kind.MEMORY, shares), ((gpu, shares),))
        draft = GrantDraft(frozenset(ids(gpu, range(shares))), placement, NOBODY, Delivery())
        async with Features(desk.mps).granting(GrantRequest(lambda: draft)):
            pytest.fail("there is no daemon")

    async with desk.running():
        desk.mps.ledger_complete()
        calls = []
        for gpu, shares in ((0, 1), (1, 2)):
            calls.append(asyncio.ensure_future(allocate(gpu, shares)))
            await asyncio.sleep(0)
        for call, left in zip(calls, ({uuid(1): 2048}, {}), strict=True):
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert desk.wanted == left


async def test_mps_says_nothing_of_a_container_where_no_feature_chooses_a_means(tmp_path: Path) -> None:
    """Such an agent makes nobody a client, and the clients of its predecessor keep their daemon."""
    desk = Desk(tmp_path)
    desk.put({uuid(0): READY})
    desk.state.update(Ledger.seen, ids(0, range(2)), certain=True)
    desk.record(0, 1)
    draft = GrantDraft(frozenset(ids(0, [2])), Placement(Demand(Kind.MEMORY, 1), ((0, 1),)), NOBODY, Delivery())
    async with desk.running():
        await eventually(lambda: desk.mps.on and desk.mps.gpus)
        desk.mps.ledger_complete()
        async with Features(desk.mps).granting(GrantRequest(lambda: draft)) as answer:
            assert answer == draft
        assert desk.wanted == {uuid(0): 2048}
        desk.mps.ask_for(())  # as `Limits` does, also where nobody wants MPS
        async with Features(desk.mps).granting(GrantRequest(lambda: draft)) as answer:
            assert isinstance(answer, GrantDraft)
            assert answer.enforcements[uuid(0)].enforcement is Enforcement.MPS
