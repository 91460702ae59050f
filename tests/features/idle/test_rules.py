"""A pod is idle after a row of readings that all show it; whatever is not known ends the row."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.idle.rules import Idleness
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading
from gpu_device_plugin.model.pods import Pod

POD = Pod("u", "default", "web", phase="Running")
HOLDING = ContainerGpus("u", "main", {"GPU-0": 4096}, pod=POD)
PAUSE_S = 60.0


def use(used: int | None, percent: int | None, name: str = "main", *, held: bool = True) -> AttributedUse:
    return AttributedUse("u", name, "GPU-0", 4096, used, percent, HOLDING if held else None, POD)


def after(*readings: UseReading, pods: tuple[Pod, ...] = (POD,), below: int = 1) -> Idleness:
    evidence = Idleness()
    for reading in readings:
        evidence = evidence.after(reading, pods, below_percent=below, pause_s=PAUSE_S)
    return evidence


def row(*uses: AttributedUse, at: float = 0.0, every: float = 15.0) -> list[UseReading]:
    return [UseReading(at + index * every, (each,)) for index, each in enumerate(uses)]


def test_a_pod_is_idle_since_the_first_reading_of_the_row() -> None:
    evidence = after(*row(use(500, 0), use(500, 1), use(400, 0), at=100))
    assert evidence.since == {"u": 100}
    assert evidence.idle(30.0) == {"u": 100}
    assert evidence.idle(30.1) == {}


@pytest.mark.parametrize(
    "last",
    [
        use(500, 2),
        use(500, None),
        use(None, 0),
        use(501, 0),
    ],
    ids=["works", "use unknown", "memory unknown", "memory grows"],
)
def test_use_growth_and_what_is_not_known_begin_the_row_anew(last: AttributedUse) -> None:
    evidence = after(*row(use(500, 0), use(500, 0), last))
    assert evidence.since in ({}, {"u": 30.0})
    assert evidence.idle(1.0) == {}
    quiet = evidence.after(UseReading(45.0, (use(501, 0),)), [POD], below_percent=1, pause_s=PAUSE_S)
    assert quiet.since["u"] >= 30.0


def test_a_pod_that_also_uses_a_gpu_of_another_plugin_is_not_idle() -> None:
    quiet = row(use(500, 0), use(500, 0))
    assert after(*(replace(reading, left_out=frozenset({"u"})) for reading in quiet)).since == {}


def test_memory_that_was_freed_and_taken_again_has_grown() -> None:
    assert after(*row(use(500, 0), use(300, 0), use(500, 0))).since == {"u": 30.0}


def test_a_process_that_comes_has_grown_from_nothing() -> None:
    assert after(*row(use(0, 0), use(300, 0))).since == {"u": 15.0}
    assert after(*row(use(0, 0), use(0, 0))).since == {"u": 0.0}


def test_one_busy_container_keeps_its_pod_busy() -> None:
    busy = UseReading(0.0, (use(500, 0), use(100, 40, "side")))
    of_unknown = UseReading(0.0, (use(500, 0), use(100, 40, "", held=False)))
    assert (after(busy).since, after(of_unknown).since) == ({}, {})


@pytest.mark.parametrize(
    "pods",
    [(), (replace(POD, phase="Pending"),), (replace(POD, deleting=True),), (replace(POD, uid="other"),)],
    ids=["unknown", "not started", "ending", "another"],
)
def test_only_running_pods_of_the_api_are_idle(pods: tuple[Pod, ...]) -> None:
    assert after(*row(use(0, 0), use(0, 0)), pods=pods).since == {}


def test_a_pod_that_holds_no_gpu_leaves_none_idle() -> None:
    assert after(*row(use(1, 0, held=False), use(1, 0, held=False))).since == {}


def test_a_static_pod_is_known_by_its_kubelets_uid() -> None:
    mirror = replace(POD, uid="api", static_uid="u")
    assert after(*row(use(0, 0)), pods=(mirror,)).since == {"u": 0.0}


def test_a_pause_without_readings_begins_the_row_anew() -> None:
    kept = after(*row(use(0, 0), use(0, 0), every=PAUSE_S))
    lost = after(*row(use(0, 0), use(0, 0), every=PAUSE_S + 0.1))
    assert (kept.since, lost.since) == ({"u": 0.0}, {"u": PAUSE_S + 0.1})


_USES = st.builds(use, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from([15.0, 61.0]), _USES), min_size=1, max_size=12), st.integers(0, 2))
def test_idle_means_that_every_reading_of_the_row_shows_it(
    steps: list[tuple[float, AttributedUse]], below: int
) -> None:
    """Against the definition: the longest row at the end in which all is known, quiet, without growth and pause."""
    at, readings = 0.0, list[tuple[float, AttributedUse]]()
    for seconds, each in steps:
        at += seconds
        readings.append((at, each))
    since = None
    for index in range(len(readings) - 1, -1, -1):
        now, each = readings[index]
        if each.used_mib is None or each.sm_percent is None or each.sm_percent > below:
            break
        since = now
        if index:
            before = readings[index - 1]
            if now - before[0] > PAUSE_S or each.used_mib > (before[1].used_mib or 0):
                break
    found = after(*[UseReading(moment, (each,)) for moment, each in readings], below=below)
    assert found.since == ({} if since is None else {"u": since})
