"""The believed health of a GPU after each kind of observation."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_device_plugin.node.rules.gpu_health import (
    Cause,
    Cleared,
    Gone,
    GpuHealth,
    HealthRules,
    Observation,
    Probe,
    Unwatched,
    Xid,
    change,
    judge,
    step,
)
from gpu_device_plugin.node.rules.xids import XIDS, Verdict

GPU = "GPU-a"
GOOD = Probe(GPU, ecc_uncorrected=0, remap_pending=False, remap_failed=False, recovery_action=0)
OLD_DRIVER = Probe(GPU)  # reports neither ECC, rows nor recovery action
LOST = Probe(GPU, error="GPU is lost (15)", lost=True)
UNREADABLE = Probe(GPU, error="Unknown Error (999)")


def after(*observations: Observation, rules: HealthRules | None = None, health: GpuHealth | None = None) -> GpuHealth:
    health = health or GpuHealth()
    for observation in observations:
        health = step(health, observation, rules or HealthRules())
    return health


def causes(health: GpuHealth) -> list[Cause]:
    return [problem.cause for problem in health.problems]


def test_a_gpu_is_healthy_until_an_observation_contradicts() -> None:
    assert GpuHealth().healthy
    assert GpuHealth().reasons == ()
    assert after(GOOD, GOOD).healthy


@pytest.mark.parametrize("bad", [LOST, UNREADABLE, Gone(GPU), Xid(GPU, 79)])
def test_b9_a_gpu_that_did_not_answer_is_healthy_after_three_good_readings(bad: Observation) -> None:
    assert not after(GOOD, bad).healthy
    assert not after(GOOD, bad, GOOD, GOOD).healthy
    assert after(GOOD, bad, GOOD, GOOD, GOOD).healthy


def test_b9_a_bad_reading_in_between_restarts_the_count() -> None:
    assert not after(LOST, GOOD, GOOD, LOST, GOOD, GOOD).healthy
    assert after(LOST, GOOD, GOOD, LOST, GOOD, GOOD, GOOD).healthy


def test_b9_good_readings_alone_never_end_a_fatal_xid() -> None:
    """A GPU can be read perfectly well after an XID 48; HAMi once treated that as recovery."""
    health = after(OLD_DRIVER, Xid(GPU, 48), *[OLD_DRIVER] * 100)
    assert causes(health) == [Cause.FATAL_XID]
    (reason,) = health.reasons
    assert reason == (
        "XID 48 (uncorrectable (double bit) memory error); this driver does not report its end: reset the GPU, "
        "then pause and resume or restart the agent"
    )


def test_b9_a_fatal_xid_ends_when_the_driver_asks_for_nothing_in_three_readings() -> None:
    asking = replace(GOOD, recovery_action=1)
    before = after(GOOD, Xid(GPU, 48), asking, asking, asking, GOOD, GOOD)
    assert causes(before) == [Cause.FATAL_XID, Cause.RECOVERY_ACTION]
    assert after(GOOD, health=before).healthy


@pytest.mark.parametrize(
    "reset",
    [
        pytest.param(Gone(GPU), id="it went away and came back"),
        pytest.param(Cleared(GPU), id="a person says so"),
        pytest.param(Probe(GPU, ecc_uncorrected=0), id="its error counter, 2 before, is put back"),
    ],
)
def test_b9_a_fatal_xid_ends_with_good_readings_once_the_gpu_was_reset(reset: Observation) -> None:
    counting = Probe(GPU, ecc_uncorrected=2)
    afterwards = Probe(GPU, ecc_uncorrected=0)
    health = after(counting, Xid(GPU, 95), counting, counting, counting, reset)
    assert not health.healthy
    assert "it was reset, and" in " ".join(health.reasons)
    assert after(afterwards, afterwards, afterwards, health=health).healthy


def test_an_xid_after_the_reset_is_a_new_problem() -> None:
    health = after(Xid(GPU, 48), Cleared(GPU), OLD_DRIVER, Xid(GPU, 48), *[OLD_DRIVER] * 5)
    assert causes(health) == [Cause.FATAL_XID]


def test_different_fatal_xids_are_different_problems_and_the_same_one_is_one() -> None:
    health = after(Xid(GPU, 95), Xid(GPU, 48), Xid(GPU, 95))
    assert [problem.what[:6] for problem in health.problems] == ["XID 48", "XID 95"]


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69, 94])
def test_b8_an_xid_of_the_application_takes_no_gpu_away(code: int) -> None:
    assert after(GOOD, Xid(GPU, code)).healthy


@pytest.mark.parametrize("code", [48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 54, 151])
def test_b8_a_serious_xid_takes_the_gpu_away(code: int) -> None:
    assert not after(GOOD, Xid(GPU, code)).healthy


def test_b8_an_unknown_code_makes_the_gpu_unhealthy_until_the_driver_asks_for_no_action() -> None:
    assert 999 not in XIDS
    health = after(GOOD, Xid(GPU, 999))
    assert health.reasons == ("XID 999 (unknown to this version); it returns to service after recovery",)
    assert after(GOOD, GOOD, GOOD, health=health).healthy


def test_b8_the_table_can_be_overruled_both_ways() -> None:
    rules = HealthRules(ignored_xids=frozenset({109}), fatal_xids=frozenset({13}))
    assert after(Xid(GPU, 109), rules=rules).healthy
    assert not after(Xid(GPU, 13), rules=rules).healthy
    assert judge(13, rules).meaning == judge(13).meaning
    assert (judge(13, rules).verdict, judge(109, rules).verdict) == (Verdict.RESET, Verdict.INFORMATION)


def test_b15_a_pending_row_remap_is_advice_unless_configured_otherwise() -> None:
    pending = replace(GOOD, remap_pending=True)
    health = after(pending)
    assert health.healthy
    assert health.notes == ("memory rows wait for replacement: drain the GPU and reset it when convenient",)

    strict = HealthRules(remap_pending_is_fatal=True)
    assert causes(after(pending, pending, GOOD, GOOD, rules=strict)) == [Cause.REMAP_PENDING]
    assert after(pending, pending, GOOD, GOOD, GOOD, rules=strict).healthy


def test_b15_a_failed_row_remap_takes_the_gpu_away_until_it_is_gone() -> None:
    failed = replace(GOOD, remap_failed=True)
    health = after(failed, failed, failed)
    assert health.reasons == (
        "a damaged memory row could not be replaced; reset the GPU, and replace it if that does not help",
    )
    assert not after(OLD_DRIVER, OLD_DRIVER, OLD_DRIVER, health=health).healthy
    assert after(GOOD, GOOD, GOOD, health=health).healthy


def test_b15_uncorrectable_errors_are_noted_and_judged_by_their_xids() -> None:
    health = after(replace(GOOD, ecc_uncorrected=3))
    assert health.healthy
    assert health.notes == ("3 uncorrectable memory errors since the last reset",)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (1, "the driver asks for a reset of the GPU"),
        (2, "the driver asks for a reboot of the node"),
        (4, "the driver asks for the GPU to be drained and reset"),
        (42, "the driver asks for recovery action 42"),
        (-1, "the driver asks for the recovery that its vendor describes"),
    ],
)
def test_a_gpu_with_a_recovery_action_is_not_offered(action: int, what: str) -> None:
    health = after(replace(GOOD, recovery_action=action))
    assert health.reasons == (f"{what}; it returns to service after that",)
    assert after(GOOD, GOOD, GOOD, health=health).healthy


def test_a_recovery_that_only_an_event_asked_for_ends_when_the_gpu_was_lost_and_is_back() -> None:
    """A driver that has no file for it tells it once; the GPU is lost while its driver is bound anew."""
    silent = replace(GOOD, recovery_action=None)
    asked = after(replace(GOOD, recovery_action=1), *[silent] * 9)
    assert causes(asked) == [Cause.RECOVERY_ACTION]
    assert not after(LOST, silent, silent, health=asked).healthy
    assert after(LOST, silent, silent, silent, health=asked).healthy
    assert causes(after(LOST, *[replace(GOOD, recovery_action=1)] * 3, health=asked)) == [Cause.RECOVERY_ACTION]
    assert not after(UNREADABLE, *[silent] * 9, health=asked).healthy


def test_an_imex_domain_in_trouble_is_advice() -> None:
    health = after(replace(GOOD, recovery_action=5))
    assert (health.healthy, health.notes) == (True, ("recover the IMEX domain",))


def test_b11_an_unwatched_gpu_is_not_offered_until_the_next_good_reading() -> None:
    health = after(GOOD, Unwatched(GPU, "it could not be read for 60 s"))
    assert health.reasons == ("it could not be read for 60 s; it returns to service once it can be read",)
    assert after(GOOD, health=health).healthy
    assert not after(LOST, health=health).healthy


def test_every_change_has_a_sentence_with_its_reason() -> None:
    healthy, lost = after(GOOD), after(GOOD, LOST)
    assert change(healthy, healthy) is None
    assert change(lost, after(Xid(GPU, 48), health=lost)) is None
    assert change(healthy, lost) == "unhealthy: GPU is lost (15); it returns to service once it answers reliably"
    assert change(lost, healthy) == "healthy again (GPU is lost (15): it answers again)"
    two = after(Gone(GPU), health=after(Xid(GPU, 48), GOOD))
    assert change(two, healthy) == (
        "healthy again (the driver no longer finds it: it answers again; "
        "XID 48 (uncorrectable (double bit) memory error): it was reset)"
    )


# Properties

ecc_counts = st.none() | st.integers(0, 3)
probes = st.builds(
    Probe,
    uuid=st.just(GPU),
    error=st.none() | st.just("no"),
    lost=st.booleans(),
    ecc_uncorrected=ecc_counts,
    remap_pending=st.none() | st.booleans(),
    remap_failed=st.none() | st.booleans(),
    recovery_action=st.none() | st.integers(0, 9),
)
codes = st.integers(1, 200)
observations = (
    probes
    | st.builds(Xid, uuid=st.just(GPU), code=codes)
    | st.just(Gone(GPU))
    | st.just(Unwatched(GPU, "nobody watches"))
    | st.just(Cleared(GPU))
)
histories = st.lists(observations, max_size=12)
harmless = st.sampled_from(
    sorted(code for code, xid in XIDS.items() if xid.verdict in {Verdict.APPLICATION, Verdict.INFORMATION})
)


@given(histories, harmless)
def test_a_harmless_xid_never_changes_the_belief(history: list[Observation], code: int) -> None:
    health = after(*history)
    assert after(Xid(GPU, code), health=health) == health


@given(histories)
def test_three_good_readings_after_a_reset_end_every_problem(history: list[Observation]) -> None:
    assert after(*history, Cleared(GPU), GOOD, GOOD, GOOD).healthy


@given(histories, observations)
def test_observing_the_same_fault_twice_is_observing_it_once(history: list[Observation], seen: Observation) -> None:
    """Two processes may report one event."""
    if isinstance(seen, Probe):
        seen = LOST
    once = after(*history, seen)
    assert after(seen, health=once) == once


@given(histories, codes, codes)
def test_the_order_of_two_xids_does_not_matter(history: list[Observation], one: int, other: int) -> None:
    assert after(*history, Xid(GPU, one), Xid(GPU, other)) == after(*history, Xid(GPU, other), Xid(GPU, one))


@given(histories)
def test_the_belief_does_not_grow_with_time(history: list[Observation]) -> None:
    assert after(*history * 20).problems == after(*history * 40).problems
