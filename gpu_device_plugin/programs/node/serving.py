"""Serve the kubelet while there are GPUs to share and nobody else hands them out."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from gpu_device_plugin.kubelet.life import Lives
    from gpu_device_plugin.programs.node.coexistence import Coexistence
    from gpu_device_plugin.programs.node.reconciler import Reconciler
    from gpu_device_plugin.programs.node.reports import Reports

_log = logging.getLogger(__name__)


async def serve_while_alone(lives: Lives, reconciler: Reconciler, coexistence: Coexistence, reports: Reports) -> None:
    """Keep our resources registered, and our ledger true, whenever we are alone; say so when we are not. Never ends."""
    coexistence.look()  # before the first registration, whichever task ran first
    serving: asyncio.Task[NoReturn] | None = None
    refused = False
    async with asyncio.TaskGroup() as tasks:
        async for others in coexistence.others.values():
            reports.not_alone(others)
            if others and serving is not None:
                serving.cancel()
                await asyncio.wait({serving})
                serving = None
            elif not others and serving is None:
                if refused:
                    _log.info("GPUs are shared: nobody else hands them out any more")
                serving = tasks.create_task(_serve(lives, reconciler), name="offer and reconcile")
            refused = bool(others)


async def _serve(lives: Lives, reconciler: Reconciler) -> NoReturn:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(lives.run(), name="plugins")
        tasks.create_task(reconciler.run(), name="reconcile")
    raise AssertionError  # pragma: no cover (the tasks never return)
