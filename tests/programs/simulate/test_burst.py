"""The simulator guarantees pods less than they ask for, and tells by hand-worked recordings what that costs."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gpu_device_plugin.cli import parse
from gpu_device_plugin.features.elastic.rules.reclaiming import shortage_mib
from gpu_device_plugin.features.learning.rules.workload_mix import PodKind
from gpu_device_plugin.features.use.rules.process_use import AttributedUse
from gpu_device_plugin.programs.simulate.burst import Borrower, Replayed, guarantees, replay
from gpu_device_plugin.programs.simulate.model import Recording, Workload
from gpu_device_plugin.programs.simulate.simulate_program import main
from gpu_device_plugin.settings.knobs import UsageError

STEP_S = 300.0
ANSWER = (
    "fit: 3 pods run instead of 1, with a guarantee of what each did not exceed for 75 % of the time; in 4.0 hours "
    "none is evicted, and pods are asked 1 time to return memory"
)
ABOUT = "guarantee: what a pod did not exceed in that fraction of the time; short: fraction of the GPUs' time"


def borrower(guaranteed: int, limit: int, *use: int, priority: int = 0) -> Borrower:
    return Borrower(guaranteed, limit, use, priority)


def test_the_guarantee_is_what_the_pod_did_not_exceed_for_that_part_of_the_time() -> None:
    """Of ten values 90 % are at most 5.2 and half at most 3; whole shares, at least one, no more than it asks for."""
    recording = Recording((1, 2, 3, 3, 3, 4, 4, 5, 5.2, 9))
    workload = Workload((PodKind(8, 1),), (0,), ("a",), (recording,), STEP_S)
    shares = {percent: guarantees(workload, percent)[0].shares for percent in (None, 100, 90, 80, 50, 1)}
    assert shares == {None: 8, 100: 8, 90: 6, 80: 5, 50: 3, 1: 1}
    idle = Workload((PodKind(8, 1),), (0,), ("a",), (Recording((0, 0)),), STEP_S)
    assert guarantees(idle, 100)[0].shares == 1


@pytest.mark.parametrize(
    ("use", "grace_s", "came_of_it"),
    [
        pytest.param((2, 6, 6, 3), 30, Replayed(0, 0, 0), id="it borrows what nobody is guaranteed"),
        pytest.param((2, 7, 3, 7), 30, Replayed(2, 0, 2), id="it returns it by itself, and is asked again"),
        pytest.param((2, 7, 7, 7), 30, Replayed(1, 1, 2), id="it is evicted at the next step"),
        pytest.param((2, 7, 7, 7), 600, Replayed(1, 1, 3), id="after the grace"),
        pytest.param((2, 7, 7, 7), 601, Replayed(1, 0, 3), id="or it has more time than the recording"),
    ],
)
def test_one_pod_borrows(use: tuple[int, ...], grace_s: float, came_of_it: Replayed) -> None:
    """A GPU of 10 has guarantees of 4 and 4, the other pod uses nothing: 2 are spare, and 7 one too many."""
    pods = [borrower(4, 8, *use), borrower(4, 4, 0, 0, 0, 0)]
    assert replay(pods, 10, grace_s, STEP_S) == came_of_it


def test_the_lowest_priority_is_asked_first_and_one_eviction_may_do() -> None:
    """2 are spare, and 5 are borrowed: of the 3 that lack the batch pod returns its 1, the service 2 more.

    The end of the batch pod frees its guarantee of 4, so that the service keeps what it has.
    """
    service, batch = borrower(4, 8, 8, 8, 8, priority=10), borrower(4, 8, 5, 5, 5)
    assert replay([service, batch], 10, 30, STEP_S) == Replayed(asked=2, evicted=1, short=2)


def test_several_are_evicted_at_one_step_where_one_is_not_enough() -> None:
    """Three borrow 3 each of a GPU without any spare memory: two have to go for the third to have 6 of 9."""
    pods = [borrower(3, 6, 6, 6), borrower(3, 6, 6, 6), borrower(3, 6, 6, 6)]
    assert replay(pods, 9, 30, STEP_S) == Replayed(asked=3, evicted=2, short=2)


def test_steps_are_short_by_the_rule_of_the_agent() -> None:
    rng = random.Random(28)  # noqa: S311 - the same GPUs every time
    for _ in range(300):
        pods = [borrower(rng.randint(1, 4), 8, rng.randint(0, 8)) for _ in range(rng.randint(1, 5))]
        capacity = rng.randint(sum(pod.guaranteed_mib for pod in pods), 24)
        used = [int(pod.use_mib[0]) for pod in pods]
        uses = [
            AttributedUse(f"{at}", "", "gpu", pod.guaranteed_mib, use, limit_mib=8)
            for at, (pod, use) in enumerate(zip(pods, used, strict=True))
        ]
        assert replay(pods, capacity, 30, STEP_S).short == (shortage_mib(uses, sum(used), capacity) > 0)


# --- The program ------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """Two pods whose use rises at the same time, and one that stays."""
    pods = [
        {"name": "a", "mem": 6, "use": [2, 2, 6, 2]},
        {"name": "b", "mem": 6, "use": [2, 2, 6, 2]},
        {"name": "c", "mem": 6, "use": [2, 2, 2, 2]},
    ]
    path = tmp_path / "use.json"
    path.write_text(json.dumps({"step": "1h", "pods": pods}), encoding="utf-8")
    return str(path)


def simulated(*words: str) -> int:
    return main(parse(["simulate", "--seeds", "1", *words]), {})


def test_the_trade_is_shown_as_a_table(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guaranteed 2 each all three run, and 4 are spare. When two want 4 more, one of them is asked for an hour."""
    assert simulated("--nodes", "mem=10", "--pods", recorded, "--burst", "100,75") == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 node, 1 GPU (10 shares each); 3 pods of 3 kinds; 1 seed",
        "",
        ANSWER,
        "",
        "GUARANTEE          SHARES  RUN  MORE  ASKED  EVICTED   SHORT",
        "as requested          6.0    1     -      0        0   0.0 %",
        "100 % of the time     4.7    2    +1      0        0   0.0 %",
        "75 % of the time      2.0    3    +2      1        0  25.0 %",
        ABOUT,
    ]


