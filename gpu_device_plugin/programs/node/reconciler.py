"""Keep our ledger and the kubelet's records together: before registering, after every grant, and now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.model.shares import parse_id
from gpu_device_plugin.core.node.ledger import SETTLING_S, Hold, Ledger
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.core.node.ledger import Reading
    from gpu_device_plugin.kubelet.checkpoint import Checkpoint, Entry, Stamp
    from gpu_device_plugin.kubelet.records import KubeletRecords
    from gpu_device_plugin.node_state import NodeState

_log = logging.getLogger(__name__)

_WRITTEN_S = 0.05
"""After a grant the kubelet writes its checkpoint within milliseconds; on a slow disk it takes its time."""
_BETWEEN_S = 0.2
"""Between two readings while grants come back to back: each holds up the kubelet's next call by about a millisecond."""
_SLOWEST = 6
"""An ordinary init container's IDs are never listed and stay in the checkpoint as long as its pod lives. Every round
that asks for them has the kubelet write a file for nothing, so that such rounds grow up to so many times longer."""


class Reconciler:
    """Reads the kubelet's records into our ledger."""

    def __init__(
        self,
        state: NodeState,
        records: KubeletRecords,
        metrics: m.Metrics,
        *,
        resend: Callable[[], None],
        readings: Callable[[], Mapping[str, Reading]],
        read_again: Callable[[], Awaitable[None]],
        interval_s: float,
        process_wait_s: float,
    ) -> None:
        """Keep `state` together with `records`.

        Args:
            state: our ledger.
            records: the kubelet's.
            metrics: where to count.
            resend: sends the list of devices once more.
            readings: returns the newest reading of each GPU.
            read_again: returns when all GPUs were read once more, or cannot be.
            interval_s: seconds between two rounds.
            process_wait_s: see `Ledger.reconciled`.
        """
        self._state = state
        self._records = records
        self._metrics = metrics
        self._resend = resend
        self._readings = readings
        self._read_again = read_again
        self.checkpoint_entries: Latest[tuple[Entry, ...]] = Latest(())
        """Those of the checkpoint that was read last; set with every reading."""
        self.rounds: Latest[int] = Latest(0)
        """How many rounds there were, whatever came of them."""
        self.interval_s = interval_s
        self.process_wait_s = process_wait_s
        self._granted = asyncio.Event()
        self._changed = asyncio.Event()
        self._complaint = ""
        self._ever_read = False
        self._at_grant: Stamp | None = None
        self._slower = 1
        self._in_vain: frozenset[str] = frozenset()
        self._users: frozenset[str] = frozenset()

    def granted(self) -> None:
        """Look at the checkpoint soon: a container was just given devices, which what is written now does not show."""
        with contextlib.suppress(CheckpointUnreadableError):
            self._at_grant = self._records.stamp()
        self._slower = 1
        self._granted.set()

    def registered(self) -> None:
        """Have a round soon: containers may have ended while nobody was here.

        And look at the checkpoint, which the kubelet writes with the first list: where it could not be read so far, and
        because another kubelet process may list the pods now.
        """
        self._changed.set()
        self._granted.set()

    def users_changed(self, users: frozenset[str]) -> None:
        """Have a round soon if one of the pods (by UID) that had asked for devices has gone or ended."""
        if self._users - users:
            self._changed.set()
        self._users = users

    async def prepare(self) -> None:
        """Read both records; nothing is registered, so that nothing can be given out meanwhile.

        Takes nothing away: what is no longer in the records is released later, when it is proven free.
        """
        self._read()
        listed = await self._records.listed()
        if listed is not None:
            self._state.update(Ledger.seen, listed)

    async def run(self) -> NoReturn:
        """Reconcile for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds(), name="reconcile")
            tasks.create_task(self._after_grants(), name="confirm grants")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def _after_grants(self) -> NoReturn:
        """Read the checkpoint soon after each grant, and again at growing intervals until it shows them all.

        Until the kubelet has listed all pods in it, too. The same once we are registered.
        """
        patience_s = math.inf
        while True:
            if await within(patience_s, self._granted.wait()):
                patience_s = _WRITTEN_S
                self._granted.clear()  # what is granted from here on may be missing in what we read
                await asyncio.sleep(_WRITTEN_S)
            else:
                patience_s *= 3
            found = self._read()
            seen = found is not None and await self._records.look(found)
            await asyncio.sleep(_BETWEEN_S)
            ledger = self._state.node.ledger
            confirmed = seen and ledger.certain and all(hold.granted_at is None for hold in ledger.holds.values())
            if confirmed or patience_s > SETTLING_S:
                patience_s = math.inf

    async def _rounds(self) -> NoReturn:
        while True:
            if await within(self.interval_s * self._slower, self._changed.wait()):
                self._slower = 1
            self._changed.clear()
            in_vain = await self._round()
            self.rounds.set(self.rounds.value + 1)
            # As long as the same IDs stay unlisted and recorded, nothing has happened that a round could find out.
            self._slower = min(self._slower + 1, _SLOWEST) if in_vain and in_vain == self._in_vain else 1
            self._in_vain = in_vain

    async def _round(self) -> frozenset[str]:
        """Reconcile once; return the IDs for which the kubelet wrote its checkpoint in vain."""
        self._read()
        if self._state.node.ledger.foreign:  # nothing else tells when they are free
            self._resend()
        try:
            found = await self._records.evidence(lambda: self._state.node.ledger.holds, self._resend)
        except CheckpointUnreadableError as error:
            self._complain(error)
            return frozenset()
        if found is None:
            return frozenset()
        evidence, written = found
        unknown = evidence.held - self._state.node.ledger.holds.keys()
        if unknown:
            self._metrics.count(m.LEDGER_DRIFT, "unknown_to_us", times=len(unknown))
            _log.warning("the kubelet gave out devices that we knew nothing of", extra={"devices": len(unknown)})
            self._state.update(Ledger.seen, unknown)
        if written is not None:
            self._take_over(written)
        self._state.update(Ledger.reconciled, evidence, self._readings(), time.monotonic(), self.process_wait_s)
        if any(hold.freed_at is not None for hold in self._state.node.ledger.holds.values()):
            await self._read_again()
            self._state.update(Ledger.released, self._readings(), time.monotonic(), self.process_wait_s)
        holds = self._state.node.ledger.holds
        return frozenset(
            name for name, hold in holds.items() if hold == Hold() and name in evidence.recorded - evidence.listed
        )

    def _read(self) -> Checkpoint | None:
        try:
            found = self._records.recorded()
        except CheckpointUnreadableError as error:
            self._complain(error)
            # Once complete, our ledger stays so: from then on we give out every ID.
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
            # Written before our last grant: what it says of an ID that we hold is about its holder before.
            ids -= self._state.node.ledger.holds.keys()
        self._state.update(Ledger.seen, ids, certain=True)
        self._look_beside(found)
        self.checkpoint_entries.set(found.entries)

    def _look_beside(self, found: Checkpoint) -> None:
        """Find our GPUs among what containers hold through other resources: of former settings, of another plugin."""
        others = {parse_id(name)[0]: resource for name, resource in found.foreign(self._records.resources).items()}
        foreign = {uuid: others[uuid] for uuid in others if self._state.node.shares.by_uuid(uuid) is not None}
        if foreign != self._state.node.ledger.foreign:
            for uuid in foreign.keys() - self._state.node.ledger.foreign.keys():
                _log.error(
                    "a GPU is in use through a resource that is not offered here, and is given to nobody else",
                    extra={"uuid": uuid, "resource": foreign[uuid]},
                )
            self._state.update(Ledger.with_foreign, foreign)

    def _complain(self, error: CheckpointUnreadableError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.error("the kubelet's checkpoint cannot be read", extra={"why": self._complaint})
