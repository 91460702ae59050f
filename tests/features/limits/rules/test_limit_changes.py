"""Which limits of running containers are changed, when, and what is said of one that cannot be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.features.limits.contract import LimitKey, LimitOutcome, LimitsState, MemoryLimit
from gpu_device_plugin.features.limits.rules import helper_limits as setting
from gpu_device_plugin.features.limits.rules import running_limits as running
from gpu_device_plugin.features.limits.rules.dmem_limits import NOT_YET
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.model.limits import Enforcement
from gpu_device_plugin.model.pods import Pod

UID = "0f0e0d0c-1111-2222-3333-0123456789ab"
C, D = "c" * 64, "d" * 64
A, B = "GPU-a", "GPU-b"
KEY, OTHER = LimitKey(UID, C, A), LimitKey(UID, D, A)
FOUR, SIX = MemoryLimit(4096), MemoryLimit(6144)
PLACE = (UID, "main", A)


def pod(**running: str) -> Pod:
    return Pod(UID, "default", "p", container_ids=running)


HOLDING = ContainerGpus(UID, "main", {A: 4096}, enforcement=Enforcement.DRIVER, pod=pod(main=C), limits={A: 12288})


# --- In the limit helper ----------------------------------------------------------------------------------------------


def test_a_new_limit_and_a_changed_one_are_set_at_once() -> None:
    assert setting.due({KEY: FOUR, OTHER: FOUR}, {}, 0.0) == (KEY, OTHER)
    done = {KEY: setting.attempted(FOUR, "", None, 0.0)}
    assert setting.due({KEY: FOUR}, done, 1.0) == ()
    assert setting.due({KEY: SIX}, done, 1.0) == (KEY,)
    failed = {KEY: setting.attempted(FOUR, "no", None, 0.0)}
    assert setting.due({KEY: SIX}, failed, 0.1) == (KEY,)


def test_a_limit_that_was_set_is_read_again_later() -> None:
    done = {KEY: setting.attempted(FOUR, "", None, 10.0)}
    assert setting.due({KEY: FOUR}, done, 10.0 + setting.CHECK_S - 0.1) == ()
    assert setting.due({KEY: FOUR}, done, 10.0 + setting.CHECK_S) == (KEY,)


def test_failures_are_repeated_ever_later() -> None:
    attempt, pauses = None, []
    for _ in range(9):
        attempt = setting.attempted(FOUR, "no", attempt, 100.0)
        pauses.append(attempt.due_s - 100.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert setting.attempted(SIX, "no", attempt, 100.0).due_s == 101.0  # another limit may be taken
    assert setting.attempted(FOUR, "", attempt, 100.0) == setting.Attempt(LimitOutcome(FOUR), 160.0)
    assert setting.attempted(FOUR, "no", setting.attempted(FOUR, "", None, 0.0), 1.0).failures == 1


@given(st.dictionaries(st.sampled_from([KEY, OTHER]), st.sampled_from([FOUR, SIX])), st.floats(0, 1e6))
def test_what_was_attempted_now_is_not_due_now(wanted: dict[LimitKey, MemoryLimit], now_s: float) -> None:
    attempts = {key: setting.attempted(limit, "no", None, now_s) for key, limit in wanted.items()}
    assert setting.due(wanted, attempts, now_s) == ()


@pytest.mark.parametrize(
    ("code", "hard_mib", "why"),
    [
        (0, 4096, ""),
        (0, 8192, "the driver took a limit of 4096 MiB, and has 8192 MiB when it is read back"),
        (0, None, "the driver took a limit of 4096 MiB, and has none when it is read back"),
        (3, None, "does not limit memory on this GPU or in this cgroup (NVML: not supported)"),
        (4, None, "only callers with CAP_SYS_ADMIN set limits (NVML: no permission)"),
        (6, None, "CONFIG_CGROUP_DMEM"),
        (13, None, "the driver has no memory limits, which come with r615"),
        (999, None, "the driver fails to set the limit (NVML: error 999)"),
    ],
)
def test_what_was_read_back_says_whether_the_limit_is_set(code: int, hard_mib: int | None, why: str) -> None:
    said = setting.why_not_set(FOUR, code, hard_mib)
    assert why in said
    assert bool(said) == bool(why)


# --- In the agent -----------------------------------------------------------------------------------------------------


def test_the_limit_now_of_a_running_container_is_wanted() -> None:
    assert running.wanted_limits([HOLDING], {PLACE: 8192}, {}) == {PLACE: (KEY, MemoryLimit(8192))}
    assert running.wanted_limits([HOLDING], {}, {}) == {}
    assert running.wanted_limits([HOLDING], {PLACE: 0}, {}) == {PLACE: (KEY, MemoryLimit(1))}


@pytest.mark.parametrize(
    "changes",
    [
        {"enforcement": Enforcement.MPS},
        {"enforcement": Enforcement.ADVISORY},
        {"enforcement": None},
        {"whole": True},
        {"pod": None},
        {"pod": pod()},
        {"pod": pod(main="no-such-id")},
        {"granted": {"MIG-a": 4096}},
    ],
    ids=str,
)
def test_whom_the_driver_does_not_limit_is_left_alone(changes: dict[str, object]) -> None:
    holder = replace(HOLDING, **changes)  # type: ignore[arg-type]  # fields of it
    places = {(UID, "main", uuid): 8192 for uuid in holder.granted}
    assert running.wanted_limits([holder], places, {}) == {}


def test_a_container_that_may_not_change_any_more_gets_its_own_limit_back() -> None:
    """Its owner has removed the annotation after the limit was lowered."""
    assert running.wanted_limits([HOLDING], {}, {KEY: FOUR}) == {PLACE: (KEY, MemoryLimit(12288))}
    restarted = replace(HOLDING, pod=pod(main=D))
    assert running.wanted_limits([restarted], {}, {KEY: FOUR}) == {}  # a new cgroup has the limit of its start


def test_a_container_that_starts_again_has_a_limit_of_its_own() -> None:
    restarted = replace(HOLDING, pod=pod(main=D))
    assert running.wanted_limits([restarted], {PLACE: 4096}, {KEY: FOUR}) == {PLACE: (OTHER, FOUR)}


def test_the_guarantee_is_the_soft_limit_where_the_setting_says_so() -> None:
    for now_mib, soft_mib in ((8192, 4096), (2048, 2048)):
        (found,) = running.wanted_limits([HOLDING], {PLACE: now_mib}, {}, soft=True).values()
        assert found == (KEY, MemoryLimit(now_mib, soft_mib))


def test_soft_limits_beyond_the_memory_of_a_gpu_are_refused_together() -> None:
    """Whoever writes the file could reserve all of a GPU for good: the driver never takes a soft limit off again."""
    fits = {KEY: MemoryLimit(8192, 4096), OTHER: MemoryLimit(12288, 12288)}
    assert setting.refused_soft_limits(fits, {A: 16384}) == {}
    why = "the soft limits of its GPU are 16384 MiB together, and it has 16383 MiB"
    assert setting.refused_soft_limits(fits, {A: 16383}) == {KEY: why, OTHER: why}
    alone = {KEY: MemoryLimit(1 << 26, 1 << 26), OTHER: MemoryLimit(1 << 26)}
    assert setting.refused_soft_limits(alone, {A: 16384}).keys() == {KEY}, "a hard limit takes nothing from anybody"
    assert setting.refused_soft_limits(alone, {}) == {KEY: setting.NO_GPU}


def test_a_limit_that_is_not_set_has_its_reason() -> None:
    wanted = {PLACE: (KEY, FOUR), (UID, "side", A): (OTHER, FOUR)}
    state = LimitsState({KEY: LimitOutcome(FOUR), OTHER: LimitOutcome(FOUR, "no")})
    assert running.reasons(wanted, state) == {(UID, "side", A): "no"}
    earlier = LimitsState({KEY: LimitOutcome(SIX)})
    assert running.reasons(wanted, earlier) == dict.fromkeys(wanted, NOT_YET)


def test_a_helper_that_does_not_run_is_the_reason_of_all() -> None:
    wanted = {PLACE: (KEY, FOUR)}
    assert running.reasons(wanted, running.SILENT) == {PLACE: running.SILENT}
    assert running.reasons(wanted, running.NOT_THERE) == {PLACE: running.NOT_THERE}
    assert running.reasons({}, running.NOT_THERE) == {}
