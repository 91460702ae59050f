"""Records of incidents outlive an agent in private files, a bounded number of them, whatever else lies beside them."""

import os
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_device_plugin.features.history.contract import (
    LARGEST_INCIDENT,
    ContainerHistory,
    Decision,
    GpuHistory,
    Incident,
    IncidentKind,
    IncidentList,
    IncidentProcess,
    IncidentSummary,
    NodeHistory,
)
from gpu_device_plugin.features.history.flight_recorder import IncidentFiles
from gpu_device_plugin.features.history.rules.incidents import MOST_INCIDENTS
from gpu_device_plugin.model.contract.node_use import ContainerUse, GpuUse, NodeUse
from gpu_device_plugin.model.limits import Enforcement, LimitStatus
from gpu_device_plugin.model.telemetry import GpuTelemetry


def named(number: int) -> IncidentSummary:
    return IncidentSummary(f"20261128-1212{number:02}-xid-gpu3", "2026-11-28T12:12:16Z", IncidentKind.XID, "XID 31", 3)


def incident(number: int = 0) -> Incident:
    """Return one with every field."""
    gpu = GpuHistory(
        *(3, "GPU-3", 16, (1, None), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (0, 1), (2, 2)),
        GpuTelemetry("GPU-3", 40),
    )
    held = ContainerUse("n", "p", "c", 3, 4, 5, 6, Enforcement.DRIVER, LimitStatus.HELD, 7, "why")
    return Incident(
        named(number),
        "node",
        NodeHistory("now", 15.0, (gpu,), (ContainerHistory("n", "p", "c", 3, 4, 5, (1, 2), (3, 4), (5, None)),), 1),
        NodeUse("now", {3: GpuUse(1, None)}, (held,)),
        (IncidentProcess(3, 1234, "n", "p", "c", 5, 6),),
        (Decision("now", "GPUError: XID 31"),),
    )


def write(files: IncidentFiles, number: int = 0) -> bool:
    return files.write(named(number), msgspec.json.encode(incident(number)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "gpushare").mkdir()
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Path:
    return root / "gpushare" / "incidents"


def damaged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [name for each in caplog.records for name in vars(each).get("names", ())]


def loaded(root: Path) -> IncidentFiles:
    files = IncidentFiles(root)
    files.load()
    return files


def test_a_record_outlives_its_agent_in_a_private_file(root: Path, folder: Path) -> None:
    assert loaded(root).listing == IncidentList()
    assert write(loaded(root))
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.iterdir())] == [0o700, 0o600]
    files = loaded(root)
    assert files.listing == IncidentList((named(0),))
    assert files.read(named(0).name) == incident()
    assert files.read(named(1).name) is None


def test_the_oldest_makes_room(root: Path, folder: Path) -> None:
    files = loaded(root)
    for number in range(MOST_INCIDENTS + 2):
        assert write(files, number)
    assert len(list(folder.iterdir())) == MOST_INCIDENTS
    assert [each.name for each in files.listing.incidents][::31] == [named(33).name, named(2).name]
    assert loaded(root).listing == files.listing


def test_damaged_files_are_told_not_shown_and_make_room_like_others(
    root: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MOST_INCIDENTS):
        write(loaded(root), number)
    (folder / f"{named(0).name}.json").write_bytes(b"\xff{")
    (folder / f"{named(1).name}.json").write_bytes(msgspec.json.encode(incident(2)))
    (folder / f"{named(3).name}.json").write_bytes(b" " * LARGEST_INCIDENT + b"{}")
    files = loaded(root)
    assert (len(files.listing.incidents), damaged(caplog)) == (29, [named(number).name for number in (0, 1, 3)])
    write(files, 40)
    write(files, 41)
    assert len(files.listing.incidents) == 31
    assert len(list(folder.iterdir())) == MOST_INCIDENTS


def test_links_folders_and_foreign_files_do_no_harm(
    root: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(loaded(root), 9)
    elsewhere = tmp_path / "secret"
    elsewhere.write_bytes(msgspec.json.encode(incident(1)))
    (folder / f"{named(1).name}.json").symlink_to(elsewhere)
    (folder / f"{named(2).name}.json").mkdir()
    os.mkfifo(folder / f"{named(3).name}.json")
    (folder / "notes.txt").write_text("mine")
    (folder / f".{named(4).name}.json.new").write_text("half")
    files = loaded(root)
    assert [each.name for each in files.listing.incidents] == [named(9).name]
    assert damaged(caplog) == [named(number).name for number in (1, 2, 3)]
    for number in range(10, 10 + MOST_INCIDENTS):
        assert write(files, number)
    assert (elsewhere.exists(), (folder / "notes.txt").read_text()) == (True, "mine")
    there = {each.name for each in folder.iterdir()} - {"notes.txt", f"{named(2).name}.json"}
    assert there == {f"{named(number).name}.json" for number in range(10, 10 + MOST_INCIDENTS)}


def test_a_link_in_place_of_the_folder_is_not_followed(
    root: Path, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    folder.symlink_to(tmp_path / "other")
    files = loaded(root)
    assert "cannot be read" in caplog.text
    assert not write(files)
    assert (list((tmp_path / "other").iterdir()), files.listing) == ([], IncidentList())


def test_a_disk_that_takes_nothing_loses_only_the_record_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent's folder is missing, which every kind of failed write looks like."""
    files = loaded(tmp_path)
    assert not write(files)
    assert (files.listing, caplog.messages) == (IncidentList(), ["an incident cannot be recorded"])
    (tmp_path / "gpushare").mkdir()
    assert write(files, 1)


def test_an_old_record_that_cannot_be_removed_stays_in_the_list(root: Path, folder: Path) -> None:
    files = loaded(root)
    for number in range(MOST_INCIDENTS):
        write(files, number)
    oldest = folder / f"{named(0).name}.json"
    oldest.unlink()
    oldest.mkdir()
    assert not write(files, 50)
    assert len(files.listing.incidents) == MOST_INCIDENTS


GOOD = msgspec.json.encode(incident())
DAMAGE = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda at, length, new: GOOD[:at] + new + GOOD[at + length :],
        st.integers(0, len(GOOD)),
        st.integers(0, 40),
        st.binary(max_size=20),
    ),
    st.integers(0, 5000).map(lambda depth: b'{"summary":' + b"[" * depth),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAMAGE)
def test_no_content_of_a_file_keeps_an_agent_from_reading_the_others(root: Path, content: bytes) -> None:
    write(loaded(root), 1)
    (root / "gpushare" / "incidents" / f"{named(0).name}.json").write_bytes(content)
    files = loaded(root)
    shown = [each.name for each in files.listing.incidents]
    assert named(1).name in shown
    found = files.read(named(0).name)
    assert (found is not None) == (named(0).name in shown)
