"""Keep our ledger and the kubelet's books together: before registering, after every grant, and now and then."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING

from gpu_device_plugin import metrics as m
from gpu_device_plugin.core.ledger import SETTLING_S
from gpu_device_plugin.kubelet.checkpoint import CheckpointUnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.book import Book
    from gpu_device_plugin.kubelet.books import Books
    from gpu_device_plugin.kubelet.checkpoint import Checkpoint, Record

_log = logging.getLogger(__name__)

_WRITTEN_S = 0.05
"""After a grant the kubelet writes its checkpoint within milliseconds; on a slow disk it takes its time."""
_SLOWEST = 6
"""An ordinary init container's IDs are never listed and stay in the checkpoint as long as its pod lives. Every round
that asks for them has the kubelet write a file for nothing, so that such rounds grow up to so many times longer."""


class Reconciler:
    """Reads the kubelet's books into ours."""

    def __init__(
        self,
        book: Book,
        books: Books,
        metrics: m.Metrics,
        *,
        resend: Callable[[], None],
        processes: Callable[[], Mapping[str, int | None]],
        learned: Callable[[Iterable[Record]], None],
        interval_s: float,
        process_wait_s: float,
    ) -> None:
        """Keep `book` together with `books`.

        Args:
            book: our ledger.
            books: the kubelet's.
            metrics: where to count.
            resend: sends the list of devices once more.
            processes: compute processes by GPU UUID.
            learned: told the records of every checkpoint that was read.
            interval_s: seconds between two rounds.
            process_wait_s: see `Ledger.reconciled`.
        """
        self._book = book
        self._books = books
        self._metrics = metrics
        self._resend = resend
        self._processes = processes
        self._learned = learned
        self.interval_s = interval_s
        self.process_wait_s = process_wait_s
        self._granted = asyncio.Event()
        self._changed = asyncio.Event()
        self._complaint = ""
        self._ever_read = False

    def __repr__(self) -> str:
        return f"<Reconciler of {self._books!r}>"

    def granted(self) -> None:
        """Look at the checkpoint soon: a container was just given devices."""
        self._granted.set()

    def changed(self) -> None:
        """Have a round soon: a pod may have ended."""
        self._changed.set()

    async def prepare(self) -> None:
        """Read both books; nothing is registered, so that nothing can be given out meanwhile.

        Takes nothing away: what is no longer in the books is let go of later, when it is proven free.
        """
        self._read()
        listed = await self._books.listed()
        if listed is not None:
            self._book.see(listed)

    async def run(self) -> NoReturn:
        """Reconcile for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rounds(), name="reconcile")
            tasks.create_task(self._after_grants(), name="confirm grants")
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def _after_grants(self) -> NoReturn:
        """Read the checkpoint soon after each grant, and again at growing intervals until it shows them all."""
        patience_s = math.inf
        while True:
            try:
                async with asyncio.timeout(patience_s):
                    await self._granted.wait()
                patience_s = _WRITTEN_S
                self._granted.clear()  # what is granted from here on may be missing in what we read
                await asyncio.sleep(_WRITTEN_S)
            except TimeoutError:
                patience_s *= 3
            self._read()
            confirmed = all(hold.granted_at is None for hold in self._book.node.ledger.holds.values())
            if confirmed or patience_s > SETTLING_S:
                patience_s = math.inf

    async def _rounds(self) -> NoReturn:
        slower = 1
        while True:
            try:
                async with asyncio.timeout(self.interval_s * slower):
                    await self._changed.wait()
                    slower = 1
            except TimeoutError:
                pass
            self._changed.clear()
            slower = min(slower + 1, _SLOWEST) if await self._round() else 1

    async def _round(self) -> bool:
        """Reconcile once; return whether a checkpoint was written for nothing."""
        self._read()
        try:
            found = await self._books.evidence(lambda: self._book.node.ledger.holds, self._resend)
        except CheckpointUnreadableError as error:
            self._complain(error)
            return False
        if found is None:
            return False
        evidence, written = found
        unknown = (evidence.listed | evidence.recorded) - self._book.node.ledger.holds.keys()
        if unknown:
            self._metrics.count(m.LEDGER_DRIFT, "unknown_to_us", times=len(unknown))
            _log.warning("the kubelet gave out devices that we knew nothing of", extra={"devices": len(unknown)})
            self._book.see(unknown)
        if written is not None:
            self._take_over(written)
        before = self._book.node.ledger.holds.keys()
        self._book.reconcile(evidence, self._processes(), time.monotonic(), self.process_wait_s)
        return written is not None and before == self._book.node.ledger.holds.keys()

    def _read(self) -> None:
        try:
            found = self._books.recorded()
        except CheckpointUnreadableError as error:
            self._complain(error)
            # Once complete, our books stay so: whatever is given out from then on is given out by us.
            if not self._ever_read:
                self._book.see((), certain=False)
            return
        self._take_over(found)

    def _take_over(self, found: Checkpoint) -> None:
        self._complaint = ""
        self._ever_read = True
        self._book.see(found.device_ids(self._books.resources), certain=True)
        self._learned(found.records)

    def _complain(self, error: CheckpointUnreadableError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.error("the kubelet's checkpoint cannot be read", extra={"why": self._complaint})
