"""Hardware that is watched for the length of a test, and can be changed meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.hardware.gpu_health_tracker import HardwareView
from gpu_device_plugin.hardware.monitor import VERSION_FILES, Hardware, MonitorTimings
from tests.patience import patience, stretched

Watching = Callable[..., AbstractAsyncContextManager["WatchedHardware"]]
Describe = Callable[..., "Described"]


class WatchedHardware(Hardware):
    """Hardware that can be waited for."""

    async def until(self, holds: Callable[[HardwareView], object]) -> HardwareView:
        """Wait for a view of which this holds, and return it."""
        async with patience(self):
            async for view in self.view.values():
                if holds(view):
                    return view
        raise AssertionError


class Described:
    """A description in a file, of GPUs that can be changed while they are watched."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = document
        self.write()

    def write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.document))
        fresh.rename(self.path)  # nobody ever reads half a description

    def now(self, gpu: int | None = None, **changes: Any) -> None:
        """Have something happen at once, to one GPU or to the node."""
        event = {"at": 0, **({} if gpu is None else {"gpu": gpu}), **changes}
        self.document.setdefault("events", []).append(event)
        self.write()


@pytest.fixture
def described(tmp_path: Path) -> Describe:
    def describe(gpus: Any = "2xT4", **more: Any) -> Described:
        return Described(tmp_path / "gpus.json", {"gpus": gpus, **more})

    return describe


@pytest.fixture
def quick() -> MonitorTimings:
    """Look often, and give up nothing that is only slow."""
    return MonitorTimings(
        probe_every_s=0.05,
        answer_within_s=stretched(5),
        start_within_s=stretched(20),
        rescan_every_s=0.5,
        rescan_missing_every_s=0.1,
        retry_from_s=0.02,
        retry_to_s=0.1,
        blind_after_s=3600,
        end_within_s=stretched(5),
    )


@pytest.fixture
def watching(tmp_path: Path, quick: MonitorTimings) -> Watching:
    @asynccontextmanager
    async def watch(source: object, **more: Any) -> AsyncIterator[WatchedHardware]:
        files = tuple(tmp_path / path.relative_to("/") for path in VERSION_FILES)
        hardware = WatchedHardware(str(source), **{"timings": quick, "version_files": files, **more})
        run = asyncio.create_task(hardware.run(), name="hardware")
        try:
            yield hardware
        finally:
            run.cancel()
            with suppress(asyncio.CancelledError):
                await run

    return watch


@pytest.fixture
def watched(watching: Watching) -> Watching:
    """Watch hardware whose GPUs have been found."""

    @asynccontextmanager
    async def watch(source: object, **more: Any) -> AsyncIterator[WatchedHardware]:
        async with watching(source, **more) as hardware:
            await hardware.until(lambda view: view.inventory.gpus)
            yield hardware

    return watch
