"""Reconcile the ledger with the kubelet's records: before registering, after every grant, and periodically."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.aio.waiting import together, wait_within
from gpu_device_plugin.files import Stamp
from gpu_device_plugin.hardware.monitor import Hardware
from gpu_device_plugin.kubelet.checkpoint import Checkpoint, CheckpointUnreadableError
from gpu_device_plugin.kubelet.records import KubeletRecords
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.node.extension import Features
from gpu_device_plugin.node.node_state import NodeState
from gpu_device_plugin.node.rules.ledger import SETTLING_S, IdState, Ledger, held_through_others

if TYPE_CHECKING:
    from gpu_device_plugin.settings.node import NodeSettings

_log = logging.getLogger(__name__)

_WRITTEN_S = 0.05
"""Seconds from a grant to the first reading: a kubelet writes its checkpoint in milliseconds, on a slow disk later."""
_BETWEEN_S = 0.2
"""Least seconds between two readings after grants: each delays the kubelet's next call by about a millisecond."""
_SLOWEST = 6
"""The longest interval between rounds, in units of `interval_s`. The IDs of an ordinary init container are never listed
and stay in the checkpoint as long as their pod; every round that asks for them has the kubelet write a file in vain."""


@dataclass(eq=False, repr=False)
class Reconciler:
    """Brings our ledger up to date with the kubelet's records."""

    _state: NodeState
    _records: KubeletRecords
    _metrics: m.Metrics
    _features: Features
    _hardware: Hardware
    _settings: Observable[NodeSettings]
    resend: Callable[[], None]
    """Sends a device list again."""

    def __post_init__(self) -> None:
        self.checkpoint_entries: Observable[tuple[Allocation, ...]] = Observable(())
        """What containers hold by the checkpoint that was read last, or by features that know more; set with every
        reading of the checkpoint."""
        self.rounds: Observable[int] = Observable(0)
        """The number of rounds, whether they succeeded or failed."""
        self._granted = asyncio.Event()
        self._changed = asyncio.Event()
        self._complaint = ""
        self._ever_read = False
        self._at_grant: Stamp | None = None
        self._at_start: Stamp | None = None
        """The checkpoint that was there before we registered."""
        self._slower = 1
        self._in_vain: frozenset[str] = frozenset()
        self._users: frozenset[str] = frozenset()

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds, unless something happens."""
        return self._settings.value.reconcile_interval_s

    def granted(self) -> None:
        """Read the checkpoint soon: a container was just given devices, which the current checkpoint lacks."""
        with contextlib.suppress(CheckpointUnreadableError):
            self._at_grant = self._records.stamp()
        self._slower = 1
        self._granted.set()

    def registered(self) -> None:
        """Start a round soon: containers may have ended while no agent ran.

        And read the checkpoint, which the kubelet writes at the first list: it may have been unreadable so far, and
        another kubelet process may list the pods now.
        """
        self._changed.set()
        self._granted.set()

    def users_changed(self, users: frozenset[str]) -> None:
        """Start a round soon if one of the pods (by UID) that requested devices was deleted or has ended."""
        if self._users - users:
            self._changed.set()
        self._users = users

    async def prepare(self) -> None:
        """Read both records, before any resource is registered, so that no device can be allocated meanwhile.

        Releases nothing: a device that is missing in the records is released later, when it is proven free.
        """
        self._at_start = None
        with contextlib.suppress(CheckpointUnreadableError):
            self._at_start = self._records.stamp()
        found = self._read()
        listed = await self._records.listed()
        if listed is not None:
            self._state.update(Ledger.seen, listed)
            if found is not None and not listed.isdisjoint(self._records.held(found)):
                self._learn(found, its_own=True)  # this kubelet has restored the checkpoint
        await self._check_unrecorded()

    async def run(self) -> NoReturn:
        """Reconcile. Ends only by cancellation."""
        await together(self._rounds(), self._after_grants())

    async def _after_grants(self) -> NoReturn:
        """Read the checkpoint soon after each grant, and again at growing intervals until it shows all grants.

        The same after each registration; and until the kubelet has listed all pods of the checkpoint, too.
        """
        patience_s = math.inf
        while True:
            if await wait_within(patience_s, self._granted.wait()):
                patience_s = _WRITTEN_S
                self._granted.clear()  # a grant from here on may be missing in what we read
                await asyncio.sleep(_WRITTEN_S)
            else:
                patience_s *= 3
            found = self._read()
            await self._check_unrecorded()
            seen = found is not None and await self._records.compare_with_list(found)
            await asyncio.sleep(_BETWEEN_S)
            ledger = self._state.node.ledger
            confirmed = seen and ledger.certain and all(state.granted_at is None for state in ledger.id_states.values())
            if confirmed or patience_s > SETTLING_S:
                patience_s = math.inf

    async def _rounds(self) -> NoReturn:
        while True:
            if await wait_within(self.interval_s * self._slower, self._changed.wait()):
                self._slower = 1
            self._changed.clear()
            in_vain = await self._round()
            self.rounds.set(self.rounds.value + 1)
            # As long as the same IDs stay unlisted and recorded, a round has no change to find.
            self._slower = min(self._slower + 1, _SLOWEST) if in_vain and in_vain == self._in_vain else 1
            self._in_vain = in_vain

    async def _round(self) -> frozenset[str]:
        """Reconcile once; return the IDs for which the kubelet wrote its checkpoint in vain."""
        self._read()
        await self._check_unrecorded()
        if self._state.node.ledger.held_by_other_resource:  # no other event says when they become free
            self.resend()
        try:
            found = await self._records.evidence(self._held, self.resend)
        except CheckpointUnreadableError as error:
            self._complain(error)
            return frozenset()
        if found is None:
            return frozenset()
        evidence, written = found
        unknown = evidence.held - self._state.node.ledger.id_states.keys()
        if unknown:
            self._metrics.count(m.LEDGER_DRIFT, "unknown_to_us", times=len(unknown))
            _log.warning("the kubelet allocated devices unknown to this agent", extra={"devices": len(unknown)})
            self._state.update(Ledger.seen, unknown)
        if written is not None:
            self._take_over(written)
        readings, wait_s = self._hardware.readings, self._settings.value.process_wait_s
        self._state.update(Ledger.reconciled, evidence, readings.value, time.monotonic(), wait_s)
        if any(state.freed_at is not None for state in self._state.node.ledger.id_states.values()):
            await self._hardware.read_again()
            self._state.update(Ledger.released, readings.value, time.monotonic(), wait_s)
        states = self._state.node.ledger.id_states
        return frozenset(
            name for name, state in states.items() if state == IdState() and name in evidence.recorded - evidence.listed
        )

    def _read(self) -> Checkpoint | None:
        try:
            found = self._records.recorded()
        except CheckpointUnreadableError as error:
            self._complain(error)
            self._learn(None, its_own=False)
            # Once complete, our ledger stays complete: from then on every ID is allocated by us.
            if not self._ever_read:
                self._state.update(Ledger.seen, (), certain=False)
            return None
        self._take_over(found)
        return found

    def _take_over(self, found: Checkpoint) -> None:
        self._complaint = ""
        self._ever_read = True
        ids = self._records.held(found)
        if found.stamp is not None and found.stamp == self._at_grant:
            # Written before our last grant: an ID in it that we hold is listed for its former holder.
            ids -= self._state.node.ledger.id_states.keys()
        self._state.update(Ledger.seen, ids, certain=True)
        self._learn(found, its_own=found.stamp != self._at_start and self._records.listener() is not None)
        allocations = (
            *found.allocations,
            *(allocation for feature in self._features for allocation in feature.unrecorded()),
        )
        self.find_held_by_other_resource(allocations)
        self.checkpoint_entries.set(allocations)

    def _learn(self, found: Checkpoint | None, *, its_own: bool) -> None:
        for feature in self._features:
            feature.checkpoint_read(found, its_own=its_own)
        self._keep_unrecorded()

    async def _check_unrecorded(self) -> None:
        for feature in self._features:
            await feature.check_unrecorded()
        self._keep_unrecorded()

    def _keep_unrecorded(self) -> None:
        """Keep in use what the kubelet takes for free."""
        ids = frozenset[str]().union(*(feature.unrecorded_ids() for feature in self._features))
        self._state.update(Ledger.with_forgotten, ids)

    def _held(self) -> Collection[str]:
        """Return the IDs that we hold and the kubelet should show."""
        ledger = self._state.node.ledger
        return ledger.id_states.keys() - ledger.forgotten

    def find_held_by_other_resource(self, allocations: Iterable[Allocation] | None = None) -> None:
        """Find our GPUs that containers hold through other resources: of former settings, or of another plugin.

        `allocations` are those of the kubelet's checkpoint; None: as last read.
        """
        allocations = self.checkpoint_entries.value if allocations is None else allocations
        held_by_other_resource = held_through_others(allocations, self._state.node.shares)
        if held_by_other_resource != self._state.node.ledger.held_by_other_resource:
            for uuid in held_by_other_resource.keys() - self._state.node.ledger.held_by_other_resource.keys():
                _log.error(
                    "a GPU is in use through a resource that this agent does not offer, and is not shared meanwhile",
                    extra={"uuid": uuid, "resource": held_by_other_resource[uuid]},
                )
            self._state.update(Ledger.with_held_by_other_resource, held_by_other_resource)

    def _complain(self, error: CheckpointUnreadableError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.error("the kubelet's checkpoint cannot be read", extra={"why": self._complaint})
