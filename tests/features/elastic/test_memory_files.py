"""The directory with the file of a container is its own, and is there as long as the container."""

from pathlib import Path

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.elastic import ElasticSettings
from gpu_device_plugin.features.elastic.borrowing import Borrowing
from gpu_device_plugin.features.elastic.contract import MEMORY_DIRECTORY, MEMORY_FILE, MemoryFile
from gpu_device_plugin.features.elastic.memory_files import MemoryFiles, slot
from gpu_device_plugin.features.use.node import Use
from gpu_device_plugin.model.allocations import Allocation
from gpu_device_plugin.model.resources import Kind
from gpu_device_plugin.node.extension import StartRequest
from gpu_device_plugin.node.rules.container_grants import NOBODY, Mount
from tests.memory import read_memory_file
from tests.node.contexts import context
from tests.nodes import ids

IDS, OTHER = frozenset({"GPU-a::1", "GPU-a::2"}), frozenset({"GPU-a::3"})
MEMORY = MemoryFile(2048, 4096, 4096)


def test_a_directory_is_made_and_its_file_replaced_until_the_container_has_ended(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path / "memory")
    folder = tmp_path / "memory" / slot(IDS)
    assert files.make(IDS, MEMORY) == (Mount(str(folder), MEMORY_DIRECTORY),)
    files.update(IDS, MemoryFile(2048, 2048, 4096, 512))
    assert read_memory_file((folder / MEMORY_FILE).read_text()).return_mib == 512
    files.update(OTHER, MEMORY)  # it has none
    assert [each.name for each in (tmp_path / "memory").iterdir()] == [folder.name]
    files.keep([], IDS)  # not in the kubelet's records yet
    files.keep([IDS], ())
    assert folder.exists()
    files.keep([OTHER], ())
    assert not folder.exists()


def test_an_agent_that_starts_anew_knows_directories_by_the_devices_and_touches_nothing_else(tmp_path: Path) -> None:
    MemoryFiles(tmp_path).make(IDS, MEMORY)
    MemoryFiles(tmp_path).make(OTHER, MEMORY)
    (tmp_path / "mps").mkdir()
    MemoryFiles(tmp_path).keep([IDS], ())
    assert {each.name for each in tmp_path.iterdir()} == {slot(IDS), "mps"}


async def test_without_a_directory_there_are_no_files(tmp_path: Path) -> None:
    there = context(
        entries=Observable((Allocation("a", "main", Kind.MEMORY, frozenset(ids(0, [0, 1])), limit_mib=4096),))
    )
    there.features.add(Use(there))
    borrowing = Borrowing(there)
    assert there.settings.value.of(ElasticSettings).memory_dir is None
    assert borrowing.mounts(NOBODY, ids(0, [0, 1])) == ()
    assert await borrowing.before_start(StartRequest(Kind.MEMORY, ids(0, [0, 1]), 0.0)) is None
    borrowing.publish_allowed()
    borrowing.holders_changed(())
    MemoryFiles(tmp_path / "none").keep([], ())


def test_a_file_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert MemoryFiles(tmp_path / "file").make(IDS, MEMORY) == ()
    files = MemoryFiles(tmp_path)
    files.make(IDS, MEMORY)
    (tmp_path / slot(IDS) / MEMORY_FILE).unlink()
    (tmp_path / slot(IDS) / MEMORY_FILE).mkdir()
    files.update(IDS, MemoryFile(1, 1, 1))


def test_a_directory_that_cannot_be_listed_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    MemoryFiles(tmp_path / "file").keep([IDS], ())
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    MemoryFiles(tmp_path / "loop").keep([IDS], ())
