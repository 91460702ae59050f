"""Memory limits by NVIDIA's MPS: ask its supervisor for the daemons that a node needs, and make containers clients."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.aio.worker import Worker
from gpu_device_plugin.features.limits.rules.enforcement import WantedEnforcement
from gpu_device_plugin.features.limits.rules.limit_grants import Part
from gpu_device_plugin.features.mps import MpsSettings
from gpu_device_plugin.features.mps.contract import MPS_FILES, SHM_DIRECTORY, MpsGpu, MpsStatus
from gpu_device_plugin.features.mps.rules import mps_admission as mps
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.file_link import FileLink
from gpu_device_plugin.kubelet.procfs import boot_time
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.gauges import Gauge, Gauges
from gpu_device_plugin.model.gpus import Gpu
from gpu_device_plugin.model.limits import Enforcement, GpuEnforcement
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.model.shares import Shares
from gpu_device_plugin.node.extension import Contribution, GrantDraft, GrantRequest, NodeFeature, StartRequest, Tasks
from gpu_device_plugin.node.feature_context import NodeContext
from gpu_device_plugin.node.rules.admission import Refusal, RefusalCode
from gpu_device_plugin.node.rules.container_grants import Grant
from gpu_device_plugin.node.rules.node_gauges import NodeMetrics

_log = logging.getLogger(__name__)

_REMEDY = (
    ": mount its directory writable, as deploy/patches/mps-agent.yaml does, and see that the node's disk is not full"
)
_MOST_GRANTED = 4_000
"""Containers to remember until the checkpoint shows them. A node has at most so many devices."""
_POLL_S = 0.5
_POLL_WAITED_FOR_S = 0.1
"""Seconds between two looks at the supervisor's file, and the same while a container waits for a change in it."""

MPS_READY = Gauge(
    "gpushare_mps_ready", "1 while the MPS daemon that containers on the GPU need serves new ones.", ("gpu",)
)