def test_machines_get_the_same(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated("--nodes", "mem=10", "--pods", recorded, "--burst", "75", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert (found["seconds"], found["stepSeconds"], found["returnGraceSeconds"]) == (14400, 3600, 30)
    expected: dict[str, Any] = {"percent": 75, "guaranteedShares": 2.0, "run": 3, "asked": 1, "evicted": 0}
    assert found["choices"][1] == {**expected, "short": 0.25}


def test_nothing_is_gained_where_all_pods_run_anyway(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated("--nodes", "mem=20", "--pods", recorded, "--burst") == 0
    assert "fit: no more than 3 pods run without evictions, with any of these" in capsys.readouterr().out


def test_pods_that_come_again_are_not_in_step_with_the_first(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 18 shares asked for 36 come: six pods."""
    words = ("--nodes", "2x mem=10", "--pods", recorded, "--burst", "75", "--until", "180", "-o", "json")
    assert simulated(*words) == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert found["choices"][1]["run"] == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pods", "mem=1", "--burst"), "--burst: the pods have no recorded use"),
        (("--burst", "0"), "--burst: '0' is not a whole number from 1 to 100"),
        (("--burst", ","), "--burst: give percentages"),
        (("--burst", "--until", "rejected"), "--burst: give percentages"),
        (("--burst", "--nodes-needed"), "--burst: give percentages"),
        (("--burst", "--departures", "80"), "--burst: give percentages"),
        (("--burst", "--return-grace", "soon"), "--return-grace: 'soon' is not a duration"),
        (("--burst", "--nodes", "mem=80 mig=1g.10gb*7"), "--burst: MIG instances neither lend nor borrow"),
    ],
)
def test_what_cannot_be_used_is_refused(recorded: str, words: tuple[str, ...], said: str) -> None:
    given = ("--nodes", "mem=10", "--pods", recorded)
    with pytest.raises(UsageError) as error:
        simulated(*given, *words)
    assert str(error.value).startswith(said)


def test_pods_that_fit_nowhere_keep_the_recordings_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "use.yaml"
    path.write_text("step: 5m\npods:\n- {mem: 90, use: [80]}\n- {name: small, mem: 4, use: [1, 2]}\n", encoding="utf-8")
    assert simulated("--nodes", "mem=10", "--pods", str(path), "--burst", "50", "--skip-misfits", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert [each["guaranteedShares"] for each in found["choices"]] == [4, 1]
