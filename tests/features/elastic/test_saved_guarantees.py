"""What an agent saves of guarantees counts for the next agent."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_device_plugin.aio.observable import Observable
from gpu_device_plugin.features.elastic.guarantees import Guarantees
from gpu_device_plugin.node.rules.ledger import Reservation
from tests.node.contexts import context, settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


GROWN = {
    ("uid-a", "main"): Reservation("GPU-a", 3, frozenset({"GPU-a::0", "GPU-a::1"})),
    ("uid-a", "side"): Reservation("GPU-a", 1, frozenset({"GPU-a::2"})),
}


def agent(folder: Path) -> Guarantees:
    """Return the part of an agent that keeps guarantees."""
    given = replace(settings(), device_plugin_dir=folder)
    return Guarantees(context(settings=Observable(given), checkpoint_entries=Observable(())))


async def test_the_next_agent_knows_what_is_guaranteed_beyond_requests(folder: Path) -> None:
    assert await agent(folder)._save(GROWN)
    assert agent(folder)._load() == GROWN
    assert await agent(folder)._save({})
    assert agent(folder)._load() == {}


async def test_a_node_on_which_nothing_ever_grew_has_no_such_file(folder: Path) -> None:
    assert agent(folder)._load() == {}
    assert await agent(folder)._save({})
    assert not (folder / "gpushare" / "guarantees").exists()


@pytest.mark.parametrize("text", ["[", "[1]", '[["a","b","c","d",[]]]', "{}x", "[[" * 5000])
async def test_a_damaged_file_guarantees_nothing(folder: Path, text: str) -> None:
    (folder / "gpushare" / "guarantees").write_text(f"{text}\n")
    saved = agent(folder)
    assert saved._load() == {}
    assert await saved._save(GROWN)
    assert agent(folder)._load() == GROWN


async def test_what_cannot_be_saved_is_said(folder: Path) -> None:
    saved = agent(folder)
    (folder / "gpushare").rmdir()
    assert not await saved._save(GROWN)
    (folder / "gpushare").mkdir()
    assert await saved._save(GROWN)
    assert await saved._save(GROWN)