class Mps(NodeFeature):
    """Tells the supervisor which daemons our ledger needs, follows what it runs, and is a means for `Limits` to choose.

    Does nothing on a node where nobody asks for MPS and no file says that somebody did.
    """

    def __init__(self, node: NodeContext, *, clock: Callable[[], float] = boot_time) -> None:
        """Prepare for `node`; opens no file. `clock` returns the seconds since the machine started."""
        self._node, self._state, self._entries = node, node.state, node.entries
        self._directory = node.settings.value.of(MpsSettings).mps_dir
        node.features.of(Use).mps_servers = self.server_pids
        self.daemons: Observable[Mapping[str, MpsGpu] | str] = Observable(mps.NOT_THERE)
        """The daemons of the supervisor, by the GPU's UUID, or why there is none."""
        self.others: Observable[frozenset[str]] = Observable(frozenset())
        """The UUIDs of GPUs with containers that were started without MPS, as last looked at: with every change of
        those who hold GPUs while MPS plays a part."""
        self.refuse = True
        """Containers are refused where MPS is required and not there."""
        self._compute = self._a_choice = False
        self.start_s, self.stop_s = mps.START_S, mps.STOP_S
        self.grace_s = mps.BEAT_S
        """How long a supervisor may be missing before that is reported: it may start together with us."""
        self.asked_for: frozenset[str] = frozenset()
        """The GPUs (by UUID) on which MPS is the means that the administrator wants."""
        words = "the MPS supervisor", mps.NOT_THERE, mps.NOT_MOUNTED, mps.SILENT
        self._files = FileLink(self._directory, MPS_FILES, clock, *words, mps.BEAT_S, _REMEDY)
        self._directories: Mapping[str, MpsGpu] = {}
        """Of the last state that was read: a GPU keeps its directory, also while its supervisor or the file is gone."""
        self._complete = False
        self._clients = False
        self._granted: list[Allocation] = []
        """What containers were given that the checkpoint does not show yet, the latest last."""
        self._asked: dict[str, int] = {}
        self._waiting = 0
        self._worker = Worker(self._step)
        self._troubles: dict[str, str] = {}
        self._missing_since: float | None = None

    @property
    def on(self) -> bool:
        """Whether MPS plays a part on this node: it is asked for, or somebody still has to be rid of it."""
        files = self._files
        return bool(self.asked_for or self._clients or files.wanted or files.unwritten or files.last is not None)

    @property
    def _allocations(self) -> Sequence[Allocation]:
        """What containers were given, the latest last."""
        return *self._entries.value, *self._granted

    @property
    def _matters(self) -> bool:
        """Whether an answer may depend on MPS. False on most nodes, whose calls then cost nothing for it."""
        return self.on or any(allocation.enforcement is Enforcement.MPS for allocation in self._allocations)

    @property
    def _occupancies(self) -> Mapping[str, mps.MpsOccupancy]:
        return mps.occupancies(self._state.node.ledger, self._allocations)

    @property
    def gpus(self) -> Mapping[str, MpsGpu]:
        """The daemons of a supervisor that runs, by the GPU's UUID."""
        daemons = self.daemons.value
        return {} if isinstance(daemons, str) else daemons

    @property
    def ready(self) -> Mapping[str, bool]:
        """Whether each daemon that the supervisor was last told to run accepts clients, by the GPU's UUID."""
        gpus = self.gpus
        return {uuid: uuid in gpus and gpus[uuid].status is MpsStatus.READY for uuid in self._files.wanted}

    def server_pids(self) -> frozenset[int]:
        """Return the PIDs of the servers of all daemons."""
        return frozenset(pid for gpu in self.gpus.values() for pid in gpu.server_pids)

    # --- As a means of limiting, see `OtherMeans` -----------------------------------------------------------------

    enforcement: ClassVar[Enforcement] = Enforcement.MPS

    def means(self, shares: Shares, cgroup: int | None, labels: Mapping[str, str]) -> None:  # noqa: ARG002
        """Read the supervisor's state; `Limits`, which is asked next, chooses the means."""
        self.read_state()

    def means_follow(self) -> Sequence[Observable[Any]]:  # noqa: D102
        return self.daemons, self.others

    def lack(self, gpu: Gpu) -> str:
        """Return what MPS lacks on a GPU, as a clause; empty: it is there."""
        return mps.lack(self.daemons.value, gpu)

    def grant(self, parts: Sequence[Part]) -> Grant | None:
        """Return what makes a container with these parts a client; None: it cannot be one."""
        return mps.client_grant(parts, self._directories, str(self._directory / SHM_DIRECTORY), compute=self._compute)

    def chosen(
        self,
        want: WantedEnforcement,
        gpus: Collection[Gpu],
        enforcements: Mapping[str, GpuEnforcement],
        *,
        refuse: bool,
    ) -> Mapping[str, str]:
        """Ask for MPS where it is wanted; return which of these GPUs cannot have it for those on them, and why."""
        asked = mps.wanted_on(gpus, enforcements, want)
        by_share = self._node.settings.value.of(MpsSettings).mps_compute == "by-share"
        self.refuse, self._compute = refuse, want.compute or by_share
        self.ask_for(asked)
        return dict.fromkeys(asked & self.others.value if refuse else (), mps.WITHOUT_MPS)

    def ask_for(self, uuids: Iterable[str]) -> None:
        """Let MPS be the means that the administrator wants on these GPUs."""
        self._a_choice, asked = True, frozenset(uuids)
        if asked != self.asked_for:
            self.asked_for = asked
            self._worker.wake()

    def measured(self, metrics: NodeMetrics) -> Gauges:  # noqa: ARG002, D102
        return [(MPS_READY, [((uuid,), ready) for uuid, ready in self.ready.items()])]

    def tasks(self) -> Tasks:  # noqa: D102
        return [self.run()]

    def ledger_complete(self) -> None:
        """The kubelet's records were read: from now on the ledger has every container of the node.

        Before that it is empty, and to tell the supervisor so would end daemons that have clients.
        """
        self._complete = True
        self._write()

    async def run(self) -> NoReturn:
        """Follow the supervisor and the ledger. Ends only by cancellation; leaves the files as they are.

        An agent that ends leaves its clients running, and so what is wanted.
        """
        self._files.take_up()  # clients of our predecessor run on
        self.read_state()
        holders = self._state.nodes.follow(self._holders_changed)
        await together(self._worker.run(), holders, self._entries.follow(self._checkpoint_read))

    # --- For the answers to the kubelet ---------------------------------------------------------------------------

    def granting(self, request: GrantRequest) -> AbstractAsyncContextManager[Contribution] | None:  # noqa: D102
        # Where no feature chooses among means, none makes a client of a container that MPS would take for one.
        return self._granting(request) if self.on and self._a_choice else None

    @asynccontextmanager
    async def _granting(self, request: GrantRequest) -> AsyncIterator[Contribution]:
        """Have the daemon started that a container needs, wait for it for a while, and let it be a client of it."""
        self.read_state()
        asked = {} if request.running else self._lacking(request.draft())
        try:
            if asked:
                self._asked = asked
                self._write()
                if not self._files.unwritten:  # otherwise the supervisor will not hear of it
                    await self._until(lambda: not self._lacking(request.draft()), self.start_s)
            yield (lambda draft: draft) if request.running else self._contribution
        finally:
            if request.granted is not None and request.granted.device_ids:
                ids = request.granted.device_ids
                earlier = (other for other in self._granted if not other.device_ids <= ids)
                self._granted = [*earlier, request.granted][-_MOST_GRANTED:]
            # What a later call asks for, that of another process of the kubelet, is not given up with this one.
            if self._asked is asked:
                self._asked = {}
            self._write()

    def _lacking(self, draft: GrantDraft | Refusal) -> dict[str, int]:
        """Return the GPU (by UUID) whose daemon a container has to wait for, with its shares; empty: it need not."""
        if isinstance(draft, Refusal) or draft.placement.demand.kind is not Kind.MEMORY:
            return {}
        if not self._matters or not mps.waits(self._contexts(draft)):
            return {}
        gpus, placement = self._state.node.shares.gpus, draft.placement.at_most(draft.owner.limit_shares)
        return {gpus[position].gpu.uuid: count for position, count in placement.shares}

    def _contribution(self, draft: GrantDraft) -> GrantDraft | Refusal:
        if draft.placement.demand.kind is not Kind.MEMORY or not self._matters:
            return draft
        unwritten = self._files.unwritten
        waited = f": {unwritten}" if unwritten else f", after {mps.START_S:g} s"
        choice = mps.choose(self._contexts(draft), refuse=self.refuse, waited=waited)
        if isinstance(choice, Refusal):
            return choice
        if choice is None:
            return draft
        gpus = [self._state.node.shares.gpus[position].gpu for position in draft.placement.positions]
        chosen = {gpu.uuid: GpuEnforcement(choice, "") for gpu in gpus}
        return replace(draft, enforcements={**draft.enforcements, **chosen})

    def _contexts(self, draft: GrantDraft) -> list[mps.MpsGpuContext]:
        occupancy, shares = self._occupancies, self._state.node.shares
        return [
            mps.MpsGpuContext(
                f"GPU {position}",
                shares.gpus[position].gpu.uuid in self.asked_for,
                occupancy.get(shares.gpus[position].gpu.uuid, mps.UNOCCUPIED),
                mps.daemon(self.daemons.value, shares.gpus[position].gpu.uuid),
                count * shares.share_mib,
            )
            for position, count in draft.placement.at_most(draft.owner.limit_shares).shares
        ]

    async def before_start(self, start: StartRequest) -> Refusal | None:
        """Let a container start when MPS runs its GPU if and only if it is a client."""
        if not self.on:
            return None
        self.read_state()
        if self._why_not_start(start.device_ids):
            wait_s = min(self.stop_s, start.deadline - time.monotonic())
            await self._until(lambda: not self._why_not_start(start.device_ids), wait_s)
        why = self._why_not_start(start.device_ids)
        return Refusal(RefusalCode.MPS_NOT_READY, why) if why else None

    def _why_not_start(self, device_ids: Iterable[str]) -> str:
        """Return why a container with these devices must not start now, as a sentence; empty if it may."""
        if not self.on:
            return ""
        ids, node, last = frozenset(device_ids), self._state.node, self._files.last
        given = [allocation for allocation in self._allocations if allocation.device_ids & ids]
        client = bool(given) and given[-1].enforcement is Enforcement.MPS
        for position in sorted(node.shares.spread(ids)):
            uuid = node.shares.gpus[position].gpu.uuid
            why = mps.why_not_start(
                f"GPU {position}",
                uuid,
                self.daemons.value,
                last or {},
                client=client,
                refuse=self.refuse and (client or uuid in self.asked_for),
            )
            if why:
                return why
        return ""

    async def _until(self, there: Callable[[], bool], seconds: float) -> None:
        """Wait until `there` returns true, for at most so many seconds. The supervisor is looked at more often."""
        self._waiting += 1
        self._worker.wake()
        try:
            await wait_within(seconds, self.daemons.wait_until(lambda _: there()))
        finally:
            self._waiting -= 1

    # --- What is wanted -------------------------------------------------------------------------------------------

    def _holders_changed(self, _new: object = None) -> None:
        if not self._matters:  # without clients nobody's end or beginning concerns the supervisor
            return
        present = self._occupancies
        self._clients = any(occupancy.clients for occupancy in present.values())
        self.others.change(_others(present))
        self._worker.wake()
        self._write()

    def _checkpoint_read(self, _new: object = None) -> None:
        self._holders_changed()
        if self._granted:
            held = {name for name, state in self._state.node.ledger.id_states.items() if state.freed_at is None}
            shown = {
                (allocation.device_ids, allocation.enforcement is Enforcement.MPS) for allocation in self._entries.value
            }
            self._granted = [
                allocation
                for allocation in self._granted
                if not allocation.device_ids.isdisjoint(held)
                and (allocation.device_ids, allocation.enforcement is Enforcement.MPS) not in shown
            ]

    def _write(self) -> None:
        """Tell the supervisor what it shall run, if that has changed and is certain."""
        ledger = self._state.node.ledger
        if not (self.on and self._complete and ledger.certain):
            return
        before, share_mib = self._files.wanted, self._state.node.shares.share_mib
        wanted = mps.wanted(ledger, self._occupancies, self._asked, before, share_mib)
        if wanted != before:
            _log.info("the MPS supervisor is asked for daemons", extra={"gpus": dict(wanted)})
        self._files.want(wanted)

    # --- What the supervisor runs ---------------------------------------------------------------------------------

    def _step(self) -> float | None:
        if not self.on:
            return None
        self.read_state()
        self._write()
        self._report()
        return _POLL_WAITED_FOR_S if self._waiting else _POLL_S

    def read_state(self) -> None:
        """Read the supervisor's file, if it was replaced, and publish what it says or why it says nothing."""
        state = self._files.read_state()
        last = self._files.last
        if last is not None:
            self._directories = last
        self.daemons.change(state)
        self.others.change(_others(self._occupancies))
        runs = last is not None and any(gpu.status is not MpsStatus.STOPPED for gpu in last.values())
        if not (self.asked_for or self._files.wanted or runs):
            self._files.forget()  # nobody needs to know more of it

    def _report(self) -> None:
        needed = self.asked_for | self._files.wanted.keys()
        now, found = time.monotonic(), dict(mps.troubles(self.daemons.value, needed))
        if self._files.unwritten and needed:
            found.setdefault("", self._files.unwritten)
        if "" not in found:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        if self._missing_since is not None and now - self._missing_since < self.grace_s:
            found = self._troubles
        for uuid in self._troubles.keys() - found.keys():
            if needed and (not uuid or uuid in needed):
                self._tell(uuid, "")
        for uuid, why in found.items():
            if why != self._troubles.get(uuid):
                self._tell(uuid, why)
        self._troubles = found

    def _tell(self, uuid: str, why: str) -> None:
        """Tell that a GPU (empty: all) lacks the daemon that it needs, and why; empty: it has it again."""
        name = f"{self._node.reports.name_of(uuid)} ({uuid})" if uuid else "this node"
        if why:
            self._node.api.announce(_log, "MPSNotReady", f"MPS does not serve {name}: {why}", "Observe", logging.ERROR)
        else:
            self._node.api.announce(_log, "MPSReady", f"MPS serves {name} again", "Observe", logging.INFO)


def _others(present: Mapping[str, mps.MpsOccupancy]) -> frozenset[str]:
    return frozenset(uuid for uuid, occupancy in present.items() if occupancy.others)
