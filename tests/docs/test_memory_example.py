"""The example that follows memory.json, with a program that has only an allocator of numbers."""

import importlib.util
import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin import files
from gpu_device_plugin.features.elastic.contract import IN_CONTAINER, MEMORY_FILE, MemoryFile, write_memory_file
from tests.docs.pages import DOCS, blocks, text_of

SOURCE = DOCS / "examples" / "gpushare_memory.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("gpushare_memory", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(directory: Path, content: MemoryFile | str) -> None:
    """Replace the file as the agent does."""
    text = content if isinstance(content, str) else write_memory_file(content)
    files.replace_below(directory, MEMORY_FILE, text.encode())


class Program:
    """Always uses all that it may: its allocator grows to the limit, and frees what is beyond it."""

    def __init__(self) -> None:
        self.limit_mib = self.used_mib = 0
        self.steps: queue.Queue[tuple[int, bool]] = queue.Queue()

    def changed(self, memory: dict[str, Any]) -> None:
        self.limit_mib = self.used_mib = memory["limit_mib"]
        self.steps.put((self.used_mib, memory["return"] is not None))
        if self.limit_mib == 666:
            raise MemoryError("a tensor that cannot be freed now")

    def next(self) -> tuple[int, bool]:
        return self.steps.get(timeout=60)


@contextmanager
def running(example: Any, directory: Path) -> Iterator[Program]:
    program = Program()
    ended = example.follow(program.changed, str(directory / MEMORY_FILE), every_s=0.01)
    yield program
    ended.set()


def test_a_program_borrows_returns_when_asked_and_borrows_again(example: Any, tmp_path: Path) -> None:
    """Guaranteed 4 GiB, it may use 12, then has to return all 8, and then gets 6 of them back."""
    put(tmp_path, MemoryFile(4096, 12288, 12288))
    with running(example, tmp_path) as program:
        assert program.next() == (12288, False)
        put(tmp_path, MemoryFile(4096, 4096, 12288, 8192, "2026-01-01T00:00:30Z", "team/server"))
        assert program.next() == (4096, True)
        put(tmp_path, MemoryFile(4096, 10240, 12288))
        assert program.next() == (10240, False)
    assert program.steps.empty()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 2, "limit_mib": 5}', '{"version": 1}', "\x00"])
def test_a_file_that_cannot_be_used_changes_nothing_and_the_next_one_counts(
    example: Any, tmp_path: Path, text: str
) -> None:
    put(tmp_path, MemoryFile(4096, 12288, 12288))
    with running(example, tmp_path) as program:
        assert program.next() == (12288, False)
        put(tmp_path, text)
        assert example.read(str(tmp_path / MEMORY_FILE)) is None
        put(tmp_path, MemoryFile(4096, 4096, 12288))
        assert program.next() == (4096, False)


def test_without_the_file_nothing_is_called_until_there_is_one(example: Any, tmp_path: Path) -> None:
    """A container that was not started by an agent with such files has none."""
    assert example.read(str(tmp_path / MEMORY_FILE)) is None
    with running(example, tmp_path / "later") as program:
        (tmp_path / "later").mkdir()
        put(tmp_path / "later", MemoryFile(4096, 12288, 12288))
        assert program.next() == (12288, False)


def test_an_error_of_the_program_is_printed_and_it_is_told_of_the_next_change(
    example: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, MemoryFile(512, 666, 12288))
    with running(example, tmp_path) as program:
        assert program.next() == (666, False)
        put(tmp_path, MemoryFile(512, 1024, 12288))
        assert program.next() == (1024, False)
    assert "a tensor that cannot be freed now" in capfd.readouterr().err


def test_it_reads_what_the_agent_mounts(example: Any) -> None:
    assert example.PATH == IN_CONTAINER
    memory = json.loads(write_memory_file(MemoryFile(4096, 4096, 12288, 8192, "2026-01-01T00:00:30Z", "team/server")))
    for key in memory.keys() - {"version"}:
        assert key in text_of(SOURCE)


def test_the_recipes_are_python() -> None:
    recipes = [block.text for block in blocks(text_of(DOCS / "recipes.md"), "python")]
    assert len(recipes) == 2
    for recipe in recipes:
        compile(recipe, "recipe", "exec")
        assert "gpushare_memory.follow(changed)" in recipe
