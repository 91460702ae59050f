"""What an agent saves of guarantees counts for the next agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpu_device_plugin.features.elastic.guarantees import SavedGuarantees
from gpu_device_plugin.node.rules.ledger import Reservation

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


GROWN = {
    ("uid-a", "main"): Reservation("GPU-a", 3, frozenset({"GPU-a::0", "GPU-a::1"})),
    ("uid-a", "side"): Reservation("GPU-a", 1, frozenset({"GPU-a::2"})),
}


def test_the_next_agent_knows_what_is_guaranteed_beyond_requests(folder: Path) -> None:
    assert SavedGuarantees(folder).save(GROWN)
    assert SavedGuarantees(folder).load() == GROWN
    assert SavedGuarantees(folder).save({})
    assert SavedGuarantees(folder).load() == {}


def test_a_node_on_which_nothing_ever_grew_has_no_such_file(folder: Path) -> None:
    assert SavedGuarantees(folder).load() == {}
    assert SavedGuarantees(folder).save({})
    assert not (folder / "gpushare" / "guarantees").exists()


@pytest.mark.parametrize("text", ["[", "[1]", '[["a","b","c","d",[]]]', "{}x", "[[" * 5000])
def test_a_damaged_file_guarantees_nothing(folder: Path, text: str) -> None:
    (folder / "gpushare" / "guarantees").write_text(f"{text}\n")
    saved = SavedGuarantees(folder)
    assert saved.load() == {}
    assert saved.save(GROWN)
    assert SavedGuarantees(folder).load() == GROWN


def test_what_cannot_be_saved_is_said(folder: Path) -> None:
    saved = SavedGuarantees(folder)
    (folder / "gpushare").rmdir()
    assert not saved.save(GROWN)
    (folder / "gpushare").mkdir()
    assert saved.save(GROWN)
    assert saved.save(GROWN)
