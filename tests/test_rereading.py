"""Files of settings are followed however they change, and each text is spoken of once."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.node_features import NODE_SETTINGS
from gpu_device_plugin.lifetime import Rereading
from gpu_device_plugin.settings.node import NodeSettings
from gpu_device_plugin.settings.sources import Sources
from tests.configmap import mount
from tests.patience import patience


class Told:
    """What a program is told: the policy that is wanted, or why it is not."""

    def __init__(self, config: Path | None) -> None:
        sources = Sources(NODE_SETTINGS, {} if config is None else {"config": str(config)}, {})
        self.changes: Observable[tuple[str, ...]] = Observable(())
        self.rereading: Rereading[NodeSettings] = Rereading(
            sources, sources.texts(), take=lambda settings: self.say(settings.policy), refuse=self.say
        )

    @asynccontextmanager
    async def running(self, look_s: float = 600) -> AsyncIterator[None]:
        self.rereading.look_s, self.rereading.settle_s = look_s, 0.01
        task = asyncio.create_task(self.rereading.run())
        await asyncio.sleep(0)  # it watches from its first step on
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def say(self, words: str) -> None:
        self.changes.set((*self.said(), words))

    def said(self) -> tuple[str, ...]:
        return self.changes.value

    async def until(self, *said: str) -> None:
        async with patience(self.changes):
            async for now in self.changes.values():
                if now == said:
                    return


async def test_a_swapped_directory_is_noticed(tmp_path: Path) -> None:
    told = Told(mount(tmp_path / "config", default=""))
    async with told.running():
        mount(tmp_path / "config", default="policy: spread")
        await told.until("spread")
        mount(tmp_path / "config", default="policy: binpack")
        await told.until("spread", "binpack")
    assert told.rereading.seen == Sources(NODE_SETTINGS, {"config": str(tmp_path / "config")}, {}).texts()


async def test_a_file_is_noticed_whether_it_is_written_or_replaced(tmp_path: Path) -> None:
    file, new = tmp_path / "node.yaml", tmp_path / "new"
    file.touch()
    told = Told(file)
    async with told.running():
        file.write_text("policy: spread")
        await told.until("spread")
        new.write_text("policy: binpack")
        new.replace(file)
        await told.until("spread", "binpack")


async def test_what_nobody_tells_of_is_found_by_looking(tmp_path: Path) -> None:
    """A watch goes deaf when its directory is made anew."""
    folder = mount(tmp_path / "config", default="")
    told = Told(folder)
    gone = f"--config: cannot read {folder}: No such file or directory; name a YAML or JSON file, or a directory with"
    async with told.running(look_s=0.02):
        folder.rename(tmp_path / "away")
        await told.until(f"{gone} default.yaml")
        mount(tmp_path / "new", default="policy: spread").rename(folder)
        await told.until(f"{gone} default.yaml", "spread")


async def test_what_changed_before_anybody_watched_is_found_at_once(tmp_path: Path) -> None:
    folder = mount(tmp_path / "config", default="")
    told = Told(folder)
    mount(folder, default="policy: spread")
    async with told.running():
        await told.until("spread")


def test_the_same_text_is_told_once_unless_somebody_asks(tmp_path: Path) -> None:
    folder = mount(tmp_path / "config", default="policy: spread")
    told = Told(folder)
    told.rereading.reread()
    assert told.said() == ()
    told.rereading.reread(anyway=True)
    assert told.said() == ("spread",)
    for text in ("policy: sideways", "policy: sideways", "policy: sideways # still"):
        mount(folder, default=text)
        told.rereading.reread()
    assert len(told.said()) == 3
    shutil.rmtree(folder)
    told.rereading.reread()
    told.rereading.reread()
    assert len(told.said()) == 4
    told.rereading.reread(anyway=True)
    assert len(told.said()) == 5


async def test_without_a_file_there_is_nothing_to_follow() -> None:
    told = Told(None)
    async with told.running(look_s=0):
        for _ in range(20):  # it would look as often as the loop turns
            await asyncio.sleep(0)
    assert told.said() == ()
    told.rereading.reread(anyway=True)
    assert told.said() == ("fit",)
