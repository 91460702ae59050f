"""Keep the node's annotation about the use of its GPUs up to date."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from gpu_device_plugin.aio.within import within
from gpu_device_plugin.core.contract.nodereport import write_node_use
from gpu_device_plugin.core.node.use_notes import SELDOM_S, SOON_S, due_in_s, node_use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from gpu_device_plugin.aio.latest import Latest
    from gpu_device_plugin.core.contract.nodereport import NodeUse
    from gpu_device_plugin.core.model.limits import LimitState
    from gpu_device_plugin.core.model.shares import Shares
    from gpu_device_plugin.core.node.over_use import Excess, Place
    from gpu_device_plugin.core.node.use import UseReading


class UseNotes:
    """Publishes who uses what on the node, with the state of each container's limit."""

    def __init__(
        self,
        reading: Latest[UseReading],
        limits: Latest[Mapping[Place, LimitState]],
        over: Latest[Mapping[Place, Excess]],
        shares: Callable[[], Shares],
        publish: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Combine `reading`, `limits` and `over`; `publish` puts the text on the node, `clock` is in seconds."""
        self._reading = reading
        self._limits = limits
        self._over = over
        self._shares = shares
        self._publish = publish
        self._clock = clock
        self.soon_s = SOON_S
        self.seldom_s = SELDOM_S
        self._changed = asyncio.Event()
        self._written: NodeUse | None = None
        self._written_at = 0.0

    def __repr__(self) -> str:
        return f"<UseNotes: {self._written}>"

    async def run(self) -> NoReturn:
        """Publish until cancelled, see `due_in_s`; nothing before the first reading."""
        await self._reading.after(0)
        async with asyncio.TaskGroup() as tasks:
            for source in (self._reading, self._limits, self._over):
                tasks.create_task(self._follow(source), name="follow the use")
            while True:
                self._changed.clear()
                await within(self._write_if_due(), self._changed.wait())
        raise AssertionError  # pragma: no cover (the tasks never return)

    async def _follow(self, source: Latest[Any]) -> NoReturn:
        version = source.version
        while True:
            version, _ = await source.after(version)
            self._changed.set()

    def _write_if_due(self) -> float:
        """Publish if that is due; return in how many seconds it will be due if nothing changes."""
        now = self._clock()
        epoch = time.time() - time.monotonic()
        use = node_use(self._reading.value, self._limits.value, self._over.value, self._shares(), epoch=epoch)
        due_s = due_in_s(self._written, use, now - self._written_at, self.soon_s, self.seldom_s)
        if due_s == 0.0:
            self._written, self._written_at = use, now
            self._publish(write_node_use(use))
            due_s = due_in_s(use, use, 0.0)
        return due_s
