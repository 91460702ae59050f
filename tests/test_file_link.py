"""The two files by which an agent and a helper program meet, whatever becomes of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_device_plugin.features.limits.contract import LIMIT_FILES
from gpu_device_plugin.features.mps.contract import MPS_FILES, STATE_FILE, WANTED_FILE, MpsGpu, MpsStatus
from gpu_device_plugin.file_link import FileLink, HelperLink
from tests.patience import beside, eventually

NOW_S = 1000.0
WORDS = "the helper", "no helper", "no directory", "silent", 10.0, ": mount it"
A = "GPU-a"
READY = {A: MpsGpu(MpsStatus.READY)}


@dataclass
class Meeting:
    """An agent's end, a helper's end, and their directory."""

    directory: Path
    now_s: float = NOW_S
    agent: FileLink[Mapping[str, int], Mapping[str, MpsGpu]] = field(init=False)
    helper: HelperLink[Mapping[str, int], Mapping[str, MpsGpu]] = field(init=False)

    def __post_init__(self) -> None:
        self.agent_starts()
        self.helper = HelperLink(self.directory, MPS_FILES, lambda: self.now_s)

    def agent_starts(self) -> None:
        """Replace the agent by its successor."""
        self.agent = FileLink(self.directory, MPS_FILES, lambda: self.now_s, *WORDS)
        self.agent.take_up()

    def hears(self) -> Mapping[str, int] | None:
        """Return what the helper takes for wanted now."""
        self.helper.read()
        return self.helper.wanted

    @property
    def wanted(self) -> Path:
        return self.directory / WANTED_FILE


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path)


def test_each_end_reads_what_the_other_writes(meeting: Meeting) -> None:
    meeting.agent.want({A: 4})
    assert meeting.hears() == {A: 4}
    meeting.helper.write(READY)
    assert meeting.agent.read_state() == READY


@pytest.mark.parametrize(
    ("beat_s", "runs"),
    [(NOW_S, True), (990.0, True), (989.9, False), (1000.1, False), (1009.0, False), (5000.0, False)],
)
def test_a_helper_without_a_beat_no_longer_runs(meeting: Meeting, beat_s: float, *, runs: bool) -> None:
    """A beat of the future, be it by little, is of before the machine started: the clock begins anew with it."""
    meeting.now_s = beat_s
    meeting.helper.write({})
    meeting.now_s = NOW_S
    assert meeting.agent.read_state() == ({} if runs else "silent")
    assert meeting.agent.last == {}


def test_a_helper_falls_silent_although_its_file_stays_the_same(meeting: Meeting) -> None:
    meeting.helper.write(READY)
    assert meeting.agent.read_state() == READY
    meeting.now_s += 10.1
    assert meeting.agent.read_state() == "silent"


def test_the_reason_why_there_is_no_state_is_the_one_that_helps(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path / "not-mounted")
    assert meeting.agent.read_state() == "no directory"
    meeting.directory.mkdir()
    assert meeting.agent.read_state() == "no helper"
    path = meeting.directory / STATE_FILE
    path.mkdir()
    assert str(meeting.agent.read_state()).startswith(f"{path} cannot be read: ")
    path.rmdir()
    path.write_text("{", encoding="utf-8")
    assert str(meeting.agent.read_state()).startswith("state.json cannot be parsed: ")
    meeting.helper.write(READY)
    assert meeting.agent.read_state() == READY


def test_what_is_wanted_is_written_only_when_it_changes(meeting: Meeting) -> None:
    meeting.agent.want({A: 4})
    written = meeting.wanted.stat()
    meeting.agent.want({A: 4})
    assert meeting.wanted.stat() == written


def test_where_nothing_was_ever_wanted_and_no_helper_ran_there_is_no_file(meeting: Meeting) -> None:
    meeting.agent.want({})
    assert not meeting.wanted.exists()


def test_a_file_that_was_removed_or_replaced_is_written_anew(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    meeting.agent.want({A: 4})
    for harm in (meeting.wanted.unlink, lambda: meeting.wanted.write_text("{}", encoding="utf-8")):
        harm()
        meeting.agent.want({A: 4})
        assert meeting.hears() == {A: 4}
    assert caplog.messages == [f"{meeting.wanted} was removed or replaced, and is written again"] * 2


def test_the_next_agent_begins_with_what_was_wanted(meeting: Meeting) -> None:
    meeting.agent.want({A: 4})
    meeting.agent_starts()
    assert meeting.agent.wanted == {A: 4}


def test_a_helper_hears_that_nothing_is_wanted_though_the_file_was_removed_between_two_agents(meeting: Meeting) -> None:
    """Without a file it goes on with what was wanted before."""
    meeting.agent.want({A: 4})
    assert meeting.hears() == {A: 4}
    meeting.helper.write(READY)
    meeting.wanted.unlink()
    assert meeting.hears() == {A: 4}
    assert "is gone, and nothing changes until the agent writes it again" in meeting.helper.refused
    meeting.agent_starts()
    meeting.agent.want({})
    assert (meeting.hears(), meeting.helper.refused) == ({}, "")


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b'{"version":2,"gpus":{}}'])
def test_a_file_that_nobody_can_read_changes_nothing_and_is_written_anew(meeting: Meeting, content: bytes) -> None:
    meeting.agent.want({A: 4})
    assert meeting.hears() == {A: 4}
    meeting.wanted.write_bytes(content)
    assert meeting.hears() == {A: 4}
    assert "wanted.json cannot be used, and nothing changes until it can" in meeting.helper.refused
    meeting.agent_starts()
    assert meeting.agent.unwritten
    meeting.agent.want({})
    assert (meeting.hears(), meeting.helper.refused, meeting.agent.unwritten) == ({}, "", "")


def test_a_helper_that_starts_beside_a_file_that_it_cannot_read_knows_of_nothing(meeting: Meeting) -> None:
    meeting.wanted.write_text("{", encoding="utf-8")
    assert meeting.hears() is None


def test_a_file_that_cannot_be_written_has_its_reason_once(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    meeting.wanted.mkdir()
    for _ in range(2):
        meeting.agent.want({A: 4})
    assert meeting.agent.unwritten == f"the agent cannot write {meeting.wanted} (Is a directory): mount it"
    assert caplog.messages == ["the helper cannot be told what is wanted"]
    meeting.wanted.rmdir()
    meeting.agent.want({A: 4})
    assert (meeting.agent.unwritten, meeting.hears()) == ("", {A: 4})


async def test_a_state_is_written_when_it_changes_and_not_before_it_is_known(meeting: Meeting) -> None:
    states: list[Mapping[str, MpsGpu]] = []
    async with beside(meeting.helper.publish(lambda: states[-1] if states else None, 3600.0)):
        await asyncio.sleep(0)
        assert not (meeting.directory / STATE_FILE).exists()
        states.append(READY)
        meeting.helper.changed.set()
        await eventually(lambda: meeting.agent.read_state() == READY)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"version": 1, "gpus": {"GPU-a": 4096}}', {A: 4096}),
        ('{"version": 1, "gpus": {}, "of the next version": [1]}', {}),
    ],
)
def test_what_another_version_wants_of_mps_is_understood(text: str, wanted: Mapping[str, int]) -> None:
    assert MPS_FILES.read_wanted(text) == wanted


def test_what_another_version_says_of_limits_is_understood() -> None:
    """With spaces, as versions up to 0.2.0 write it, and with keys that a later one may add."""
    key = f'"pod_uid": "{"a" * 32}", "container_id": "{"c" * 64}", "uuid": "GPU-a"'
    limits = f'"limits": [{{{key}, "hard_mib": 2, "soft_mib": 1, "why": "no", "new": null}}]'
    state, beat_s = LIMIT_FILES.read_state(f'{{"version": 1, "beat": 12, {limits}, "new": {{}}}}')
    assert [(each.limit, each.why) for each in state.outcomes.values()] == [((2, 1), "no")]
    assert "of a version that knows no dmem" in state.dmem
    assert beat_s == 12.0
