"""Serve the node's GPUs to ResourceClaims, until nobody holds or can come to hold them that way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

from gpu_device_plugin.aio.latest import Latest
from gpu_device_plugin.aio.within import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpu_device_plugin.node_state import NodeState
    from gpu_device_plugin.programs.node.coexistence import Coexistence
    from gpu_device_plugin.programs.node.dra import DraDriver
    from gpu_device_plugin.programs.node.reconciler import Reconciler
    from gpu_device_plugin.programs.node.reports import Reports

UNKNOWN = "a claim that may be allocated here"


class DraWay:
    """The way of DRA. `closing` says whether it is to be left."""

    def __init__(
        self,
        dra: DraDriver,
        state: NodeState,
        reconciler: Reconciler,
        coexistence: Coexistence,
        reports: Reports,
        *,
        changed: Callable[[], None],
        begun: Callable[[], None],
        ready: Callable[[], None],
    ) -> None:
        """Serve by `dra`.

        Args:
            dra: the driver.
            state: the node, with our ledger.
            reconciler: reads the kubelet's records.
            coexistence: looks for others who hand out GPUs of the node.
            reports: where to report.
            changed: called when `holders` may have changed.
            begun: called when everything that claims hold is in the ledger, and nothing can be prepared yet.
            ready: called when claims can be served.
        """
        self._dra = dra
        self._state = state
        self._reconciler = reconciler
        self._coexistence = coexistence
        self._reports = reports
        self._changed = changed
        self._begun = begun
        self._ready = ready
        self.closing = Latest(value=False)
        """The node waits to leave this way: nothing new is offered."""
        self.withdrawn_s = 10.0
        """How long a scheduler may still allocate devices of slices that are gone, in seconds."""
        self.list_s = 5.0
        """Seconds between two looks at the claims of the cluster while the node waits to leave."""
        self._allocated: frozenset[str] | None = frozenset()
        """The names of the claims that are allocated here; None: not known."""

    def __repr__(self) -> str:
        return f"<DraWay: {self._dra!r}>"

    @property
    def holders(self) -> frozenset[str]:
        """The names of the claims that hold devices here, or may come to hold some."""
        prepared = frozenset(f"claim {claim}" for claim in self._dra.claims.prepared.value.values())
        if self._allocated is None:
            return prepared or frozenset({UNKNOWN})
        return prepared | self._allocated

    @property
    def device_ids(self) -> frozenset[str]:
        """What prepared claims hold in the ledger."""
        return frozenset().union(*(claim.device_ids for claim in self._dra.claims.prepared.value.values()))

    async def take_over(self, *, served: bool) -> None:
        """Find out what claims hold already; `served`: the previous agent served this way."""
        await self._dra.recover()
        if served:
            self._allocated = None

    def serve(self, *, closing: bool) -> None:
        """Serve, and offer GPUs unless the way is to be left."""
        if closing is not self.closing.value:
            self.closing.set(closing)
        self._offer()

    async def run(self) -> NoReturn:
        """Serve until cancelled."""
        self._allocated = None
        self._coexistence.look()
        self._offer()
        self._begun()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._dra.run(), name="DRA driver")
            tasks.create_task(self._coexistence.others.follow(self._others_changed), name="follow other plugins")
            tasks.create_task(self._leave(), name="look who would have to end")
            tasks.create_task(self._tell_ready(), name="tell that claims are served")
            tasks.create_task(self._read_records(), name="look who holds GPUs otherwise")
        raise AssertionError  # pragma: no cover (the tasks never return)

    def _offer(self) -> None:
        self._dra.offer(offering=not self.closing.value and not self._coexistence.others.value)

    def _others_changed(self, _new: object) -> None:
        self._reports.not_alone(self._coexistence.others.value)
        self._offer()

    async def _tell_ready(self) -> None:
        published = self._dra.slices.published
        while self._dra.unmet():  # a registration is no change of the slices
            await within(0.5, published.after(published.version))
        self._ready()

    async def _read_records(self) -> NoReturn:
        """Read the kubelet's records again while a container holds a GPU through a resource that is not ours."""
        while True:
            await asyncio.sleep(self._reconciler.interval_s)
            ledger = self._state.node.ledger
            if ledger.foreign or not ledger.certain:
                await self._reconciler.prepare()

    async def _leave(self) -> NoReturn:
        """While the way is to be left, find the claims that are allocated here and not prepared yet."""
        since: float | None = None
        while True:
            if not self.closing.value:
                since, self._allocated = None, None
                await self.closing.after(self.closing.version)
                continue
            if not self._dra.withdrawn:
                since = None
            elif since is None:
                since = time.monotonic()
            elif time.monotonic() - since >= self.withdrawn_s:
                found = await self._dra.claims_allocated()
                self._allocated = None if found is None else frozenset(f"claim {name}" for name in found)
                self._changed()
            await within(min(self.list_s, self.withdrawn_s), self.closing.after(self.closing.version))
